"""What an environment declares of each metric that it reports. Jax-free, since readers of runs use it too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args

Reduction = Literal["last", "sum", "min", "max", "mean"]
Better = Literal["higher", "lower"]
Kind = Literal["rate", "count", "value"]


@dataclasses.dataclass(frozen=True)
class Metric:
    """A number of each step, and how it is summed up, judged and named."""

    reduce: Reduction  # over the steps of an episode
    better: Better | None = None  # which values are better; None: neither, and rankings take larger ones first
    kind: Kind = "value"  # rate: a share in [0, 1]; count: of events in an episode; value: anything else
    violation: bool = False  # above 0 in an episode that broke a rule of safety; at most one metric of an environment
    label: str = ""  # its name in tables and over charts; the page has a chart of a metric that has one

    @classmethod
    def of(cls, declared: str | Metric) -> Metric:
        """The metric that an environment declares, where the name of a reduction stands for a plain one."""
        if isinstance(declared, Metric):
            return declared
        return cls(declared, kind="count" if declared == "sum" else "value")  # type: ignore[arg-type]

    def problem(self) -> str | None:
        """What is wrong with the declaration, in words."""
        for name, choices in (("reduce", Reduction), ("better", Better), ("kind", Kind)):
            value = getattr(self, name)
            if value not in get_args(choices) and (name, value) != ("better", None):
                return f"{value!r}; use {', '.join(get_args(choices))}" + ("" if name == "reduce" else f" for `{name}`")
        return None


Declared = Mapping[str, "str | Metric"]
NAMES = {"return_mean": "return", "length_mean": "length", "success_rate": "success rate"}  # of every environment
PARTS = {"eval": "evaluation", "rollout": "training"}  # of a logged column's name


def metrics_of(declared: Declared) -> dict[str, Metric]:
    """Every declared metric by name, reductions promoted."""
    return {name: Metric.of(metric) for name, metric in declared.items()}


def reductions_of(declared: Declared) -> dict[str, str]:
    """How an episode sums up each metric, by name."""
    return {name: Metric.of(metric).reduce for name, metric in declared.items()}


def violation_of(metrics: Mapping[str, Metric]) -> str | None:
    """The name of the metric that is a violation; None where there is none."""
    return next((name for name, metric in metrics.items() if metric.violation), None)


def label_of(name: str, metrics: Mapping[str, Metric]) -> str:
    """The label of an evaluation metric, with its name where others have that label too; the name where it has none."""
    label = (metrics[name].label if name in metrics else "") or NAMES.get(name, name)
    shared = label != name and sum(metric.label == label for metric in metrics.values()) > 1
    return f"{label} ({name})" if shared else label


def words_of(column: str, metrics: Mapping[str, Metric]) -> str:
    """A logged column in words: `evaluation return` for `eval/return_mean`; a number of training is its name."""
    part, _, name = column.partition("/")
    return f"{PARTS[part]} {label_of(name, metrics)}" if part in PARTS else column


def to_table(metrics: Mapping[str, Metric]) -> dict[str, dict[str, str | bool | None]]:
    """Metrics as JSON can hold them, for `status.json`."""
    return {name: dataclasses.asdict(metric) for name, metric in metrics.items()}


def from_table(table: object) -> dict[str, Metric]:
    """Metrics from what `to_table` wrote; what is not one, in files of other versions or hands, is left out."""
    out: dict[str, Metric] = {}
    names = {f.name for f in dataclasses.fields(Metric)}
    for name, row in table.items() if isinstance(table, Mapping) else ():
        if isinstance(row, Mapping) and isinstance(row.get("label", ""), str) and "reduce" in row:
            metric = Metric(**{k: v for k, v in row.items() if k in names})
            if metric.problem() is None:
                out[str(name)] = metric
    return out
