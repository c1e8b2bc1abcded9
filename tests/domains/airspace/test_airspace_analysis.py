"""`analyse` and `regimen analyse` from end to end, small; what they refuse; and the page."""

import csv
import json
import re

import jax
import numpy as np
import pytest
import yaml

from regimen.algorithms.policy_map import PolicyMap
from regimen.algorithms.ppo import PPO
from regimen.cli import main as cli
from regimen.config.schema import NetworkConfig
from regimen.domains.airspace.analysis import analyse, pages, pilots
from regimen.domains.airspace.analysis.analysis import find_scenarios, find_shifts
from regimen.domains.airspace.analysis.campaign import Jitter
from regimen.domains.airspace.env import Airspace
from regimen.errors import ConfigError, StorageError
from regimen.policies.policy import Policy, save_policy
from regimen.types import Spec

SHORT = {"max_episode_steps": 40}


def make_policy(scenario="head_on", env_args=None, seed=0):
    env = Airspace(scenario=scenario, **(env_args or SHORT))
    spec = Spec(env.observation_space, env.action_space, env.reward_components)
    algo = PPO(network=NetworkConfig(hidden=(8, 8))).bind(spec)
    params = algo.actor_params(algo.init(jax.random.key(seed)))
    meta = {"env": f"airspace/{scenario}", "env_args": env_args or SHORT, "algorithm": "ppo"}
    return Policy(algo, params, meta)


def make_run(folder, scenario="head_on", env_args=None, seed=0):
    policy = make_policy(scenario, env_args, seed)
    folder.mkdir(parents=True)
    config = {"env": f"airspace/{scenario}", "env_args": env_args or SHORT, "algorithm": "ppo"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    save_policy(folder / "policy", "ppo", policy.algo, policy.params, dict(policy.meta))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "head_on_run")


@pytest.fixture(scope="module")
def found(run):
    return analyse(run, shifts="heading,delay", episodes=4, shift_range="micro", targets="A1,all")


def rows(path):
    with open(path, newline="") as f:
        return list(csv.DictReader(f))


def test_files(found, run):
    out = run / "analysis"
    assert found.out == out
    for name in ("summary.json", "summary.csv", "shifts.csv", "alerts.csv", "episodes.csv", "airspace.html"):
        assert (out / name).stat().st_size > 100, name
    assert {p.stem for p in (out / "plots").glob("*.png")} >= {"shifts_head_on", "survival_head_on", "aircraft_head_on"}
    summary = rows(out / "summary.csv")
    assert [r["policy"] for r in summary] == ["head_on_run", "no_op", "waypoint", "mvp"]
    assert summary[0]["own"] == "1" and summary[0]["trained_on"] == "head_on" and summary[1]["precision"] == ""
    shifts = rows(out / "shifts.csv")
    assert shifts[0]["shift"] == "baseline" and {r["kind"] for r in shifts[1:]} == {"heading", "delay"}
    assert {r["target"] for r in shifts[1:]} == {"A1", "all"} and {r["range"] for r in shifts[1:]} == {"micro"}
    assert shifts[0]["los_rate_change"] == "0"
    assert len(rows(out / "episodes.csv")) == 4 * (4 + len(shifts) - 1)
    units = {(r["level"], r["unit"]) for r in rows(out / "alerts.csv")}
    assert units == {("scene", "scene"), ("aircraft", "A1"), ("aircraft", "A2"), ("pair", "A1-A2")}
    assert len(list((out / "trajectories").glob("*.csv"))) == len(found.samples) >= 8


def test_json_has_null_for_what_is_undefined(found, run):
    data = json.loads((run / "analysis" / "summary.json").read_text())
    no_op = next(r for r in data["summary"] if r["policy"] == "no_op")
    assert no_op["los_rate"] == 1 and no_op["precision"] is None and no_op["recall"] == 0
    assert data["settings"]["jitter"]["position_nm"] == 0.5 and data["seconds"]["total"] > 0
    assert "differ by: starts perturbed" in data["notes"][0]


def test_the_baseline_of_the_shifts_is_the_row_of_the_table(found):
    base, cell = found.shifts[0].row, found.cells[0].row
    shared = [k for k in cell if k in base]
    assert len(shared) > 40 and all(base[k] == cell[k] or (base[k] != base[k] and cell[k] != cell[k]) for k in shared)


def test_the_kept_episode_is_the_one_measured(found):
    """Flown again in full detail, the worst episode of a shift has the separation of the table."""
    worst = [k for k in found.samples if k.configuration.shift.name != "baseline"]
    assert worst
    for k in worst:
        flown = np.where(k.flights.flying[:-1], k.flights.state["min_sep"][1:], np.inf).min()
        assert flown == pytest.approx(k.configuration.measures.episode["min_separation_nm"].min(), abs=1e-3)


def test_the_page_is_one_file_and_escapes_what_it_shows(found, tmp_path):
    found.settings["policies"] = ["</script><b>me</b>"]
    page = pages.write_page(tmp_path / "airspace.html", found).read_text()
    assert not re.search(r"(src|href)=['\"]?https?:", page) and "<b>me</b>" not in page
    assert page.count("</script>") == 2
    data = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    flights = json.loads(data.group(1))  # type: ignore[union-attr]
    assert len(flights) == len(found.samples) and flights[0]["ids"] == ["A1", "A2"]
    one = flights[0]
    assert len(one["north"][0]) == one["steps"] + 1 == len(one["alert"][0]) == len(one["gap"])
    assert "default-src 'none'" in page and "script-src 'unsafe-inline'" in page
    assert '<canvas id="map"' in page and "<h2>Summary</h2>" in page and "body { max-width: 78rem; }" in page


def test_transfer_matrix_of_a_folder_of_runs(tmp_path):
    """One program serves runs on different scenarios; two of the policies are the same, and so are their rows."""
    make_run(tmp_path / "all" / "a", "head_on")
    make_run(tmp_path / "all" / "b", "parallel")
    found = analyse(tmp_path / "all", ["head_on", "parallel"], episodes=2, matrix=True, baselines=False)
    assert [(c.subject.name, c.file.name) for c in found.cells] == [
        (p, s) for p in ("a", "b") for s in ("head_on", "parallel")
    ]
    assert len(found.cells) == 4 and [c.row["own"] for c in found.cells] == [True, False, False, True]
    same = found.cells[0].row["min_separation_mean_nm"], found.cells[2].row["min_separation_mean_nm"]
    assert same[0] == same[1]
    assert (tmp_path / "all" / "analysis" / "matrix.csv").exists()
    assert found.to_dict()["transfer"]["a"]["own_los_rate"] == 1
    programs = pilots.policy_pilot(make_policy("head_on")), pilots.policy_pilot(make_policy("parallel"))
    assert programs[0].params[0] is programs[1].params[0]


def test_without_any_difference_one_episode_is_flown():
    found = analyse("no_op", "head_on", "none", 50, jitter=0, baselines=False, write=False, env_args=SHORT)
    assert found.settings["episodes"] == 1 and "one is flown" in found.notes[0]
    assert found.cells[0].row["min_separation_p50_nm"] == pytest.approx(0.1, abs=0.2)


def test_what_is_flown_by_default():
    one = pilots.Subject("a", None, None, "head_on")  # type: ignore[arg-type]
    rule = pilots.Subject("mvp", None, None)  # type: ignore[arg-type]
    assert [f.name for f in find_scenarios(None, [one], False)] == ["head_on"]
    assert len(find_scenarios(None, [rule], False)) == len(find_scenarios("all", [one], False)) == 14
    assert len(find_scenarios(None, [one], True)) == 14
    assert [f.name for f in find_scenarios("parallel,converging", [one], False)] == ["parallel", "converging"]
    files = find_scenarios("parallel", [one], False)
    assert find_shifts(None, [one], files) == ["all"] and find_shifts(None, [one], files * 2) == []
    assert find_shifts("auto", [one], files) == ["all"]
    assert find_shifts("none", [one], files) == [] and find_shifts("wind, speed", [one], files) == ["wind", "speed"]
    assert Jitter().any


def test_refusals(run, tmp_path, capsys):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.yaml").write_text("env: cartpole\nenv_args: {}\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="is a run of 'cartpole'; regimen analyse reads airspace runs"):
        analyse(tmp_path / "other")
    with pytest.raises(StorageError, match="holds none"):
        analyse(tmp_path / "empty")
    with pytest.raises(ConfigError, match="neither a run directory nor a baseline; did you mean 'mvp'"):
        analyse("mpv")
    with pytest.raises(StorageError, match="no such run directory"):
        analyse("runs/missing")
    with pytest.raises(ConfigError, match="did you mean 'head_on'"):
        analyse(run, "headon")
    with pytest.raises(ConfigError, match=r"observation space .* env settings it was trained with"):
        analyse(run, env_args={"observation": "compat"})
    for argv, code in (
        (["analyse"], 2),
        (["analyse", "mvp", "--shifts", "headings", "--scenario", "head_on"], 3),
        (["analyse", "mvp", "--episodes", "0"], 3),
        (["analyse", "mvp", "--range", "mini"], 3),
    ):
        assert cli.main(argv) == code, argv
    assert "did you mean" in capsys.readouterr().err


def test_a_policy_flies_with_the_settings_it_was_trained_with(tmp_path):
    """compat observations, because the run says so; and its reward's rules."""
    args = SHORT | {"observation": "compat", "reward": "compat"}
    subject = pilots.subject_of(make_run(tmp_path / "compat", "head_on", args))
    assert subject.env.observation == "compat" and subject.env.reward == "compat"
    assert subject.env.max_episode_steps == 40 and subject.scenario == "head_on"


def test_policies_of_single_aircraft(tmp_path):
    """Independent policies fly their own scenario, and are refused where there are more aircraft."""
    env = Airspace(scenario="head_on", **SHORT)
    spec = Spec(env.observation_space, env.action_space, env.reward_components, agents=("A1", "A2"))
    algo = PolicyMap.of(PPO(network=NetworkConfig(hidden=(8,))), spec, {"a": ("A1",), "b": ("A2",)}, {})
    params = algo.actor_params(algo.init(jax.random.key(0)))
    policy = Policy(algo, params, {"env": "airspace/head_on", "env_args": SHORT, "algorithm": "ppo"})
    found = analyse(policy, shifts="none", episodes=4, stochastic=True, baselines=False, write=False)
    assert found.cells[0].row["episodes"] == 4 and "drawn from the policy" in found.notes[-1]
    with pytest.raises(ConfigError, match=r"policies for 2 aircraft .* cross_4all has 4"):
        analyse(policy, "cross_4all", write=False)


def test_command(found, tmp_path, capsys):
    argv = ["analyse", "no_op", "--scenario", "head_on", "--shifts", "none", "--episodes", "4", "--no-baselines"]
    argv += ["--env.max_episode_steps", "40", "--out", str(tmp_path / "o")]
    (tmp_path / "o" / "plots").mkdir(parents=True)
    old = [tmp_path / "o" / name for name in ("shifts.csv", "plots/shifts_head_on.png", "plots/mine.png")]
    for path in old:
        path.write_text("of an earlier analysis")
    assert cli.main([*argv, "--json", "--quiet"]) == 0
    assert [path.exists() for path in old] == [False, False, True]
    data = json.loads(capsys.readouterr().out)
    assert data["settings"]["scenarios"] == ["head_on"] and len(data["summary"]) == 1
    assert cli.main(["analyse", "--help"]) == 0
    assert "transfer matrix" in capsys.readouterr().out
