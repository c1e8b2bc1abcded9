"""Gate: what is read back is damaged, one place at a time, and a verb reads it. It says the same as before, or ends
with one line and a documented exit code.

Damaged are runs with their checkpoints, policies and tables: a bit flipped, a file cut short, emptied, removed (or its
folder), replaced by a folder or by rubbish, a value of JSON or YAML replaced by one of another type. Left out is what
nothing reads back (log.txt, command.txt, pictures, README.md). `regimen runs` may also say that a run is damaged, and
shows the newest line of metrics.jsonl as it is.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

import conftest  # noqa: F401 - how tests compile
from regimen.cli.main import main
from regimen.files.run_dir import read_metrics
from regimen.runs import delivery
from support import UPDATE, comparable, final_state, progress, tiny

LEFT_OUT = ("log.txt", "command.txt", "README.md", "metadata.json", ".lock", "report.html", "workers.csv")
CODES = (2, 3, 4, 5, 6, 7)
LONGEST = 900  # seconds after which a verb hangs, on a busy machine, too
DRAWN = 10  # one resume in so many draws its pictures: they take as long as the rest, and `plot` draws the same
VALUES: list[Any] = [
    None,
    -1,
    0,
    "x",
    "",
    [],
    {},
    [[]],
    1e308,
    float("nan"),
    float("inf"),
    True,
    2**70,
    "\ud800",
    {"a": 1},
]
RUBBISH = [b"\xff\xfe\x00", b"[" * 100_000, b"{}", b"[]", b"null", b"\x00" * 5000, b"a: &a [*a]\n", b'{"schema": 99}']


# --- damage ----------------------------------------------------------------------------------------------------------


def flip(path: Path, draw: random.Random) -> str:
    data = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    data[place] ^= 1 << bit
    path.write_bytes(data)
    return f"bit {bit} of byte {place}"


def cut(path: Path, draw: random.Random) -> str:
    size = draw.randrange(path.stat().st_size)
    os.truncate(path, size)
    return f"cut to {size} bytes"


def remove(path: Path, draw: random.Random) -> str:
    path.unlink()
    return "removed"


def replace(path: Path, draw: random.Random) -> str:
    data = draw.choice(RUBBISH)
    path.write_bytes(data)
    return f"replaced by {data[:12]!r}"


def put_folder(path: Path, draw: random.Random) -> str:
    path.unlink()
    path.mkdir()
    return "a folder"


def swap(path: Path, draw: random.Random) -> str:
    """A value of another type, or a key less."""
    text = path.read_text()
    lines = path.suffix == ".jsonl"
    rows = text.splitlines() if lines else [text]
    row = draw.randrange(len(rows))
    data = yaml.safe_load(rows[row]) if path.suffix == ".yaml" else json.loads(rows[row])
    owner, key = draw.choice(list(places(data)))
    if draw.random() < 0.2:
        del owner[key]
        what = f"no {key}"
    else:
        owner[key] = copy.deepcopy(draw.choice(VALUES))
        what = f"{key} is {owner[key]!r}"
    head = text.partition("\n")[0] + "\n" if path.suffix == ".yaml" else ""
    rows[row] = (
        head + yaml.safe_dump(data, sort_keys=False) if path.suffix == ".yaml" else json.dumps(data, indent=None)
    )
    path.write_bytes(("\n".join(rows) + "\n" * lines).encode(errors="surrogatepass"))
    return what


def places(data: Any) -> Iterator[tuple[Any, Any]]:
    """(object or list, key or number) of every value within."""
    for key in list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield data, key
        yield from places(data[key])


def damage(path: Path, draw: random.Random) -> str:
    if path.is_dir():
        shutil.rmtree(path)
        return f"{path.name}: a folder removed"
    kinds: list[Callable[[Path, random.Random], str]] = [remove, replace, put_folder]
    kinds += [flip] * 6 + [cut] * 3 if path.stat().st_size else []
    kinds += [swap] * 4 if path.suffix in (".json", ".yaml", ".jsonl") else []
    return f"{path.name}: {draw.choice(kinds)(path, draw)}"


# --- reading ---------------------------------------------------------------------------------------------------------


class HangError(BaseException):
    """A verb has done nothing for too long. No error that Regimen could say in one line."""


def run_verb(argv: list[str], seconds: int = LONGEST) -> tuple[int, str, str]:
    """Exit code, output and errors of a command in this process. One that hangs is ended by HangError."""

    def hangs(*_: object) -> None:
        raise HangError(f"nothing after {seconds} s")

    out, err = io.StringIO(), io.StringIO()
    mine = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGALRM, hangs) if mine else None
    signal.alarm(seconds if mine else 0)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(argv)
    finally:
        signal.alarm(0)
        if mine:
            signal.signal(signal.SIGALRM, before)
    return code, out.getvalue(), err.getvalue()


def data_in(out: str, *left: str) -> Any:
    """JSON without what differs between two readings of the same."""
    value = json.loads(out)
    rows = value if isinstance(value, list) else [value]
    return [{k: v for k, v in row.items() if k not in left} for row in rows]


def digests(folder: Path, pattern: str) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob(pattern)) if p.is_file()}


def evaluated(run: Path, out: Path, said: str) -> Any:
    return data_in(said, "seconds", "wall_seconds")


def resumed(run: Path, out: Path, said: str) -> Any:
    arrays, state = final_state(run)
    sums = {name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in arrays.items()}
    with open(run / "episodes.csv", "rb") as file:
        episodes = hashlib.sha256(file.read()).hexdigest()
    return sums, state, comparable(read_metrics(run)), progress(run), episodes, digests(run / "policy", "*.safetensors")


def page_text(run: Path, out: Path, said: str) -> Any:
    text = re.sub(r"data:image[^\"]*", "", (out / "report.html").read_text())
    return re.sub(r"\d\d\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\dZ?", "", text).replace(str(run), "RUN")


def listed(run: Path, out: Path, said: str) -> Any:
    return data_in(said, "size")


def shown(run: Path, out: Path, said: str) -> Any:
    return [line for line in said.splitlines() if not line.startswith("size")]


VERBS: dict[str, tuple[str, Callable[[Path, Path, str], Any]]] = {
    "evaluate": ("evaluate RUN --episodes 2 --json", evaluated),
    "resume": (f"resume RUN --total-steps {6 * UPDATE} --quiet", resumed),
    "report": ("report RUN --out OUT/report.html", page_text),
    "plot": ("plot RUN", lambda run, out, said: said.replace(str(run), "RUN")),
    "compare": ("compare RUN --json", lambda run, out, said: data_in(said.replace(str(run), "RUN"))),
    "diagnose": ("diagnose RUN --json", lambda run, out, said: said.replace(str(run), "RUN")),
    "runs list": ("runs list RUN --json", listed),
    "runs show": ("runs show RUN", shown),
    "export": ("export RUN --out OUT/policy", lambda run, out, said: digests(out, "policy.safetensors")),
    "replay": ("replay RUN --episodes 1 --no-gif", lambda run, out, said: digests(run / "replays", "*.csv")),
    "evaluate policy": ("evaluate RUN/policy --episodes 2 --json", evaluated),
}
SHARES = {"evaluate": 4, "resume": 6, "evaluate policy": 4, "runs list": 2, "runs show": 2, "compare": 2, "diagnose": 2}


@contextlib.contextmanager
def without_pictures() -> Iterator[None]:
    """A run ends without its pictures."""
    draw, delivery.try_plot_run = delivery.try_plot_run, lambda path: ([], None)
    try:
        yield
    finally:
        delivery.try_plot_run = draw


def read(run: Path, out: Path, verb: str, pictures: bool = True) -> tuple[int, Any, str]:
    """Exit code, what came of it, and what was said on standard error."""
    words, of = VERBS[verb]
    out.mkdir(exist_ok=True)
    argv = [word.replace("RUN", str(run)).replace("OUT", str(out)) for word in words.split()]
    with contextlib.nullcontext() if pictures else without_pictures():
        code, said, errors = run_verb(argv)
    return code, of(run, out, said) if code == 0 else None, errors


def verdict(verb: str, name: str, answer: tuple[int, Any, str], expected: Any) -> str | None:
    """What is wrong with the answer to damage; None where nothing is."""
    code, result, errors = answer
    lines = [line for line in errors.splitlines() if line.strip()]
    if "Traceback" in errors:
        return "a traceback"
    if code == 0:
        shows = name == "metrics.jsonl" or name.startswith("checkpoints")  # as they are, unless they are too short
        tells = verb in ("runs list", "runs show") and ("damaged" in str(result) or shows)
        return None if result == expected or tells else "another result, and no word of it"
    if code not in CODES:
        return f"exit {code}: {errors.strip()[-200:]}"
    if not lines or "error:" not in lines[-1] or sum("error:" in line for line in lines) != 1:
        return f"not one line: {errors.strip()[-300:]}"
    return None


def candidates(run: Path) -> list[Path]:
    """Files that are read back, and the folders that hold them."""
    files = [
        path
        for path in sorted(run.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in LEFT_OUT and path.suffix != ".png"
        if path.relative_to(run).parts[0] not in ("plots", "replays", "mlflow")
    ]
    return [*files, *sorted({path.parent for path in files} - {run}), run / "checkpoints"]


def make(folder: Path) -> Path:
    """A run with two checkpoints, evaluations, and something in every table."""
    settings = {"checkpoint.every": "2", "checkpoint.keep": 3, "eval.every": "2", "eval.episodes": 2}
    return tiny(folder / "run", updates=4, **settings).run_dir


def run(tries: int, seed: int, folder: Path, trained: Path | None = None) -> dict[str, object]:
    """`tries` of one damage and one verb; of a run that is `trained`, or of a new one."""
    folder.mkdir(exist_ok=True)
    draw, whole = random.Random(seed), trained or make(folder)
    names = [name for name in VERBS for _ in range(SHARES.get(name, 1))]
    expected: dict[str, Any] = {}
    losses, refused = [], 0
    here = folder / "copy" / "run"
    for i in range(tries):
        verb = draw.choice(names)
        if verb not in expected:
            shutil.copytree(whole, here, symlinks=True)
            code, expected[verb], errors = read(here, folder / "copy" / "out", verb)
            assert code == 0, f"{verb}: {errors}"
            shutil.rmtree(folder / "copy")
        shutil.copytree(whole, here, symlinks=True)
        file = draw.choice(candidates(here))
        name = str(file.relative_to(here))
        what = damage(file, draw)
        try:
            answer = read(here, folder / "copy" / "out", verb, pictures=i % DRAWN == 0)
            wrong = verdict(verb, name, answer, expected[verb])
            refused += answer[0] != 0
        except (Exception, HangError) as error:
            wrong = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if wrong is not None:
            losses.append(f"try {i}, {verb}, {Path(name).parent}/{what}: {wrong}")
            print(losses[-1], flush=True)
        shutil.rmtree(folder / "copy")
        if i % 100 == 99:
            print(f"{i + 1} of {tries}, {len(losses)} losses", file=sys.stderr, flush=True)
    words = f"{refused} refused in one line, {tries - refused} read as before; {len(VERBS)} verbs"
    return {"tries": tries, "losses": len(losses), "executions": 0, "detail": "; ".join([words, *losses[:5]])}
