"""What a search believes after each of its trials, for the live page (`views/posterior.json`)."""

from __future__ import annotations

from collections.abc import Sequence

from regimen.experiments.search.gate import Gate
from regimen.experiments.search.methods import Belief, Evidence, current
from regimen.experiments.search.space import Space

MOST = 30_000  # candidates in all frames together: what the page reads is bounded


def most_frames(space: Space) -> int:
    """How many trials the page shows: the last ones, fewer of a large space."""
    return max(1, min(200, MOST // len(space)))


def frame(space: Space, gate: Gate | None, evidence: Sequence[Evidence], best: int | None) -> dict[str, object]:
    """The posterior after some trials: mean and two deviations, what was measured of the policies as they are, and the
    candidate that is recommended."""
    posterior = Belief.of(space, gate, evidence).values.posterior()
    observed: dict[int, list[float]] = {}
    for one in current(evidence):
        observed.setdefault(one.candidate, []).append(one.outcome.value)
    candidates = [
        {
            "name": key,
            "mean": round(float(mean), 5),
            "low": round(float(mean - 2 * std), 5),
            "high": round(float(mean + 2 * std), 5),
            "observed": observed.get(i),
            "chosen": i == best,
        }
        for i, (key, mean, std) in enumerate(zip(space.keys, posterior.mean, posterior.std))
    ]
    passed = "" if best is not None else "; none has passed the gate"
    title = f"after trial {len(evidence)}, {space.keys[evidence[-1].candidate]}{passed}"
    return {"title": title, "candidates": candidates}
