"""What files from elsewhere may do: import what is installed, and write where they lie. Nothing else without a word."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import yaml

import regimen
from regimen.cli.main import main
from regimen.config import trust, yaml_files
from regimen.envs import registry
from regimen.errors import ConfigError, StorageError, UntrustedError
from regimen.experiments.search.store import Store
from regimen.files.run_dir import read_config, write_config
from regimen.files.storage import regular, require_own
from support import reseal

EVIL = """
import gymnasium, pathlib
from regimen.envs.probe import Constant
pathlib.Path(__file__).with_name("marker").touch()
def make(**fields):
    return Constant(**fields)
gymnasium.register("Evil-v0", entry_point=make)
parallel_env = make
"""
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)) + "env: cartpole\n"


@pytest.fixture(autouse=True)
def nothing_trusted():
    """Each test begins as a new process does, where the user has named nothing yet; no test leaves trust behind."""
    trust._vouched.clear()
    assert not trust.is_trusting()
    yield
    assert not trust.is_trusting()


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("trust") / "run"
    regimen.train("probe/constant", preset="debug", total_episodes=50, track=False, out=str(out))
    return out


@pytest.fixture
def evil(tmp_path, monkeypatch) -> Path:
    """The folder of a stranger's modules, which is the current one and on the path; names differ from test to test."""
    name = f"evil_{abs(hash(str(tmp_path))) % 10**9}"
    (tmp_path / f"{name}.py").write_text(EVIL)
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "evil.py").write_text(EVIL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop(name, None)


def names_in(folder: Path) -> dict[str, str]:
    module = next(folder.glob("evil_*.py")).stem
    return {
        "file": "stranger/evil.py:make",
        "absolute": f"{folder}/stranger/evil.py:make",
        "module": f"{module}:make",
        "namespace": "stranger.evil:make",
        "gym": f"gym:{module}:Evil-v0",
        "pettingzoo": f"pettingzoo:{module}",
        "shell": "os:system",
        "installed function": "gymnasium:make",
        "shell by way of a module": "regimen.config.trust:os.system",
        "a file of Python": f"{Path(os.__file__).with_name('this.py')}:d",
    }


KINDS = ["file", "absolute", "module", "namespace", "gym", "pettingzoo", "shell", "installed function"]
KINDS += ["shell by way of a module", "a file of Python"]


def ran(folder: Path) -> bool:
    return any(folder.rglob("marker"))


def handed_over(trained: Path, to: Path, env: str, **args: object) -> Path:
    """A run whose files name an environment, as a stranger would hand it over."""
    shutil.copytree(trained, to, symlinks=True)
    config = read_config(to) | {"env": env, "env_args": args, "total_episodes": 60}
    write_config(to, config)
    reseal(to / "policy" / "config.json", env=env, env_args=args)
    return to


def dataset(to: Path, env: str) -> Path:
    """Offline data whose metadata names an environment."""
    np.savez(to, metadata=np.array(json.dumps({"regimen": {"env": env, "env_args": {}}})))
    return to


def refused(capsys, folder: Path, argv: list[str], code: int = 3) -> None:
    capsys.readouterr()
    assert main([str(token) for token in argv]) == code
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1 and "names the code" in said and "--trust" in said
    assert not ran(folder), argv


VERBS = {
    "evaluate": ["evaluate", "run", "--episodes", "2"],
    "evaluate a policy": ["evaluate", "run/policy", "--episodes", "2"],
    "evaluate at random": ["evaluate", "run", "--policy", "random", "--episodes", "2"],
    "collect": ["collect", "run", "--out", "data", "--episodes", "2", "--quiet"],
    "replay": ["replay", "run", "--no-gif"],
    "replay a policy": ["replay", "run/policy", "--no-gif"],
    "resume": ["resume", "run", "--quiet"],
    "resume elsewhere": ["resume", "run", "--out", "copy", "--quiet"],
    "train a configuration": ["train", "--config", "run/config.yaml", "--out", "new", "--quiet"],
    "sweep a configuration": [
        "sweep",
        "--config",
        "run/config.yaml",
        "--grid",
        "algo.lr=1e-3",
        "--out",
        "new",
        "--quiet",
    ],
}
LOOKING = [["report", "run"], ["plot", "run"], ["diagnose", "run"], ["compare", "run"], ["runs", "list", "."]]
LOOKING += [["runs", "show", "run"], ["export", "run"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_from_elsewhere_imports_nothing_of_its_own(capsys, trained, evil, kind):
    handed_over(trained, evil / "run", names_in(evil)[kind])
    for argv in ["evaluate", "resume"] if kind != "file" else list(VERBS):
        refused(capsys, evil, VERBS[argv])
        assert not (evil / "copy").exists() and not (evil / "data").exists()


@pytest.mark.parametrize("argv", LOOKING, ids=" ".join)
def test_looking_at_a_run_imports_nothing(trained, evil, argv):
    handed_over(trained, evil / "run", names_in(evil)["file"])
    assert main(argv) == 0 and not ran(evil)


@pytest.mark.parametrize("verb", [v for v in VERBS if not v.startswith(("sweep", "train"))])
def test_the_user_may_trust_it(trained, evil, verb):
    handed_over(trained, evil / "run", names_in(evil)["absolute"])
    assert main([*VERBS[verb], "--trust"]) == 0 and ran(evil)


@pytest.mark.parametrize("kind", ["file", "module", "shell"])
def test_a_dataset_from_elsewhere_imports_nothing_of_its_own(capsys, evil, kind):
    dataset(evil / "data.npz", names_in(evil)[kind])
    refused(capsys, evil, ["train", "data.npz", "--algo", "bc", "--out", "new", "--quiet"])
    (evil / "minari" / "data").mkdir(parents=True)
    module = next(evil.glob("evil_*.py")).stem
    metadata = {"env_spec": json.dumps({"id": f"{module}:Evil-v0"})}
    (evil / "minari" / "data" / "metadata.json").write_text(json.dumps(metadata))
    refused(capsys, evil, ["train", "minari", "--algo", "bc", "--out", "new", "--quiet"])


def test_a_sweep_from_elsewhere_imports_nothing_of_its_own(capsys, evil):
    grid = ["--grid", "algo.lr=1e-3", "--preset", "debug", "--total-episodes", "50", "--quiet"]
    assert main(["sweep", "probe/constant", *grid, "--out", "sweep"]) == 0
    plan = evil / "sweep" / "plan.json"
    trust._vouched.clear()  # as in a process of another day
    for kind in ("file", "gym"):
        reseal(plan, env=names_in(evil)[kind], trials=2)
        for more in ([], ["--one-by-one"], ["--workers", "2"]):
            refused(capsys, evil, ["sweep", "--out", "sweep", *more])
            assert [p.name for p in (evil / "sweep" / "results").iterdir()] == ["0000.json"], "a trial that did not run"


def test_a_sweep_does_not_write_through_a_link(capsys, tmp_path):
    grid = ["--grid", "algo.lr=1e-3", "--preset", "debug", "--total-episodes", "50", "--quiet"]
    assert main(["sweep", "probe/constant", *grid, "--out", str(tmp_path / "sweep")]) == 0
    (tmp_path / "precious").write_text("kept")
    (tmp_path / "sweep" / "log.txt").unlink(missing_ok=True)
    (tmp_path / "sweep" / "log.txt").symlink_to(tmp_path / "precious")
    assert main(["sweep", "--out", str(tmp_path / "sweep")]) == 6
    assert "is a link to" in capsys.readouterr().err and (tmp_path / "precious").read_text() == "kept"


def test_the_words_of_a_file_stay_its_words_on_other_hosts(trained, evil, monkeypatch):
    """What a worker is handed is made from the configuration; here it runs in this process."""
    from regimen.config import layers
    from regimen.runs import hosts

    run = handed_over(trained, evil / "run", names_in(evil)["absolute"])
    config = layers.build_config(None, config_file=str(run / "config.yaml"))
    monkeypatch.setattr(hosts, "launch", lambda job, *rest: hosts.work(job | {"pledge": trust.pledge()}))
    assert hosts.train_on_hosts(config.replace(out=str(evil / "new")), 1, quiet=True)["kind"] == "UntrustedError"
    assert not ran(evil)


def test_a_file_does_not_choose_the_cluster():
    from regimen.config.schema import EngineConfig
    from regimen.engines.ray.cluster import Cluster

    with pytest.raises(ConfigError, match=r"names the code '10\.0\.0\.1:6379'"):
        Cluster(EngineConfig(), 0).join(trust.named("10.0.0.1:6379", "config.yaml"))


@pytest.mark.long
def test_the_workers_of_a_sweep_trust_what_its_command_names(evil):
    quiet = ["--preset", "debug", "--total-episodes", "50", "--quiet", "--workers", "2"]
    assert main(["sweep", names_in(evil)["file"], "--grid", "algo.lr=1e-3", *quiet, "--out", "sweep"]) == 0
    assert json.loads((evil / "sweep" / "results" / "0000.json").read_text())["state"] == "finished"


def test_python_asks_as_well(trained, evil):
    run = handed_over(trained, evil / "run", names_in(evil)["absolute"])
    for call in (regimen.evaluate, regimen.resume):
        with pytest.raises(ConfigError, match="trust=True"):
            call(run)
    with pytest.raises(ConfigError, match="trust=True"):
        regimen.collect(run, evil / "data", episodes=1)
    regimen.load_policy(run)  # acts without its environment
    assert not ran(evil)
    assert regimen.evaluate(run, episodes=2, trust=True).returns.shape == (2,) and ran(evil)


def test_a_policy_that_needs_its_environment_asks(evil, trained):
    """The meta of a policy of empowerment has its environment made when it is loaded."""
    run = handed_over(trained, evil / "run", names_in(evil)["absolute"])
    reseal(run / "policy" / "config.json", algorithm="empowerment")
    with pytest.raises(ConfigError, match="names the code"):
        regimen.load_policy(run)
    assert not ran(evil)


def test_the_networks_of_empowerment_ask(evil):
    from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
    from regimen.domains.empowerment.learner.networks import network_name

    word = trust.named(f"q_r={names_in(evil)['absolute']}", "config.yaml")
    for builder in EmpowermentConfig(networks=word).named_networks().values():
        with pytest.raises(ConfigError, match="names the code"):
            network_name(builder)
    assert not ran(evil)


def test_what_the_user_named_himself_is_his(evil, trained):
    name = names_in(evil)["file"]
    regimen.train(name, preset="debug", total_episodes=50, track=False, out="mine")
    assert ran(evil)
    assert main(["evaluate", "mine", "--episodes", "2"]) == 0
    assert main(["resume", "mine", "--total-episodes", "60", "--quiet"]) == 0
    run = handed_over(trained, evil / "run", names_in(evil)["absolute"])
    assert main(["evaluate", str(run), "--episodes", "2"]) == 0  # the same file, written in another way


def test_what_is_installed_needs_no_trust(trained, evil):
    for env in ("probe/constant", "regimen.envs.probe:Constant"):
        run = handed_over(trained, evil / env.replace("/", "-"), env)
        assert main(["evaluate", str(run), "--episodes", "2"]) == 0
    name = trust.named("gym:gymnasium.envs.classic_control:CartPole-v1", "config.yaml")
    assert registry.resolve(name).id == str(name)


def test_an_installed_environment_makes_no_strange_one(evil):
    """`gym:regimen/cartpole` is installed and makes whatever its argument `name` says."""
    from regimen.envs.adapters.gymnasium import register_with_gymnasium

    register_with_gymnasium()
    word = trust.named("gym:regimen/cartpole", "config.yaml")
    with pytest.raises(ConfigError, match="names the code"):
        registry.resolve(word, {"name": names_in(evil)["file"]})
    assert not ran(evil)


def test_the_threads_of_an_environment_are_judged_with_it(evil, monkeypatch):
    """While it is made, and afterwards."""
    from regimen.envs import probe

    module, refusals, go_on = next(evil.glob("evil_*.py")).stem, [], threading.Event()

    class Threaded(probe.Constant):
        def __init__(self):
            super().__init__()
            threads.append(threading.Thread(target=fetch))
            threads[-1].start()
            go_on.wait(0.1)

    def fetch():
        for wait in (lambda: None, go_on.wait):
            wait()
            try:
                importlib.import_module(module)
            except UntrustedError as error:
                refusals.append(str(error))

    threads: list[threading.Thread] = []
    monkeypatch.setattr(probe, "Threaded", Threaded, raising=False)
    word = trust.named("regimen.envs.probe:Threaded", "config.yaml")
    registry.resolve(word)
    go_on.set()
    for thread in threads:
        thread.join()
    assert threads and not ran(evil) and len(refusals) == 2 * len(threads)
    assert trust.judged() is None and importlib.import_module(module)  # in a thread of the user's own


def test_a_process_of_the_same_command_trusts_what_it_trusts(evil):
    word = trust.named(names_in(evil)["absolute"], "config.yaml")
    with trust.taking((False, frozenset({trust.anchored(str(word))}))):
        registry.resolve(word)
    assert ran(evil)


@pytest.mark.parametrize("kind", ["absolute", "module"])
def test_the_trust_of_one_call_ends_with_it(trained, evil, kind):
    """Not even what it has imported is imported by the next one."""
    run = handed_over(trained, evil / "run", names_in(evil)[kind])
    regimen.evaluate(run, episodes=2, trust=True)
    assert ran(evil) and not trust.is_trusting()
    with pytest.raises(ConfigError, match="trust=True"):
        regimen.evaluate(run, episodes=2)


def test_a_worker_trusts_what_it_makes_and_no_longer(evil):
    """A worker of Ray makes what its command has judged; here it does so in this process, as its tests do."""
    from regimen.config import layers
    from regimen.config.regimen import Regimen
    from regimen.engines.ray.worker import Post, Worker

    file = names_in(evil)["file"]
    config = layers.build_config(file, preset="debug", overrides={"total_episodes": 50})
    trust._vouched.clear()
    words = trust.named(layers.to_dict(config), "config.yaml")
    Worker(
        Post(0, words, Regimen("steps", 8, 1, native=True), trust.named(file, "config.yaml"), ("", ""), (0, 0))
    ).start()
    assert ran(evil) and not trust.is_trusting()
    with pytest.raises(ConfigError, match="names the code"):
        registry.resolve(trust.named(file, "config.yaml"))


def test_a_word_of_a_file_stays_one_in_other_processes():
    import copy
    import pickle

    word = trust.named({"env": ["a:b"]}, "config.yaml")["env"][0]
    for twin in (copy.deepcopy(word), pickle.loads(pickle.dumps(word)), trust.alike("b:c", word)):
        assert isinstance(twin, trust.Named) and twin.source == "config.yaml"
    assert yaml.safe_load(yaml.safe_dump([word])) == ["a:b"]


# --- links, pipes and bombs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.txt", "metrics.jsonl", ".lock", "checkpoints"])
def test_nothing_is_written_through_a_link(capsys, trained, tmp_path, name):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    precious = tmp_path / "precious"
    if (run / name).is_dir():
        (run / name).rename(precious)
    else:
        precious.write_text("kept\nas it is")
        (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(precious)
    before = {p: p.read_bytes() for p in [precious, *precious.rglob("*")] if p.is_file()}
    for argv in (["resume", run, "--total-episodes", "60"], ["resume", run, "--out", tmp_path / "new"], ["plot", run]):
        assert main([str(token) for token in argv]) == 6
        assert re.search(f"{name} is a link to .*precious", capsys.readouterr().err)
    assert {p: p.read_bytes() for p in [precious, *precious.rglob("*")] if p.is_file()} == before
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["plots/overview.png", "replays/a.gif", "command.txt", "seed-0/config.yaml"])
def test_a_report_shows_nothing_through_a_link(capsys, trained, tmp_path, name):
    """A page is handed on: it would take the file along."""
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    (tmp_path / "secret").write_text("env: secret")
    (run / "report.html").unlink()
    if name.startswith("seed-0"):
        (run / "config.yaml").unlink()
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "secret")
    for more in ([], ["--out", str(tmp_path / "report.html")]):
        assert main(["report", str(run), *more]) == 6
        assert "is a link to" in capsys.readouterr().err
    assert not (run / "report.html").exists() and not (tmp_path / "report.html").exists()


def test_a_group_and_a_folder_of_several_runs_are_not_written_through_a_link(capsys, trained, tmp_path):
    """A seed, or a run of `train NAME --algo all`, that is a link to a folder elsewhere."""
    elsewhere = shutil.copytree(trained, tmp_path / "elsewhere", symlinks=True)
    before = {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()}
    for name in ("group/seed-0", "several/ppo"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).symlink_to(elsewhere)
    several = ["train", "probe/constant", "--algo", "all", "--total-episodes", "60", "--no-track", "--quiet", "--out"]
    group = ["resume", str(tmp_path / "group"), "--total-episodes", "60"]
    for argv in (group, [*several, str(tmp_path / "several")]):
        assert main(argv) == 6
        assert "is a link to" in capsys.readouterr().err
    assert {p: p.read_bytes() for p in elsewhere.rglob("*") if p.is_file()} == before


def test_a_search_and_an_analysis_are_not_written_through_a_link(tmp_path):
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "training.csv").symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match="is a link to"):
        Store(tmp_path / "search").load({})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "analysis").symlink_to(tmp_path / "search")
    require_own(tmp_path / "run", tmp_path)
    with pytest.raises(StorageError, match="analysis is a link to"):
        require_own(tmp_path / "run" / "analysis", tmp_path / "run")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["metrics.jsonl", "config.yaml", "episodes.csv", "status.json"])
def test_a_pipe_is_not_waited_for(capsys, trained, tmp_path, name):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    (run / name).unlink()
    os.mkfifo(run / name)
    for argv in (["runs", "list", tmp_path], ["compare", run], ["diagnose", run], ["evaluate", run, "--episodes", "1"]):
        assert main([str(token) for token in argv]) in (0, 3, 6), argv
        said = capsys.readouterr().err.strip().splitlines()
        assert len(said) <= 1
    if name == "config.yaml":
        assert main(["train", "--config", str(run / name), "--out", str(tmp_path / "new")]) == 3
        assert "not a regular file" in capsys.readouterr().err


@pytest.mark.timeout(60)
def test_aliases_cannot_stand_for_gigabytes(capsys, trained, tmp_path):
    run = shutil.copytree(trained, tmp_path / "run", symlinks=True)
    for text in (BOMB, "a: &a [*a]\nenv: cartpole\n"):
        (run / "config.yaml").write_text(text)
        for argv in (["compare", str(run)], ["evaluate", str(run)], ["train", "--config", f"{run}/config.yaml"]):
            assert main(argv) in (3, 6)
            assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert yaml_files.load("a: &a {x: 1}\nb: {<<: *a, y: 2}\nc: *a") == {
        "a": {"x": 1},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1},
    }


def test_a_half_written_file_is_no_link(tmp_path):
    from regimen.files.storage import write_atomic

    (tmp_path / "precious").write_text("kept")
    (tmp_path / f".status.json.{os.getpid()}.tmp").symlink_to(tmp_path / "precious")
    write_atomic(tmp_path / "status.json", "{}")
    assert (tmp_path / "precious").read_text() == "kept" and not (tmp_path / "status.json").is_symlink()


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        os.close(regular(str(tmp_path / "pipe"), os.O_RDONLY))


def test_aliases_are_counted():
    for text in (BOMB, "a: &a [*a]", "[" * 5000):
        with pytest.raises(yaml.YAMLError):
            yaml_files.load(text)


@pytest.mark.long
def test_workers_of_ray_make_what_was_trusted(capsys, trained, evil):
    """The program that trains judges; its workers get the words of the file as well, and ask nobody again."""
    pytest.importorskip("ray")
    run = handed_over(trained, evil / "run", names_in(evil)["absolute"])
    config = read_config(run)
    config["engine"] |= {"name": "ray", "workers": 1}
    write_config(run, config)
    for folder in ("checkpoints", "policy"):  # as if it had been stopped before its first checkpoint
        shutil.rmtree(run / folder)
    reseal(run / "status.json", state="interrupted")
    refused(capsys, evil, ["resume", run, "--quiet"])
    assert main(["resume", str(run), "--quiet", "--trust"]) == 0 and ran(evil)
