"""What a RUN or ENV names: the run directory, the policy folder, or the environment that a verb is given."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

from regimen.config.domains import effective
from regimen.engines import device
from regimen.envs import registry
from regimen.envs.imports import OBJECT
from regimen.errors import ConfigError, StorageError


def is_run(target: object) -> TypeGuard[str | Path]:
    """Whether a target is the path of a run directory or of a policy folder."""
    if not isinstance(target, (str, Path)):
        return False
    path = Path(target)
    if path.is_dir() and ((path / "config.yaml").exists() or (path / "config.json").exists()):
        return True
    if path.is_dir() and any(path.glob("seed-*/config.yaml")):
        raise ConfigError(f"{path} holds several seeds; name one of them, for example {path}/seed-0")
    if path.exists() and target not in registry.ENVS:
        raise StorageError(f"{path} is not a run directory: it has no config.yaml")
    return False


def refuse_object(stored: str, env: registry.EnvLike | None, instead: str) -> None:
    """Refuse a run whose environment was a Python object, unless that object is handed over as `env`."""
    if env is None and stored.startswith(OBJECT):
        raise ConfigError(
            f"this run was trained on the Python object '{stored.removeprefix(OBJECT)}', which cannot be made from its "
            f"name; call {instead} with it"
        )


def environment(
    target: object, origin: Mapping[str, Any], env: registry.EnvLike | None, args: Mapping[str, object], verb: str
) -> registry.EnvHandle:
    """The environment that a verb plays: that of a configuration (`origin`), or the target itself. Chooses the device
    that suits it."""
    stored = origin.get("env", target)
    if isinstance(stored, str):
        refuse_object(stored, env, f"regimen.{verb}('{target}', env=...)")
    native = registry.is_native(stored if env is None else env)
    device.configure("auto" if native else "cpu", native)
    if env is None:
        return registry.resolve(stored, {**effective(str(stored), origin.get("env_args", {}), args), **args})
    handle = registry.resolve(env, args)
    return dataclasses.replace(handle, id=stored) if isinstance(stored, str) else handle


def stored_env(stored: str, args: Mapping[str, object], env: registry.EnvLike | None) -> registry.EnvHandle:
    """The environment of a run: `env` itself where there is one, under the name that the run knows."""
    if env is None:
        return registry.resolve(stored, args)
    return dataclasses.replace(registry.resolve(env, {}), id=stored)
