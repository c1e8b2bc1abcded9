"""Events as runs of flags, and conflicts matched one-to-one with alerts. Numpy, over all episodes at once."""

from typing import NamedTuple

import numpy as np


class Runs(NamedTuple):
    """Runs of true flags of [S, T]; time t of stream s is at s * (T + 2) + 1 + t, so streams never touch."""

    start: np.ndarray  # [E] first position
    stop: np.ndarray  # [E] one past the last


class Counts(NamedTuple):
    """Conflicts, alerts and their matches in every stream. Events only: a decision without any is no true negative."""

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
    flat = np.pad(flags, ((0, 0), (1, 1))).ravel()
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
    rest = np.arange(len(order))
    choice = [rest[:0]]
    while len(rest):
        best_i, best_j = (np.full(size, len(order), np.int64) for size in sizes)
        np.minimum.at(best_i, i[rest], rank[rest])
        np.minimum.at(best_j, j[rest], rank[rest])
        best = rest[(best_i[i[rest]] == rank[rest]) & (best_j[j[rest]] == rank[rest])]
        choice.append(best)
        rest = rest[~np.isin(i[rest], i[best]) & ~np.isin(j[rest], j[best])]
    return np.concatenate(choice)


def match(
    truth: np.ndarray,  # [..., T] conflict flags
    alert: np.ndarray,  # [..., T] alert flags
    los: np.ndarray,  # [..., T] losses of separation
    margins: tuple[int, int] = (3, 1),
    min_iou: float = 0.1,
    resolution: int = 6,
) -> Counts:
    """Conflict events and alert events of every stream, matched one-to-one, best overlap first.

    For matching both are widened by their margins, and widened events that touch are one. Onsets and ends are those of
    the flags themselves.
    """
    shape = truth.shape[:-1]
    truth, alert, los = (x.reshape(-1, x.shape[-1]) for x in (truth, alert, los))
    some = np.flatnonzero(truth.any(1) | alert.any(1))  # most streams hold nothing and are not looked at
    total, width = len(truth), truth.shape[1] + 2
    truth, alert, los = truth[some], alert[some], los[some]
    real, alerts = runs(truth), runs(alert)
    wide, wide_alerts = runs(widen(truth, margins[0])), runs(widen(alert, margins[1]))
    i, j, iou = overlaps(wide, wide_alerts)
    good = iou >= min_iou
    i, j, iou = i[good], j[good], iou[good]
    choice = greedy(i, j, iou, (len(wide.start), len(wide_alerts.start)))
    i, j = i[choice], j[choice]

    onset = real.start[np.searchsorted(real.start, wide.start)]
    end = real.stop[np.searchsorted(real.stop, wide.stop, "right") - 1]
    alert_onset = alerts.start[np.searchsorted(alerts.start, wide_alerts.start)]
    stream = wide.start // width
    limit = (stream + 1) * width - 1
    sums = np.concatenate([[0], np.cumsum(np.pad(los, ((0, 0), (1, 1))))])
    lost = sums[np.minimum(end + resolution, limit)] > sums[onset]

    def per_stream(at: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        return np.bincount(some[at], weights, total).reshape(shape)

    return Counts(
        conflicts=per_stream(stream),
        alerts=per_stream(wide_alerts.start // width),
        tp=per_stream(stream[i]),
        lead=per_stream(stream[i], onset[i] - alert_onset[j]),
        failed=per_stream(stream[i][lost[i]]),
        unresolved=per_stream(stream[lost]),
    )


def widen(flags: np.ndarray, steps: int) -> np.ndarray:
    """Flags [S, T] widened by `steps` on both sides."""
    out = flags.copy()
    for lag in range(1, min(steps + 1, flags.shape[1])):
        out[:, lag:] |= flags[:, :-lag]
        out[:, :-lag] |= flags[:, lag:]
    return out
