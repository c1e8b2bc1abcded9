"""What a search believes after each of its trials, for the live page (`views/posterior.json`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regimen.experiments.search.gate import Gate
from regimen.experiments.search.methods import Model, Seen, current
from regimen.experiments.search.space import Space
from regimen.files import views

MOST = 30_000  # candidates in all frames together: what the page reads is bounded


def kept(space: Space) -> int:
    """How many trials are shown: the last ones, fewer of a large space."""
    return max(1, min(200, MOST // len(space)))


def frame(space: Space, gate: Gate | None, seen: Sequence[Seen], best: int | None) -> dict[str, object]:
    """The posterior after some trials: mean and two deviations, what was measured of the policies as they are, and the
    candidate that is recommended."""
    posterior = Model.of(space, gate, seen).values.posterior()
    observed: dict[int, list[float]] = {}
    for trial in current(seen):
        observed.setdefault(trial.candidate, []).append(trial.outcome.value)
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
    return {"title": f"after trial {len(seen)}, {space.keys[seen[-1].candidate]}{passed}", "candidates": candidates}


def write(folder: Path, frames: list[dict[str, object]], value: str) -> None:
    views.write(folder, "posterior", views.posterior("Posterior over candidates", frames, label=value))
