"""Workflows: in which order a defender repairs the types of units. Orders as values, distances, equal orders.

A workflow is a strict priority order over the five unit types: when units of several types are compromised, those of
the earliest type are repaired first. There are 5! = 120, but an environment in which a type is never compromised, or
always is, cannot tell all of them apart; `equivalence_classes` says which it can.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Container, Iterable

import numpy as np

from regimen.errors import ConfigError, nearest
from regimen.experiments.search.space import kendall_matrix

TYPES = ("defender", "enterprise", "op_server", "op_host", "user")
LETTERS = {"D": "defender", "E": "enterprise", "S": "op_server", "H": "op_host", "U": "user"}
CANONICAL = {
    "critical_first": "DSEHU",
    "enterprise_focus": "EDSHU",
    "user_priority": "UDESH",
    "operational_focus": "SHDEU",
    "balanced": "DESUH",
    "reverse": "UHESD",
}
FOOTRULE = len(TYPES) ** 2 // 2  # the largest sum of displacements: that of the reversed order

# Which types each red agent ever compromises: Defender has no weak account, and B_line's script passes Op_Hosts by.
ATTACKED = {
    "b_line": ("enterprise", "op_server", "user"),
    "meander": ("enterprise", "op_server", "op_host", "user"),
    "mixed": ("enterprise", "op_server", "op_host", "user"),
}
# Which types are compromised at every step, by definition of compliance: Red's foothold on User0 survives any repair,
# and the published definition counts it.
ALWAYS = {"published": ("user",), "repaired": ()}

_LETTER = {name: letter for letter, name in LETTERS.items()}
_CANONICAL_NAME = {letters: name for name, letters in CANONICAL.items()}


@dataclasses.dataclass(frozen=True)
class Workflow:
    """A strict priority order over the unit types, the first repaired first."""

    order: tuple[str, ...]

    def __post_init__(self) -> None:
        for unit in self.order:
            if unit not in TYPES:
                raise ConfigError(f"workflow: unknown unit type '{unit}'{nearest(unit, TYPES)}")
        twice = sorted({unit for unit in self.order if self.order.count(unit) > 1})
        missing = [unit for unit in TYPES if unit not in self.order]
        faults = ((twice, "given twice"), (missing, "missing"))
        wrong = "; ".join(f"{', '.join(units)} {what}" for units, what in faults if units)
        if wrong:
            raise ConfigError(
                f"workflow: '{self}' is not an order of the {len(TYPES)} unit types ({wrong}); "
                f"name each of {', '.join(TYPES)} once"
            )

    @classmethod
    def parse(cls, text: str | Workflow) -> Workflow:
        """`critical_first`, `D,S,E,H,U`, `DSEHU` or `defender>op_server>enterprise>op_host>user`."""
        if isinstance(text, Workflow):
            return text
        words = [word for word in re.split(r"[\s,>]+", str(text).strip()) if word]
        if not words:
            raise ConfigError("workflow: empty; give an order such as D,S,E,H,U or a name such as critical_first")
        if len(words) == 1:
            word = words[0]
            name = word.lower().replace("-", "_")
            if name not in CANONICAL and (not word.isalpha() or len(word) > len(TYPES) + 1):
                raise ConfigError(f"workflow: unknown order '{word}'{nearest(name, CANONICAL)}")
            words = list(CANONICAL.get(name, word))
        return cls(tuple(map(_unit, words)))

    @property
    def letters(self) -> str:
        return "".join(_LETTER[unit] for unit in self.order)

    @property
    def name(self) -> str:
        """One of the six canonical names, or the letters."""
        return _CANONICAL_NAME.get(self.letters, self.letters)

    @property
    def index(self) -> int:
        """0..119, lexicographic in TYPES."""
        return all_workflows().index(self)

    def one_hot(self) -> np.ndarray:
        """Which type is at which position: entry 5 * position + type.  # [25] float32"""
        return np.eye(len(TYPES), dtype=np.float32)[[TYPES.index(unit) for unit in self.order]].ravel()

    def ranks(self) -> np.ndarray:
        """The position of each type, in the order of TYPES.  # [5] int32"""
        return np.array([self.order.index(unit) for unit in TYPES], np.int32)

    def first(self, compromised: Container[str]) -> str | None:
        """The type to repair now: the earliest of those compromised."""
        return next((unit for unit in self.order if unit in compromised), None)

    def __str__(self) -> str:
        return ">".join(self.order)


def kendall(a: Workflow, b: Workflow) -> float:
    """The share of pairs of types that the two orders rank differently, 0 (equal) to 1 (reversed)."""
    return float(kendall_matrix(a.ranks()[None], b.ranks()[None])[0, 0])


def footrule(a: Workflow, b: Workflow) -> float:
    """Spearman's footrule: how far the types are displaced in all, over the largest possible; 0 to 1."""
    return float(np.abs(a.ranks() - b.ranks()).sum()) / FOOTRULE


@functools.cache
def all_workflows() -> tuple[Workflow, ...]:
    """All 120, by index."""
    return tuple(Workflow(order) for order in itertools.permutations(TYPES))


@dataclasses.dataclass(frozen=True)
class EquivalenceClass:
    """Orders that an environment and a definition of compliance cannot tell apart."""

    priority: tuple[str, ...]  # what matters of these orders: the types that can be first, in order
    members: tuple[Workflow, ...]

    @property
    def representative(self) -> Workflow:
        """The member that has a canonical name, else the first member."""
        return next((w for w in self.members if w.letters in _CANONICAL_NAME), self.members[0])

    @property
    def name(self) -> str:
        return ">".join(self.priority) if self.priority else "any order"


def equivalence_classes(attacked: Iterable[str], always: Iterable[str] = ()) -> list[EquivalenceClass]:
    """Which orders ask for the same repairs, where only `attacked` types are ever and `always` ones always compromised.

    Two orders are equal if they name the same type as first for every set of compromised types that can occur. All
    that matters of an order is then the attacked types up to the first that always is compromised: none after that
    one can be first.
    """
    attacked, always = set(attacked) | set(always), set(always)
    for unit in attacked:
        if unit not in TYPES:
            raise ConfigError(f"workflow: unknown unit type '{unit}'{nearest(str(unit), TYPES)}")
    classes: dict[tuple[str, ...], list[Workflow]] = {}
    for workflow in all_workflows():
        classes.setdefault(_priority(workflow, attacked, always), []).append(workflow)
    return [EquivalenceClass(priority, tuple(members)) for priority, members in classes.items()]


def classes_for(red: str, compliance: str) -> list[EquivalenceClass]:
    """The equivalence classes of `network_defense` for a red agent and a definition of compliance."""
    for field, value, choices in (("red", red, ATTACKED), ("compliance", compliance, ALWAYS)):
        if value not in choices:
            raise ConfigError(f"{field}: unknown '{value}'{nearest(value, choices)}")
    return equivalence_classes(ATTACKED[red], ALWAYS[compliance])


def _priority(workflow: Workflow, attacked: set[str], always: set[str]) -> tuple[str, ...]:
    priority = []
    for unit in workflow.order:
        if unit in attacked:
            priority.append(unit)
        if unit in always:
            break
    return tuple(priority)


def _unit(word: str) -> str:
    if word.upper() in LETTERS:
        return LETTERS[word.upper()]
    name = word.lower().replace("-", "_")
    if name not in TYPES:
        choices = TYPES if len(word) > 1 else [f"{letter} ({unit})" for letter, unit in LETTERS.items()]
        raise ConfigError(f"workflow: unknown unit type '{word}'{nearest(name, choices)}")
    return name
