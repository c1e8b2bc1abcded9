"""Names that people know from other trainers, and ours. One table, `names.yaml`: it answers unknown settings and makes
the tables of docs/migrating.md. Jax-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Name:
    """A name elsewhere, and what it is here."""

    other: str
    ours: tuple[str, ...]
    trainers: tuple[str, ...] = ("other",)
    note: str = ""


@cache
def names() -> dict[str, Name]:
    """The names of `names.yaml`, by what they are elsewhere."""
    import yaml

    def listed(value: str | list[str]) -> tuple[str, ...]:
        return (value,) if isinstance(value, str) else tuple(value)

    table = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return {
        other: Name(other, listed(row["ours"]), listed(row.get("of", "other")), row.get("note", ""))
        for other, row in table.items()
    }


def name_of(key: str) -> Name | None:
    """What a key of another trainer is here; with or without a section, dashes or underscores."""
    return names().get(key.rsplit(".", 1)[-1].replace("-", "_").lower())


def answer(key: str, settings: Iterable[str], dash: str = "") -> str | None:
    """The end of an error about an unknown setting: `; here it is algo.clip_eps`. `settings` are those of the chosen
    algorithm. None where nobody else calls anything so."""
    name = name_of(key)
    if name is None:
        return None
    has = set(settings)
    setting = next((setting for setting in name.ours if setting in has), name.ours[0])
    if setting == key:  # it is called so here, in another algorithm
        return None
    text = dash + (setting.replace("_", "-") if dash else setting)
    if setting in ("env_args", "env"):
        text = {"env_args": "--env.KEY" if dash else "env_args", "env": "the environment's name" if dash else "env"}[
            setting
        ]
    return f"; here it is {text}" + (f" ({name.note})" if name.note else "")


def table(trainer: str) -> list[str]:
    """The Markdown table of one trainer's names."""
    lines = ["| theirs | ours | |", "|---|---|---|"]
    for name in names().values():
        if trainer in name.trainers:
            ours = " or ".join(f"`{n}`" for n in name.ours)
            lines.append(f"| `{name.other}` | {ours} | {name.note} |")
    return lines


def page(text: str) -> str:
    """A page with its tables written anew: what stands between `<!-- names: TRAINER -->` and `<!-- end -->`."""
    out, skipping = [], False
    for line in text.splitlines():
        if line.startswith("<!-- end -->"):
            skipping = False
        if not skipping:
            out.append(line)
        if line.startswith("<!-- names: "):
            trainer = line.removeprefix("<!-- names: ").removesuffix(" -->")
            out += ["", *table(trainer), ""]
            skipping = True
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    import sys

    for argument in sys.argv[1:]:
        Path(argument).write_text(page(Path(argument).read_text(encoding="utf-8")), encoding="utf-8")
