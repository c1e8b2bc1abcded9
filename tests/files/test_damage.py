"""Damaged and crafted files: what is read is what was written, or there is one line that names the file."""

import json
import random
import re
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import regimen
from faults import corruptions
from regimen.algorithms.ppo import PPO
from regimen.cli.main import main
from regimen.config.schema import NetworkConfig
from regimen.envs import registry
from regimen.errors import RegimenError, StorageError
from regimen.files import listing, tally
from regimen.files.checkpoint import Checkpoints
from regimen.files.run_dir import RunFiles, is_as_written, read_config, read_episodes, read_metrics
from regimen.files.sealed import digest_of, read_sealed, seal, unseal, write_sealed
from regimen.files.storage import CsvLog, Tally, rows_up_to
from regimen.policies.policy import read_files, save_policy
from regimen.reports.comparison import compare
from regimen.reports.diagnose import diagnose
from regimen.reports.run_report import write_report
from regimen.types import Spec
from support import UPDATE, assert_same_run, reseal
from synthetic_run import make_run

QUICK = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**32)
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
VALUES = st.recursive(LEAVES, lambda x: st.lists(x, max_size=3) | st.dictionaries(st.text(max_size=5), x, max_size=3))


def flipped(data: bytes, place: int, bit: int) -> bytes:
    place %= len(data)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


# --- digests ---------------------------------------------------------------------------------------------------------


@QUICK
@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5), SEEDS, st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_means_nothing(tmp_path_factory, value, place, bit):
    path = tmp_path_factory.mktemp("sealed") / "x.json"
    write_sealed(path, value)
    whole = read_sealed(path)
    path.write_bytes(flipped(path.read_bytes(), place, bit))
    try:
        assert repr(read_sealed(path)) == repr(whole)
    except StorageError as error:
        assert str(path) in str(error) and "\n" not in str(error)


def test_a_digest_is_required():
    whole = seal({"a": 1}, 3)
    assert unseal(whole, "it") == {"schema": 3, "a": 1}
    without = {name: x for name, x in whole.items() if name != "digest"}
    for bad in (without, whole | {"digest": None}, whole | {"a": 2}, whole | {"schema": 2}, whole | {"schema": None}):
        with pytest.raises(StorageError, match="it is damaged"):
            unseal(bad, "it", since=3)
    assert unseal(without | {"schema": 2}, "it", since=3) == {"schema": 2, "a": 1}, "before there were digests"
    assert digest_of({"a": 1, "b": 2}) != digest_of({"b": 2, "a": 1}), "the parts of a space have an order"


# --- rows ------------------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def change(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])


GAPS = {
    "shorter": (cut, "has 3 of the 4 lines"),
    "torn": (lambda path: path.write_bytes(path.read_bytes()[:-1]), "has 3 of the 4 lines"),
    "empty": (lambda path: path.write_bytes(b""), "has 0 of the 4 lines"),
    "gone": (lambda path: path.unlink(), "is missing"),
    "another digit": (change, "has changed within the 4 lines"),
}


@pytest.mark.parametrize("gap", GAPS)
def test_what_is_missing_from_a_table_is_said(tmp_path, gap):
    hurt, words = GAPS[gap]
    log = CsvLog(tmp_path / "t.csv")
    log.append({"a": ["1", "2", "3"], "b": ["4", "5", "6"]})
    counted = log.tally
    assert counted["lines"] == 4 and counted["columns"] == 2
    tally.check(log.path, counted)
    hurt(log.path)
    with pytest.raises(StorageError, match=words):
        tally.check(log.path, counted)


def test_later_rows_and_columns_do_not_matter(tmp_path):
    log = CsvLog(tmp_path / "t.csv", tally=Tally())
    log.append({"a": ["1"], "b": [""]})
    early = log.tally
    log.append({"a": ["2"], "b": ["3"], "c,d": ["4"]})
    wide = log.tally
    log.append({"a": ["5"]})
    for counted in (early, wide, log.tally):
        tally.check(log.path, counted)
    assert wide["columns"] == 3 and wide == log.tally | {k: wide[k] for k in ("lines", "bytes", "sha256")}
    again = CsvLog(log.path, tally=Tally.of(log.path))
    again.append({"a": ["6"]})
    assert again.tally == CsvLog(log.path, tally=Tally.of(log.path)).tally
    log.path.write_text(log.path.read_text().replace("1,,", "1,7,"))
    with pytest.raises(StorageError, match="has changed"):
        tally.check(log.path, early)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a,\xacb\n1,2\n", b"x" * 140_000 + b"\n1\n"])
def test_the_header_of_a_table_may_be_no_text(run, data, capsys):
    """Resuming says which file has changed; what does not need the table reads on."""
    (run / "episodes.csv").write_bytes(data)
    assert main(["resume", str(run), "--total-steps", str(6 * UPDATE), "--quiet"]) == 6
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and "episodes.csv" in said
    assert main(["replay", str(run), "--episodes", "1", "--no-gif"]) == 0
    assert rows_up_to(data + b"\n", "b", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return corruptions.make(tmp_path_factory.mktemp("damage"))


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run", symlinks=True)


@pytest.mark.parametrize("name", ["metrics.jsonl", "episodes.csv", "progress.csv"])
@pytest.mark.parametrize("gap", GAPS)
def test_a_run_is_not_resumed_over_a_gap(run, name, gap, capsys):
    GAPS[gap][0](run / name)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["resume", str(run), "--total-steps", str(6 * UPDATE), "--quiet"]) == 6
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert name in line and "--checkpoint STEP" in line
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != ".lock"} == {
        p: x for p, x in before.items() if p.name != ".lock"
    }


def test_an_earlier_checkpoint_may_have_all_its_rows(run, trained, tmp_path):
    """Of four updates the last one's row is gone; the checkpoint before does not count on it."""
    cut(run / "metrics.jsonl")
    whole = shutil.copytree(trained, tmp_path / "whole", symlinks=True)
    regimen.resume(run, checkpoint=str(2 * UPDATE), total_steps=6 * UPDATE)
    regimen.resume(whole, checkpoint=str(2 * UPDATE), total_steps=6 * UPDATE)
    assert_same_run(run, whole)


def test_resumed_runs_count_on(run):
    """The tallies of what was there before a resume go on."""
    regimen.resume(run, total_steps=6 * UPDATE)
    regimen.resume(run, total_steps=7 * UPDATE)
    assert len(read_metrics(run)) == 7 and len(read_episodes(run)["return"])
    cut(run / "episodes.csv")
    with pytest.raises(StorageError, match=r"episodes\.csv has"):
        read_episodes(run)


# --- what a run and a policy say -------------------------------------------------------------------------------------


def test_changed_settings_are_not_what_was_trained(run, capsys):
    path = run / "config.yaml"
    text = path.read_text()
    path.write_text(text + "# a word\n")
    assert read_config(run)["seed"] == 0, "what it says is the same"
    head, _, rest = text.partition("\n")
    assert is_as_written(text, read_config(run), required=True)
    for changed in (text.replace("total_steps: 128", "total_steps: 129"), rest, "# digest\n" + rest):
        path.write_text(changed)
        for verb in (["resume"], ["evaluate"], ["compare"], ["diagnose"]):
            assert main([*verb, str(run)]) == 6
            assert "config.yaml has changed since Regimen wrote it" in capsys.readouterr().err
    path.write_text(rest)
    (run / "status.json").unlink()
    assert read_config(run)["seed"] == 0 and head, "as of a version without digests"


def test_a_run_without_its_status_is_not_resumed(run):
    (run / "status.json").unlink()
    with pytest.raises(StorageError, match=r"status\.json is missing"):
        regimen.resume(run, total_steps=6 * UPDATE)


def test_a_run_whose_checkpoints_are_gone_is_not_begun_anew(run, capsys):
    """One that was killed before its first checkpoint is; this one would lose its rows."""
    shutil.rmtree(run / "checkpoints")
    rows = (run / "metrics.jsonl").read_bytes()
    for gone in ("", "policy"):
        if gone:
            shutil.rmtree(run / gone)
        assert main(["resume", str(run), "--total-steps", str(6 * UPDATE), "--quiet"]) == 6
        assert "has no checkpoint any more" in capsys.readouterr().err
        assert (run / "metrics.jsonl").read_bytes() == rows


@pytest.mark.parametrize("name", ["config.yaml", "status.json", "summary.json", "metrics.jsonl"])
def test_what_is_gone_from_one_run_is_said_of_many(run, name, capsys):
    """A run is neither passed over nor read without it; an object that says nothing is not of an earlier version."""
    shutil.copytree(run, run.parent / "whole", symlinks=True)
    file, folder = run / name, str(run.parent)
    for put in (file.unlink, file.mkdir, lambda: file.rmdir() or file.write_text("{}")):
        put()
        if name == "metrics.jsonl" and file.is_file():
            break
        for verb in (["compare", folder], ["diagnose", folder], ["report", str(run)], ["plot", str(run)]):
            assert main(verb) == 6, verb
            (line,) = capsys.readouterr().err.strip().splitlines()
            assert name in line
        assert main(["runs", "list", folder, "--json"]) == 0
        states = {Path(row["path"]).name: row["state"] for row in json.loads(capsys.readouterr().out)}
        assert states == {"whole": "finished", "run": "damaged"}


@pytest.mark.parametrize("name", ["metrics.jsonl", "progress.csv", "episodes.csv"])
def test_a_list_says_which_run_lacks_rows(run, name, capsys):
    cut(run / name)
    assert main(["runs", "list", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["state"] == "damaged"
    assert main(["runs", "show", str(run)]) == 0
    assert re.search(rf"damaged .*{name} has [\d,]+ of the [\d,]+ bytes", capsys.readouterr().out)


def test_a_crafted_summary_is_refused_in_one_line(run, capsys):
    """Its digest fits: somebody has made it so."""
    reseal(run / "summary.json", eval_return_mean="x")
    assert main(["export", str(run), "--out", str(run.parent / "export")]) == 6
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is damaged" in line and not (run.parent / "export").exists()


def test_an_index_that_is_gone_is_made_again(run):
    store = Checkpoints(run / "checkpoints")
    index = store.index()
    assert index["final"] == 4 * UPDATE and index["best"]
    (run / "checkpoints" / "index.json").unlink()
    assert store.index() == index
    (run / "checkpoints" / "index.json").write_text("{")
    with pytest.raises(StorageError, match=r"index\.json is damaged; remove it"):
        store.find("latest")


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    handle = registry.resolve("pendulum", {})
    algo = PPO(network=NetworkConfig(hidden=(4,))).bind(Spec(handle.observation_space, handle.action_space))
    params = algo.actor_params(algo.init(jax.random.key(0)))
    path = tmp_path_factory.mktemp("policy") / "policy"
    save_policy(path, "ppo", algo, params, {"env": "pendulum", "env_args": {}})
    return path


@QUICK
@given(SEEDS)
def test_a_policy_is_what_was_saved_or_refused(policy, tmp_path_factory, seed):
    meta, arrays = read_files(policy)
    folder = shutil.copytree(policy, tmp_path_factory.mktemp("hurt") / "policy")
    draw = random.Random(seed)
    corruptions.damage(draw.choice(sorted(folder.iterdir())), draw)
    try:
        others, new = read_files(folder)
    except StorageError as error:
        assert "\n" not in str(error) and str(folder) in str(error)
        return
    assert others == meta and all(np.array_equal(new[name], x) for name, x in arrays.items())


def test_an_action_bound_is_not_changed_in_silence(policy, tmp_path):
    folder = shutil.copytree(policy, tmp_path / "policy")
    text = (folder / "config.json").read_text()
    assert text.count('"high": 2.0') == 1
    (folder / "config.json").write_text(text.replace('"high": 2.0', '"high": 200.0'))
    with pytest.raises(StorageError, match=r"config\.json is damaged"):
        regimen.load_policy(folder)


OLD = {"no algorithm": ("algorithm", ...), "a number": ("algo", 3), "no spaces": ("action_space", None)}
OLD |= {"odd network": ("network", {"hidden": None}), "odd args": ("algo", {"no_such": 1}), "a list": ("policies", [1])}


@pytest.mark.parametrize("case", OLD)
def test_a_crafted_policy_of_an_older_schema_is_refused_in_one_line(policy, tmp_path, case):
    folder = shutil.copytree(policy, tmp_path / "policy")
    name, value = OLD[case]
    meta = unseal(json.loads((folder / "config.json").read_text()), "it") | {"schema": 1, name: value}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in meta.items() if v is not ...}))
    with pytest.raises(RegimenError, match="policy"):
        regimen.load_policy(folder)


# --- readers of runs -------------------------------------------------------------------------------------------------


@QUICK
@given(st.data())
def test_readers_give_a_result_or_one_error(tmp_path_factory, data):
    """Of a run of no known version: whatever its files hold."""
    run = tmp_path_factory.mktemp("crafted") / "run"
    make_run(run, updates=3)
    status = {"state": data.draw(VALUES), "metrics": data.draw(VALUES), "started": data.draw(VALUES)}
    (run / "status.json").write_text(json.dumps(status | {"versions": data.draw(VALUES)}))
    names = ("eval_return_mean", "eval_metrics", "eval_metrics_ci95", "env_steps", "wall_seconds", "stop_detail")
    (run / "summary.json").write_text(json.dumps({name: data.draw(VALUES) for name in names}))
    row = {name: data.draw(VALUES) for name in ("env_steps", "rollout/return_mean", "eval/return_mean", "updates")}
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    config = {"env": "cartpole", "algorithm": "ppo", "seed": data.draw(VALUES), "stop": data.draw(VALUES)}
    (run / "config.yaml").write_text(json.dumps(config | {"total_steps": data.draw(VALUES)}))
    for read in (listing.describe, listing.show, diagnose, lambda run: compare([run]), write_report):
        try:
            read(run)
        except RegimenError as error:
            assert "\n" not in str(error).strip()


def test_one_bad_run_does_not_hide_the_others(tmp_path, capsys):
    for name in ("good", "deep", "bytes", "folder", "swapped", "bare"):
        make_run(tmp_path / "runs" / name, updates=3)
    runs = tmp_path / "runs"
    (runs / "deep" / "summary.json").write_text("[" * 200_000)
    (runs / "bytes" / "status.json").write_bytes(b"\xff\xfe{}")
    (runs / "folder" / "status.json").unlink()
    (runs / "folder" / "status.json").mkdir()
    RunFiles(runs / "swapped").status(state="finished")
    text = (runs / "swapped" / "status.json").read_text()
    (runs / "swapped" / "status.json").write_text(text.replace("finished", "diverged"))
    RunFiles(runs / "bare").status(state="finished")
    (runs / "bare" / "summary.json").unlink(missing_ok=True)
    with pytest.raises(StorageError, match=r"summary\.json is missing, though the run has ended"):
        compare(runs / "bare")
    assert main(["runs", "list", str(runs), "--json"]) == 0
    states = {Path(row["path"]).name: row["state"] for row in json.loads(capsys.readouterr().out)}
    good = states.pop("good")
    assert good != "damaged" and set(states.values()) == {"damaged"} and len(states) == 5
    assert main(["runs", "show", str(runs / "deep")]) == 0
    assert "summary.json is damaged" in capsys.readouterr().out


@pytest.mark.parametrize("seed", range(3))
def test_damage_to_a_run(trained, tmp_path, seed):
    """Two tries each of what `make test-faults` does 2,000 times."""
    outcome = corruptions.run(2, seed, tmp_path / "gate", trained)
    assert not outcome["losses"], outcome
