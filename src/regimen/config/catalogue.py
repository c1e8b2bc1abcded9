"""The environments by name, Regimen's own and those of domains. Jax-free: one is imported when it is asked for."""

import dataclasses
import re
from pathlib import Path

from regimen.config.domains import EnvEntry, FileKind, domains, load
from regimen.errors import nearest

FILES: dict[str, FileKind] = {prefix: kind for domain in domains().values() for prefix, kind in domain.files.items()}
OTHERS = ", ".join(
    ["gym:ID", "gymnax:ID", "pettingzoo:MODULE", "envpool:ID", "module:factory"]
    + [f"{prefix}:{kind.file}" for prefix, kind in FILES.items()]
)
"""Ids that are no names, for error messages."""


def anchored(env: str) -> str:
    """`PREFIX:FILE` with the file's absolute path, so that a run finds it from every folder; any other id as it is."""
    prefix, _, file = env.partition(":")
    path = Path(file).expanduser()
    return f"{prefix}:{path.resolve()}" if prefix in FILES and path.is_file() else env


def full_name(env: str) -> str | None:
    """The registered name that an environment's name stands for: that very name, the same in other letters
    (`CartPole`), or the only one that ends so (`head_on`). None where there is none, or more than one."""
    if env in ENVS:
        return env
    text = env.lower().replace("-", "_")
    for alike in (lambda name: name.lower() == text, lambda name: name.lower().rpartition("/")[2] == text):
        matches = list(filter(alike, ENVS))
        if matches:
            return matches[0] if len(matches) == 1 else None
    return None


def suggestion(name: str) -> str:
    """The end of an error about an unknown environment whose name is like one of Gymnasium's, in any case and version:
    `; did you mean 'gym:CartPole-v1'?`. Loads Gymnasium."""
    import gymnasium

    root = re.sub(r"-v\d+$", "", name.lower())
    versions = [i for i, spec in gymnasium.registry.items() if i.partition("-v")[0].lower() == root]
    same = [i for i in versions if i.lower() == name.lower()]
    if not versions:
        return nearest(name, ENVS)
    return (
        f"; did you mean 'gym:{same[0] if same else max(versions, key=lambda i: gymnasium.registry[i].version or 0)}'?"
    )


def fields_of(env: str) -> tuple[str, ...]:
    """The fields of a registered native environment, which `--env.KEY` sets; of others nothing. Imports it, and jax."""
    target = ENVS[env].target if env in ENVS else None
    prefix, _, rest = str(target).partition(":")
    if not isinstance(target, str) or prefix in ("gym", "gymnax", "pettingzoo", "envpool"):
        return ()
    made = load(FILES[prefix].target)(rest) if prefix in FILES else load(target)
    return tuple(f.name for f in dataclasses.fields(made) if f.init) if dataclasses.is_dataclass(made) else ()


def folder_name(env: str) -> str:
    """An environment's name as a folder's: `cartpole/positions` is `positions`."""
    return "".join(c if c.isalnum() or c in "._" else "-" for c in env.rsplit("/", 1)[-1])


def entry(target: str, description: str, gym_id: str | None = None) -> EnvEntry:
    """An environment of this package."""
    return EnvEntry(f"regimen.envs.{target}", description, gym_id)


ENVS: dict[str, EnvEntry] = {
    "cartpole": entry("classic.cartpole:CartPole", "balance a pole on a cart", "CartPole-v1"),
    "cartpole/positions": entry(
        "classic.cartpole:CartPolePositions", "the same without velocities: a policy has to remember"
    ),
    "acrobot": entry("classic.acrobot:Acrobot", "swing a two-link arm above the bar", "Acrobot-v1"),
    "mountain_car": entry("classic.mountain_car:MountainCar", "rock a weak car out of a valley", "MountainCar-v0"),
    "mountain_car_continuous": entry(
        "classic.mountain_car:MountainCarContinuous",
        "the same car with a continuous force that costs",
        "MountainCarContinuous-v0",
    ),
    "pendulum": entry("classic.pendulum:Pendulum", "swing a pole up and hold it", "Pendulum-v1"),
    "platform": entry("hybrid.platform:Platform", "run, hop and leap over gaps and past enemies"),
    "moving": entry("hybrid.moving:Moving", "accelerate, turn and brake to stop inside a circle"),
    "sliding": entry("hybrid.moving:Sliding", "the same with inertia"),
    "catch_point": entry("hybrid.catch_point:CatchPoint", "move up to a point and catch it"),
    "hard_move": entry("hybrid.hard_move:HardMove", "reach a target with combinations of n actuators"),
    "goal": entry("hybrid.goal:Goal", "kick a ball past a keeper"),
    "hard_goal": entry("hybrid.goal:HardGoal", "the same with ten shots to choose from"),
    **{name: env for domain in domains().values() for name, env in domain.environments.items()},
    "probe/constant": entry("probe:Constant", "one step, reward 1: the value is 1"),
    "probe/observation": entry("probe:Observation", "one step, the reward is the observation"),
    "probe/two_step": entry("probe:TwoStep", "the reward comes a step later: values gamma and 1"),
    "probe/credit": entry("probe:Credit", "the first action earns the second step's reward"),
    "probe/action": entry("probe:Action", "one step, action 1 pays"),
    "probe/action_box": entry("probe:ActionBox", "one step, pays for being close to 0.5"),
    "probe/match": entry("probe:Match", "one step, pays for repeating the observation"),
    "probe/match_box": entry("probe:MatchBox", "one step, pays for being close to half the observation"),
    "probe/recall": entry("probe:Recall", "the first observation tells what the last action should be"),
    "probe/truncation": entry("probe:Truncation", "reward 1, cut short: the value is 1 / (1 - gamma)"),
    "probe/termination": entry("probe:Termination", "reward 1 for 8 steps, then the task ends"),
    "probe/masked": entry("probe:Masked", "the action that would pay most is not allowed"),
    "probe/team": entry("probe:TeamProbe", "three agents that finish one after the other, under one policy"),
    "probe/multi_discrete": entry("probe:MultiDiscrete", "two choices, each with one right answer"),
    "probe/hybrid": entry("probe:Hybrid", "the right choice of three, and the right amount for it"),
    "probe/dict": entry("probe:DictObservation", "a Box, a Discrete and a MultiBinary part observed"),
    "probe/set": entry("probe:SetProbe", "pays for the sign of the nearest of up to 6 entities in no order"),
    "probe/image": entry("probe:ImageProbe", "bytes of 10 x 10 pixels: does the bar stand or lie"),
    "probe/components": entry("probe:ComponentsProbe", "two reward components, a metric and a success flag"),
    "probe/misleading": entry("probe:Misleading", "a bait that pays more than the task beside it"),
}
