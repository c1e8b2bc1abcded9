"""Scenario files and their errors, the formulas behind them, the generator, and the command."""

import copy
import json
import math
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from airspace_rollouts import library as library_of

from regimen.cli import main as cli
from regimen.config.layers import build_config
from regimen.domains.airspace import files, generator, library
from regimen.domains.airspace.aircraft import ALIASES, TYPES, index_of
from regimen.domains.airspace.env import Airspace
from regimen.domains.airspace.files import NAMES, load
from regimen.domains.airspace.generator import jitter, loses_separation, no_op_separation
from regimen.domains.airspace.library import START, make
from regimen.envs import registry
from regimen.errors import ConfigError

# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_files_and_formulas_agree(name):
    assert load(name) == make(name)
    assert json.loads((files.FOLDER / f"{name}.json").read_text()) == make(name).to_dict()


def test_offsets_of_the_first_scenarios():
    def offsets(name):
        file = load(name)
        scale = 60 * math.cos(math.radians(file.center.lat))
        return [((a.lat - file.center.lat) * 60, (a.lon - file.center.lon) * scale, a.hdg_deg) for a in file.agents]

    starts = [(-8.676, -1.908, 20.077), (6.793, -5.207, 140.097), (4.384, 9.228, 259.992), (-11.693, 5.406, 319.904)]
    assert np.allclose(offsets("converging"), starts, atol=1e-3)
    assert np.allclose(offsets("t_formation"), [(0, -20, 90), (-16, -6, 0), (-9.6, -6, 0)], atol=1e-6)
    assert np.allclose(offsets("cross_3p1")[3], (-15, 18, 0), atol=1e-6)
    assert np.allclose(offsets("chase_2x2")[2], (-18, 8, 0), atol=1e-6)


def test_a_file_comes_back(tmp_path):
    made = make("merge_3p1", radius_nm=40, speed_kt=240, type="B747", alt_ft=12_000)
    assert load(made.save(tmp_path / "x.json")) == made
    arrays = made.arrays(6)
    assert arrays.present.tolist() == [True] * 4 + [False] * 2 and arrays.kind[0] == index_of("B744")
    assert arrays.cas[0] == 240 and arrays.altitude[0] == 12_000


def test_close_starts_are_spread():
    assert make("chase_4all", gap_nm=5.0).arrays().present.all()
    file = make("merge_4all", radius_nm=25)
    starts = np.stack([file.arrays().north, file.arrays().east], axis=-1)
    gaps = np.hypot(*(starts[:, None] - starts[None, :]).transpose(2, 0, 1)) + 99 * np.eye(4)
    assert gaps.min() >= 5.0


BAD = {
    "no waypoint": (lambda d: d["agents"][0].pop("waypoint"), r"agents\[0\] \(A1\): no waypoint; add"),
    "no latitude": (lambda d: d["agents"][1].pop("lat"), r"agents\[1\] \(A2\): no 'lat'"),
    "half a waypoint": (lambda d: d["agents"][0]["waypoint"].pop("lon"), "waypoint: no 'lon'"),
    "overlap": (lambda d: d["agents"][0].update(lat=52.29), r"A1 and A2 start 0\.60 NM apart, within 5 NM"),
    "type": (lambda d: d["agents"][0].update(type="A32"), "unknown aircraft type 'A32'; did you mean 'A320'"),
    "nan": (lambda d: d["agents"][0].update(spd_kt=math.nan), "NaN is not a number"),
    "infinite": (lambda d: d["center"].update(lat=math.inf), "Infinity is not a number"),
    "text": (lambda d: d["agents"][0].update(lat="52"), 'lat: "52" is not a number'),
    "bool": (lambda d: d["agents"][0].update(alt_ft=True), "alt_ft: true is not a number"),
    "speed": (lambda d: d["agents"][0].update(spd_kt=20), "spd_kt: 20 is out of range; it must be between 100 and 400"),
    "nobody": (lambda d: d.update(agents=[]), "agents is empty; a scenario has at least one aircraft"),
    "no agents": (lambda d: d.pop("agents"), "no 'agents'"),
    "no list": (lambda d: d.update(agents={}), "agents must be a list"),
    "no object": (lambda d: d.update(agents=[3]), "3 is not an object"),
    "no centre": (lambda d: d.pop("center"), "no 'center'"),
    "twice": (lambda d: d["agents"][1].update(id="A1"), "two aircraft are called 'A1'"),
    "key": (lambda d: d["agents"][0].update(heading=3), "unknown key 'heading'; choose from: alt_ft, hdg_deg"),
    "top key": (lambda d: d.update(agent=[]), "unknown key 'agent'; did you mean 'agents'"),
    "dt": (lambda d: d.update(sim_dt_s=0.5), "sim_dt_s: 0.5 is not supported"),
    "delay": (lambda d: d.update(action_delay_steps=9), "between 0 and 3"),
    "part of a delay": (lambda d: d.update(action_delay_steps=1.5), "not a whole number"),
    "wind": (lambda d: d.update(wind={"mode": "unifrom"}), "'unifrom' is not one of uniform, layered"),
    "layers": (lambda d: d.update(wind={"mode": "layered"}), "layers must be a list"),
    "far away": (lambda d: d["agents"][0]["waypoint"].update(lat=60), "480 NM from the centre; at most 250 NM"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_files(what, tmp_path):
    change, words = BAD[what]
    data = copy.deepcopy(load("head_on").to_dict())
    change(data)
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=words) as caught:
        Airspace(scenario=str(file))
    assert "mine.json" in str(caught.value) and "\n" not in str(caught.value)


def test_bad_json_names_the_line(tmp_path):
    (tmp_path / "x.json").write_text('{\n  "center": {"lat": 52,\n  "agents": [}\n')
    with pytest.raises(ConfigError, match=r"x\.json': line 3, column"):
        load(tmp_path / "x.json")


def test_missing_files_and_names(tmp_path):
    with pytest.raises(ConfigError, match=r"no such file; `regimen scenario new`"):
        load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="did you mean 'merge_4all'"):
        load("merge_4al")
    with pytest.raises(ConfigError, match="did you mean 'radius_nm'"):
        make("merge_4all", radius=3)
    with pytest.raises(ConfigError, match="did you mean 'head_on'"):
        make("headon")
    with pytest.raises(ConfigError, match="approach_nm: "):
        make("head_on", approach_nm="far")


def test_an_edited_file_is_read_again(tmp_path):
    file = make("head_on").save(tmp_path / "x.json")
    assert load(file).agents[0].spd_kt == 250
    make("head_on", speed_kt=230).save(file)
    os.utime(file, ns=(1, 1))
    assert load(file).agents[0].spd_kt == 230


def test_types():
    assert [t.name for t in TYPES] == ["A320", "B737", "B744", "E190"]
    assert {index_of(alias) for alias in ALIASES} == {2, 3}


def test_airspace_file_as_an_environment(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make("head_on", approach_nm=12).save("x.json")
    handle = registry.resolve("airspace:x.json", {"reward": "compat"})
    assert handle.native.agents == ("A1", "A2")  # type: ignore[union-attr]
    assert handle.id == build_config("airspace:x.json").env == f"airspace:{tmp_path / 'x.json'}"
    monkeypatch.chdir(tmp_path.parent)  # the run knows its file from every folder
    assert registry.resolve(handle.id).native.agents == ("A1", "A2")  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="no such file"):
        registry.resolve("airspace:y.json")


# --- the generator ---------------------------------------------------------------------------------------------------

DRAWS = 1000


@pytest.fixture(scope="session")
def drawn():
    """Many scenarios of up to six aircraft, with all families."""
    env = Airspace(scenario="random", aircraft=6, min_aircraft=3)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    scenarios, lost, least = jax.jit(
        lambda env, keys: jax.vmap(
            lambda k: ((s := env.draw(k)), loses_separation(s), no_op_separation(s))  # one program for all
        )(keys)
    )(env, keys)
    return jax.device_get((scenarios, lost, least))


def gaps(scenario):
    at = np.stack([scenario.north, scenario.east], axis=-1)
    away = np.hypot(*np.moveaxis(at[:, :, None] - at[:, None, :], -1, 0))
    both = scenario.present[:, :, None] & scenario.present[:, None, :] & ~np.eye(at.shape[1], dtype=bool)
    return np.where(both, away, np.inf)


def test_drawn_starts_are_apart(drawn):
    assert gaps(drawn[0]).min() >= START - 1e-3


def test_drawn_numbers_of_aircraft(drawn):
    number = drawn[0].present.sum(axis=1)
    assert number.min() >= 2 and number.max() == 6
    assert (number >= 3).mean() > 0.97  # hardly any had to be left out
    assert np.bincount(number, minlength=7)[3:].min() > DRAWS / 10


def test_drawn_headings_lead_to_waypoints_all_around(drawn):
    scenario = drawn[0]
    gap = scenario.waypoint - np.stack([scenario.north, scenario.east], axis=-1)
    bearing = np.degrees(np.arctan2(gap[..., 1], gap[..., 0]))
    off = (bearing - scenario.heading + 180) % 360 - 180
    assert np.abs(off[scenario.present]).max() < 0.1
    assert np.histogram(scenario.heading[scenario.present], 12, (0, 360))[0].min() > DRAWS / 6
    away = np.hypot(gap[..., 0], gap[..., 1])[scenario.present]
    assert away.min() > 5 and away.max() < 110  # all can be reached within 150 steps
    assert 224 <= scenario.cas.min() < 228 and 272 < scenario.cas.max() <= 275


def test_most_draws_need_avoidance(drawn):
    """The label agrees with the separation; a policy that does nothing fails on most of them, not on all."""
    _, lost, least = drawn
    assert np.array_equal(lost, least < 5.0) and 0.5 < lost.mean() < 0.95


def test_label_of_the_library():
    lost = jax.jit(jax.vmap(loses_separation))(library_of(4))
    assert {name for name, loses in zip(NAMES, lost) if not loses} == {
        "parallel",
        "chase_2x2",
        "chase_3p1",
        "chase_4all",
    }


@pytest.mark.parametrize("family", ["chase", "head_on"])
def test_families(family):
    env = Airspace(scenario="random", family=family, aircraft=4, min_aircraft=4, rotate=False)
    scenario = jax.device_get(jax.jit(jax.vmap(env.draw))(jax.random.split(jax.random.key(1), 64)))
    heading = scenario.heading[scenario.present]
    if family == "chase":
        assert np.allclose(np.minimum(heading, 360 - heading), 0, atol=1e-3)
    if family == "head_on":
        assert np.allclose(np.abs(np.sin(np.radians(heading))), 0, atol=1e-3) and 90 < heading.max() < 181
    assert gaps(scenario).min() >= START - 1e-3


def test_free_conflicts_are_as_asked():
    fields = {"angle_low": 60.0, "angle_high": 90.0, "distance_low": 1.0, "distance_high": 2.0}
    env = Airspace(scenario="random", family="free", aircraft=2, time_low=200.0, time_high=300.0, **fields)
    least = jax.jit(jax.vmap(lambda k: no_op_separation(env.draw(k))))(jax.random.split(jax.random.key(2), 200))
    assert float(least.min()) > 0.95 and np.quantile(np.asarray(least), 0.9) < 2.2


def test_jitter_keeps_starts_apart():
    one = jax.tree.map(jnp.asarray, load("chase_4all").arrays())
    many = jax.jit(jax.vmap(lambda k: jitter(k, one, 2.0, 5.0, 10.0)))(jax.random.split(jax.random.key(0), 300))
    many = jax.device_get(many)
    assert gaps(many).min() >= START - 1e-3
    assert np.abs(many.north - one.north).max() <= 2.0 and np.std(many.north[:, 0]) > 0.1
    turned = (many.heading + 180) % 360 - 180
    assert 4.5 < np.abs(turned).max() <= 5.0 and 9 < np.abs(many.cas - 250).max() <= 10
    same = jitter(jax.random.key(0), one, 0.0, 0.0, 0.0)
    assert np.array_equal(same.north, one.north) and np.array_equal(same.cas, one.cas)


def test_mixed_draws_all_fourteen():
    env = Airspace(scenario="mixed")
    many = jax.device_get(jax.jit(jax.vmap(env.draw))(jax.random.split(jax.random.key(0), 300)))
    assert len({tuple(row) for row in np.round(many.north, 3)}) >= 13 and set(many.present.sum(axis=1)) == {2, 3, 4}


def test_wind_of_episodes():
    env = Airspace(scenario="head_on", wind=30.0)
    wind = jax.vmap(env.draw)(jax.random.split(jax.random.key(0), 100)).wind
    strength = np.hypot(wind[..., 0], wind[..., 1])
    assert 25 < strength.max() <= 30 and np.array_equal(wind[:, 0], wind[:, 1])


def test_every_family_is_a_formula():
    assert set(library.FAMILIES) == set(NAMES) and set(generator.FAMILIES) == {
        "chase",
        "cross",
        "streams",
        "merge",
        "head_on",
        "free",
    }


# --- the command -----------------------------------------------------------------------------------------------------


def test_scenario_new_and_show(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["scenario", "new", "head_on", "--param", "approach_nm=10", "--param", "speed-kt=240", "--out", "x.json"]
    assert cli.main(command) == 0 and load("x.json").agents[0].spd_kt == 240
    assert abs(load("x.json").agents[0].lat - (52 - 10 / 60)) < 1e-6
    assert cli.main(["scenario", "show", "x.json", "--out", "x.png"]) == 0
    out = capsys.readouterr().out
    assert "start separation      20.01 NM" in out and "A2" in out and (tmp_path / "x.png").stat().st_size > 1000
    assert cli.main(["scenario", "list"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES)


@pytest.mark.parametrize(
    ("argv", "words", "code"),
    [
        (["scenario"], "needs new|show|list", 2),
        (["scenario", "shwo", "head_on"], "did you mean 'show'", 2),
        (["scenario", "new"], "needs a family", 2),
        (["scenario", "new", "merge"], "did you mean", 3),
        (["scenario", "new", "head_on", "--param", "approach_nm"], "KEY=VALUE", 2),
        (["scenario", "new", "head_on", "--param", "approach=9"], "approach_nm", 3),
        (["scenario", "new", "head_on", "--param", "approach_nm=1"], "within 5 NM", 3),
        (["scenario", "show", "nothing"], "unknown scenario", 3),
    ],
)
def test_scenario_errors(argv, words, code, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(argv) == code
    assert words.split("|")[0] in capsys.readouterr().err
