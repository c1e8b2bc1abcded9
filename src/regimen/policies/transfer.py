"""`regimen evaluate RUN --in ENV`: a policy in its own environment and in another one with the same spaces, and whether
it does as well there.

It is the test of a simulator by a policy that was trained in it: where two simulators differ in what matters to it, it
does worse in one. Equivalence is shown, not assumed, by two one-sided tests of a margin (`statistics.Difference`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np

from regimen import spaces
from regimen.config.calls import answered
from regimen.config.trust import trustable
from regimen.envs import registry
from regimen.errors import ConfigError, EnvError, nearest
from regimen.files.storage import Json
from regimen.policies.evaluate import Evaluation, evaluate_policy, subject
from regimen.policies.policy import Policy
from regimen.statistics import Difference, paired_difference
from regimen.words import aligned

VERDICTS = {
    "equivalent": "it does as well in both",
    "different": "it does not do the same in both",
    "cannot be told": "it cannot be told whether it does as well in both",
}


@dataclass
class Transfer:
    """The same policy in two environments: `home`, where it was trained, and `away`. Episode i of both has one seed."""

    home: Evaluation
    away: Evaluation
    differences: dict[str, Difference]  # by metric, away less home

    @property
    def verdict(self) -> str:
        """The verdict about the return: equivalent, different, or cannot be told."""
        return self.differences["return"].verdict

    def sentence(self) -> str:
        """What the return says, in words."""
        d, n = self.differences["return"], len(self.home.returns)
        text = f"{self.verdict}: {VERDICTS[self.verdict]}; the return in {self.away.env} is {signed(d.value)}"
        if d.high - d.low > 0:
            text += f" (95% interval {signed(d.low)} to {signed(d.high)})"
        text += " of that at home"
        if d.margin is None:
            return text + "; --margin says how large a difference would not matter"
        if self.verdict == "equivalent":
            return text + f", less than {d.margin:g} (two one-sided tests, p = {d.p:.2g})"
        text += f", which is not shown to be less than {d.margin:g} (p = {d.p:.2g})"
        if self.verdict == "cannot be told" and d.enough is not None and d.enough > n:
            text += f"; about {d.enough:,} episodes would show it of equal environments"
        return text

    def to_dict(self) -> Json:
        """What `regimen evaluate RUN --json` has, the same of the other environment under `in`, and the differences."""
        return self.home.to_dict() | {
            "in": self.away.to_dict(),
            "differences": {name: d.to_dict() for name, d in self.differences.items()},
            "verdict": self.verdict,
            "sentence": self.sentence(),
        }

    def lines(self) -> list[str]:
        home, away = measured(self.home), measured(self.away)
        head = ["", self.home.env, self.away.env, "difference (95%)", "margin", "p", ""]
        if self.home.env == self.away.env:
            head[1:3] = "at home", "there"
        rows = []
        for name, d in self.differences.items():
            between = f" ({signed(d.low)} to {signed(d.high)})" if d.high > d.low else ""
            tested = ["", ""] if d.margin is None else [f"{d.margin:g}", f"{d.p:.2g}"]
            means = [f"{float(x[name].mean()):.4g}" for x in (home, away)]
            rows.append([name, *means, signed(d.value) + between, *tested, d.verdict])
        which = self.home.policy + (f" ({self.home.checkpoint})" if self.home.checkpoint else "")
        title = f"{which}: {len(self.home.returns)} episodes in each, seed {self.home.seed}"
        return [title, *aligned(head, rows), "", self.sentence()]


def signed(value: float) -> str:
    """Write a difference with its sign."""
    return f"{value:+.3g}" if abs(value) < 1000 else f"{value:+.0f}"


@answered
@trustable
def evaluate_in(
    target: registry.EnvLike | Path,
    in_env: registry.EnvLike,
    margin: float | str | Mapping[str, float] | None = None,
    episodes: int = 100,
    seed: int = 0,
    env_args: Mapping[str, object] | None = None,
    in_args: Mapping[str, object] | None = None,
    checkpoint: str = "best",
    tracking_uri: str | None = None,
    env: registry.EnvLike | None = None,
    policy: Policy | None = None,
    trust: bool = False,
) -> Transfer:
    """Play the policy of a run in its own environment and in another one, and compare all that both report.

    Episode i has the same seed in both; it is the same episode where both draw from it alike. An environment that says
    which it `imitates` has the settings of the run's own, where `in_args` do not say otherwise.

    Args:
        target: as in `evaluate`, which explains the arguments that are not here.
        in_env: the other environment.
        margin: a difference of the return that would not matter, or of several metrics (`"return=1,success=0.02"`, or
            a mapping); equivalence within it is tested.
        in_args: settings of the other environment.
    """
    margins = parse_margins(margin)
    home, learned, which = subject(target, policy, env_args or {}, checkpoint, tracking_uri, env)
    if learned is None:
        raise ConfigError(f"--in plays a trained policy in another environment: name a run instead of {home.id}")
    away = registry.resolve(in_env, in_args or {})
    if away.imitates and home.id.startswith(away.imitates):
        by_name = registry.resolve(home.id).env_args  # such as the scenario that a name stands for
        settings = {name: value for name, value in home.env_args.items() if by_name.get(name) != value}
        away = registry.resolve(in_env, settings | dict(in_args or {}))
    refuse_other_spaces(learned, away)
    here, there = (evaluate_policy(handle, learned, episodes, seed, which) for handle in (home, away))
    return compare_evaluations(here, there, margins)


def compare_evaluations(home: Evaluation, away: Evaluation, margins: Mapping[str, float]) -> Transfer:
    """The differences of everything that two evaluations over the same seeds both have."""
    here, there = measured(home), measured(away)
    both = [name for name in here if name in there]
    for name in margins:
        if name not in both:
            raise ConfigError(f"margin: '{name}' is not reported by both environments{nearest(name, both)}")
    return Transfer(home, away, {n: paired_difference(here[n], there[n], margins.get(n)) for n in both})


def measured(evaluation: Evaluation) -> dict[str, np.ndarray]:
    """Every metric of an evaluation by episode."""
    out = {"return": evaluation.returns, "length": evaluation.lengths.astype(float)}
    if evaluation.success is not None:
        out["success"] = evaluation.success.astype(float)
    if len(evaluation.components) > 1:
        out |= {f"reward/{name}": x for name, x in evaluation.components.items()}
    return out | {name: np.asarray(x, float) for name, x in evaluation.other_metrics.items()}


def parse_margins(margin: float | str | Mapping[str, float] | None) -> dict[str, float]:
    """Margins by metric: `1` is of the return; `return=1,success=0.02` and a mapping name theirs."""
    if margin is None:
        return {}
    if isinstance(margin, str):
        pairs = [part.partition("=") for part in margin.split(",")]
        values: Mapping[str, object] = {(n.strip() if eq else "return"): (x if eq else n) for n, eq, x in pairs}
    else:
        values = margin if isinstance(margin, Mapping) else {"return": margin}
    out = {}
    for name, value in values.items():
        try:
            out[name] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            raise ConfigError(f"margin: '{value}' is not a number; write `1`, or `return=1,success=0.02`") from None
        if not 0.0 < out[name] < np.inf:
            raise ConfigError(f"margin: {out[name]:g} of '{name}' is out of range; it must be above 0")
    return out


def refuse_other_spaces(policy: Policy, env: registry.EnvHandle) -> None:
    """Refuse an environment in which the policy cannot be played as it was trained, naming everything that differs."""
    pairs = {
        "observation": (policy.observation_space, env.observation_space),
        "action": (policy.action_space, env.action_space),
    }
    unlike = [text for what, pair in pairs.items() for text in unlike_parts(what, *pair)]
    if tuple(policy.agents) != tuple(env.agents):
        names = [", ".join(x) or "one" for x in (policy.agents, env.agents)]
        unlike.append(f"agents: {names[0]} here, {names[1]} there")
    if unlike:
        raise EnvError(f"the policy cannot be played in {env.id}: {'; '.join(unlike)}")


def unlike_parts(what: str, here: gymnasium.Space, there: gymnasium.Space) -> list[str]:
    """What differs between two spaces, part by part, in words. Bounds count for actions only: a policy scales what it
    does to them, and takes observations as they are."""
    parts = [spaces.leaves(space) for space in (here, there)]
    nests = [type(space) for space in (here, there)]
    if list(parts[0]) != list(parts[1]) or nests[0] is not nests[1]:
        return [f"{what} space {spaces.describe(here)} here, {spaces.describe(there)} there"]
    out = []
    for name, part in parts[0].items():
        other, where = parts[1][name], f"{what} '{name}'" if name else what
        texts = [spaces.describe(space) for space in (part, other)]
        if texts[0] != texts[1]:
            out.append(f"{where} {texts[0]} here, {texts[1]} there")
        elif what == "action" and isinstance(part, gymnasium.spaces.Box) and isinstance(other, gymnasium.spaces.Box):
            low, high = (np.array_equal(getattr(part, end), getattr(other, end)) for end in ("low", "high"))
            if not (low and high):
                out.append(f"{where} between {ends(part)} here, between {ends(other)} there")
    return out


def ends(box: gymnasium.spaces.Box) -> str:
    """The bounds of a box in few words."""
    return " and ".join(str(np.unique(x).tolist() if x.size > 4 else x.tolist()) for x in (box.low, box.high))
