"""The environments that come with Regimen, by name. Jax-free: an entry is imported when it is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regimen.domains.empowerment.worlds.library import WORLDS
from regimen.errors import nearest


@dataclass(frozen=True)
class EnvEntry:
    """A registered environment."""

    target: Any  # "module:Class", "gym:ID", "gymnax:ID", "PREFIX:NAME" of `FILES`, or a class, factory or instance
    description: str = ""
    gym_id: str | None = None  # the Gymnasium environment whose transitions it equals


@dataclass(frozen=True)
class FileKind:
    """Files that environments are made from: `PREFIX:FILE`."""

    target: str  # "module:callable", which makes the environment from what follows the colon
    what: str  # such a file in words
    file: str  # how help writes it
    description: str
    tuned: bool = False  # whether presets of the family `PREFIX/NAME` fit these as well


FILES: dict[str, FileKind] = {
    "airspace": FileKind(
        "regimen.domains.airspace.env:Airspace",
        "a scenario of the airspace",
        "FILE.json",
        "a scenario of your own; `regimen scenario new` writes one to start from",
        tuned=True,
    ),
    "world": FileKind(
        "regimen.domains.empowerment.worlds.files:load",
        "a map of a world",
        "FILE",
        "a map of your own: rows of Ro, Hu, densities and '.', or YAML with fields as well",
    ),
}
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
    """An environment's name as a folder's: `airspace/head_on` is `head_on`."""
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
    "durotaxis": EnvEntry(
        "regimen.domains.durotaxis.env:Durotaxis", "a colony grows towards stiff ground: each node spawns or is deleted"
    ),
    "durotaxis/ratio": EnvEntry(
        "regimen.domains.durotaxis.env:DurotaxisRatio", "the same colony steered by one number, the share deleted"
    ),
    "network_defense": EnvEntry(
        "regimen.domains.network_defense.env:NetworkDefense", "defend 13 hosts against an intruder"
    ),
    "network_defense/workflow": EnvEntry(
        "regimen.domains.network_defense.env:NetworkDefenseWorkflow", "the same, paid for repairing by a given order"
    ),
    **{
        f"airspace/{name}": EnvEntry(f"airspace:{name}", f"aircraft that must stay apart: {text}")
        for name, text in {
            "head_on": "two towards each other",
            "parallel": "three in trail",
            "t_formation": "two up the stem of a T, one along its arm",
            "canonical_crossing": "four across one point",
            "converging": "four to waypoints close to each other",
            "chase_2x2": "two lanes of two in trail",
            "chase_3p1": "three in trail, one far away",
            "chase_4all": "four in trail",
            "cross_2x2": "two crossings side by side",
            "cross_3p1": "three across one point, one far away",
            "cross_4all": "four across one point, from further away",
            "merge_2x2": "two pairs that merge",
            "merge_3p1": "three that merge, one far away",
            "merge_4all": "four that merge",
            "mixed": "one of the 14 scenarios in each episode",
            "random": "a drawn scenario in each episode",
        }.items()
    },
    **{
        f"world/{name}": EnvEntry(f"world:{name}", f"humans and robots: {entry['description']}")
        for name, entry in WORLDS.items()
    },
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
