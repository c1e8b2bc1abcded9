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

from regimen.config.trust import pledge, taking
from regimen.engines import device
from regimen.errors import RegimenError, StorageError
from regimen.files import background
from regimen.files.listing import locked
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


@dataclasses.dataclass
class Made:
    """What was made: lines that say where it is, files, and what went wrong."""

    lines: list[str] = dataclasses.field(default_factory=list)
    files: list[Path] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    def attempt(self, what: str, make: Callable[[], object]) -> None:
        """Make one of them; that it fails is noted."""
        try:
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


def hand_over(learners: Sequence[Learner]) -> None:
    """End what the trackers of runs do in this process, so that another one goes on in MLflow."""
    for learner in learners:
        state = {"state": "diverged" if learner.diverged else "finished"}
        for tracker in learner.trackers.values():
            if tracker is not learner.mirror:
                tracker.finish(learner.summary(0.0) | state, [])
        if learner.mirror is not None:
            learner.mirror.release()


def draw(path: Path, curves: bool, film: bool) -> Made:
    """The curves, a replay of the best policy, and the report."""
    made = Made(files=[path / "config.yaml", path / "summary.json"])

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
    with contextlib.suppress(StorageError):  # the disk may be what failed
        for error in made.errors:
            files.event(f"not made: {error}; `regimen report {files.path}` tries again")
        files.status(delivery=made.state())


def mirrored(learner: Learner, summary: Json, made: Made) -> None:
    """Finish the run in every tracker, and register a converged policy in MLflow."""
    state = {"state": "diverged" if learner.diverged else "finished"}
    others = {label: tracker for label, tracker in learner.trackers.items() if tracker is not learner.mirror}
    deliveries = {label: tracker.finish(summary | state, []) for label, tracker in others.items()}
    made.lines += [f"{label}   {one.where}" for label, one in deliveries.items() if one.warning is None]
    if learner.mirror is None:
        return
    name = learner.config.track.model_name or f"{learner.handle.id}-{learner.config.algorithm}"
    result = learner.mirror.finish(
        summary | state,
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


def deliver_group(path: Path, runs: Sequence[Path]) -> list[str]:
    """The picture and the report of a group of seeds, and a replay of its best."""
    made = Made()
    try:
        plot_group(runs, path)
    except RegimenError as e:  # no matplotlib, or no return in so short a run
        made.lines.append(str(e))
    made.attempt("report", lambda: made.lines.append(f"report {write_report(path)}"))
    summaries = {run: read_summary(run) for run in runs}
    best = max(runs, key=lambda run: summaries[run].get("eval_return_mean", -math.inf))
    if wants_replay(RunFiles.open(best).config):
        pictures, warning = try_leave_replay(best)
        made.lines += [f"replay {warning or pictures[-1]}"] if warning or pictures else []
    return made.lines


def wants_replay(config: Json) -> bool:
    return (config.get("log") or {}).get("replay") is True


def tracks_mlflow(config: Json) -> bool:
    track = config.get("track") or {}
    return track.get("enabled") is True and "mlflow" in str(track.get("to", "mlflow")).lower()


# --- from the files --------------------------------------------------------------------------------------------------


def complete(path: Path) -> list[str]:
    """Everything of a run, or of a group of seeds, that its files say is still to be made. Says where it is."""
    device.configure("cpu", native=True)
    members = group_members(path)
    lines = [line for run in members or [path] for line in complete_run(run, alone=not members)]
    if members and any("eval_return_mean" in read_json(run / "summary.json") for run in members):
        lines += deliver_group(path, members)
    return lines


def complete_run(path: Path, alone: bool) -> list[str]:
    """Everything of one run. One that is being trained again has it made when that ends."""
    require_own(path)
    status = read_status(path)
    if status.get("state") not in ENDED or locked(path) or background.said(status) == "done":
        return []
    with contextlib.closing(RunFiles.open(path)) as files:
        files.status(delivery=PENDING)
        film = alone and wants_replay(files.config) and status["state"] != "diverged"
        made = draw(path, curves=alone, film=film)
        if tracks_mlflow(files.config):
            result, name = send(path, None, made.files, files.event, timeout=600)
            note_mirror(made, result, name, path)
        conclude(files, made)
    return made.lines


def send(
    path: Path, uri: str | None, artifacts: list[Path] | None, warn: Callable[[str], None], timeout: float
) -> tuple[MirrorResult, str]:
    """Send MLflow what it does not have of a run; the name of its model, too. Where `artifacts` are not named,
    those that it needs, and nothing where it has them."""
    config, record = RunFiles.open(path).config, read_json(path / "mlflow.json")
    summary, status = read_summary(path), read_status(path)
    track = config.get("track") or {}
    store = str(uri or track.get("uri") or record.get("uri") or default_uri(path))
    env = str(summary.get("env", config.get("env")))
    name = str(track.get("model_name") or f"{env}-{config.get('algorithm')}")
    experiment = str(track.get("experiment") or record.get("experiment") or env)
    whole = artifacts is None and record.get("complete") is True and record.get("uri") == without_password(store)
    if artifacts is None:
        artifacts = [path / n for n in ("config.yaml", "summary.json", "report.html", "plots")]
    place = path.resolve()
    group = place.parent if place.name.startswith("seed-") and not (place.parent / "config.yaml").exists() else None
    title = f"{group.name}/{place.name}" if group else place.name
    mirror = Mirror(store, experiment, title, path, config, 0.0, warn, all_rows=track.get("all_rows") is True)
    result = mirror.finish(
        summary | {"state": status.get("state", "finished")},
        [] if whole else artifacts,
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
    if process := background.holder(path):
        say(f"process {process[0]} is drawing it: waiting")
        background.wait(path)
    runs = group_members(path) or [path]
    if any(unfinished(run) for run in runs):
        file = background.claim(path)
        if file is not None:
            with file:
                for line in complete(path):
                    say(line)
    return write_report(path, out, draw=True)


def unfinished(path: Path) -> bool:
    status = read_json(path / "status.json")
    return status.get("state") in ENDED and background.said(status) in ("pending", "failed")


# --- in a process of its own -----------------------------------------------------------------------------------------


def start(path: Path) -> list[str]:
    """Begin the process that makes everything of a run or a group, and say so; where none can be begun, make it here.
    Nothing of the run may be held by this process any more."""
    try:
        file = background.claim(path)
        if file is None:
            return [f"another process draws {path}"]
        with file:
            pid = spawn(path, file.fileno())
            background.sign(file, pid)
    except (OSError, StorageError):
        return complete(path)
    runs = group_members(path)
    config = RunFiles.open((runs or [path])[0]).config
    what = [str(path / ("return.png" if runs else "plots/overview.png")), str(path / "report.html")]
    what += ["a replay"] if wants_replay(config) else []
    what += ["MLflow"] if tracks_mlflow(config) and importlib.util.find_spec("mlflow") else []
    return [f"being made (process {pid}): {', '.join(what)}; `regimen report {path}` waits for them"]


def spawn(path: Path, lock: int) -> int:
    """The process, which holds the lock. It is ended with nobody and nothing: not with the terminal."""
    trusted, vouched = pledge()
    command = [sys.executable, "-P", "-m", "regimen.runs.delivery"]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}  # the next run may want the GPU
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, env=env, start_new_session=True, pass_fds=[lock]
    )
    assert process.stdin is not None
    with process.stdin as order:
        order.write(json.dumps({"path": str(path), "trust": trusted, "vouched": sorted(vouched)}).encode())
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process.pid, 5)
    process.returncode = 0  # it is not waited for
    background.begun = True
    return process.pid


def main() -> None:
    """What `spawn` begins."""
    order = json.load(sys.stdin)
    with taking((order["trust"], frozenset(order["vouched"]))):
        complete(Path(order["path"]))


if __name__ == "__main__":
    main()
