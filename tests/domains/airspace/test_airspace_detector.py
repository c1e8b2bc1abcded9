"""Closest approach and alerts on encounters made by hand: head-on, overtake, parallel, diverging, with wind."""

import numpy as np
import pytest

from regimen.domains.airspace.analysis import detector as d

TAS = 288.7
SETTINGS = d.Detector()


def ground(heading_deg, speed=TAS, wind=(0.0, 0.0)):
    heading = np.radians(heading_deg)
    return np.stack([speed * np.cos(heading) + wind[0], speed * np.sin(heading) + wind[1]], -1)


def flown(starts, velocities, steps, period=10.0):
    """Straight flight: [N, T] norths, easts and velocities."""
    time = np.arange(steps) * period / 3600
    starts, velocities = np.asarray(starts, np.float32), np.asarray(velocities, np.float32)
    position = starts[:, :, None] + velocities[:, :, None] * time
    still = np.ones(steps, np.float32)
    return position[:, 0], position[:, 1], velocities[:, :1] * still, velocities[:, 1:] * still


def tracks(starts, velocities, steps=30, command=None, waypoint=None, flying=None):
    north, east, v_north, v_east = flown(starts, velocities, steps)
    n = len(starts)
    command = np.zeros((2, n, steps), np.float32) if command is None else command
    far = np.stack([6 * north[:, -1] - 5 * north[:, 0], 6 * east[:, -1] - 5 * east[:, 0]], -1)
    goal = far if waypoint is None else np.asarray(waypoint, np.float32)
    flying = np.ones((n, steps), bool) if flying is None else flying
    return d.Tracks(north, east, v_north, v_east, *command, flying, goal[:, :1], goal[:, 1:])


def alarms(*args, settings=SETTINGS, **kwargs):
    return d.Alarms(*(np.asarray(x) for x in d.alarms(tracks(*args, **kwargs), settings)))


def pair_cpa(starts, velocities, horizon=120.0):
    (a, b), (v, w) = np.asarray(starts, np.float32), np.asarray(velocities, np.float32)
    one = [float(x) for x in d.cpa(*(b - a), *(w - v), horizon)]
    assert one == pytest.approx([float(x) for x in d.cpa(*(a - b), *(v - w), horizon)], abs=1e-5)
    return tuple(one)


def test_head_on_is_seen_only_within_the_horizon():
    """36 NM apart the closest approach is 224 s away; clamped to 120 s, 16.75 NM are left."""
    time, distance = pair_cpa([(-18, 0), (18, 0)], ground(np.array([0, 180])))
    assert time == 120 and distance == pytest.approx(16.75, abs=0.01)
    time, distance = pair_cpa([(-18, 0), (18, 0)], ground(np.array([0, 180])), horizon=1e4)
    assert time == pytest.approx(224.5, abs=0.2) and distance == pytest.approx(0, abs=1e-3)
    s = alarms([(-18, 0), (18, 0)], ground(np.array([0, 180])))
    gap = 36 - 2 * TAS / 360 * np.arange(30)
    assert np.array_equal(s.conflict[0], (gap < 5 + 577.4 * 120 / 3600) & (gap > -5))


def test_overtaking():
    """40 kt faster and 6 NM behind: a conflict begins when 120 s of closing bring it below 5 NM."""
    velocities = [ground(0, 320), ground(0, 280)]
    assert pair_cpa([(0, 0), (6, 0)], velocities) == (120, pytest.approx(6 - 40 / 30, abs=1e-4))
    s = alarms([(0, 0), (6.9, 0)], velocities)
    gap = 6.9 - 40 / 360 * np.arange(30)
    assert np.array_equal(s.conflict[0], np.abs(gap - 40 / 30) < 5)


@pytest.mark.parametrize(("apart", "conflict"), [(4.9, True), (5.1, False)])
def test_parallel_flight_keeps_its_distance(apart, conflict):
    assert pair_cpa([(0, 0), (0, apart)], ground(np.array([0, 0]))) == (0, pytest.approx(apart, abs=1e-5))
    assert alarms([(0, 0), (0, apart)], ground(np.array([0, 0]))).conflict.all() == conflict


def test_diverging_aircraft_are_closest_now():
    """Within 5 NM they still count, because separation is lost now; beyond it they do not."""
    assert pair_cpa([(0, -3), (0, 3)], ground(np.array([270, 90]))) == (0, 6)
    assert not alarms([(0, -3), (0, 3)], ground(np.array([270, 90]))).conflict.any()
    assert alarms([(0, -2), (0, 2)], ground(np.array([270, 90]))).conflict[0].tolist() == [True] + [False] * 29


def test_wind_moves_what_is_flown_over_the_ground():
    """Two that cross without wind; a wind on one of them (another altitude) takes it clear."""
    starts, headings = [(-8, 0), (0, -8)], np.array([0, 90])
    calm = [ground(0), ground(90)]
    windy = [ground(0), ground(90, wind=(0, -200.0))]
    assert pair_cpa(starts, calm)[1] == pytest.approx(0, abs=1e-3)
    assert pair_cpa(starts, windy)[1] > 4.5
    both = [ground(h, wind=(60.0, -60.0)) for h in headings]  # on both it changes nothing between them
    assert pair_cpa(starts, both) == pytest.approx(pair_cpa(starts, calm), abs=1e-3)


def test_finished_aircraft_neither_conflict_nor_alert():
    flying = np.ones((2, 30), bool)
    flying[1, 10:] = False
    command = np.stack([np.full((2, 30), 10.0), np.zeros((2, 30))])
    s = alarms([(-10, 0), (10, 0)], ground(np.array([0, 180])), command=command, flying=flying)
    assert s.conflict[0, :10].all() and not s.conflict[0, 10:].any()
    assert not s.alert[:, 1, 10:].any()
    assert np.all(s.intruder[:, 10:] == -1) and np.isinf(s.threat_nm[:, 10:]).all()
    assert not s.alert[0, :, 12:].any()  # alone, nothing passes the gate


def turns(steps, at, degrees, knots=0.0):
    command = np.zeros((2, 2, steps), np.float32)
    command[0, 0, at], command[1, 0, at] = degrees, knots
    return command


@pytest.mark.parametrize(
    ("degrees", "knots", "alerts"),
    [(3, 0, True), (2.9, 0, False), (0, 5, True), (0, -5, True), (0, 4.9, False), (-18, 0, True)],
)
def test_thresholds_of_a_command(degrees, knots, alerts):
    s = alarms([(-10, 0), (10, 0)], ground(np.array([0, 180])), command=turns(30, slice(5, 8), degrees, knots))
    assert s.alert.any() == alerts
    assert not s.alert[:, 1].any()


def test_two_of_three_decisions_confirm_an_alert():
    alone = alarms([(-10, 0), (10, 0)], ground(np.array([0, 180])), command=turns(30, [5, 9], 10))
    assert not alone.alert.any()
    twice = alarms([(-10, 0), (10, 0)], ground(np.array([0, 180])), command=turns(30, [5, 7], 10))
    assert np.flatnonzero(twice.alert[0, 0]).tolist() == [7]
    long = alarms([(-10, 0), (10, 0)], ground(np.array([0, 180])), command=turns(30, [5, 6, 7], 10))
    assert np.flatnonzero(long.alert[0, 0]).tolist() == [6, 7, 8]


def test_turning_to_the_waypoint_is_navigation():
    """A right turn with the waypoint on the right is no alert; the same turn away from it is, and so is braking."""
    starts, velocities = [(-10, 0), (10, 0)], ground(np.array([0, 180]))
    right, left = [(0, 40), (-40, 0)], [(0, -40), (-40, 0)]
    command = turns(30, slice(5, 8), 15)
    assert not alarms(starts, velocities, command=command, waypoint=right).alert.any()
    assert alarms(starts, velocities, command=command, waypoint=left).alert.any()
    command = turns(30, slice(5, 8), 15, -8)
    assert alarms(starts, velocities, command=command, waypoint=right).alert.any()


def test_the_gate_hides_what_the_gate_is_for():
    """A manoeuvre with nobody near: a ghost alert that only the ungated flags show."""
    s = alarms([(0, 0), (0, 40)], ground(np.array([0, 0])), command=turns(30, slice(5, 9), 15))
    gated, ungated = s.alert
    assert not gated.any() and np.flatnonzero(ungated[0]).tolist() == [6, 7, 8, 9]
    assert s.pair_alert[1, 0].any()


def test_an_alert_belongs_to_the_pair_with_the_intruder():
    starts, velocities = [(-10, 0), (10, 0), (0, 30)], ground(np.array([0, 180, 0]))
    command = np.zeros((2, 3, 30), np.float32)
    command[0, 0, 5:9] = 15
    s = alarms(starts, velocities, command=command)
    assert s.intruder[:2, 5].tolist() == [1, 0]
    assert s.pair_alert[0].any(1).tolist() == [True, False, False]
    assert d.pairs(3) == [(0, 1), (0, 2), (1, 2)]
    assert np.asarray(d.of_aircraft(np.array([False, True, False]), 3)).tolist() == [True, False, True]


def test_separation_within_a_decision():
    """Head-on through the middle of a step: 0.8 NM apart before and after, none in between."""
    starts, velocities = [(-0.4, 0), (0.4, 0)], ground(np.array([0, 180]))
    within = np.asarray(d.closest_within(tracks(starts, velocities, 3)))
    assert within[0, 0] == pytest.approx(0, abs=0.01) and within[0, 1] == pytest.approx(0.8, abs=0.01)
    one = np.array([[True] * 3, [False] * 3])
    assert np.isinf(d.closest_within(tracks(starts, velocities, 3, flying=one))).all()


def test_one_aircraft_has_no_pairs():
    s = alarms([(0, 0)], ground(np.array([0]))[:1], command=np.full((2, 1, 30), 10, np.float32))
    assert s.conflict.shape == (0, 30) and not s.alert[0].any() and s.alert[1].any()
    assert d.closest_within(tracks([(0, 0)], ground(np.array([0])))).shape == (0, 30)
    assert not np.asarray(d.of_aircraft(np.zeros((0, 30), bool), 1)).any()
