"""Pictures that a run leaves for the page: `RUN/views/NAME.json`, one of a few kinds (docs/dashboard.md has them all).

    from regimen.files import views

    views.write(run_dir, "power", views.grid("Power", rows=["#..", "..."], frames=[views.grid_frame(values=table)]))

Arrays may be numpy or jax arrays; what is not finite becomes null. Nothing here imports jax.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from regimen.files.storage import plain, write_atomic

LARGEST = 8 << 20  # bytes of a view that the page reads
View = dict[str, Any]  # what a view's JSON holds
Part = Mapping[str, object]  # an object within one, or one that is not checked yet
IMAGES = (".png", ".gif", ".jpg", ".webp")


class ViewError(ValueError):
    """A view that cannot be drawn: where, and what is wrong."""


def write(run_dir: str | Path, name: str, view: Part) -> Path:
    """Check a view and write it to `<run_dir>/views/<name>.json` in one step; a page that is open shows it at once."""
    if not re.fullmatch(r"[\w][\w.\- ]{0,99}", name):
        raise ViewError(f"name: '{name}' is not a plain file name")
    data = json.dumps(check(plain(view)), separators=(",", ":"), allow_nan=False)
    if len(data) > LARGEST:
        raise ViewError(f"'{name}' has {len(data):,} bytes, the page reads {LARGEST:,}: leave out frames or digits")
    path = Path(run_dir) / "views" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data + "\n", sync=False)
    return path


def table_title(name: str, what: str) -> str:
    """The title of a table or an animation in a run directory, by its name: `evaluation at step 1,000` of
    `step-001000.csv`, `episode of the best policy` of `best.csv`, `episode with seed 3` of `seed-3.gif`, and
    `WHAT NAME` of others."""
    stem = re.sub(r"\.(csv|gif)$", "", name)
    if stem == "best":
        return "episode of the best policy"
    match = re.fullmatch(r"(step|seed)-0*(\d{1,18})", stem)
    if match is None:
        return f"{what} {stem}"
    return f"evaluation at step {int(match[2]):,}" if match[1] == "step" else f"episode with seed {int(match[2])}"


# --- making them -----------------------------------------------------------------------------------------------------


def tracks(title: str, episodes: Sequence[Part], *, separation: float | None = None, unit: str = "") -> View:
    """Movers on a plane; `separation` is the distance that any two must keep, drawn as circles of half of it."""
    return {"kind": "tracks", "title": title, "separation": separation, "unit": unit, "episodes": list(episodes)}


def episode(title: str, time: object, agents: Sequence[Part]) -> View:
    """One episode of `tracks`: T times, and each mover's `name`, `x` and `y` at them (null where it is absent), with or
    without a `goal` [x, y] and an `alert` at each time."""
    return {"title": title, "time": time, "agents": list(agents)}


def grid(title: str, rows: Sequence[str], frames: Sequence[Part], *, unit: str = "") -> View:
    """A map of characters ('#' is a wall) and what changes on it; `unit` is that of the heat map's values."""
    return {"kind": "grid", "title": title, "rows": list(rows), "frames": list(frames), "unit": unit}


def grid_frame(values: object = None, agents: Sequence[Part] = (), arrows: object = (), title: str = "") -> View:
    """One moment of a `grid`: `values` by row and column, `agents` with `name`, `row`, `column`; `arrows` of (row,
    column, to the right, downwards), of length at most 1."""
    return {"title": title, "values": values, "agents": list(agents), "arrows": arrows}


def network(
    title: str,
    states: Sequence[str],
    nodes: Sequence[Part],
    edges: object,
    frames: Sequence[Part],
    *,
    bounds: Sequence[float] | None = None,
) -> View:
    """Nodes (`name`, `x`, `y`, y upwards), edges as pairs of their numbers, and frames with the `state` of each node as
    a number into `states`, from the harmless to the worst, and maybe what is `believed` of it, drawn as the right half.
    A frame may have its own `nodes` and `edges`.
    `bounds` is [left, bottom, right, top], where the plane should not just fit the nodes."""
    out = {"kind": "network", "title": title, "states": list(states), "nodes": list(nodes), "edges": edges}
    return out | {"frames": list(frames)} | ({} if bounds is None else {"bounds": list(bounds)})


def posterior(title: str, frames: Sequence[Part], *, label: str = "value") -> View:
    """What is believed of each candidate: frames with a `title` and `candidates` of `name`, `mean`, `low`, `high`, and
    maybe `observed` (a list of values) and `chosen` (true for the next to try)."""
    return {"kind": "posterior", "title": title, "label": label, "frames": list(frames)}


def series(title: str, lines: Sequence[Part], *, xlabel: str = "", ylabel: str = "") -> View:
    """Lines of `name`, `x`, `y`, and maybe `low` and `high`."""
    return {"kind": "series", "title": title, "xlabel": xlabel, "ylabel": ylabel, "lines": list(lines)}


def image(title: str, file: str, alt: str = "", note: str = "") -> View:
    """A picture that is in the run directory, such as `plots/power.png`; `note` stands below it."""
    return {"kind": "image", "title": title, "file": file, "alt": alt or title, "note": note}


# --- checking them ---------------------------------------------------------------------------------------------------


def check(view: object) -> View:
    """The view with only what its kind has, or ViewError that says where it is wrong."""
    if not isinstance(view, dict):
        raise ViewError("not an object")
    kind = view.get("kind")
    if kind not in KINDS:
        raise ViewError(f"kind: {str(kind)[:40]!r} is none of {', '.join(KINDS)}")
    fields = _checked(FIELDS[kind], {"label": "value", **view}, "")
    if kind == "grid" and len({len(row) for row in fields["rows"]}) > 1:
        raise ViewError("rows: not all of one length")
    for i, part in enumerate(fields.get("episodes", ())):
        for j, agent in enumerate(part["agents"]):
            _require_length(agent["x"], part["time"], f"episodes[{i}].agents[{j}].x", "time")
    return {"kind": kind, "title": _text(view.get("title", kind), "title"), **fields}


def _checked(shape: Any, value: object, where: str) -> Any:
    """The value in a shape of `FIELDS`: an object's fields, a list of one shape, or what a function lets pass."""
    if isinstance(shape, list):
        if not isinstance(value, list) or (len(shape) > 1 and len(value) != len(shape)):
            _fail(where, "not a list" if len(shape) == 1 else f"not a list of {len(shape)}")
        return [_checked(shape[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if not isinstance(shape, dict):
        return shape(value, where)
    if not isinstance(value, dict):
        _fail(where, "not an object")
    out, prefix = {}, f"{where}." if where else ""
    for field, inner in shape.items():
        name, item = field.rstrip("?="), value.get(field.rstrip("?="), ...)
        if item is ... and field.endswith("="):
            out[name] = [] if isinstance(inner, list) else ""
        elif item is ... and not field.endswith("?"):
            _fail(f"{prefix}{name}", "missing")
        elif item is not ...:
            out[name] = None if item is None and field.endswith("?") else _checked(inner, item, f"{prefix}{name}")
    for name in ("y", "alert", "low", "high"):
        if isinstance(out.get(name), list):
            _require_length(out[name], out["x"], f"{prefix}{name}", "x")
    return out


def _require_length(values: list[object], others: list[object], where: str, name: str) -> None:
    if len(values) != len(others):
        _fail(where, f"{len(values)} values for {len(others)} of {name}")


def _fail(where: str, what: str) -> NoReturn:
    raise ViewError(f"{where}: {what}")


def _text(value: object, where: str) -> str:
    return value[:1000] if isinstance(value, str) else _fail(where, "not text")


def _number(value: object, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        return value
    _fail(where, "not a finite number")


def _number_or_gap(value: object, where: str) -> float | None:
    return None if value is None else _number(value, where)


def _state(value: object, where: str) -> int | None:
    return None if value is None else _whole(value, where)


def _whole(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    _fail(where, "not a whole number from 0")


def _flag(value: object, where: str) -> bool | None:
    if value is None or isinstance(value, (bool, int, float)):
        return None if value is None else bool(value)
    _fail(where, "not true or false")


def _file(value: object, where: str) -> str:
    text = _text(value, where)
    names = text.split("/")
    if any(n in ("", ".", "..") or n.startswith(".") for n in names) or not names[-1].lower().endswith(IMAGES):
        _fail(where, f"not a picture ({', '.join(IMAGES)}) by its name below the run directory")
    return text


# `name?` may be absent or null, `name=` may be absent and is empty then; [x] is a list of x, [x] * n of n of them.
# Lists `y`, `alert`, `low` and `high` are as long as `x` beside them.
_PLACE = {"name": _text, "row": _number, "column": _number}
_NODES, _EDGES = [{"name=": _text, "x": _number, "y": _number}], [[_whole] * 2]
_CURVE = {"name": _text, "x": [_number_or_gap], "y": [_number_or_gap]}
_AGENT = _CURVE | {"goal?": [_number] * 2, "alert?": [_flag]}
_CANDIDATE = {"name": _text, "mean": _number, "low": _number, "high": _number, "observed?": [_number], "chosen?": _flag}
_MOMENT = {"title=": _text, "values?": [[_number_or_gap]], "agents=": [_PLACE], "arrows=": [[_number] * 4]}
_STATES = {"title=": _text, "note=": _text, "state=": [_state], "believed?": [_state]}
FIELDS: dict[str, dict[str, Any]] = {
    "tracks": {
        "separation?": _number,
        "unit=": _text,
        "episodes": [{"title=": _text, "time": [_number], "agents": [_AGENT]}],
    },
    "grid": {"rows": [_text], "unit=": _text, "frames": [_MOMENT]},
    "network": {
        "states=": [_text],
        "nodes=": _NODES,
        "edges=": _EDGES,
        "bounds?": [_number] * 4,
        "frames": [_STATES | {"nodes?": _NODES, "edges?": _EDGES}],
    },
    "posterior": {"label": _text, "frames": [{"title=": _text, "candidates": [_CANDIDATE]}]},
    "series": {
        "xlabel=": _text,
        "ylabel=": _text,
        "lines": [_CURVE | {"low?": [_number_or_gap], "high?": [_number_or_gap]}],
    },
    "image": {"file": _file, "alt=": _text, "note=": _text},
}
KINDS = tuple(FIELDS)
