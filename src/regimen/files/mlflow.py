"""MLflow as a mirror of the run's files: a background thread that training never waits for until the run is over.

The thread imports MLflow late (short runs would otherwise pay for it), retries quietly while the store is locked or
unreachable, and says so once. It reads the rows from metrics.jsonl, so nothing waits in memory, and what it could not
send is still there. MLflow itself says which rows it has: none is sent twice, by a resume or by `regimen track`.
"""

from __future__ import annotations

import importlib.util
import math
import re
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from regimen.files import stores
from regimen.files.rows import Rows
from regimen.files.storage import Json, dotted, plain, read_json, write_json
from regimen.files.stores import CHAMPION, check_unlocked, stored

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.entities.model_registry import ModelVersion
    from mlflow.tracking import MlflowClient

T = TypeVar("T")
INTERVAL = 5.0  # seconds between batches
LAST_CHANCE = 5.0  # seconds that the end of a run waits for a store that refuses; one that is locked is waited for
METRICS_PER_CALL, PARAMS_PER_CALL, PARAM_LENGTH, KEY_LENGTH = 1000, 100, 6000, 250
MARK = "updates"  # the metric that says which rows MLflow has
KNOWN = ("env_steps", "time/unix_time")  # the step and the time of every value: not mirrored as metrics
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", "diverged": "FAILED"}
_MODEL_CODE = Path(__file__).with_name("pyfunc_model.py")
_UNAFFECTED = "; training is not affected and the run's files are complete"


@dataclass(frozen=True)
class MirrorResult:
    """Where the run is in MLflow. `warning` says why the mirror is not complete, None when it is."""

    run_id: str | None = None
    uri: str | None = None
    experiment_id: str | None = None
    model_version: str | None = None
    alias_moved: bool = False
    warning: str | None = None
    rows: int = 0  # sent by this mirror

    @property
    def where(self) -> str:
        """Where the run is to be looked at."""
        return f"{self.uri}   (mlflow ui --backend-store-uri {self.uri})"


class Mirror:
    """One run in MLflow. No method raises, and only its end takes time: `finish` at most `timeout` seconds,
    `release` as long as MLflow takes to make a run."""

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        run_name: str,
        run_dir: Path,
        params: Mapping[str, object],
        delay: float = 5.0,
        warn: Callable[[str], None] | None = None,
        all_rows: bool = False,
    ):
        self.run_dir = Path(run_dir)
        self.uri = uri or stores.default_uri(self.run_dir)
        self.experiment = experiment
        self.run_name = run_name
        self.params = flatten(params)
        self.delay = delay
        self._warn = warn
        self._warned = threading.Lock()  # taken once, by the first warning
        self._result = MirrorResult(uri=stores.without_password(self.uri))
        self._client: Any = None  # MlflowClient, once connected
        self._model_id: str | None = None
        self._rows = Rows(self.run_dir / "metrics.jsonl", all_rows)
        self._unsent: list[Json] = []  # rows of one reading
        self._mark = -math.inf  # of the newest row that MLflow has
        self._wake = threading.Event()
        self._ending: Callable[[], None] | None = None  # set by `finish`
        self._why = ""  # the last failure
        self._abandoned = False  # `finish` has waited long enough: try no more
        self._creating = False  # a run in MLflow that mlflow.json does not name yet
        self._thread: threading.Thread | None = None
        if importlib.util.find_spec("mlflow") is None:
            self._fail(stores.INSTALL + "; the run is not mirrored")
        else:
            self._thread = threading.Thread(target=self._work, name="mlflow-mirror", daemon=True)
            self._thread.start()

    def finish(
        self,
        summary: Mapping[str, object],
        artifacts: list[Path],
        policy_dir: Path | None = None,
        register: str | None = None,
        converged: bool = False,
        eval_return: float | None = None,
        timeout: float = 60,
    ) -> MirrorResult:
        """Send the rest, the artifacts and the policy; register the policy as `register` when the run converged."""
        if self._thread is None:
            return self._result
        name = register if converged else None
        self._ending = partial(self._end, dict(summary), list(artifacts), policy_dir, name, eval_return)
        self._wake.set()
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._abandoned = True
            self._fail(
                f"MLflow: {self._result.uri} did not take everything within {timeout:g} s{self._why}{_UNAFFECTED}"
            )
        return self._result

    def release(self) -> None:
        """Send no more: another process goes on from what MLflow has by now."""
        self._abandoned = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(0.2)
            while self._creating and self._thread.is_alive():  # else there would be two of them
                self._thread.join(0.05)

    def _work(self) -> None:
        self._wake.wait(self.delay)
        pause, patience, deadline = INTERVAL, LAST_CHANCE, math.inf
        while not self._abandoned:
            ending = self._ending
            self._wake.clear()
            try:
                if self._client is None:
                    self._connect()
                self._send(last=ending is not None)
                if ending is not None:
                    ending()
                    self._result = replace(self._result, warning=None)
                    return
                pause, deadline = INTERVAL, math.inf
            except Exception as error:  # whatever a store, a driver or a network raises must not reach training
                self._creating = False
                if self._abandoned:
                    return
                why = stores.reason(error)
                self._fail(f"MLflow: {self._result.uri} cannot be used ({why}){_UNAFFECTED}")
                self._why = f" ({why})"
                pause = min(2 * pause, 60.0) if ending is None else 0.5
                patience = LAST_CHANCE
                if "locked" in why:  # by a process that lives: ours comes, or `finish` has waited long enough
                    patience = deadline = math.inf
            if ending is not None:
                deadline = min(deadline, time.monotonic() + patience)
                if time.monotonic() >= deadline:
                    return
            if self._ending is None or ending is not None:
                self._wake.wait(pause)

    def _fail(self, warning: str) -> None:
        """Remember the warning; the first one is shown."""
        self._result = replace(self._result, warning=warning)
        if self._warn is not None and self._warned.acquire(blocking=False):
            self._warn(warning)

    def _connect(self) -> None:
        check_unlocked(self.uri)
        client = stores.make_client(self.uri)
        with stores.alone(self.uri):
            experiment_id = self._experiment_id(client)
        earlier = read_json(self.run_dir / "mlflow.json")
        run_id = None
        if earlier.get("uri") == self._result.uri and isinstance(earlier.get("run_id"), str):
            run_id = self._reopen(client, earlier["run_id"])
        if run_id is None:
            tags = {"mlflow.source.name": "regimen", "regimen.run_dir": str(self.run_dir.resolve())}
            self._creating = True
            if self._abandoned:
                raise InterruptedError("released")
            run_id = client.create_run(experiment_id, run_name=self.run_name, tags=tags).info.run_id
        self._result = replace(self._result, run_id=run_id, experiment_id=experiment_id)
        self._record(complete=False)  # before anything else can fail, or a retry would make another run
        self._creating = False
        self._log_params(client, run_id)
        self._client = client

    def _record(self, complete: bool) -> None:
        result = self._result
        record = {"run_id": result.run_id, "uri": result.uri, "experiment": self.experiment}
        record |= {"experiment_id": result.experiment_id, "complete": complete}
        write_json(self.run_dir / "mlflow.json", record)

    def _experiment_id(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            location, path = None, stores.sqlite_path(self.uri)
            if path is not None:  # a SQLite store would put artifacts under the working directory
                location = (path.resolve().parent / "mlartifacts" / stores.registry_name(self.experiment)).as_uri()
            try:
                return client.create_experiment(self.experiment, artifact_location=location)
            except MlflowException:  # another run created it in between
                experiment = client.get_experiment_by_name(self.experiment)
                if experiment is None:
                    raise
        return experiment.experiment_id

    def _reopen(self, client: MlflowClient, run_id: str) -> str | None:
        """The MLflow run of an earlier part of this run; None when someone deleted it."""
        run = stored(client.get_run, run_id)
        if run is None or run.info.lifecycle_stage != "active":
            return None
        client.update_run(run_id, status="RUNNING")
        self._mark = run.data.metrics.get(MARK, -math.inf)
        return run_id

    def _log_params(self, client: MlflowClient, run_id: str) -> None:
        """MLflow parameters cannot change: what a resume set differently becomes a tag."""
        from mlflow.entities import Param, RunTag

        logged = client.get_run(run_id).data.params
        changed = {k: v for k, v in self.params.items() if logged.get(k, v) != v}
        for part in batches([Param(k, v) for k, v in self.params.items() if k not in logged], PARAMS_PER_CALL):
            client.log_batch(run_id, params=part, synchronous=True)
        for part in batches([RunTag(f"resumed.{k}"[:KEY_LENGTH], v) for k, v in changed.items()], PARAMS_PER_CALL):
            client.log_batch(run_id, tags=part, synchronous=True)

    def _send(self, last: bool) -> None:
        """Send what the file has and MLflow has not; with `last`, also a last row that is not due."""
        while not self._abandoned:
            if not self._unsent:
                rows = self._rows.read()
                if rows is None:
                    row = self._rows.last() if last else None
                    if row is None:
                        return
                    rows = [row]
                self._unsent = [row for row in rows if row.get(MARK, math.inf) > self._mark]
                continue
            check_unlocked(self.uri)
            count, batch = 0, []
            while count < len(self._unsent):  # whole rows: a mark says that all of its row is there
                metrics = metrics_of(self._unsent[count])
                if batch and len(batch) + len(metrics) > METRICS_PER_CALL:
                    break
                batch, count = batch + metrics, count + 1
            for part in batches(batch, METRICS_PER_CALL):
                self._client.log_batch(self._result.run_id, metrics=part, synchronous=True)
            self._mark = self._unsent[count - 1].get(MARK, self._mark)
            del self._unsent[:count]
            self._result = replace(self._result, rows=self._result.rows + count)

    def _end(
        self,
        summary: Mapping[str, object],
        artifacts: list[Path],
        policy_dir: Path | None,
        register: str | None,
        eval_return: float | None,
    ) -> None:
        from mlflow.entities import RunTag

        client, run_id = self._client, self._result.run_id
        check_unlocked(self.uri)
        texts = {k: v for k, v in plain(summary).items() if v is not None}
        tags = [RunTag(entity_key(f"summary.{k}"), str(v)[:PARAM_LENGTH]) for k, v in texts.items()]
        for part in batches(tags, PARAMS_PER_CALL):
            client.log_batch(run_id, tags=part, synchronous=True)
        for path in map(Path, artifacts):
            if path.is_dir():
                client.log_artifacts(run_id, str(path), path.name)
            elif path.is_file():
                client.log_artifact(run_id, str(path))
        if policy_dir is not None:
            client.log_artifacts(run_id, str(policy_dir), "policy")
            if self._model_id is None:
                self._model_id = self._log_model(policy_dir)
            if register is not None:
                self._register(register, eval_return)
        client.set_terminated(run_id, status=_STATUS.get(str(summary.get("state")), "FINISHED"))
        self._record(complete=True)

    def _log_model(self, policy_dir: Path) -> str:
        """A pyfunc model from code: a Python file and the policy folder, nothing pickled."""
        import mlflow.pyfunc

        client, result = self._client, self._result
        with tempfile.TemporaryDirectory(prefix="regimen-model-") as folder:
            target = Path(folder) / "model"
            mlflow.pyfunc.save_model(
                path=str(target),
                python_model=str(_MODEL_CODE),
                artifacts={"policy": str(policy_dir)},
                # else MLflow loads the model in another process to guess them
                pip_requirements=[f"{n}=={metadata.version(n)}" for n in ("regimen", "mlflow", "jax", "numpy")],
            )
            model = client.create_logged_model(result.experiment_id, name="policy", source_run_id=result.run_id)
            client.log_model_artifacts(model.model_id, str(target))
        client.finalize_logged_model(model.model_id, "READY")
        return model.model_id

    def _register(self, name: str, eval_return: float | None) -> None:
        """A new version; the alias moves to it only from a version with a lower evaluation (or from none). Tried again,
        it goes on from where it failed."""
        client, name = self._client, stores.registry_name(name)
        with stores.alone(self.uri):  # runs that end together compare one after the other
            if stored(client.get_registered_model, name) is None:
                client.create_registered_model(name)
            score = eval_return if eval_return is not None and math.isfinite(eval_return) else None
            source = f"models:/{self._model_id}"
            if not self.uri.startswith("http"):  # MLflow would look that up in its global store instead of ours
                source = client.get_logged_model(self._model_id).artifact_location
            tags = {} if score is None else {"eval_return": repr(float(score))}
            if self._result.model_version is None:
                version = client.create_model_version(
                    name, source=source, run_id=self._result.run_id, model_id=self._model_id, tags=tags
                ).version
                self._result = replace(self._result, model_version=str(version))
            champion = stored(client.get_model_version_by_alias, name, CHAMPION)
            moved = champion is not None and str(champion.version) == self._result.model_version  # but nobody said so
            if score is not None and not moved and score > evaluation_of(champion):
                client.set_registered_model_alias(name, CHAMPION, self._result.model_version)
                moved = True
            self._result = replace(self._result, alias_moved=moved)


def evaluation_of(champion: ModelVersion | None) -> float:
    """Evaluation of the version that holds the alias; -inf when there is none or it was never evaluated."""
    try:
        return -math.inf if champion is None else float(champion.tags.get("eval_return", "-inf"))
    except ValueError:  # a tag that somebody has edited
        return -math.inf


def metrics_of(row: Json) -> list[Metric]:
    """The numbers of a row as MLflow's metrics. The time is the row's, so that a value sent again is the same value;
    the mark is the last, so that a row of several calls is whole when MLflow has it."""
    from mlflow.entities import Metric

    step, stamp = int(row.get("env_steps", 0)), int(1000 * row.get("time/unix_time", time.time()))
    names = [name for name, value in row.items() if isinstance(value, (int, float)) and name not in KNOWN]
    names.sort(key=MARK.__eq__)
    return [Metric(entity_key(name), float(row[name]), stamp, step) for name in names]


def batches(items: list[T], size: int) -> list[list[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def entity_key(name: str) -> str:
    """`name` with only the characters MLflow accepts in metric and parameter names."""
    return re.sub(r"[^\w./ :-]", "_", name)[:KEY_LENGTH]


def flatten(params: Mapping[str, object]) -> dict[str, str]:
    """Nested settings as `algo.lr: 0.0003`, as MLflow accepts them."""
    return {entity_key(key): str(plain(value, finite=False))[:PARAM_LENGTH] for key, value in dotted(params)}
