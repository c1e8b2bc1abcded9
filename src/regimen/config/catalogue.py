"""The environments by name, Regimen's own and those of domains. Jax-free: one is imported when it is asked for."""

from __future__ import annotations

from pathlib import Path

from regimen.config.domains import EnvEntry, FileKind, domains
from regimen.errors import nearest

FILES: dict[str, FileKind] = {prefix: kind for domain in domains().values() for prefix, kind in domain.files.items()}
OTHERS = ", ".join(
    ["gym:ID", "gymnax:ID", "pettingzoo:MODULE", "module:factory", *(f"{p}:{k.file}" for p, k in FILES.items())]
)
"""Ids that are no names, for error messages."""


def anchored(env: str) -> str:
    """`PREFIX:FILE` with the file's absolute path, so that a run finds it from every folder; any other id as it is."""
    prefix, _, file = env.partition(":")
    path = Path(file).expanduser()
    return f"{prefix}:{path.resolve()}" if prefix in FILES and path.is_file() else env


def suggestion(name: str) -> str:
    """The end of an error about an unknown environment: `; did you mean 'gym:CartPole-v1'?`. Loads Gymnasium."""
    import gymnasium

    return f"; did you mean 'gym:{name}'?" if name in gymnasium.registry else nearest(name, ENVS)


def folder_name(env: str) -> str:
    """An environment's name as a folder's: `cartpole/positions` is `positions`."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in env.rsplit("/", 1)[-1])


ENVS: dict[str, EnvEntry] = {
    "cartpole": EnvEntry("regimen.envs.classic.cartpole:CartPole", "balance a pole on a cart", "CartPole-v1"),
    "cartpole/positions": EnvEntry(
        "regimen.envs.classic.cartpole:CartPolePositions", "the same without velocities: a policy has to remember"
    ),
    "acrobot": EnvEntry("regimen.envs.classic.acrobot:Acrobot", "swing a two-link arm above the bar", "Acrobot-v1"),
    "mountain_car": EnvEntry(
        "regimen.envs.classic.mountain_car:MountainCar", "rock a weak car out of a valley", "MountainCar-v0"
    ),
    "mountain_car_continuous": EnvEntry(
        "regimen.envs.classic.mountain_car_continuous:MountainCarContinuous",
        "the same car with a continuous force that costs",
        "MountainCarContinuous-v0",
    ),
    "pendulum": EnvEntry("regimen.envs.classic.pendulum:Pendulum", "swing a pole up and hold it", "Pendulum-v1"),
    "platform": EnvEntry("regimen.envs.hybrid.platform:Platform", "run, hop and leap over gaps and past enemies"),
    "moving": EnvEntry("regimen.envs.hybrid.moving:Moving", "accelerate, turn and brake to stop inside a circle"),
    "sliding": EnvEntry("regimen.envs.hybrid.moving:Sliding", "the same with inertia"),
    "catch_point": EnvEntry("regimen.envs.hybrid.catch_point:CatchPoint", "move up to a point and catch it"),
    "hard_move": EnvEntry("regimen.envs.hybrid.hard_move:HardMove", "reach a target with combinations of n actuators"),
    **{name: entry for domain in domains().values() for name, entry in domain.environments.items()},
    "probe/constant": EnvEntry("regimen.envs.probe:Constant", "one step, reward 1: the value is 1"),
    "probe/observation": EnvEntry("regimen.envs.probe:Observation", "one step, the reward is the observation"),
    "probe/two_step": EnvEntry("regimen.envs.probe:TwoStep", "the reward comes a step later: values gamma and 1"),
    "probe/credit": EnvEntry("regimen.envs.probe:Credit", "the first action earns the second step's reward"),
    "probe/action": EnvEntry("regimen.envs.probe:Action", "one step, action 1 pays"),
    "probe/action_box": EnvEntry("regimen.envs.probe:ActionBox", "one step, pays for being close to 0.5"),
    "probe/match": EnvEntry("regimen.envs.probe:Match", "one step, pays for repeating the observation"),
    "probe/match_box": EnvEntry(
        "regimen.envs.probe:MatchBox", "one step, pays for being close to half the observation"
    ),
    "probe/recall": EnvEntry("regimen.envs.probe:Recall", "the first observation tells what the last action should be"),
    "probe/truncation": EnvEntry("regimen.envs.probe:Truncation", "reward 1, cut short: the value is 1 / (1 - gamma)"),
    "probe/termination": EnvEntry("regimen.envs.probe:Termination", "reward 1 for 8 steps, then the task ends"),
    "probe/masked": EnvEntry("regimen.envs.probe:Masked", "the action that would pay most is not allowed"),
    "probe/team": EnvEntry("regimen.envs.probe:Team", "three agents that finish one after the other, under one policy"),
    "probe/multi_discrete": EnvEntry("regimen.envs.probe:MultiDiscrete", "two choices, each with one right answer"),
    "probe/hybrid": EnvEntry("regimen.envs.probe:Hybrid", "the right choice of three, and the right amount for it"),
    "probe/dict": EnvEntry("regimen.envs.probe:DictObservation", "a Box, a Discrete and a MultiBinary part observed"),
    "probe/components": EnvEntry("regimen.envs.probe:Components", "two reward components, a metric and a success flag"),
    "probe/misleading": EnvEntry("regimen.envs.probe:Misleading", "a bait that pays more than the task beside it"),
}
