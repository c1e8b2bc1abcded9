"""MLflow stores, and the models in them: which one a run uses, making it, asking it, what went wrong with it."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from regimen.config import yaml_files
from regimen.errors import ConfigError, StorageError, nearest
from regimen.files.storage import read_plain

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

T = TypeVar("T")
CHAMPION = "champion"
LOCK_SECONDS = 60.0  # that another process may take to create a store
NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
INSTALL = "MLflow is not installed: pip install 'regimen[tracking]'"
_ALONE = threading.Lock()  # runs of several seeds share one store


def default_uri(run_dir: Path) -> str:
    """MLFLOW_TRACKING_URI, else a SQLite file beside the run directory."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path(run_dir).resolve().parent / 'mlflow.db'}"


def registry_name(name: str) -> str:
    """`name` without the characters that MLflow gives a meaning in `models:/NAME@alias`."""
    return re.sub(r"[/:@%\s]+", "-", name).strip("-")


def stored(get: Callable[..., T], *names: str) -> T | None:
    """What MLflow has under a name; None where it has nothing."""
    from mlflow.exceptions import MlflowException

    try:
        return get(*names)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def make_client(uri: str) -> MlflowClient:
    """A client of one store, which is made if it is a SQLite file that is not there. MLflow's global settings are not
    touched; its own chatter is silenced."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # 7 by default: minutes of silence
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
    try:
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    path = sqlite_path(uri)
    if path is not None and not path.exists():
        with alone(uri):
            make_store(path)
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@contextlib.contextmanager
def alone(uri: str) -> Iterator[None]:
    """Hold a store for oneself: among the threads of this process and, of a SQLite file, among all processes here. The
    operating system gives the lock back when its process dies."""
    path = sqlite_path(uri)
    with _ALONE, contextlib.ExitStack() as stack:
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path.with_name(f".{path.name}.lock"), "ab"))
            lock(file, time.monotonic() + LOCK_SECONDS)
        yield


def lock(file: BinaryIO, deadline: float) -> None:
    """Wait for the lock of a file until the deadline; a file system without locks has to do without."""
    import fcntl

    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return None
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if time.monotonic() > deadline:
            raise OSError(errno.EAGAIN, "the store is locked by another process")
        time.sleep(0.1)


def make_store(path: Path) -> None:
    """Make a SQLite store, held `alone`, if it is not there yet. It takes its name when it is whole: MLflow needs
    seconds for its tables, and a file that a kill leaves half-made could be used by nobody."""
    if path.exists():
        return
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    for half in path.parent.glob(f".{path.name}.*.tmp*"):  # of a process that died over it: it held the lock
        half.unlink(missing_ok=True)
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        SqlAlchemyStore(f"sqlite:///{half}", (path.resolve().parent / "mlartifacts").as_uri()).engine.dispose()
        if not path.exists():  # of a process that knows nothing of the lock
            os.replace(half, path)
    finally:
        half.unlink(missing_ok=True)


def sqlite_path(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///").split("?")[0]) if uri.startswith("sqlite:///") else None


def check_unlocked(uri: str) -> None:
    """Raise within two seconds when another process holds a SQLite store; MLflow itself would retry for minutes."""
    path = sqlite_path(uri)
    if path is None or not path.is_file():
        return
    import sqlite3

    database = sqlite3.connect(path, timeout=2.0, isolation_level=None)
    try:
        database.execute("BEGIN IMMEDIATE")
        database.execute("ROLLBACK")
    finally:
        database.close()


def without_password(uri: str) -> str:
    return re.sub(r"//[^/@]*@", "//", uri)


def reason(error: BaseException) -> str:
    """The reason of an error in one short line: the operating system's or SQLite's own words where they lie below, no
    passwords."""
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
        raise ConfigError(INSTALL)
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
        description = yaml_files.load(read_plain(folder / "MLmodel"))
        policy = folder / description["flavors"]["python_function"]["artifacts"]["policy"]["path"]
    except (OSError, KeyError, TypeError, UnicodeDecodeError, yaml.YAMLError):
        raise ConfigError(f"{uri}: model '{name}' was not saved by regimen") from None
    if not policy.resolve().is_relative_to(folder.resolve()) or not policy.is_dir():
        raise StorageError(f"{uri}: the policy folder of model '{name}' is missing from {folder}")
    return policy
