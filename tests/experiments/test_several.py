"""One command, several runs: what it stands for, and what is kept of failures and interruptions."""

import json
import os
import signal

import pytest

import regimen
from conflict_env import Crossing, Merging
from regimen.cli.main import main
from regimen.cli.train import read
from regimen.engines import signals
from regimen.envs import registry
from regimen.errors import ConfigError, EnvError, StorageError
from regimen.experiments import many
from regimen.files.run_dir import read_config, write_config
from support import TINY, UPDATE, command_line

FEW = {**TINY, "total_steps": 2 * UPDATE, "eval.every": "1"}


@pytest.fixture(autouse=True)
def pair(compilation_cache, without_plots, monkeypatch):
    """A family of two tiny environments, and what would draw one of them."""
    monkeypatch.setattr(registry, "ENVS", registry.ENVS)
    for name, target in (("pair/crossing", Crossing), ("pair/merging", Merging), ("pair/random", Crossing)):
        monkeypatch.setitem(registry.ENVS, name, registry.EnvEntry(target))


def broken():
    raise RuntimeError("no such runway")


def rows(folder):
    return json.loads((folder / "summary.json").read_text())["runs"]


# --- planning --------------------------------------------------------------------------------------------------------


def test_a_family_is_its_fixed_environments():
    assert many.family("pair/all") == ["pair/crossing", "pair/merging"]
    assert many.family("durotaxis/all") == ["durotaxis", "durotaxis/ratio"]
    assert len(many.family("probe/all")) == len([n for n in registry.ENVS if n.startswith("probe/")])
    with pytest.raises(ConfigError, match=r"unknown environment 'pear/all': .*; did you mean 'pair/all'"):
        many.family("pear/all")


def test_names_of_the_runs():
    def names(env, **overrides):
        return [job.name for job in many.plan(env, overrides=overrides).jobs]

    assert names("pair/all") == ["crossing", "merging"]
    assert names("pair/crossing", algorithm="all") == ["ppo", "sac", "impala", "appo", "cql"]
    both = many.plan("pair/all", overrides={"algorithm": "all"})
    assert [job.name for job in both.jobs][3:6] == ["crossing-appo", "crossing-cql", "merging-ppo"]
    assert [job.data_from for job in both.jobs if job.data_from] == ["crossing-ppo", "merging-ppo"]
    assert both.title == "pair-all" and many.plan("pair/all").title == "pair-ppo"
    assert many.plan("cartpole").title is None


def test_hyper_parameters_go_to_the_algorithms_that_have_them():
    jobs = many.plan("pair/crossing", overrides={"algorithm": "all", "algo.clip_eps": 0.1, "algo.gamma": 0.5}).jobs
    assert [job.config.algo.gamma for job in jobs] == [0.5] * 5
    assert [getattr(job.config.algo, "clip_eps", None) for job in jobs] == [0.1, None, None, 0.1, None]
    with pytest.raises(ConfigError, match=r"unknown setting 'algo\.clip_epz'"):
        many.plan("pair/crossing", overrides={"algorithm": "all", "algo.clip_epz": 0.1})
    with pytest.raises(ConfigError, match=r"pair/crossing with sac: rollout\.episodes"):
        many.plan("pair/crossing", overrides={"algorithm": "all", "rollout.episodes": 4})


def test_all_algorithms_train_on_the_same_environment():
    """PPO's preset sets arguments of the environment; the others have no preset for it."""
    jobs = many.plan("airspace/head_on", overrides={"algorithm": "all", "env_args": {"position_jitter": 0.25}}).jobs
    assert len(jobs[0].config.env_args) > 1 and jobs[0].config.env_args["position_jitter"] == 0.25
    assert all(job.config.env_args == jobs[0].config.env_args for job in jobs)


def test_the_airspace_family_is_its_fourteen_scenarios():
    names = many.family("airspace/all")
    assert len(names) == 14 and not {"airspace/mixed", "airspace/random"} & set(names)


def test_the_command_line_reads_the_first():
    config, _ = read(["pair/all", "--total-steps", "64"])
    assert (config.env, config.total_steps) == ("pair/crossing", 64)


# --- training --------------------------------------------------------------------------------------------------------


def test_a_family_is_trained_and_started_again_only_where_it_is_not_finished(tmp_path, capsys):
    out = tmp_path / "family"
    argv = ["train", "pair/all", "--out", str(out), *command_line(total_steps=2 * UPDATE)]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "[2/2] pair/merging with ppo" in text and "finished" in text
    assert [(r["env"], r["state"], r["env_steps"]) for r in rows(out)] == [
        ("pair/crossing", "finished", 64),
        ("pair/merging", "finished", 64),
    ]
    before = (out / "crossing" / "metrics.jsonl").stat().st_mtime_ns
    os.rename(out / "merging", tmp_path / "elsewhere")
    assert main(argv) == 0
    assert f"finished before: {out / 'crossing'}" in capsys.readouterr().out
    assert (out / "crossing" / "metrics.jsonl").stat().st_mtime_ns == before
    assert (out / "merging" / "summary.json").exists()


def test_one_that_fails_does_not_stop_the_rest(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(registry.ENVS, "pair/broken", registry.EnvEntry(broken))
    monkeypatch.setitem(registry.ENVS, "pair/last", registry.EnvEntry(Crossing))
    out = tmp_path / "family"
    code = main(["train", "pair/all", "--out", str(out), "--json", *command_line(total_steps=UPDATE)])
    assert code == EnvError.exit_code
    found = json.loads(capsys.readouterr().out)
    assert [r["state"] for r in found["runs"]] == ["finished", "finished", "failed", "finished"]
    assert "no such runway" in found["runs"][2]["error"] and (found["finished"], found["failed"]) == (3, 1)


def test_a_signal_stops_the_lot_after_saving_and_the_same_command_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(signals, "GRACE_SECONDS", 600.0)  # a busy machine must not end the test's own process
    out = tmp_path / "family"
    plan = many.plan("pair/all", overrides={**FEW, "total_steps": 10**7, "out": str(out)})

    def interrupt(info):
        if info["update"] == 3:
            os.kill(os.getpid(), signal.SIGINT)

    result = many.train_all(plan, callback=interrupt)
    assert result.exit_code == 130
    assert [r["state"] for r in rows(out)] == ["interrupted", "not started"]
    assert list((out / "crossing" / "checkpoints").glob("[0-9]*"))
    done = result.runs[0].summary["env_steps"]
    write_config(out / "crossing", read_config(out / "crossing") | {"total_steps": done + UPDATE})
    again = many.train_all(many.plan("pair/all", overrides={**FEW, "out": str(out)}))
    assert again.exit_code == 0 and [r["state"] for r in rows(out)] == ["finished", "finished"]
    assert rows(out)[0]["env_steps"] == done + UPDATE


def test_the_exit_code_of_a_signal_comes_first(tmp_path):
    """One failed, then a signal came: what called the command has to know that it is to be started again."""
    codes = {"a": 5, "b": 143, "c": 0}
    made = {name: {"run": name, "state": "x", "exit_code": code} for name, code in codes.items()}
    assert many.write_summary(tmp_path, made)["exit_code"] == 143
    assert many.write_summary(tmp_path, {"a": made["a"], "c": made["c"]})["exit_code"] == 5


@pytest.mark.long
def test_seeds_of_each_and_a_seed_that_was_lost(tmp_path):
    settings = {**FEW, "seeds": 2, "out": str(tmp_path / "family")}
    assert regimen.train("pair/all", **settings).exit_code == 0
    assert [r["seeds"] for r in rows(tmp_path / "family")] == [2, 2]
    os.rename(tmp_path / "family" / "merging" / "seed-1", tmp_path / "lost")
    again = regimen.train("pair/all", **settings)
    assert again.exit_code == 0 and len(again.runs[1].runs) == 2
    assert (tmp_path / "family" / "merging" / "seed-1" / "summary.json").exists()


def test_a_run_directory_is_no_folder_for_several(tmp_path):
    (tmp_path / "config.yaml").write_text("env: cartpole\n")
    with pytest.raises(StorageError, match="is a run directory"):
        regimen.train("pair/all", **FEW, out=str(tmp_path))


@pytest.mark.long
def test_algorithms_on_one_environment_end_with_a_comparison(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(many, "ALGORITHMS", ("ppo", "cql"))  # the others take a minute to compile
    out = tmp_path / "algorithms"
    small = ["--algo.batch-size", "16", "--algo.learning-starts", "16", "--algo.buffer-size", "256"]
    flags = [
        *("--total-steps", "64", "--rollout.steps", "32", "--rollout.num-envs", "4", "--algo.minibatch-size", "16"),
        *("--network.hidden", "8", "--eval.every", "1", "--eval.episodes", "2", "--no-track"),
    ]
    assert main(["train", "pair/crossing", "--algo", "all", "--out", str(out), *flags, *small]) == 0
    assert [r["state"] for r in rows(out)] == ["finished"] * 2
    text = capsys.readouterr().out
    assert "By return (larger is better)" in text and "cql learned from data" in text
    data = json.loads((out / "cql" / "summary.json").read_text())["data"]
    assert data["path"].endswith("cql-data")
    os.rename(out / "cql", tmp_path / "lost")  # as if interrupted between collecting and training
    assert main(["train", "pair/crossing", "--algo", "all", "--out", str(out), *flags, *small]) == 0
    assert (out / "cql" / "summary.json").exists()
    assert (out / "compare" / "compare.html").exists() and (out / "compare" / "compare.png").exists()
