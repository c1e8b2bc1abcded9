"""Problems of an environment, and errors of its code in one line."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import jax

from regimen.envs.imports import one_line
from regimen.errors import RegimenError

T = TypeVar("T")


@dataclass(frozen=True)
class Problem:
    level: Literal["error", "warning"]
    message: str

    def __str__(self) -> str:
        return f"{self.level}: {self.message}"


class Report:
    """Problems found so far, each kind once."""

    def __init__(self):
        self.by_kind: dict[str, Problem] = {}

    def error(self, kind: str, message: str) -> None:
        self.by_kind.setdefault(kind, Problem("error", message))

    def warn(self, kind: str, message: str) -> None:
        self.by_kind.setdefault(kind, Problem("warning", message))

    @property
    def problems(self) -> list[Problem]:
        return sorted(self.by_kind.values(), key=lambda p: p.level)

    @property
    def failed(self) -> bool:
        return any(p.level == "error" for p in self.by_kind.values())


def attempt(what: str, report: Report, call: Callable[[], T]) -> T | None:
    """`call()`, or None and an error that says what about it cannot be compiled."""
    try:
        return call()
    except RegimenError as e:
        report.error(what, f"{what}: {e}")
        return None
    except Exception as e:
        report.error(what, f"{what} failed: {trace_hint(e)}{location(e)}")
        return None


def trace_hint(error: Exception) -> str:
    """jax's tracing errors in one line with the usual remedy."""
    remedies = {
        jax.errors.TracerBoolConversionError: "it uses Python's if, and, or, or not on a traced value; use jnp.where, "
        "lax.cond, &, | and ~",
        jax.errors.TracerArrayConversionError: "it hands a traced value to numpy; use jax.numpy",
        jax.errors.TracerIntegerConversionError: "it uses a traced value as a Python index or size; use jnp indexing",
        jax.errors.UnexpectedTracerError: "it keeps a traced value outside its return values; put it in the state",
        jax.errors.ConcretizationTypeError: "it needs the value of a traced array (float(), int(), a shape); use jnp",
    }
    for kind, words in remedies.items():
        if isinstance(error, kind):
            return words
    return one_line(error)[:300]


def location(error: BaseException) -> str:
    """The last line of the user's own code that the error passed through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    frames = [f for f in frames if Path(f.filename).parent != Path(__file__).parent]
    return f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
