"""The collision-risk estimate against a simulation of what it assumes, and its parts on tracks made by hand."""

import numpy as np
import pytest

from regimen.domains.airspace.analysis.detector import Tracks
from regimen.domains.airspace.analysis.risk import Reich, encounter_sums, risk


def tracks(north, east, v_north, v_east):
    north, east, v_north, v_east = (np.asarray(x, np.float32) for x in (north, east, v_north, v_east))
    zero = np.zeros_like(north)
    return Tracks(north, east, v_north, v_east, zero, zero, np.ones(north.shape, bool), zero[:, :1], zero[:, :1])


def test_same_and_opposite_directions():
    """Side by side at 3 NM, 20 kt faster: all the time an encounter in the same direction."""
    t = np.zeros(36)
    one = {k: float(v) for k, v in encounter_sums(tracks([t, t], [t, t + 3], [t + 280, t + 300], [t, t])).items()}
    assert one["flight_h"] == pytest.approx(0.2)
    assert one["encounter_h_same"] == one["overlap_h_same"] == pytest.approx(0.2)  # 0.1 h, from both aircraft
    assert one["along_nm_same"] == pytest.approx(0.2 * 20) and one["across_nm_same"] == 0
    assert one["encounter_h_opposite"] == 0
    two = encounter_sums(tracks([t, t], [t, t + 3], [t + 280, t - 300], [t, t]))
    assert two["overlap_h_opposite"] == pytest.approx(0.2) and two["along_nm_opposite"] == pytest.approx(0.2 * 580)
    far = encounter_sums(tracks([t, t + 11], [t, t], [t + 280, t + 300], [t, t]))
    assert far["encounter_h_same"] == 0
    beside = encounter_sums(tracks([t, t], [t, t + 8], [t + 280, t + 300], [t, t]))
    assert beside["encounter_h_same"] == pytest.approx(0.2) and beside["overlap_h_same"] == 0


def test_nothing_flown_is_undefined_and_nobody_near_is_none():
    zero = {k: np.zeros(1) for k in encounter_sums(tracks(*np.zeros((4, 2, 3))))}
    assert np.isnan(risk(zero)["collision_risk_per_h"]).all()
    assert risk(zero | {"flight_h": np.ones(1)})["collision_risk_per_h"] == 0


def test_it_counts_collisions_where_its_assumption_holds():
    """Relative positions even over the neighbourhood, one relative velocity: the estimate is the rate at which
    boxes of the aircraft's size begin to overlap, counted here with large aircraft."""
    model = Reich(length_nm=0.4, width_nm=0.3, along_nm=10, across_nm=5)
    rng = np.random.default_rng(0)
    n, dx, dy, dt = 4_000_000, 60.0, 25.0, 1e-3
    x, y = rng.uniform(-10, 10, n), rng.uniform(-5, 5, n)

    def inside(x, y):
        return (np.abs(x) < model.length_nm) & (np.abs(y) < model.width_nm)

    entered = (~inside(x, y) & inside(x + dx * dt, y + dy * dt)).sum() / (n * dt)  # per hour in the neighbourhood
    sums = {"flight_h": 1.0, "encounter_h_same": 1.0, "overlap_h_same": 1.0, "along_nm_same": dx, "across_nm_same": dy}
    sums |= {f"{k}_opposite": 0.0 for k in ("encounter_h", "overlap_h", "along_nm", "across_nm")}
    found = risk({k: np.array(v) for k, v in sums.items()}, model)["collision_risk_per_h"]
    assert found == pytest.approx(0.28) and found == pytest.approx(entered, rel=0.1)
