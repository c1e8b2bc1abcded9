"""Flights of the real environment, and what is measured of them, against straightforward counting."""

import csv

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import fly

from regimen.algorithms.ppo import PPO
from regimen.config.schema import NetworkConfig
from regimen.domains.airspace.analysis import measure as measuring
from regimen.domains.airspace.analysis import pilots, safety
from regimen.domains.airspace.analysis.campaign import Jitter, starts
from regimen.domains.airspace.analysis.detector import Detector, pairs
from regimen.domains.airspace.analysis.flight import Pilot, chunk_size, chunks
from regimen.domains.airspace.analysis.trajectory import episode_alarms, trajectory, write_trajectory
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import load
from regimen.sources.play import baseline_actor
from regimen.types import Spec

ENV = Airspace(scenario="mixed", max_episode_steps=60)
FILES = [load("head_on"), load("cross_3p1")]
KEY = jax.random.key(3)
DETECTOR = Detector()
EPISODES = 3


def late(env, key, state, obs):
    """To the waypoint, but for a turn to the right that comes too late: conflicts, alerts and losses of separation."""
    turning = (state.time >= 10) & (state.time < 14)
    return jnp.where(turning, jnp.array([0.8, -0.6]), env.baselines["waypoint"](env, key, state, obs))


LATE = Pilot(baseline_actor(late))


@pytest.fixture(scope="module")
def scenarios():
    return starts(FILES, EPISODES, Jitter(), 0)


@pytest.fixture(scope="module")
def chunk(scenarios):
    """One chunk of flights, as the compiled program leaves it."""
    [(where, rows)] = chunks(ENV, LATE, scenarios[0], KEY, episodes=scenarios[1])
    assert where == slice(0, 6)
    return rows


@pytest.fixture(scope="module")
def flight(chunk):
    return chunk.take(np.arange(6))


@pytest.fixture(scope="module")
def measures(chunk):
    return measuring.measure(chunk, 6, DETECTOR)


def test_rows_of_a_flight(flight, scenarios):
    s = flight.state
    assert s["north"].shape == (61, 6, 4) and s["parts"].shape[:3] == (61, 6, 4)
    assert np.allclose(s["north"][0], scenarios[0].north) and not s["command"][0].any()
    assert flight.scenario.present.sum(1).tolist() == [2] * 3 + [4] * 3
    for c, length in enumerate(flight.length):
        here, flying, reached = flight.scenario.present[c], flight.flying[:, c], s["reached"][:, c]
        assert not flying[length:].any() and flying[length - 1].any()
        assert np.array_equal(flying[:length], here & ~reached[:length])
        assert length == 60 or reached[length][here].all()
        one = flight.episode(c).state
        assert one["north"].shape[0] == length + 1
        moved = np.hypot(np.diff(one["north"][:, 0], axis=0), np.diff(one["east"][:, 0], axis=0))[:, here]
        assert moved.max() < 1.1  # NM in 10 s
        speeds = np.linalg.norm(one["ground"][:, 0], axis=-1)[:, here]
        assert np.allclose(moved, 0.5 * (speeds[1:] + speeds[:-1]) / 360, atol=0.06)


def test_an_episode_is_the_environments_own(flight, scenarios):
    """Stepping the environment by hand gives the same rows."""
    one = jax.tree.map(lambda x: x[4], scenarios[0])
    state, obs = ENV.start(one)
    step = jax.jit(lambda s, o: ENV.step(KEY, s, late(ENV, KEY, s, o)))
    for t in range(1, 16):
        state, ts = step(state, obs)
        obs = ts.obs
        assert np.allclose(flight.state["north"][t, 4], state.north, atol=1e-3)
        assert np.allclose(flight.state["command"][t, 4], state.command, atol=1e-2)
        assert np.allclose(flight.state["parts"][t, 4], ts.reward, atol=1e-3)


def test_measures_are_what_one_counts(flight, measures):
    e, a = measures.episode, measures.aircraft
    for c, length in enumerate(flight.length):
        s, active, present = {k: x[:, c] for k, x in flight.state.items()}, flight.flying[:, c], measures.present[c]
        assert e["length"][c] == length
        within = np.where(active[:-1], s["min_sep"][1:], np.inf)
        north, east = s["north"][0], s["east"][0]
        start = min(np.hypot(north[i] - north[j], east[i] - east[j]) for i, j in pairs(4) if present[[i, j]].all())
        assert e["start_separation_nm"][c] == pytest.approx(start, abs=1e-3)
        assert e["min_separation_nm"][c] == pytest.approx(min(within.min(), start), abs=1e-4)
        assert e["los"][c] == (e["min_separation_nm"][c] < 5)
        lost = (within < 5).any(1)
        assert e["los_decisions"][c] == lost.sum()
        assert e["first_los"][c] == (np.argmax(lost) if lost.any() else -1)  # the decision in which it begins
        assert np.array_equal(a["decisions"][c], active.sum(0))
        assert np.array_equal(a["reached"][c], s["reached"][length] & present)
        commands = (s["command"][1:] != 0).any(-1) & active[:-1]
        assert np.array_equal(a["commands"][c], commands.sum(0))
        for i in np.flatnonzero(a["reached"][c]):
            straight = a["direct_nm"][c, i] - a["remaining_nm"][c, i]
            assert 0 <= a["remaining_nm"][c, i] <= 1.001
            assert straight - 0.05 <= a["flown_nm"][c, i] <= 0.81 * 1.3 * a["decisions"][c, i]
    assert e["flight_h"] == pytest.approx(a["decisions"].sum(1) * 10 / 3600, rel=1e-4)


def test_the_compiled_detector_is_the_one_of_an_episode(flight, measures):
    """Flags from numpy, one episode at a time, give the counts of the chunk."""
    conflicts = 0
    for c in range(6):
        alarms, los = episode_alarms(flight, c, DETECTOR)
        conflicts += alarms.conflict.any()
        assert measures.episode["conflict_decisions"][c] == alarms.conflict.any(0).sum()
        assert np.array_equal(measures.aircraft["alert_decisions"][c], alarms.alert[0].sum(-1))
        assert np.array_equal(measures.aircraft["alert_decisions_ungated"][c], alarms.alert[1].sum(-1))
        assert measures.episode["los_decisions"][c] == los[0].sum()
    assert conflicts == 6


def test_a_summary(measures):
    row = safety.summarise(measures.take(slice(3, 6)), DETECTOR)
    assert row["episodes"] == 3 and 0 <= row["los_low"] <= row["los_rate"] <= row["los_high"] <= 1
    assert row["min_separation_min_nm"] <= row["min_separation_p50_nm"] <= row["min_separation_p95_nm"]
    assert row["tp"] + row["fn"] == measures.counts["gated"].conflicts[3:, 0].sum()
    assert row["path_efficiency"] <= 1.001 and row["distance_overhead"] > -0.001
    assert row["collision_risk_low"] <= row["collision_risk_per_h"] <= row["collision_risk_high"]
    base = safety.differences(measures.take(slice(3, 6)), measures.take(slice(3, 6)))
    assert set(base.values()) == {0.0}
    rows = safety.alert_rows(measures.take(slice(3, 6)), load("cross_3p1").ids, DETECTOR)
    assert len(rows) == 2 * (1 + 4 + 6)
    assert [r["unit"] for r in rows[:6]] == ["scene", "A1", "A2", "A3", "A4", "A1-A2"]


def two(north, east, heading, waypoint):
    """One scenario of two aircraft, [1, ...]."""
    values = {"north": north, "east": east, "heading": heading, "waypoint": waypoint}
    scenario = load("head_on").arrays().replace(**{k: np.array(v, np.float32) for k, v in values.items()})
    return jax.tree.map(lambda x: np.asarray(x)[None], scenario)


NO_OP = Pilot(baseline_actor(ENV.baselines["no_op"]))


def test_a_start_that_is_too_close_is_a_loss():
    """4.95 NM apart and flying away from each other: after a second it is 5.11 NM."""
    env = Airspace(scenario="head_on", max_episode_steps=5)
    apart = two((2.475, -2.475), (0.0, 0.0), (0.0, 180.0), ((50.0, 0.0), (-50.0, 0.0)))
    m = measuring.fly_and_measure(env, NO_OP, apart, KEY, DETECTOR)
    assert m.episode["min_separation_nm"] == pytest.approx([4.95], abs=1e-3)
    assert m.episode["los"].tolist() == [True] and m.episode["los_decisions"].tolist() == [0]


def test_survival_is_exact():
    x, s = safety.survival(np.array([3.0, 5.0, 5.0, 8.0]))
    assert x.tolist() == [3, 5, 8] and s.tolist() == [1, 0.75, 0.25]
    low, high = safety.survival_band(np.array([3.0, 5.0, 5.0, 8.0]), np.array([4.0, 9.0]))
    assert low[0] <= 0.75 <= high[0] and high[1] == 0


def test_no_conflict_and_no_alert_is_absent():
    """Three in trail that fly straight: nothing to detect, nothing detected, and F1 is not 0."""
    sc, numbers = starts([load("parallel")], 6, Jitter(0, 0, 0), 0, aircraft=4)
    pilot = Pilot(baseline_actor(ENV.baselines["no_op"]))
    m = measuring.fly_and_measure(ENV, pilot, sc, KEY, DETECTOR, episodes=numbers)
    row = safety.summarise(m, DETECTOR)
    assert (
        row["los_rate"] == 0
        and row["reached_rate"] == 1
        and row["min_separation_p50_nm"] == pytest.approx(8.0, abs=0.02)
    )
    assert all(np.isnan(row[k]) for k in ("precision", "recall", "f1", "lead_s", "f1_ungated", "resolution_failure"))
    assert row["interventions_per_h"] == 0 and row["time_overhead"] == pytest.approx(0, abs=0.04)
    assert row["distance_overhead"] == pytest.approx(0, abs=1e-3)


def test_compat_rules_hold_where_a_policy_was_trained_with_them():
    """The published no-op flight of head_on: separation every 10 s, 0.42 NM, lost in decision 20, there in decision 44;
    merging aircraft that have arrived fly on and count."""
    env = Airspace(scenario="mixed", observation="compat", reward="compat", max_episode_steps=90)
    sc, numbers = starts([load("head_on"), load("merge_2x2")], 1, Jitter(0, 0, 0), 0)
    pilot = Pilot(baseline_actor(env.baselines["no_op"]))
    m = measuring.fly_and_measure(env, pilot, sc, KEY, DETECTOR, episodes=numbers)
    assert m.episode["min_separation_nm"] == pytest.approx([0.42, 0.03], abs=0.1)
    assert m.episode["first_los"].tolist() == [19, 35] and m.episode["length"].tolist() == [44, 62]
    assert m.aircraft["decisions"][0, :2].tolist() == [44, 44]


def test_chunks_are_equal_and_cover_everything(scenarios):
    assert [chunk_size(n) for n in (1, 1024, 1025, 54_500)] == [1, 1024, 513, 1010]
    three = jax.tree.map(lambda x: x[:4], scenarios[0])
    found = [w for w, rows in chunks(ENV, LATE, three, KEY, size=6)]
    assert found == [slice(0, 4)]


@pytest.fixture(scope="module")
def policy():
    algo = PPO(network=NetworkConfig(hidden=(8, 8))).bind(
        Spec(ENV.observation_space, ENV.action_space, ENV.reward_components)
    )
    return algo, algo.actor_params(algo.init(jax.random.key(1)))


def test_a_learned_policy_flies(policy, scenarios):
    """Equal episode numbers draw equal noise, whatever else is in the batch."""
    algo, params = policy
    pilot = Pilot(pilots.SAMPLED, (algo, params))
    same = jax.tree.map(lambda x: x[[3, 4, 3, 4, 3, 3]], scenarios[0])
    drawn = fly(ENV, pilot, same, KEY, episodes=[0, 0, 0, 1, 1, 2])
    actions = drawn.state["action"]
    assert np.array_equal(actions[:, 0], actions[:, 2]) and not np.array_equal(actions[:, 0], actions[:, 4])
    assert np.abs(actions[1:5]).max() > 0.1
    greedy = Pilot(pilots.GREEDY, (algo, params))
    [(_, rows)] = chunks(ENV, greedy, same, KEY, episodes=[0, 1, 2, 3, 4, 5])
    assert np.array_equal(np.asarray(rows.state["north"])[:, 0], np.asarray(rows.state["north"])[:, 2])


# --- trajectories ----------------------------------------------------------------------------------------------------


def test_trajectory_columns(flight, tmp_path):
    file, parts = load("cross_3p1"), tuple(ENV.reward_components)
    path = write_trajectory(tmp_path / "t.csv", flight, 4, file, DETECTOR, components=parts, episode=7)
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    needed = """episode_id step_idx sim_time_s agent_id lat_deg lon_deg alt_ft hdg_deg tas_kt cas_kt
        action_hdg_delta_deg action_spd_delta_kt reward min_separation_nm conflict_flag collision_flag wp_dist_nm
        waypoint_reached waypoint_hits conflict_pairs_count dist_to_A1_nm dist_to_A4_nm reward_act_cost reward_progress
        reward_drift reward_time reward_violate_entry reward_violate_step reward_reach reward_terminal reward_total
        reward_team team_phi team_dphi gt_conflict predicted_alert tp fp fn tn wp_lat_deg wp_lon_deg ground_speed_kt
        track_deg"""
    assert set(needed.split()) <= set(rows[0])
    first = [r for r in rows if r["agent_id"] == "A1"]
    assert first[0]["dist_to_A1_nm"] == "" and float(first[0]["dist_to_A2_nm"]) > 15
    assert float(first[0]["wp_lat_deg"]) == pytest.approx(file.agents[0].waypoint[0], abs=1e-4)
    assert abs(float(first[0]["lat_deg"]) - file.agents[0].lat) < 0.01
    assert [r["waypoint_reached"] for r in first].count("1") <= 1 and {r["episode_id"] for r in rows} == {"7"}
    assert len(first) == int(first[-1]["step_idx"]) + 1
    decided = [r for r in rows if r["tn"]]
    assert all(sum(int(r[k]) for k in ("tp", "fp", "fn", "tn")) == 1 for r in decided)


def test_the_reward_of_a_row_is_the_sum_of_its_parts(flight):
    columns = trajectory(flight, 4, load("cross_3p1"), DETECTOR, components=tuple(ENV.reward_components))
    total = sum(columns[f"reward_{n}"] for n in ENV.reward_components)
    assert np.allclose(columns["reward"], total) and np.allclose(
        columns["reward_total"] + columns["reward_team"], total
    )
    at = columns["agent_id"] == "A2"
    assert np.array_equal(np.flatnonzero(at)[:2], [1, 5])  # by time, then aircraft


def test_those_that_fly_on_stay_in_the_table():
    """`compat`: the second one has arrived at once and flies on, 4 NM beside the first: they are a pair within 5 NM at
    every row, and the distance is told, as the separation is."""
    env = Airspace(scenario="head_on", observation="compat", reward="compat", max_episode_steps=5)
    beside = two((0.0, 0.0), (0.0, 4.0), (0.0, 0.0), ((50.0, 0.0), (1.0, 4.0)))
    flown = fly(env, NO_OP, beside, KEY)
    table = trajectory(flown, 0, load("head_on"), DETECTOR)
    first = table["agent_id"] == "A1"
    assert flown.state["reached"][1:, 0, 1].all() and first.sum() == 6 and (~first).sum() == 2
    assert table["dist_to_A2_nm"][first] == pytest.approx([4.0] * 6, abs=0.01)
    assert table["min_separation_nm"][first] == pytest.approx([4.0] * 6, abs=0.01)
    assert table["conflict_pairs_count"][first].tolist() == [1] * 6 and table["conflict_flag"][first].all()
    assert table["team_phi"][first] == pytest.approx([0.4] * 6, abs=0.01)
    measured = measuring.fly_and_measure(env, NO_OP, beside, KEY, DETECTOR)
    assert measured.aircraft["flown_nm"][0, 0] == pytest.approx(50 * 288.7 / 3600, abs=0.01)


def test_the_aircraft_of_an_episode_are_not_independent(measures):
    """3 episodes of 4 aircraft are 3 trials, not 12."""
    some = measures.take(slice(3, 6))
    reached = np.zeros((3, 4), bool)
    reached[:2] = True
    some = some._replace(aircraft=some.aircraft | {"reached": reached})
    row = safety.summarise(some, DETECTOR)
    assert row["reached_rate"] == pytest.approx(2 / 3)
    assert (row["reached_low"], row["reached_high"]) == pytest.approx((0.2077, 0.9385), abs=1e-4)  # Wilson, 2 of 3


def test_wind_is_in_the_ground_speed(chunk):
    one = chunk.take(np.array([0]))
    windy = one._replace(state=one.state | {"ground": one.state["ground"] + np.array([0.0, 50.0], np.float32)})
    calm, blown = (trajectory(f, 0, load("head_on"), DETECTOR) for f in (one, windy))
    assert calm["ground_speed_kt"][0] == pytest.approx(calm["tas_kt"][0], abs=0.1)
    assert blown["ground_speed_kt"][0] > calm["ground_speed_kt"][0] + 3
    assert 5 < blown["track_deg"][0] - calm["track_deg"][0] % 360 < 12 or blown["track_deg"][0] < 20
