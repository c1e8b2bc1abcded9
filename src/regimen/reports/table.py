"""A table as text, Markdown, CSV or HTML, all from the same rows."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TypeVar

from regimen import words
from regimen.files.storage import write_atomic

Row = TypeVar("Row")


@dataclass(frozen=True)
class Table:
    """A heading and rows of cells; None is an empty cell, and what is not text is written as `str` has it."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    title: str = ""

    @classmethod
    def of(cls, columns: Mapping[str, Callable[[Row], object]], rows: Iterable[Row], title: str = "") -> Table:
        """Make the table whose columns are given as heading and the function of a row that gives the cell."""
        return cls(list(columns), [[cell(row) for cell in columns.values()] for row in rows], title)

    @classmethod
    def of_records(cls, rows: Sequence[Mapping[str, object]]) -> Table:
        """Make the table of every key that any row has, in the order in which keys first occur."""
        names = list(dict.fromkeys(name for row in rows for name in row))
        return cls(names, [[row.get(name) for name in names] for row in rows])

    def first(self, n: int) -> Table:
        """Return the table of its first `n` rows."""
        return Table(self.head, self.rows[:n], self.title)

    def lines(self) -> list[str]:
        """Write it in columns of equal width, for a terminal."""
        return words.aligned(self.head, [list(map(_text, row)) for row in self.rows])

    def markdown(self) -> str:
        def line(cells: Iterable[object]) -> str:
            return "| " + " | ".join(_text(cell).replace("|", "\\|") for cell in cells) + " |"

        return "\n".join([line(self.head), "|" + "---|" * len(self.head), *map(line, self.rows)])

    def csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.head)
        writer.writerows(self.rows)
        return file.getvalue()

    def write_csv(self, path: Path) -> None:
        """Write the CSV file, whole or not at all."""
        write_atomic(path, self.csv())

    def html(self, text_columns: Sequence[str] | None = None) -> str:
        """Write a `<table>` that scrolls by itself. Where `text_columns` are named, the others are marked as numbers
        by the lack of the class `text`."""

        def line(tag: str, cells: Iterable[object]) -> str:
            marks = ["" if text_columns is None or name not in text_columns else " class='text'" for name in self.head]
            return "".join(f"<{tag}{mark}>{escape(_text(cell))}</{tag}>" for mark, cell in zip(marks, cells))

        body = "".join(f"<tr>{line('td', row)}</tr>\n" for row in self.rows)
        head = f"<thead><tr>{line('th', self.head)}</tr></thead>"
        return f"<div class='scroll'><table>{head}<tbody>\n{body}</tbody></table></div>\n"


def _text(cell: object) -> str:
    return "" if cell is None else str(cell)
