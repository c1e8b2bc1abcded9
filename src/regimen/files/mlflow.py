"""MLflow as a mirror of the run's files: a background thread that training never waits for until the run is over.

The thread imports MLflow late (short runs would otherwise pay for it), retries quietly while the store is locked or
unreachable, and says so once. What it could not send is still in metrics.jsonl.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
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

from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.storage import dotted, plain, read_json, write_json

if TYPE_CHECKING:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

T = TypeVar("T")
CHAMPION = "champion"
INTERVAL = 5.0  # seconds between batches
LAST_CHANCE = 5.0  # seconds that the end of a run waits for a store that refuses
METRICS_PER_CALL, PARAMS_PER_CALL, PARAM_LENGTH, KEY_LENGTH = 1000, 100, 6000, 250
BACKLOG = 100_000  # metrics; above it every second waiting point is dropped
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED", "diverged": "FAILED"}
_MODEL_CODE = Path(__file__).with_name("pyfunc_model.py")
_CONNECTING = threading.Lock()  # runs of several seeds share one store; its tables are created once
_UNAFFECTED = "; training is not affected and the run's files are complete"
_INSTALL = "MLflow is not installed: pip install 'regimen[tracking]'"


@dataclass(frozen=True)
class MirrorResult:
    """Where the run is in MLflow. `warning` says why the mirror is not complete, None when it is."""

    run_id: str | None = None
    uri: str | None = None
    experiment_id: str | None = None
    model_version: str | None = None
    alias_moved: bool = False
    warning: str | None = None


def default_uri(run_dir: Path) -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file beside the run directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(run_dir).resolve().parent / 'mlflow.db'}"


def registry_name(name: str) -> str:
    """`name` without the characters that MLflow gives a meaning in `models:/NAME@alias`."""
    return re.sub(r"[/:@%\s]+", "-", name).strip("-")


class Mirror:
    """One run in MLflow. No method raises or blocks, except `finish`, which waits at most `timeout` seconds."""

    def __init__(
        self,
        uri: str | None,
        experiment: str,
        run_name: str,
        run_dir: Path,
        params: Mapping[str, object],
        delay: float = 5.0,
        warn: Callable[[str], None] | None = None,
    ):
        self.run_dir = Path(run_dir)
        self.uri = uri or default_uri(self.run_dir)
        self.experiment = experiment
        self.run_name = run_name
        self.params = flatten(params)
        self.delay = delay
        self._warn = warn
        self._warned = threading.Lock()  # taken once, by the first warning
        self._result = MirrorResult(uri=without_password(self.uri))
        self._client: Any = None  # MlflowClient, once connected
        self._model_id: str | None = None
        self._points: list[tuple[int, int, Mapping[str, object]]] = []  # (step, milliseconds, metrics)
        self._unsent: list[Metric] = []
        self._guard = threading.Lock()  # of _points
        self._wake = threading.Event()
        self._ending: Callable[[], None] | None = None  # set by `finish`
        self._abandoned = False  # `finish` has waited long enough: try no more
        self._thread: threading.Thread | None = None
        if importlib.util.find_spec("mlflow") is None:
            self._fail(_INSTALL + "; the run is not mirrored")
        else:
            self._thread = threading.Thread(target=self._work, name="mlflow-mirror", daemon=True)
            self._thread.start()

    def log(self, step: int, metrics: Mapping[str, object]) -> None:
        if self._thread is not None:
            with self._guard:
                self._points.append((int(step), int(time.time() * 1000), dict(metrics)))

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
            self._fail(f"MLflow: {self._result.uri} did not take everything within {timeout:g} s{_UNAFFECTED}")
        return self._result

    def _work(self) -> None:
        self._wake.wait(self.delay)
        pause, deadline = INTERVAL, math.inf
        while not self._abandoned:
            ending = self._ending
            self._wake.clear()
            try:
                if self._client is None:
                    self._connect()
                self._send()
                if ending is not None:
                    ending()
                    self._result = replace(self._result, warning=None)
                    return
                pause = INTERVAL
            except Exception as error:  # whatever a store, a driver or a network raises must not reach training
                self._fail(f"MLflow: {self._result.uri} cannot be used ({reason(error)}){_UNAFFECTED}")
                pause = min(2 * pause, 60.0) if ending is None else 0.5
            if ending is not None:
                deadline = min(deadline, time.monotonic() + LAST_CHANCE)
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
        with _CONNECTING:
            client = make_client(self.uri)
            experiment_id = self._experiment_id(client)
        earlier = read_json(self.run_dir / "mlflow.json")
        run_id = None
        if earlier.get("uri") == self._result.uri and isinstance(earlier.get("run_id"), str):
            run_id = self._reopen(client, earlier["run_id"])
        if run_id is None:
            tags = {"mlflow.source.name": "regimen", "regimen.run_dir": str(self.run_dir.resolve())}
            run_id = client.create_run(experiment_id, run_name=self.run_name, tags=tags).info.run_id
        self._log_params(client, run_id)
        self._result = replace(self._result, run_id=run_id, experiment_id=experiment_id)
        record = {"run_id": run_id, "uri": self._result.uri, "experiment": self.experiment}
        write_json(self.run_dir / "mlflow.json", record | {"experiment_id": experiment_id})
        self._client = client

    def _experiment_id(self, client: MlflowClient) -> str:
        from mlflow.exceptions import MlflowException

        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            location, path = None, sqlite_path(self.uri)
            if path is not None:  # a SQLite store would put artifacts under the working directory
                location = (path.resolve().parent / "mlartifacts" / registry_name(self.experiment)).as_uri()
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

    def _send(self) -> None:
        from mlflow.entities import Metric

        with self._guard:
            points, self._points = self._points, []
        for step, stamp, metrics in points:
            for name, value in metrics.items():
                value = plain(value)
                if isinstance(value, (int, float)):
                    self._unsent.append(Metric(entity_key(name), float(value), stamp, step))
        while len(self._unsent) > BACKLOG:
            steps = sorted({m.step for m in self._unsent})[1::2]
            dropped = set(steps[:-1])  # the last point always stays
            rest = [m for m in self._unsent if m.step not in dropped or m.key.startswith("eval/")]
            if len(rest) == len(self._unsent):
                break
            self._unsent = rest
        if self._unsent:
            check_unlocked(self.uri)
        while self._unsent:
            batch = self._unsent[:METRICS_PER_CALL]
            self._client.log_batch(self._result.run_id, metrics=batch, synchronous=True)
            del self._unsent[: len(batch)]

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
            if register is not None and self._result.model_version is None:
                self._register(register, eval_return)
        client.set_terminated(run_id, status=_STATUS.get(str(summary.get("state")), "FINISHED"))

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
        """A new version; the alias moves to it only from a version with a lower evaluation (or from none)."""
        client, name = self._client, registry_name(name)
        with _CONNECTING:  # seeds of one process that end together compare one after the other
            if stored(client.get_registered_model, name) is None:
                client.create_registered_model(name)
            score = eval_return if eval_return is not None and math.isfinite(eval_return) else None
            source = f"models:/{self._model_id}"
            if not self.uri.startswith("http"):  # MLflow would look that up in its global store instead of ours
                source = client.get_logged_model(self._model_id).artifact_location
            tags = {} if score is None else {"eval_return": repr(float(score))}
            best = champion_return(client, name)  # before there is a version: what fails here is tried again as a whole
            version = client.create_model_version(
                name, source=source, run_id=self._result.run_id, model_id=self._model_id, tags=tags
            ).version
            self._result = replace(self._result, model_version=str(version))
            if score is not None and score > best:
                client.set_registered_model_alias(name, CHAMPION, version)
                self._result = replace(self._result, alias_moved=True)


def champion_return(client: MlflowClient, name: str) -> float:
    """Evaluation of the version that holds the alias; -inf when there is none or it was never evaluated."""
    champion = stored(client.get_model_version_by_alias, name, CHAMPION)
    try:
        return -math.inf if champion is None else float(champion.tags.get("eval_return", "-inf"))
    except ValueError:  # a tag that somebody has edited
        return -math.inf


def stored(get: Callable[..., T], *names: str) -> T | None:
    """What MLflow has under a name; None where it has nothing."""
    from mlflow.exceptions import MlflowException

    try:
        return get(*names)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def batches(items: list[T], size: int) -> list[list[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]


def make_client(uri: str) -> MlflowClient:
    """A client of one store, without touching MLflow's global settings; its own chatter is silenced."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # 7 by default: minutes of silence
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ConfigError(_INSTALL) from error
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def sqlite_path(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///").split("?")[0]) if uri.startswith("sqlite:///") else None


def check_unlocked(uri: str) -> None:
    """Raise within a second when another process holds a SQLite store; MLflow itself would retry for minutes."""
    path = sqlite_path(uri)
    if path is None or not path.is_file():
        return
    import sqlite3

    database = sqlite3.connect(path, timeout=1.0, isolation_level=None)
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
    finally:
        database.close()


def without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)


def entity_key(name: str) -> str:
    """`name` with only the characters MLflow accepts in metric and parameter names."""
    return re.sub(r"[^\w./ :-]", "_", name)[:KEY_LENGTH]


def flatten(params: Mapping[str, object]) -> dict[str, str]:
    """Nested settings as `algo.lr: 0.0003`, as MLflow accepts them."""
    return {entity_key(key): str(plain(value, finite=False))[:PARAM_LENGTH] for key, value in dotted(params)}


def reason(error: BaseException) -> str:
    """One short line: the operating system's or SQLite's own words where they lie below, no passwords."""
    import sqlite3

    deepest, below = error, error
    while below is not None:
        if isinstance(below, (OSError, sqlite3.Error)):
            deepest = below
        below = below.__cause__ or below.__context__
    text = str(deepest).strip().splitlines()
    line = without_password(text[0]) if text else type(deepest).__name__
    return line if len(line) <= 160 else line[:157] + "..."


def resolve_model_uri(uri: str, tracking_uri: str | None = None) -> Path:
    """The policy folder of `models:/NAME@alias` or `models:/NAME/VERSION`, downloaded when the store is remote."""
    match = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/(\d+))", uri)
    if match is None:
        raise ConfigError(f"'{uri}' is not a model: write models:/NAME@{CHAMPION} or models:/NAME/VERSION")
    if importlib.util.find_spec("mlflow") is None:
        raise ConfigError(_INSTALL)
    name, alias, version = match.groups()
    store = tracking_uri or default_uri(Path("runs") / "run")
    path = sqlite_path(store)
    if path is not None and not path.is_file():
        raise ConfigError(f"{uri}: there is no MLflow store at {path}; give the store with --tracking-uri")
    try:
        check_unlocked(store)
        return _download_policy(make_client(store), store, uri, name, alias, version or "")
    except (ConfigError, StorageError):
        raise
    except Exception as error:  # a store that is down can raise anything; the user needs one line
        raise StorageError(f"{uri}: MLflow store {without_password(store)}: {reason(error)}") from error


def _download_policy(client: MlflowClient, store: str, uri: str, name: str, alias: str | None, version: str) -> Path:
    import mlflow.artifacts
    import yaml

    get, which = (client.get_model_version_by_alias, alias) if alias else (client.get_model_version, version)
    model = stored(get, name, which)
    if model is None:
        names = [m.name for m in client.search_registered_models(max_results=1000)]
        if name not in names:
            raise ConfigError(f"{uri}: no registered model '{name}'{nearest(name, names) if names else ''}")
        what = f"alias '{alias}'" if alias else f"version {version}"
        raise ConfigError(f"{uri}: model '{name}' has no {what}")
    source = client.get_model_version_download_uri(name, model.version)
    if source.startswith("models:/"):
        source = client.get_logged_model(source.removeprefix("models:/")).artifact_location
    folder = Path(mlflow.artifacts.download_artifacts(artifact_uri=source, tracking_uri=store))
    try:
        description = yaml.safe_load((folder / "MLmodel").read_text(encoding="utf-8"))
        policy = folder / description["flavors"]["python_function"]["artifacts"]["policy"]["path"]
    except (OSError, KeyError, TypeError, yaml.YAMLError):
        raise ConfigError(f"{uri}: model '{name}' was not saved by regimen") from None
    if not policy.resolve().is_relative_to(folder.resolve()) or not policy.is_dir():
        raise StorageError(f"{uri}: the policy folder of model '{name}' is missing from {folder}")
    return policy
