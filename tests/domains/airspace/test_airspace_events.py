"""Runs, overlaps and the one-to-one matching of conflicts with alerts."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regimen.domains.airspace.analysis import events


def flags(*texts):
    return np.array([[c == "#" for c in text] for text in texts])


def spans(found, width):
    return [(int(a // width), int(a % width) - 1, int(b % width) - 1) for a, b in zip(found.start, found.stop)]


def test_runs():
    found = events.runs(flags("##..#", ".....", "#####", "....#"))
    assert spans(found, 7) == [(0, 0, 2), (0, 4, 5), (2, 0, 5), (3, 4, 5)]


def match(truth, alert, los=None, **kwargs):
    los = np.zeros_like(truth) if los is None else los
    return events.match(truth, alert, los, **{"margins": (0, 0), **kwargs})


def test_events_are_counted_once():
    """Two conflicts, one long alert over both: one match, one miss, no false alert."""
    c = match(flags("..###....##..."), flags("..#########..."))
    assert (c.conflicts[0], c.alerts[0], c.tp[0], c.fp[0], c.fn[0]) == (2, 1, 1, 0, 1)
    c = match(flags("..######..."), flags("..##..##..#"))
    assert (c.tp[0], c.fp[0], c.fn[0]) == (1, 2, 0)


def test_the_best_overlap_is_taken_first():
    """In order of the conflicts the first would take the alert that fits the second exactly."""
    truth = flags("####.######..")
    alert = flags(".##########..")
    c = match(truth, alert, margins=(0, 0))
    assert (c.conflicts[0], c.tp[0]) == (2, 1)
    assert c.lead[0] == 5 - 1  # of the second conflict


def test_no_overlap_no_match():
    c = match(flags("###......"), flags("......###"))
    assert (c.tp[0], c.fp[0], c.fn[0]) == (0, 1, 1)
    assert match(flags("##......."), flags(".########"), min_iou=0.2).tp[0] == 0


def test_margins_join_near_events_and_keep_onsets():
    truth, alert = flags("......##.##.........."), flags("...##................")
    assert match(truth, alert).tp[0] == 0
    c = match(truth, alert, margins=(3, 1))
    assert (c.conflicts[0], c.tp[0], c.lead[0]) == (1, 1, 3)


def test_undefined_is_nan():
    c = match(flags("....", "####", "...."), flags("....", "....", "####"))
    rates = c.rates(10.0)
    assert np.isnan(rates["f1"]).tolist() == [True, False, False] and rates["f1"][1:].tolist() == [0, 0]
    assert np.isnan(rates["precision"]).tolist() == [True, True, False]
    assert np.isnan(rates["recall"]).tolist() == [True, False, True]
    assert np.isnan(rates["lead_s"]).all()


def test_resolution():
    truth, alert = flags("..###..........."), flags("..####..........")
    soon, late = flags("........#......."), flags("...........#....")
    assert match(truth, alert, soon, resolution=6).failed[0] == 1
    assert match(truth, alert, late, resolution=6).failed[0] == 0
    c = match(truth, ~truth & False, soon, resolution=6)
    assert (c.failed[0], c.unresolved[0]) == (0, 1)
    assert np.isnan(c.rates(10)["resolution_failure"][0]) and c.rates(10)["unresolved"][0] == 1


def test_a_loss_in_the_next_stream_does_not_count():
    c = match(flags(".....###", "......##"), flags(".....###", "......##"), flags("........", "#......."))
    assert c.failed.tolist() == [0, 0]


def one_at_a_time(i, j, iou):
    chosen, used_i, used_j = [], set(), set()
    for k in np.lexsort((j, i, -iou)):
        if i[k] not in used_i and j[k] not in used_j:
            chosen.append(int(k))
            used_i.add(i[k])
            used_j.add(j[k])
    return sorted(chosen)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(2, 60))
def test_rounds_choose_what_one_at_a_time_does(seed, streams, steps):
    rng = np.random.default_rng(seed)
    truth, alert = rng.random((2, streams, steps)) < rng.uniform(0.2, 0.8)
    a, b = events.runs(truth), events.runs(alert)
    i, j, iou = events.overlaps(a, b)
    chosen = events.greedy(i, j, iou, (len(a.start), len(b.start)))
    assert sorted(chosen.tolist()) == one_at_a_time(i, j, iou)
    counts = match(truth, alert, min_iou=0.0)
    assert counts.tp.sum() == len(chosen)
    rows = [match(truth[s : s + 1], alert[s : s + 1], min_iou=0.0) for s in range(streams)]
    one_by_one = events.Counts(*map(np.concatenate, zip(*rows)))
    assert np.array_equal(counts.tp, one_by_one.tp) and np.array_equal(counts.lead, one_by_one.lead)
    assert counts.rates(10)["precision"] == pytest.approx(one_by_one.rates(10)["precision"], nan_ok=True)
