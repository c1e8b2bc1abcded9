"""A run of several processes: process 0 runs the session with its files, evaluations, rules and console, the others
follow it.

Nothing but process 0 decides anything, so nothing that differs between hosts (clocks, disks, signals) can make them
disagree. What they say to each other, and the engine they share, are `engines/multihost.py`.
"""

from __future__ import annotations

import atexit
import contextlib
import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, ParamSpec

import jax

from regimen.config import layers
from regimen.config.schema import TrainConfig
from regimen.engines import device
from regimen.engines.multihost import tell
from regimen.engines.signals import Signals, code_of
from regimen.envs import registry
from regimen.errors import LostProcessError, RegimenError
from regimen.files.background import leave
from regimen.files.storage import plain
from regimen.runs.build import make_engine
from regimen.runs.result import Result

P = ParamSpec("P")


def begin(config: TrainConfig, seeds: list[int]) -> None:
    """Tell the other processes to make the same engine; process 0 calls it."""
    if jax.process_count() > 1:
        tell({"do": "begin", "config": plain(layers.to_dict(config), finite=False), "seeds": seeds})


def together(function: Callable[P, Result]) -> Callable[P, Result]:
    """Where there are several processes, process 0 does it and the others follow it. All of them return what it
    returns, or raise what it raises."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Result:
        if not jax.distributed.is_initialized() or jax.process_count() == 1:
            return function(*args, **kwargs)
        arguments = inspect.signature(function).bind(*args, **kwargs).arguments
        try:
            if jax.process_index() > 0:
                return follow(arguments.get("handle") or arguments.get("env"))
            return lead(partial(function, *args, **kwargs))
        except BaseException as error:
            code = code_of(error) if isinstance(error, KeyboardInterrupt) else getattr(error, "exit_code", 1)
            atexit.register(leave, code)  # without waiting for the others
            raise

    return run


def lead(run: Callable[[], Result]) -> Result:
    outcome: dict[str, object] = {"do": "end"}
    try:
        result = run()
        outcome |= result.message()
        return result
    except BaseException as error:
        outcome |= {"error": str(error), "kind": type(error).__name__}
        raise
    finally:
        with contextlib.suppress(LostProcessError):
            tell(plain(outcome))


def follow(env: registry.EnvHandle | registry.EnvLike | None) -> Result:
    """Do as process 0 says, until it says how the run ended. `env` is the environment itself, where it has no name."""
    device.configure("auto", native=True)
    engine, failure = None, None
    with Signals() as signals:
        signals.busy = lambda: engine is None or engine.compiling
        while (message := tell(None, signals.requested)[0])["do"] != "end":
            if failure is not None:  # of this process alone, or process 0 would have ended the run
                raise failure
            if engine is not None:
                engine.obey(message)
                continue
            config = layers.from_dict(message["config"])
            try:
                handle = (
                    env if isinstance(env, registry.EnvHandle) else registry.resolve(env or config.env, config.env_args)
                )
                engine: Any = make_engine(config, handle, message["seeds"], signals.is_requested)
            except RegimenError as error:
                failure = error
    return Result.of_message(message, "process 0: ")
