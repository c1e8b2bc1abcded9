"""Every verb that takes long, under SIGINT and SIGTERM, with real processes: one clear line, exit code 130 or 143, no
traceback, no half-written file.

Verbs that tell how far they are get the signal after a line or a file of theirs; the others are stopped at a known
place by `pausing.py`. `test_e2e_signals.py` has training and resuming by themselves.
"""

import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

import regimen
from regimen.cli.main import main
from regimen.engines import signals
from regimen.engines.signals import Leaving, Signals, Terminated
from support import command_line, digest_of, status, tiny

pytestmark = pytest.mark.usefixtures("compilation_cache", "without_plots")
PAUSING = str(Path(__file__).with_name("pausing.py"))
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
BOTH = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


def start(*argv, at=None, cwd=None) -> subprocess.Popen:
    """`regimen ...` in another process; with `at`, paused in that function."""
    command = [sys.executable, *(["-m", "regimen"] if at is None else [PAUSING, at]), *map(str, argv)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=cwd, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def wait_for_line(process, words) -> None:
    """Read its output until a line has the words."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if words in line:
            return
    raise AssertionError(f"it ended before it said '{words}': {''.join(seen)}{process.stderr.read()}")


def ended_by(process, number, *folders) -> str:
    """Send the signal; what the process said after it. Nothing half-written is left in the folders."""
    process.send_signal(number)
    out, err = process.communicate(timeout=200)
    assert process.returncode == CODES[number], (process.returncode, out, err)
    assert "Traceback" not in out + err and "interrupted" in out + err, out + err
    left = [str(p) for folder in folders for p in Path(folder).rglob("*") if ".tmp" in p.name]
    assert not left, left
    return out + err


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return tiny(tmp_path_factory.mktemp("signals") / "run", updates=2).run_dir


# --- in this process -------------------------------------------------------------------------------------------------


@BOTH
def test_a_verb_without_a_run_leaves_with_one_line(monkeypatch, capsys, number):
    """And the handlers are given back."""
    before = [signal.getsignal(n) for n in CODES]
    waiting = lambda args: os.kill(os.getpid(), number) or threading.Event().wait()  # noqa: E731
    monkeypatch.setattr("regimen.cli.lists.EnvsArgs.__call__", waiting)
    assert main(["envs"]) == CODES[number]
    assert capsys.readouterr().err == "regimen: interrupted\n"
    assert [signal.getsignal(n) for n in CODES] == before


@pytest.mark.parametrize("kind", [Signals, Leaving])
def test_the_watcher_ends_with_its_context(kind):
    """One that is left when the interpreter ends aborts the process, if it happens to free arrays of jax just then."""
    for _ in range(20):
        with kind():
            pass
        assert not [thread for thread in threading.enumerate() if thread.name == "signals"]


def test_what_was_heard_may_take_its_time(monkeypatch):
    """A study that writes what it has measured after Ctrl+C is not ended in the midst of it."""
    ended = threading.Event()
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    with Leaving() as leaving:
        with pytest.raises(Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        assert leaving.heard.is_set() and not ended.wait(0.2)


def test_a_signal_whose_exception_python_drops_comes_again(monkeypatch):
    """What a handler raises inside a callback of a weak reference goes to `sys.unraisablehook` and nowhere else: of 400
    signals to a process that fills a WeakValueDictionary 74 were lost so. `dashboard` did not end by its SIGTERM."""
    monkeypatch.setattr(signals, "GRACE_SECONDS", 600.0)
    hook = sys.unraisablehook
    for number, error in ((signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)):
        with Leaving():
            thing = type("Thing", (), {})()
            reference = weakref.ref(thing, lambda _, n=number: os.kill(os.getpid(), n) or threading.Event().wait(0.01))
            with pytest.raises(error):
                del thing
                threading.Event().wait(20)
        assert reference() is None and sys.unraisablehook is hook


def test_other_exceptions_that_python_drops_are_reported(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: reported.append(unraisable.exc_value))
    with Leaving():
        thing = type("Thing", (), {})()
        reference = weakref.ref(thing, lambda _: 1 // 0)
        del thing
    assert reference() is None and isinstance(reported[0], ZeroDivisionError)


def test_a_warning_does_not_end_a_command_that_is_leaving():
    """SLURM's SIGUSR1 came when a run had just ended, and the job failed with 138."""
    code = "import os, signal\nfrom regimen.engines.signals import Leaving\nwith Leaving():\n    pass\n"
    code += "os.kill(os.getpid(), signal.SIGUSR1)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_compiled_code_that_hears_nothing_is_ended(monkeypatch):
    """As if the main thread were inside the compiler: the signal's byte arrives, the handler does not run."""
    ended: list[int] = []
    done = threading.Event()
    monkeypatch.setattr(signals, "GRACE_SECONDS", 0.01)
    monkeypatch.setattr(os, "_exit", lambda code: (ended.append(code), done.set()))
    with Leaving() as leaving:
        leaving.writer.send(bytes([signal.SIGTERM]))
        assert done.wait(20) and ended == [143]


# --- with processes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_collecting_before_offline_learning(tmp_path, number):
    """The hidden run of SAC is interrupted, and with it the command: nothing is learned from a part of the data."""
    process = start(
        "train", "pendulum", "--algo", "bc", "--no-track", "--total-steps", 64, "--out", tmp_path / "run",
        "--algo.behaviour-steps", 10**9, "--algo.batch-size", 8, "--network.hidden", 8, "--eval.every", "never",
    )  # fmt: skip
    wait_for_line(process, "SAC acts on pendulum")
    metrics = tmp_path / "run-behaviour" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
    said = ended_by(process, number, tmp_path)
    assert f"the same command with --out {tmp_path / 'run'} goes on from here" in said
    assert status(tmp_path / "run-behaviour")["state"] == "interrupted" and not (tmp_path / "run").exists()


PAUSED = {  # verb and its arguments, and the function in which the signal meets it
    "evaluate RUN --episodes 4": "regimen.policies.evaluate:evaluate_policy",
    "collect RUN --out OUT/data --episodes 4": "regimen.policies.collect:fill",
    "replay RUN --no-gif": "regimen.reports.table:csv.writer",
    "report RUN --out OUT/report.html": "os:replace",
    "export RUN --out OUT/policy --format stablehlo": "regimen.policies.export_program:write_program",
    "compare RUN RUN --out OUT/compare": "os:replace",
    "diagnose RUN": "regimen.reports.diagnose:diagnose",
    "plot RUN": "regimen.reports.plots:plot_run",
    "solve world/corr5 --out OUT/values.csv": "regimen.domains.empowerment.report:save_csv",
    "check-env cartpole": "regimen.envs.check:check_env",
    "runs RUN": "regimen.files.listing:describe",
}
IN_TEST = ("collect", "report")  # of `make test`: one that makes a folder, one that writes a file


def marks(command: str) -> list:
    return [] if command.startswith(IN_TEST) else [pytest.mark.long]


@pytest.mark.parametrize("command", [pytest.param(c, id=c.split()[0], marks=marks(c)) for c in PAUSED])
def test_a_verb_in_the_midst_of_its_work(run, tmp_path, command):
    """SIGINT to one process, SIGTERM to another at its side; the run is as it was, and nothing was begun in vain."""
    before = digest_of(run)
    for number in CODES:
        out = tmp_path / number.name
        out.mkdir()
        words = [word.replace("RUN", str(run)).replace("OUT", str(out)) for word in command.split()]
        process = start(*words, at=PAUSED[command])
        wait_for_line(process, "reached")
        ended_by(process, number, run, out)
        assert not [path for path in out.rglob("*") if path.is_file()]
    replays = {k: v for k, v in digest_of(run).items() if not k.startswith("replays")}
    assert replays == before and not list((run / "replays").glob("*"))


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("workers", [1, 2])
def test_sweep(tmp_path, number, workers):
    """Done trials stay done; the same command goes on; no file is left half-written."""
    flags = command_line(total_steps=64, **{"checkpoint.every": "1"})
    grid = ["--grid", "algo.epochs=1,2,3,4,5,6,7,8", "--out", tmp_path / "sweep", "--workers", workers]
    process = start("sweep", "cartpole", *flags, *grid)
    wait_for_line(process, "trial 0:") if workers == 1 else wait_for_line(process, "[1/8]")
    said = ended_by(process, number, tmp_path)
    assert f"regimen sweep --out {tmp_path / 'sweep'}` goes on from here" in said
    done = digest_of(tmp_path / "sweep" / "results")
    assert 1 <= len(done) < 8
    assert main(["sweep", "--out", str(tmp_path / "sweep"), "--quiet"]) == 0
    after = digest_of(tmp_path / "sweep" / "results")
    assert len(after) == 8 and {k: after[k] for k in done} == done


@pytest.mark.long
@BOTH
def test_study(tmp_path, number):
    """What is measured is kept."""
    out = tmp_path / "study"
    process = start(
        "study", "batching", "cartpole", "--parts", "target", "--sizes", 1, 2, "--seeds", 1, "--budget", 20_000,
        "--target", 100_000, "--eval-episodes", 1, "--out", out,
    )  # fmt: skip
    wait_for_line(process, "[1/")
    assert "keeping what is measured" in ended_by(process, number, out)
    assert '"interrupted"' in (out / "results.json").read_text()


@pytest.mark.long
@BOTH
def test_search(tmp_path, number):
    process = start("search", "network_defense", "--preset", "quick", "--budget", 10**7, "--out", tmp_path / "search")
    store = tmp_path / "search"
    while not (store.is_dir() and list(store.glob("*.csv"))):
        assert process.poll() is None, process.communicate()
    assert "--out" in ended_by(process, number, store) and (store / "summary.json").is_file()


@pytest.mark.long
@BOTH
def test_validate(tmp_path_factory, number):
    folder = tmp_path_factory.mktemp("validate")
    settings = {"rollout.steps": 16, "rollout.num_envs": 2, "eval.every": "never", "eval.episodes": 1, "track": False}
    run = regimen.train("world/corr5", "empowerment", out=str(folder / "run"), total_steps=32, **settings).run_dir
    process = start("validate", run, "--out", folder / "out", at="regimen.reports.table:csv.writer")
    wait_for_line(process, "reached")
    ended_by(process, number, folder)
    assert not list((folder / "out").glob("*.csv"))


@pytest.mark.long
@BOTH
def test_analyse(tmp_path_factory, number):
    folder = tmp_path_factory.mktemp("analyse")
    settings = {"env_args": {"max_episode_steps": 10}, "rollout.steps": 32}
    run = tiny(folder / "run", updates=1, env="airspace/head_on", **settings).run_dir
    process = start(
        "analyse",
        run,
        "--episodes",
        2,
        "--out",
        folder / "out",
        at="regimen.domains.airspace.analysis.analysis:write_columns",
    )
    wait_for_line(process, "reached")
    ended_by(process, number, folder)


@pytest.mark.long
@BOTH
def test_several_runs_from_one_command(tmp_path, number):
    out = tmp_path / "all"
    process = start("train", "cartpole", "--algo", "all", *command_line(total_steps=10**9, preset=None), "--out", out)
    wait_for_line(process, "run directory")
    metrics = out / "ppo" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert process.poll() is None, process.communicate()
    assert f"the same command with --out {out} goes on from here" in ended_by(process, number, out)
    assert status(out / "ppo")["state"] == "interrupted" and not (out / "sac").exists()


@pytest.mark.long
@BOTH
def test_the_page_ends_as_it_is_asked_to(tmp_path, number):
    """Ending it is no failure: the signal is how it is ended."""
    process = start("dashboard", tmp_path, "--port", 0)
    wait_for_line(process, "http://")
    process.send_signal(number)
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0 and "Traceback" not in out + err
