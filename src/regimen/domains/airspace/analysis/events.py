"""Events as runs of flags, and conflicts matched one-to-one with alerts. Numpy, over all episodes at once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np


class Runs(NamedTuple):
    """Runs of true flags of [S, T]; time t of stream s is at s * (T + 2) + 1 + t, so streams never touch."""

    start: np.ndarray  # [E] first position
    stop: np.ndarray  # [E] one past the last


@dataclass
class Counts:
    """What was found in every stream [S]. Events only: a decision without any is not a true negative."""

    conflicts: np.ndarray  # true events
    alerts: np.ndarray
    tp: np.ndarray  # matched
    lead: np.ndarray  # sum over matches of onset of the conflict - onset of the alert, in decisions
    failed: np.ndarray  # matched conflicts with a loss of separation from their onset to the end of the resolution time
    unresolved: np.ndarray  # conflicts with one, matched or not

    @property
    def fp(self) -> np.ndarray:
        return self.alerts - self.tp

    @property
    def fn(self) -> np.ndarray:
        return self.conflicts - self.tp

    def reshape(self, *shape: int) -> Counts:
        return Counts(**{f.name: getattr(self, f.name).reshape(shape) for f in fields(self)})

    def sum(self, axis: int) -> Counts:
        return Counts(**{f.name: getattr(self, f.name).sum(axis) for f in fields(self)})

    def __getitem__(self, index) -> Counts:
        return Counts(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def swapped(self) -> Counts:
        """[U, C] as [C, U]."""
        return Counts(**{f.name: np.ascontiguousarray(getattr(self, f.name).T) for f in fields(self)})

    def spread(self, index: np.ndarray, size: int) -> Counts:
        """As `size` streams, those of this at `index` and nothing in the others."""

        def full(values: np.ndarray) -> np.ndarray:
            out = np.zeros(size, values.dtype)
            out[index] = values
            return out

        return Counts(**{f.name: full(getattr(self, f.name)) for f in fields(self)})

    @staticmethod
    def concatenate(parts: list[Counts]) -> Counts:
        return Counts(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Counts)})

    def rates(self, period_s: float) -> dict[str, np.ndarray]:
        """Precision, recall, F1 and the rest; NaN where there is nothing to divide by."""
        with np.errstate(divide="ignore", invalid="ignore"):
            conflicts, alerts, tp = (np.asarray(x, np.float64) for x in (self.conflicts, self.alerts, self.tp))
            return {
                "precision": tp / alerts,
                "recall": tp / conflicts,
                "f1": 2 * tp / (conflicts + alerts),
                "lead_s": self.lead * period_s / tp,
                "resolution_failure": self.failed / tp,
                "unresolved": self.unresolved / conflicts,
            }


def runs(flags: np.ndarray) -> Runs:
    """Runs of true flags of [S, T]."""
    padded = np.zeros((flags.shape[0], flags.shape[1] + 2), bool)
    padded[:, 1:-1] = flags
    flat = padded.ravel()
    change = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    return Runs(change[::2], change[1::2])


def overlaps(a: Runs, b: Runs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every two runs that overlap: index in a, index in b, intersection over union."""
    low = np.searchsorted(b.stop, a.start, "right")
    high = np.searchsorted(b.start, a.stop, "left")
    count = np.maximum(high - low, 0)
    i = np.repeat(np.arange(len(count)), count)
    j = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + low[i]
    inner = np.minimum(a.stop[i], b.stop[j]) - np.maximum(a.start[i], b.start[j])
    outer = np.maximum(a.stop[i], b.stop[j]) - np.minimum(a.start[i], b.start[j])
    return i, j, inner / np.maximum(outer, 1)


def greedy(i: np.ndarray, j: np.ndarray, iou: np.ndarray, sizes: tuple[int, int]) -> np.ndarray:
    """Positions of the pairs that are chosen when the best overlap is taken first, each event once; of equal overlaps
    the earlier conflict, then the earlier alert.

    In each round every pair that is the best of both its events is taken: the same choice as one pair at a time.
    """
    order = np.lexsort((j, i, -iou))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    left, chosen = np.arange(len(order)), []
    while len(left):
        best_i, best_j = (np.full(size, len(order), np.int64) for size in sizes)
        np.minimum.at(best_i, i[left], rank[left])
        np.minimum.at(best_j, j[left], rank[left])
        mutual = (best_i[i[left]] == rank[left]) & (best_j[j[left]] == rank[left])
        taken = left[mutual]
        chosen.append(taken)
        used_i, used_j = (np.zeros(size, bool) for size in sizes)
        used_i[i[taken]] = used_j[j[taken]] = True
        left = left[~used_i[i[left]] & ~used_j[j[left]]]
    return np.concatenate(chosen) if chosen else np.zeros(0, np.int64)


def match(
    truth: np.ndarray,  # [S, T] conflict flags
    alert: np.ndarray,  # [S, T] alert flags
    los: np.ndarray,  # [S, T] losses of separation
    margins: tuple[int, int] = (3, 1),
    min_iou: float = 0.1,
    resolution: int = 6,
) -> Counts:
    """Conflict events and alert events of every stream, matched one-to-one, best overlap first.

    For matching both are widened by their margins, and widened events that touch are one. Onsets and ends are those of
    the flags themselves.
    """
    streams, width = truth.shape[0], truth.shape[1] + 2
    real, alerts = runs(truth), runs(alert)
    wide, wide_alerts = runs(widened(truth, margins[0])), runs(widened(alert, margins[1]))
    i, j, iou = overlaps(wide, wide_alerts)
    good = iou >= min_iou
    i, j, iou = i[good], j[good], iou[good]
    chosen = greedy(i, j, iou, (len(wide.start), len(wide_alerts.start)))
    i, j = i[chosen], j[chosen]

    onset = real.start[np.searchsorted(real.start, wide.start)] if len(real.start) else wide.start
    end = real.stop[np.searchsorted(real.stop, wide.stop, "right") - 1] if len(real.stop) else wide.stop
    alert_onset = (
        alerts.start[np.searchsorted(alerts.start, wide_alerts.start)] if len(alerts.start) else wide_alerts.start
    )
    stream = wide.start // width
    limit = (stream + 1) * width - 1
    padded = np.zeros((streams, width), np.int32)
    padded[:, 1:-1] = los
    sums = np.concatenate([[0], np.cumsum(padded.ravel())])
    lost = sums[np.minimum(end + resolution, limit)] > sums[onset]

    def per_stream(at: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        out = np.bincount(at, weights, streams)
        return out if weights is not None else out.astype(np.int64)

    return Counts(
        conflicts=per_stream(stream),
        alerts=per_stream(wide_alerts.start // width),
        tp=per_stream(stream[i]),
        lead=per_stream(stream[i], (onset[i] - alert_onset[j]).astype(np.float64)),
        failed=per_stream(stream[i][lost[i]]),
        unresolved=per_stream(stream[lost]),
    )


def widened(flags: np.ndarray, steps: int) -> np.ndarray:
    """Flags [S, T] widened by `steps` on both sides."""
    out = flags.copy()
    for lag in range(1, min(steps + 1, flags.shape[1])):
        out[:, lag:] |= flags[:, :-lag]
        out[:, :-lag] |= flags[:, lag:]
    return out
