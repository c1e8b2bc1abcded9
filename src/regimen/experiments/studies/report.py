"""A study's results as files: results.json, table.md, table.csv and summary.md, and its numbers in words.

What a study says of itself (title, headings, columns and definitions) is in the YAML file of its folder.
"""

import math
import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from regimen.experiments.studies.curves import Results, Row
from regimen.files.storage import cell, plain, write_atomic
from regimen.reports.table import Table
from regimen.statistics import Estimate
from regimen.words import count, size

Texts = dict[str, Any]  # title, footnote, headings, columns by part, definitions


def read_texts(path: Path, **values: object) -> Texts:
    """Read a study's texts; `values` fill the places in its definitions."""
    texts = yaml.safe_load(path.read_text(encoding="utf-8"))
    return texts | {"definitions": {name: text.format(**values) for name, text in texts["definitions"].items()}}


def short(x: float, infinite: str = "never") -> str:
    """Three digits, thousands as `12.3k`; a dash for what is unknown. What is infinite was never reached."""
    if math.isnan(x):
        return "–"
    if math.isinf(x):
        return infinite
    return count(x) if abs(x) >= 1000 else f"{x:.3g}"


def with_interval(e: Estimate, infinite: str = "never") -> str:
    """Write a value with its interval: `0.12 (0.1 to 0.15)`."""
    same = e.low == e.value == e.high
    return short(e.value, infinite) + (f" ({between(e, infinite)})" if e.has_interval and not same else "")


def between(e: Estimate, infinite: str = "never") -> str:
    """Write an interval: `0.1 to 0.15`."""
    return f"{short(e.low, infinite)} to {short(e.high, infinite)}"


def percent(e: Estimate) -> str:
    """Write a share with its interval: `12% (10 to 15)`."""
    return f"{100 * e.value:.0f}%" + (f" ({100 * e.low:.0f} to {100 * e.high:.0f})" if e.has_interval else "")


def verdict(e: Estimate, low: str, high: str, neutral: float = 1.0) -> str:
    """`low` or `high` when the interval lies on that side of `neutral`; else that no difference can be told."""
    if not e.has_interval:
        return "too few values for an interval"
    if e.high < neutral:
        return low
    return high if e.low > neutral else "no difference can be told"


def in_words(value: object) -> str:
    """An Estimate with its interval, a float with three digits, anything else as it is."""
    if isinstance(value, Estimate):
        return with_interval(value)
    return short(value) if isinstance(value, float) else str(value)


class RowFormatter(string.Formatter):
    """Format strings over a row's values, `{final}` in words; beside Python's formats there are those of FORMATS."""

    FORMATS: Mapping[str, Callable[[Any], str]] = {
        "": in_words,
        "count": count,
        "bytes": size,
        "percent": percent,
        "point": lambda e: short(e.value),
        "ratio": lambda e: with_interval(e, "∞"),
    }

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return kwargs[field_name], field_name  # as it is: `steps_to_0.5` is one name

    def format_field(self, value: Any, format_spec: str) -> str:
        write = self.FORMATS.get(format_spec)
        return format(value, format_spec) if write is None else write(value)


def fill(template: str, row: Row, **more: object) -> str:
    """Fill the places of a template, such as `{name}: {reached} of {seeds}`, with a row's values and others."""
    return RowFormatter().vformat(template, (), {**row, **more})


def encoded(value: object) -> object:
    """Estimates as objects, the rest as JSON can hold it; what is infinite (never) or unknown becomes null."""
    if isinstance(value, Estimate):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(k): encoded(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(v) for v in value]
    return plain(value)


def numbers_of(row: Row) -> dict[str, list[str]]:
    """The numbers of a row, each as the cells of its value and its interval; empty where never or unknown."""
    out = {}
    for name, value in row.items():
        if isinstance(value, Estimate):
            out[name] = [cell(x) if math.isfinite(x) else "" for x in value]
        elif isinstance(value, (int, float)):
            out[name] = [cell(value), "", ""]
    return out


def write_tables(path: Path, title: str, tables: Mapping[str, tuple[Mapping[str, str], Sequence[Row]]], note: str):
    """Write table.md: for each heading the columns' templates, filled with the rows."""
    text = [f"# {title}", ""]
    for heading, (columns, rows) in tables.items():
        table = Table(list(columns), [[fill(template, row) for template in columns.values()] for row in rows])
        text += [f"## {heading}", "", table.markdown(), ""]
    write_atomic(path, "\n".join([*text, note, ""]))


def write_summary(path: Path, results: Results, title: str, body: Sequence[str], texts: Texts) -> None:
    """Write summary.md: what a study says, how it was measured, and the exact command."""
    page = [f"# {title}", "", *body, "## Definitions", ""]
    page += [*(f"- `{name}`: {words}" for name, words in texts["definitions"].items()), ""]
    if results["command"]:
        page += ["## Command", "", "```bash", results["command"], "```", ""]
    versions = ", ".join(f"{name} {value}" for name, value in results["versions"].items())
    page += [f"{results['device']}, {results['seconds']:.0f} s, {versions}", ""]
    write_atomic(path, "\n".join(page))
