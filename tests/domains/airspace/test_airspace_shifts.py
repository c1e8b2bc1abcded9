"""The shift grid: labels, what each shift changes, what is left out and why; and the perturbed starts."""

import math

import numpy as np
import pytest

from regimen.domains.airspace.analysis import shifts
from regimen.domains.airspace.analysis.campaign import Jitter, starts
from regimen.domains.airspace.analysis.shifts import ALL, BASELINE, Shift, apply, grid
from regimen.domains.airspace.files import NAMES, load
from regimen.domains.airspace.geodesy import haversine
from regimen.errors import ConfigError


def test_the_whole_grid_has_about_five_hundred_configurations():
    """Of the four aircraft of cross_4all: 117 each, and those of all together."""
    g = grid(load("cross_4all"))
    found = [*g.shifts, *(s for s, _ in g.skipped)]
    by_one = [s for s in found if s.target != ALL]
    assert len(by_one) == 4 * 117
    together = {kind for kind, about in shifts.AMOUNTS.items() if about.get("together")}
    assert {s.kind for s in found if s.target == ALL} == {"baseline", *together}
    assert 500 <= len(g.shifts) <= 560
    assert len({s.name for s in found}) == len(found)
    assert len([s for s in grid(load("merge_2x2")).shifts if s.target == "A1"]) <= 113


@pytest.mark.parametrize("name", NAMES)
def test_every_scenario_has_a_grid(name):
    file = load(name)
    g = grid(file)
    assert g.shifts[0] is BASELINE and g.files[0] == file
    assert {s.target for s in g.shifts} <= {ALL, *file.ids}
    for shift, made in zip(g.shifts[1:], g.files[1:]):
        assert made != file and made.ids == file.ids and made.center == file.center
        assert shift.range in ("micro", "macro") and shift.unit
        if shift.kind.startswith("position"):
            assert made.start_separation >= min(6.0, file.start_separation) - 2e-3


def test_ranges_are_by_kind():
    """0.2 deg is a large move, 10 kt a small change."""
    of = {(s.kind, abs(s.value)): s.range for s in grid(load("cross_4all")).shifts}
    assert of["position_lat", 0.15] == "micro" and of["position_lat", 0.18] == "macro"
    assert of["speed", 10] == "micro" and of["speed", 15] == "macro"
    assert of["waypoint", 0.08] == "micro" and of["waypoint", 0.15] == "macro"
    assert of["wind", 15] == "micro" and of["wind", 25] == "macro"
    assert of["delay", 1] == "micro" and of["delay", 2] == "macro"
    assert {s.range for s in grid(load("head_on"), ["speed"], only="micro").shifts[1:]} == {"micro"}


def test_each_shift_changes_what_it_says():
    file = load("cross_4all")
    first = file.agents[0]  # northbound
    assert apply(file, Shift("position_lat", 0.1, "deg", "A1")).agents[0].lat == pytest.approx(first.lat + 0.1)
    assert apply(file, Shift("position_lon", -0.1, "deg", "A1")).agents[0].lon == pytest.approx(first.lon - 0.1)
    ahead = apply(file, Shift("position_along", 3, "NM", "A1")).agents[0]
    assert haversine(first.lat, first.lon, ahead.lat, ahead.lon) == pytest.approx(3, abs=0.01)
    assert ahead.lat > first.lat and ahead.lon == pytest.approx(first.lon, abs=1e-3)
    right = apply(file, Shift("position_across", 3, "NM", "A1")).agents[0]
    assert right.lon > first.lon and right.lat == pytest.approx(first.lat, abs=1e-3)
    assert apply(file, Shift("heading", -10, "deg", "A1")).agents[0].hdg_deg == 350
    assert apply(file, Shift("speed", 200, "kt", "A1")).agents[0].spd_kt == 400
    moved = apply(file, Shift("waypoint", 0.2, "deg", "A1", direction="SW")).agents[0].waypoint
    assert moved == pytest.approx((first.waypoint[0] - 0.2, first.waypoint[1] - 0.2))
    assert apply(file, Shift("type", 1, "type", "A1", direction="B747")).arrays().kind.tolist() == [2, 0, 0, 0]
    one = apply(file, Shift("speed", 5, "kt", "A2"))
    assert [a.spd_kt for a in one.agents] == [250, 255, 250, 250]
    everyone = apply(file, Shift("speed", 5, "kt", ALL))
    assert [a.spd_kt for a in everyone.agents] == [255] * 4


def test_wind_and_delay():
    """A wind from the west moves the air to the east; layers are read at the aircraft's altitude."""
    file = load("head_on")
    west = apply(file, Shift("wind", 20, "kt", ALL, direction="W")).arrays()
    assert np.allclose(west.wind, [[0, 20]] * 2, atol=1e-4)
    layered = apply(file, Shift("wind_layered", 0, "profile", ALL, direction="shear")).arrays()
    assert np.allclose(layered.wind, [[0, 25]] * 2, atol=1e-4)
    assert int(apply(file, Shift("delay", 2, "decisions")).arrays().delay) == 2


def test_filters():
    g = grid(load("head_on"), ["position", "heading"], ["A1", "all"], "micro")
    assert {s.kind for s in g.shifts[1:]} == {"position_lat", "position_lon", "heading", "position_along"}
    assert {s.target for s in g.shifts[1:]} == {"A1", ALL}
    each = grid(load("merge_4all"), ["speed"], ["each"])
    assert {s.target for s in each.shifts[1:]} == {"A1", "A2", "A3", "A4"}
    across = grid(load("head_on"), ["position_across"], ["A2"])
    assert {(s.kind, s.target) for s in across.shifts[1:]} == {("position_across", "A2")}
    for wrong in (lambda: grid(load("head_on"), ["headings"]), lambda: grid(load("head_on"), targets=["A9"])):
        with pytest.raises(ConfigError, match=r"did you mean|choose from"):
            wrong()


def test_starts_too_close_are_listed():
    g = grid(load("chase_4all"), ["position_along"], ["A1"])
    reasons = {s.name: why for s, why in g.skipped}
    assert "position_along_+3_A1" in reasons and "3.0" in reasons["position_along_+3_A1"]
    assert "position_along_-3_A1" in {s.name for s in g.shifts}


def test_representatives():
    assert shifts.representatives(load("merge_4all")) == ("A2", "A3")
    assert shifts.representatives(load("cross_4all")) == ("A1", "A2", "A3", "A4")
    assert shifts.representatives(load("parallel"))[0] == "A1"


def test_starts_are_perturbed_alike_in_every_configuration():
    g = grid(load("cross_3p1"), ["heading"], ["A1"])
    scenarios, numbers = starts(g.files[:3], 5, Jitter(), 7)
    assert scenarios.north.shape == (15, 4) and numbers.tolist() == [0, 1, 2, 3, 4] * 3
    north = scenarios.north.reshape(3, 5, 4)
    assert np.array_equal(north[0], north[1]) and len(np.unique(north[0, :, 0])) == 5
    turned = scenarios.heading.reshape(3, 5, 4) - scenarios.heading.reshape(3, 5, 4)[0]
    assert np.allclose((turned[1, :, 0] + 180) % 360 - 180, g.shifts[1].value, atol=1e-3)
    more, _ = starts(g.files[:1], 9, Jitter(), 7, aircraft=6)
    assert np.array_equal(more.north[:5, :4], north[0]) and not more.present[:, 4:].any()


def test_jitter_stays_within_its_bounds():
    draws = Jitter(0.5, 2, 5).draw(2000, 4, 0)
    assert np.hypot(draws[..., 0], draws[..., 1]).max() <= 0.5
    assert np.abs(draws[..., 2]).max() <= 2 and np.abs(draws[..., 3]).max() <= 5
    assert np.abs(draws.mean((0, 1))).max() < 0.1
    assert not Jitter().scaled(0).any and math.isclose(Jitter().scaled(2).position_nm, 1.0)
