"""Pictures that a run leaves for the page: `RUN/views/NAME.json`, one of a few kinds (docs/dashboard.md has them all).

    from regimen.files import views

    views.write(run_dir, "power", views.grid("Power", rows=["#..", "..."], frames=[views.grid_frame(values=table)]))

Arrays may be numpy or jax arrays; what is not finite becomes null. Nothing here imports jax.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from regimen.files.storage import plain, write_atomic

KINDS = ("tracks", "grid", "network", "posterior", "series", "image")
LARGEST = 8 << 20  # bytes of a view that the page reads
View = dict[str, Any]  # what a view's JSON holds
Part = Mapping[str, object]  # an object within one, or one that is not checked yet
IMAGES = (".png", ".gif", ".jpg", ".webp")


class ViewError(ValueError):
    """A view that cannot be drawn: where, and what is wrong."""


def write(run_dir: str | Path, name: str, view: Part) -> Path:
    """Check a view and write it to `<run_dir>/views/<name>.json` in one step; a page that is open shows it at once."""
    import json

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
    """The title of a table in a run directory: `evaluation at step 1,000` of `step-001000.csv`, else `WHAT NAME`."""
    match = re.fullmatch(r"step-0*(\d{1,18})\.csv", name)
    return f"evaluation at step {int(match[1]):,}" if match else f"{what} {name.removesuffix('.csv')}"


# --- making them -----------------------------------------------------------------------------------------------------


def tracks(title: str, episodes: Sequence[Part], *, separation: float | None = None, unit: str = "") -> View:
    """Movers on a plane; `separation` is the distance that any two must keep, drawn as circles of half of it."""
    return {"kind": "tracks", "title": title, "separation": separation, "unit": unit, "episodes": list(episodes)}


def episode(title: str, time: object, agents: Sequence[Part]) -> View:
    """One of them: T times, and each mover's `name`, `x` and `y` at them (null where it is absent), with or without a
    `goal` [x, y] and an `alert` at each time."""
    return {"title": title, "time": time, "agents": list(agents)}


def grid(title: str, rows: Sequence[str], frames: Sequence[Part], *, unit: str = "") -> View:
    """A map of characters ('#' is a wall) and what changes on it; `unit` is that of the heat map's values."""
    return {"kind": "grid", "title": title, "rows": list(rows), "frames": list(frames), "unit": unit}


def grid_frame(values: object = None, agents: Sequence[Part] = (), arrows: object = (), title: str = "") -> View:
    """One moment: `values` by row and column, `agents` with `name`, `row`, `column`; `arrows` of (row, column, to the
    right, downwards), of length at most 1."""
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


def image(title: str, file: str, alt: str = "") -> View:
    """A picture that is in the run directory, such as `plots/power.png`."""
    return {"kind": "image", "title": title, "file": file, "alt": alt or title}


# --- checking them ---------------------------------------------------------------------------------------------------

Check = Callable[[object, str], Any]


def check(view: object) -> View:
    """The view with only what its kind has, or ViewError that says where it is wrong."""
    if not isinstance(view, dict):
        raise ViewError("not an object")
    kind = view.get("kind")
    if kind not in KINDS:
        raise ViewError(f"kind: {str(kind)[:40]!r} is none of {', '.join(KINDS)}")
    made = _object(FIELDS[kind])(view, "")
    if kind == "grid" and len({len(row) for row in made["rows"]}) > 1:
        raise ViewError("rows: not all of one length")
    return {"kind": kind, "title": _text(view.get("title", kind), "title"), **made}


def _fail(where: str, what: str) -> NoReturn:
    raise ViewError(f"{where}: {what}")


def _text(value: object, where: str) -> str:
    return value[:1000] if isinstance(value, str) else _fail(where, "not text")


def _number(value: object, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300:
        return value
    _fail(where, "not a finite number")


def _whole(value: object, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return value
    _fail(where, "not a whole number from 0")


def _flag(value: object, where: str) -> bool:
    return bool(value) if isinstance(value, (bool, int, float)) else _fail(where, "not true or false")


def _maybe(inner: Check) -> Check:
    return lambda value, where: None if value is None else inner(value, where)


def _list(inner: Check, length: int | None = None) -> Check:
    def run(value: object, where: str) -> list[object]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            _fail(where, "not a list" if length is None else f"not a list of {length}")
        return [inner(item, f"{where}[{i}]") for i, item in enumerate(value)]

    return run


def _object(fields: Mapping[str, tuple[Check, object]]) -> Check:
    """Fields with (check, default); a default of `...` makes a field needed."""

    def run(value: object, where: str) -> View:
        if not isinstance(value, dict):
            _fail(where, "not an object")
        out, dot = {}, f"{where}." if where else ""
        for name, (inner, default) in fields.items():
            item = value.get(name, default)
            if item is ...:
                _fail(f"{dot}{name}", "missing")
            if name in value or default is not None:
                out[name] = inner(item, f"{dot}{name}")
        return out

    return run


def _same_length(inner: Check, first: str, *others: str) -> Check:
    def run(value: object, where: str) -> View:
        made = inner(value, where)
        for name in others:
            if made.get(name) is not None and len(made[name]) != len(made[first]):
                _fail(f"{where}.{name}", f"{len(made[name])} values for {len(made[first])} of {first}")
        return made

    return run


def _episode(value: object, where: str) -> View:
    made = _object({"title": (_text, ""), "time": (_list(_number), ...), "agents": (_list(_AGENT), ...)})(value, where)
    for i, agent in enumerate(made["agents"]):
        if len(agent["x"]) != len(made["time"]):
            _fail(f"{where}.agents[{i}].x", f"{len(agent['x'])} values for {len(made['time'])} of time")
    return made


def _file(value: object, where: str) -> str:
    text = _text(value, where)
    names = text.split("/")
    if any(n in ("", ".", "..") or n.startswith(".") for n in names) or not names[-1].lower().endswith(IMAGES):
        _fail(where, f"not a picture ({', '.join(IMAGES)}) by its name below the run directory")
    return text


_NUMBERS, _GAPS = _list(_number), _list(_maybe(_number))
_AGENT = _same_length(
    _object(
        {
            "name": (_text, ...),
            "x": (_GAPS, ...),
            "y": (_GAPS, ...),
            "goal": (_maybe(_list(_number, 2)), None),
            "alert": (_maybe(_list(_maybe(_flag))), None),
        }
    ),
    "x",
    "y",
    "alert",
)
_NODE = _object({"name": (_text, ""), "x": (_number, ...), "y": (_number, ...)})
_EDGES = _list(_list(_whole, 2))
_LINE = _object(
    {
        "name": (_text, ...),
        "x": (_GAPS, ...),
        "y": (_GAPS, ...),
        "low": (_maybe(_GAPS), None),
        "high": (_maybe(_GAPS), None),
    }
)
_CANDIDATE = _object(
    {
        "name": (_text, ...),
        "mean": (_number, ...),
        "low": (_number, ...),
        "high": (_number, ...),
        "observed": (_maybe(_NUMBERS), None),
        "chosen": (_flag, None),
    }
)
FIELDS: dict[str, dict[str, tuple[Check, object]]] = {
    "tracks": {"separation": (_maybe(_number), None), "unit": (_text, ""), "episodes": (_list(_episode), ...)},
    "grid": {
        "rows": (_list(_text), ...),
        "unit": (_text, ""),
        "frames": (
            _list(
                _object(
                    {
                        "title": (_text, ""),
                        "values": (_maybe(_list(_GAPS)), None),
                        "agents": (
                            _list(_object({"name": (_text, ...), "row": (_number, ...), "column": (_number, ...)})),
                            [],
                        ),
                        "arrows": (_list(_list(_number, 4)), []),
                    }
                )
            ),
            ...,
        ),
    },
    "network": {
        "states": (_list(_text), []),
        "nodes": (_list(_NODE), []),
        "edges": (_EDGES, []),
        "bounds": (_maybe(_list(_number, 4)), None),
        "frames": (
            _list(
                _object(
                    {
                        "title": (_text, ""),
                        "note": (_text, ""),
                        "state": (_list(_maybe(_whole)), []),
                        "believed": (_maybe(_list(_maybe(_whole))), None),
                        "nodes": (_maybe(_list(_NODE)), None),
                        "edges": (_maybe(_EDGES), None),
                    }
                )
            ),
            ...,
        ),
    },
    "posterior": {
        "label": (_text, "value"),
        "frames": (_list(_object({"title": (_text, ""), "candidates": (_list(_CANDIDATE), ...)})), ...),
    },
    "series": {
        "xlabel": (_text, ""),
        "ylabel": (_text, ""),
        "lines": (_list(_same_length(_LINE, "x", "y", "low", "high")), ...),
    },
    "image": {"file": (_file, ...), "alt": (_text, "")},
}
