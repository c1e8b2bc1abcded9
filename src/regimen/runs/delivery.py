"""What a run leaves beside its results, once these are safe: curves, a replay, the report, its last rows and the policy
in trackers. Never a reason to fail.

`deliver` makes them in the process that trained. `complete` makes them from the files alone: for `regimen report`, and
in a process of its own (`start`), so that the prompt is back at once. status.json says how far it came.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from regimen.config.trust import pledge, taking
from regimen.engines import device
from regimen.errors import RegimenError, StorageError
from regimen.files import background
from regimen.files.mlflow import Mirror, MirrorResult
from regimen.files.run_dir import ENDED, RunFiles, read_status, read_summary
from regimen.files.storage import Json, read_json, require_own
from regimen.files.stores import default_uri, registry_name, without_password
from regimen.reports.plots import plot_group, try_plot_run
from regimen.reports.replay import try_leave_replay
from regimen.reports.run_report import write_report
from regimen.runs.directory import group_members
from regimen.runs.learner import Learner

PENDING = {"state": "pending"}
BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from regimen.runs.delivery import main; main()"


@dataclasses.dataclass
class Made:
    """What was made: lines that say where it is, files, and what went wrong. `is_wanted`: whether the run is still
    there; for one that somebody removed or moved nothing is written."""

    lines: list[str] = dataclasses.field(default_factory=list)
    files: list[Path] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)
    is_wanted: Callable[[], bool] = lambda: True

    def attempt(self, what: str, make: Callable[[], object]) -> None:
        """Make one of them; that it fails is noted."""
        try:
            if self.is_wanted():
                make()
        except Exception as error:  # of matplotlib, of an environment that draws itself, of the disk
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            self.lines.append(f"{what}   none: {reason}")
            self.errors.append(f"{what}: {reason}")

    def state(self) -> Json:
        """What status.json says of it."""
        return {"state": "failed", "error": "; ".join(self.errors)} if self.errors else {"state": "done"}


# --- in this process -------------------------------------------------------------------------------------------------


def deliver(learner: Learner, summary: Json, plots: bool) -> list[str]:
    """Everything of one run, while its trackers are at hand. Says where it is."""
    path = learner.path
    made = draw(path, curves=plots, film=plots and learner.config.log.replay and not learner.diverged)
    mirrored(learner, summary, made)
    conclude(learner.files, made)
    return made.lines


def hand_over(learner: Learner, summary: Json) -> None:
    """End what the trackers of a run do in this process, so that another one goes on in MLflow."""
    finish_followers(learner, summary)
    if learner.mirror is not None:
        learner.mirror.release()


def finish_followers(learner: Learner, summary: Json) -> list[str]:
    """Finish the run in every tracker but MLflow. Says where it is."""
    followers = {label: tracker for label, tracker in learner.trackers.items() if tracker is not learner.mirror}
    results = {label: tracker.finish(summary | end_state(learner), []) for label, tracker in followers.items()}
    return [f"{label}   {result.where}" for label, result in results.items() if result.warning is None]


def end_state(learner: Learner) -> Json:
    return {"state": "diverged" if learner.diverged else "finished"}


def draw(path: Path, curves: bool, film: bool, is_wanted: Callable[[], bool] = lambda: True) -> Made:
    """The curves, a replay of the best policy, and the report."""
    made = Made(files=[path / "config.yaml", path / "summary.json"], is_wanted=is_wanted)

    def draw_curves() -> None:
        pictures, warning = try_plot_run(path)
        made.files += pictures
        made.lines.append(f"curves   {warning or path / 'plots' / 'overview.png'}")

    def draw_replay() -> None:
        pictures, warning = try_leave_replay(path)
        made.files += pictures
        made.lines += [f"replay   {warning or pictures[-1]}"] if warning or pictures else []

    def report() -> None:
        made.files.append(write_report(path))
        made.lines.append(f"report   {made.files[-1]}")

    for what, make in (("curves", draw_curves if curves else None), ("replay", draw_replay if film else None)):
        if make is not None:
            made.attempt(what, make)
    made.attempt("report", report)
    return made


def conclude(files: RunFiles, made: Made) -> None:
    """Let the run's files say what came of it."""
    if not made.is_wanted():
        return
    with contextlib.suppress(StorageError):  # the disk may be what failed
        for error in made.errors:
            files.event(f"not made: {error}; `regimen report {files.path}` tries again")
        files.status(delivery=made.state())


def mirrored(learner: Learner, summary: Json, made: Made) -> None:
    """Finish the run in every tracker, and register a converged policy in MLflow."""
    made.lines += finish_followers(learner, summary)
    if learner.mirror is None:
        return
    name = learner.config.track.model_name or f"{learner.handle.id}-{learner.config.algorithm}"
    result = learner.mirror.finish(
        summary | end_state(learner),
        made.files,
        learner.path / "policy",
        register=name,
        converged=summary["converged"],
        eval_return=summary.get("eval_return_mean"),
    )
    note_mirror(made, result, name, learner.path)


def note_mirror(made: Made, result: MirrorResult, name: str, path: Path) -> None:
    """Say where the run is in MLflow, or that it is not all there."""
    if result.run_id:
        made.lines.append(f"MLflow   {result.where}")
    if result.model_version:
        alias = ", now @champion" if result.alias_moved else ""
        made.lines.append(f"model    models:/{registry_name(name)}/{result.model_version}{alias}")
    if result.warning is not None and importlib.util.find_spec("mlflow") is not None:
        made.errors.append(f"{result.warning} (`regimen track {path}` sends what is missing)")


def deliver_group(path: Path, runs: Sequence[Path], is_wanted: Callable[[], bool] = lambda: True) -> Made:
    """The picture and the report of a group of seeds, and a replay of its best."""
    made = Made(is_wanted=is_wanted)

    def draw_curves() -> None:
        try:
            plot_group(runs, path)
        except RegimenError as error:  # no matplotlib, or no return in so short a run
            made.lines.append(str(error))

    def draw_replay() -> None:
        summaries = {run: read_summary(run) for run in runs}
        best = max(runs, key=lambda run: summaries[run].get("eval_return_mean", -math.inf))
        if wants_replay(RunFiles.open(best).config):
            pictures, warning = try_leave_replay(best)
            made.lines += [f"replay {warning or pictures[-1]}"] if warning or pictures else []

    made.attempt("curves", draw_curves)
    made.attempt("report", lambda: made.lines.append(f"report {write_report(path)}"))
    made.attempt("replay", draw_replay)
    return made


def wants_replay(config: Json) -> bool:
    return (config.get("log") or {}).get("replay") is True


def tracks_mlflow(config: Json) -> bool:
    track = config.get("track") or {}
    return track.get("enabled") is True and "mlflow" in str(track.get("to", "mlflow")).lower()


# --- from the files --------------------------------------------------------------------------------------------------


def complete(path: Path, lock: int | None = None) -> list[str]:
    """Everything of a run, or of a group of seeds, that its files say is still to be made. Says where it is. Where
    `lock` is no longer that of the directory nothing more is written: the run was moved, or another one is there."""
    device.configure("cpu", native=True)
    members = group_members(path)

    def is_wanted() -> bool:
        return lock is None or background.is_current(path, lock)

    parts, lines, group = {}, [], Made(is_wanted=is_wanted)
    for run in filter(is_unfinished, members or [path]):
        try:
            parts[run] = complete_run(run, not members, is_wanted)
            lines += parts[run].lines
        except (RegimenError, OSError) as error:  # it is damaged: of several seeds the others are made
            lines.append(f"not made: {error}")
    if parts and any("eval_return_mean" in read_json(run / "summary.json") for run in members):
        group = deliver_group(path, members, is_wanted)
    for run, made in parts.items():
        made.errors += group.errors  # it has no status.json of its own
        with contextlib.suppress(RegimenError), contextlib.closing(RunFiles.open(run)) as files:
            conclude(files, made)
    return lines + group.lines


def complete_run(path: Path, alone: bool, is_wanted: Callable[[], bool]) -> Made:
    """Make everything of one run. One that is being trained again has it made when that ends."""
    require_own(path)
    status = read_status(path)
    with contextlib.closing(RunFiles.open(path)) as files:
        with contextlib.suppress(StorageError):  # the disk may be full
            files.status(delivery=PENDING)
        film = alone and wants_replay(files.config) and status["state"] != "diverged"
        made = draw(path, alone, film, is_wanted)

        def mirror() -> None:
            result, name = send(path, None, made.files, files.event, timeout=600)
            note_mirror(made, result, name, path)

        if tracks_mlflow(files.config):
            made.attempt("MLflow", mirror)
    return made


def send(
    path: Path, uri: str | None, artifacts: list[Path] | None, warn: Callable[[str], None], timeout: float
) -> tuple[MirrorResult, str]:
    """Send MLflow what it does not have of a run, and `artifacts`: where they are not named, those that it lacks. The
    name of the run's model, too."""
    config, record = RunFiles.open(path).config, read_json(path / "mlflow.json")
    summary, status = read_summary(path), read_status(path)
    track = config.get("track") or {}
    store = str(uri or track.get("uri") or record.get("uri") or default_uri(path))
    env = str(summary.get("env", config.get("env")))
    name = str(track.get("model_name") or f"{env}-{config.get('algorithm')}")
    experiment = str(track.get("experiment") or record.get("experiment") or env)
    whole = record.get("complete") is True and record.get("uri") == without_password(store)
    if artifacts is None:
        artifacts = [] if whole else [path / n for n in ("config.yaml", "summary.json", "report.html", "plots")]
    place = path.resolve()
    group = place.parent if place.name.startswith("seed-") and not (place.parent / "config.yaml").exists() else None
    title = f"{group.name}/{place.name}" if group else place.name
    mirror = Mirror(store, experiment, title, path, config, 0.0, warn, all_rows=track.get("all_rows") is True)
    result = mirror.finish(
        summary | {"state": status.get("state", "finished")},
        artifacts,
        None if whole or not (path / "policy").is_dir() else path / "policy",
        register=name,
        converged=summary.get("converged") is True,
        eval_return=summary.get("eval_return_mean"),
        timeout=timeout,
    )
    return result, name


def track_again(path: Path, uri: str | None = None) -> str:
    """Send MLflow what it does not have of a run, because its store was out of reach: rows, artifacts, the policy. Says
    where they are."""
    background.wait(path)
    with contextlib.closing(RunFiles.open(path)) as files:
        files.lock()
        result, name = send(path, uri, None, lambda text: None, timeout=600)
    if result.warning is not None:
        raise StorageError(f"{path}: {result.warning}")
    sent = "everything was there" if not result.rows else f"{result.rows:,} rows sent"
    model = f"; models:/{registry_name(name)}/{result.model_version}" if result.model_version else ""
    return f"{path}: {sent}; run {result.run_id} in {result.uri}{model}"


def report_again(path: Path, out: str | None, say: Callable[[str], None]) -> Path:
    """The report of a run or a group; before it, whatever else of it is not made yet or failed. Waits for the process
    that is making it."""
    runs = group_members(path)
    for part in (path, *runs):  # a seed that was resumed by itself has a process of its own
        if process := background.holder(part):
            say(f"process {process[0]} is drawing it: waiting")
            background.wait(part)
    if any(map(is_unfinished, runs or [path])):
        require_own(path)
        file = None
        with contextlib.suppress(OSError):  # it is somebody else's: it is shown as it is
            file = background.claim(path)
        if file is not None:
            with file:
                for line in complete(path, file.fileno()):
                    say(line)
    if runs and not (path / "return.png").is_file():
        with contextlib.suppress(RegimenError, OSError):
            plot_group(runs, path)
    return write_report(path, out, draw=True)


def is_unfinished(path: Path, states: Sequence[str] = ("pending", "failed")) -> bool:
    """Whether something of a run that has ended, and that nobody trains on, is still to be made."""
    status = read_json(path / "status.json")
    done = background.said(status)
    return status.get("state") in ENDED and done in states and not background.held(path / ".lock")


# --- in a process of its own -----------------------------------------------------------------------------------------


def make_missing(path: Path, wait: bool, say: Callable[[str], None], states: Sequence[str] = ("pending",)) -> None:
    """Begin what is still to be made of a run or a group that has ended, if anything is; `wait`: until it is made."""
    if any(is_unfinished(run, states) for run in group_members(path) or [path]):
        for line in start(path):
            say(line)
        if wait:
            background.wait(path)


def start(path: Path) -> list[str]:
    """Begin the process that makes everything of a run or a group, and say so; where none can be begun, make it here.
    Nothing of the run may be held by this process any more."""
    try:
        file = background.claim(path)
        if file is None:
            return [f"process {(background.holder(path) or ('unknown',))[0]} draws {path}"]
        with file:
            pid = spawn(path, file)
    except (OSError, StorageError):
        try:
            return complete(path)
        except (RegimenError, OSError) as error:
            return [f"not made: {error}; `regimen report {path}` tries again"]
    runs = group_members(path)
    config = RunFiles.open((runs or [path])[0]).config
    what = [str(path / ("return.png" if runs else "plots/overview.png")), str(path / "report.html")]
    what += ["a replay"] if wants_replay(config) else []
    what += ["MLflow"] if tracks_mlflow(config) and importlib.util.find_spec("mlflow") else []
    return [f"being made (process {pid}): {', '.join(what)}; `regimen report {path}` waits for them"]


def spawn(path: Path, lock: TextIO) -> int:
    """The process, which holds the lock. It is ended with nobody and nothing: not with the terminal."""
    trusted, vouched = pledge()
    command = [sys.executable, "-P", "-c", BOOT, json.dumps(sys.path)]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}  # the next run may want the GPU
    quiet, number = subprocess.DEVNULL, lock.fileno()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=env, start_new_session=True, pass_fds=[number]
    )
    background.sign(lock, process.pid)  # before its order: should this process end here, the other one does, too
    assert process.stdin is not None
    with process.stdin as order:
        words = {"path": str(path), "lock": number, "trust": trusted, "vouched": sorted(vouched)}
        order.write(json.dumps(words).encode())
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, 5)
    background.begun[:] = [one for one in (*background.begun, process) if one.poll() is None]
    return process.pid


def main() -> None:
    """What `spawn` begins."""
    order = json.load(sys.stdin)
    with taking((order["trust"], frozenset(order["vouched"]))):
        complete(Path(order["path"]), order["lock"])
