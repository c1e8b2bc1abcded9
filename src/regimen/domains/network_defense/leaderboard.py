"""The table of the CAGE challenge 2: one agent, three lengths of an episode, three red agents, and the sum of all nine.

The agent is not told which red it meets, nor how long. The challenge plays 100 episodes of each in CybORG; here they
are played natively, and `benchmarks/cage_real.py` plays them in CybORG.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from regimen.domains.network_defense.env import NetworkDefense
from regimen.envs.registry import EnvHandle
from regimen.errors import ConfigError
from regimen.files.storage import Json
from regimen.policies.evaluate import evaluate_policy
from regimen.policies.policy import Policy
from regimen.statistics import t_quantile
from regimen.words import aligned

STEPS = (30, 50, 100)
REDS = ("b_line", "meander", "sleep")
CELLS = tuple((steps, red) for steps in STEPS for red in REDS)
PUBLISHED: Mapping[str, tuple[float, ...]] = {  # as the challenge's README has them, in the order of CELLS
    "CardiffUni (first)": (-3.47, -5.64, 0.0, -6.41, -8.69, 0.0, -13.76, -16.6, 0.0),
    "Keeping it RL (second)": (-3.48, -6.47, 0.0, -5.85, -10.33, 0.0, -11.39, -19.38, 0.0),
    "Mindrake (third)": (-3.53, -6.76, 0.0, -6.2, -10.13, 0.0, -12.78, -17.65, 0.0),
}
TOTALS = {"CardiffUni (first)": -54.57, "Keeping it RL (second)": -56.9, "Mindrake (third)": -57.05}


@dataclass
class LeaderboardTable:
    """Returns of one policy by cell, beside the published means."""

    policy: str
    seed: int
    returns: dict[tuple[int, str], np.ndarray]  # (steps, red) -> [episodes]

    def mean(self, cell: tuple[int, str]) -> float:
        return float(self.returns[cell].mean())

    def error(self, cell: tuple[int, str]) -> float:
        """Standard error of the mean; nan for one episode."""
        x = self.returns[cell]
        return float(x.std(ddof=1)) / math.sqrt(x.size) if x.size > 1 else math.nan

    @property
    def total(self) -> float:
        """The score: the sum of the nine means."""
        return sum(map(self.mean, CELLS))

    @property
    def total_error(self) -> float:
        """Standard error of the score, whose nine parts are of separate episodes."""
        return math.sqrt(sum(self.error(cell) ** 2 for cell in CELLS))

    def to_dict(self) -> Json:
        cells = [
            {"steps": s, "red": r, "episodes": len(self.returns[s, r]), "mean": self.mean((s, r)), "standard_error": e}
            for s, r in CELLS
            for e in [none_if_nan(self.error((s, r)))]
        ]
        published = {name: {"cells": list(PUBLISHED[name]), "total": total} for name, total in TOTALS.items()}
        out: Json = {"policy": self.policy, "seed": self.seed, "cells": cells, "total": self.total}
        return out | {"total_standard_error": none_if_nan(self.total_error), "published": published}

    def lines(self) -> list[str]:
        head = ["steps", "red", "return", "± standard error", *PUBLISHED]
        rows = []
        for i, (steps, red) in enumerate(CELLS):
            own = [f"{self.mean((steps, red)):.2f}", f"{self.error((steps, red)):.2f}"]
            rows.append([str(steps), red, *own, *(f"{values[i]:.2f}" for values in PUBLISHED.values())])
        rows.append(
            ["total", "", f"{self.total:.2f}", f"{self.total_error:.2f}", *(f"{x:.2f}" for x in TOTALS.values())]
        )
        episodes = len(self.returns[CELLS[0]])
        return [
            f"{self.policy}: CAGE challenge 2, {episodes} episodes of each part, played natively, seed {self.seed}",
            *aligned(head, rows),
            self.sentence(),
        ]

    def sentence(self) -> str:
        """How the score stands to the published ones, and how sure that is."""
        name, best = max(TOTALS.items(), key=lambda item: item[1])
        by, n = self.total - best, min(map(len, self.returns.values()))
        half = t_quantile(0.975, n - 1) * self.total_error if n > 1 else math.nan
        words = "above" if by > half else "below" if by < -half else "not to be told from"
        text = f"total {self.total:.2f} (95% interval {self.total - half:.2f} to {self.total + half:.2f}): {words} "
        return (
            text
            + f"{name.partition(' (')[0]}'s {best:.2f}. The published figures are of CybORG, not of this simulator."
        )


def none_if_nan(x: float) -> float | None:
    """What JSON can hold."""
    return None if math.isnan(x) else x


def play(handle: EnvHandle, policy: Policy, episodes: int, seed: int, which: str | None) -> LeaderboardTable:
    """Play the nine parts natively, `episodes` of each; every part has a seed of its own."""
    env = handle.native
    if not isinstance(env, NetworkDefense) or env.workflow != "none":
        raise ConfigError("--leaderboard: the policy follows a workflow, which the challenge does not have")
    returns = {}
    for i, (steps, red) in enumerate(CELLS):
        part = dataclasses.replace(env, red=red, max_episode_steps=steps)
        played = evaluate_policy(dataclasses.replace(handle, native=part), policy, episodes, seed + 1000 * i, which)
        returns[steps, red] = played.returns
    name = policy.meta.get("algorithm", "policy")
    return LeaderboardTable(name if which is None else f"{name} ({which})", seed, returns)
