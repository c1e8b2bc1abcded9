"""Gate: folders that a stranger hands over, and every verb that takes one. An execution is code of the stranger's that
ran; a loss is a file outside of the folder that was written or shown, a verb that hangs, or an error that is not one
line."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import conftest  # noqa: F401 - how tests compile
from faults.corruptions import CODES, HangError, make, run_verb
from faults.watch import tell
from regimen.config import trust
from regimen.files.run_dir import read_config, write_config
from support import UPDATE, reseal

EVIL = """
import pathlib
pathlib.Path(MARKER).touch()
import gymnasium
from regimen.envs.probe import Constant
class Env(Constant):
    def __init__(self, **fields):
        super().__init__(**fields)
def make(**fields):
    return Constant(**fields)
gymnasium.register("Evil-v0", entry_point=make)
parallel_env = make
"""
SECRET = "8c4f21 nobody else may read this"
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)) + "env: cartpole\n"
SECONDS = 900  # after which a verb hangs, on a busy machine, too

RUNNING = (  # verbs that make an environment
    "evaluate RUN --episodes 2",
    "evaluate RUN/policy --episodes 2",
    "evaluate RUN --policy random --episodes 2",
    "collect RUN --out OUT/data --episodes 2 --quiet",
    "replay RUN --no-gif --episodes 1",
    f"resume RUN --total-steps {6 * UPDATE} --quiet",
    f"resume RUN --out OUT/copy --total-steps {6 * UPDATE} --quiet",
    "train --config RUN/config.yaml --out OUT/new --quiet",
    "sweep --config RUN/config.yaml --grid algo.lr=1e-3 --out OUT/sweep --quiet",
)
LOOKING = (
    "report RUN --out OUT/report.html",
    "report RUN",
    "plot RUN",
    "compare RUN --out OUT/compare",
    "diagnose RUN",
    "runs list PARENT",
    "runs show RUN",
    "export RUN --out OUT/policy",
    "export RUN",
    "track RUN",
)
WRITING = ("report RUN", "plot RUN", "export RUN", "replay RUN --no-gif --episodes 1", RUNNING[5], RUNNING[6])
TEXTS = ("config.yaml", "status.json", "summary.json", "metrics.jsonl", "episodes.csv", "progress.csv")
TEXTS += ("policy/config.json", "checkpoints/index.json", "log.txt", "command.txt")
LINKS = ("log.txt", "metrics.jsonl", "status.json", "progress.csv", ".lock", "report.html", "summary.json", ".delivery")
FOLDERS = ("checkpoints", "plots", "replays", "export", "policy.tmp", "policy.old")
Case = tuple[str, Callable[[Path, Path], None], tuple[str, ...]]


def code_cases(stranger: Path) -> Iterator[Case]:
    """Environments that are the stranger's code, or that make a program or a pickle run."""
    pickled = stranger / "evil.pkl"
    names: dict[str, tuple[str, dict[str, object]]] = {
        "a file": (f"{stranger}/evil.py:make", {}),
        "a file beside the run": ("evil.py:Env", {}),
        "a module of the current directory": ("evil_module:make", {}),
        "a namespace": ("stranger.evil:Env", {}),
        "Gymnasium's module": ("gym:evil_module:Evil-v0", {}),
        "PettingZoo's module": ("pettingzoo:evil_module", {}),
        "Gymnax": ("gymnax:evil_module:Env", {}),
        "a shell": ("os:system", {"command": f"touch {stranger}/marker"}),
        "a process": ("subprocess:Popen", {"args": ["touch", f"{stranger}/marker"]}),
        "a shell through a module": ("regimen.config.trust:os.system", {"command": f"touch {stranger}/marker"}),
        "text as code": ("numpy.testing:runstring", {"astr": f"open('{stranger}/marker', 'w')", "dict": {}}),
        "a pickle of numpy": ("numpy:load", {"file": str(pickled), "allow_pickle": True}),
        "a pickle of pandas": ("pandas:read_pickle", {"filepath_or_buffer": str(pickled)}),
        "a pickle of joblib": ("joblib:load", {"filename": str(pickled)}),
        "a model of MLflow": ("mlflow.pyfunc:load_model", {"model_uri": str(stranger)}),
        "an installed function": ("gymnasium:make", {"id": "evil_module:Evil-v0"}),
        "an environment of an argument": ("gym:regimen/cartpole", {"name": f"{stranger}/evil.py:make"}),
        "a wrapper with a function": ("gymnasium.wrappers:TransformObservation", {"func": "evil_module:make"}),
    }
    for what, (env, args) in names.items():

        def hand_over(run: Path, stranger: Path, env: str = env, args: dict[str, object] = args) -> None:
            write_config(run, read_config(run) | {"env": env, "env_args": args})
            reseal(run / "policy" / "config.json", env=env, env_args=args)

        yield f"code: {what}", hand_over, (*RUNNING, *LOOKING)


def replaced(name: str, put: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def hand_over(run: Path, stranger: Path) -> None:
        path = run / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(exist_ok=True)
        put(path, stranger)
        if name == ".delivery":  # it is taken where something is still to be made
            reseal(run / "status.json", delivery={"state": "pending"})

    return hand_over


def picture(run: Path, stranger: Path) -> None:
    for folder in ("plots", "replays", "analysis"):
        (run / folder).mkdir(exist_ok=True)
        for name in ("curves.png", "returns.png", "a.gif"):
            (run / folder / name).unlink(missing_ok=True)
            (run / folder / name).symlink_to(stranger / "secret")


def file_cases() -> Iterator[Case]:
    """Links that lead out, pipes, devices, and texts that stand for more than they are."""
    for name in LINKS:
        yield f"link: {name}", replaced(name, lambda p, s: p.symlink_to(s / "secret")), WRITING
    for name in FOLDERS:
        yield f"link: {name}", replaced(name, lambda p, s: p.symlink_to(s / "folder")), WRITING
    yield "link: pictures", picture, ("report RUN", "report RUN --out OUT/report.html", "plot RUN")
    reading = (*LOOKING, RUNNING[0], RUNNING[1], RUNNING[4], RUNNING[5])
    for name in TEXTS:
        yield f"pipe: {name}", replaced(name, lambda p, s: os.mkfifo(p)), reading
        yield f"device: {name}", replaced(name, lambda p, s: p.symlink_to("/dev/zero")), reading
        deep = (b"[" if name.endswith((".json", ".jsonl")) else b"{a: ") * 50_000
        yield f"deep: {name}", replaced(name, lambda p, s, text=deep: p.write_bytes(text) and None), reading
        yield f"bytes: {name}", replaced(name, lambda p, s: p.write_bytes(b"\xff\xfe\x00\x80" * 999) and None), reading
    yield "bomb: config.yaml", replaced("config.yaml", lambda p, s: p.write_text(BOMB) and None), (*RUNNING, *LOOKING)


def dataset_cases(stranger: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Metadata of datasets."""
    for env in (f"{stranger}/evil.py:make", "evil_module:make", "os:system"):
        yield f"dataset: {env.rpartition('/')[2]}", {"regimen": {"env": env, "env_args": {}}}
    specs = [{"id": "evil_module:Evil-v0"}, {"id": "Evil-v1", "entry_point": "evil_module:make"}]
    for spec in specs:
        yield f"dataset: env_spec {spec['id']}", {"env_spec": json.dumps(spec)}


class Stranger:
    """The folder that holds what may not run, be written or be shown. It is the current one and on Python's path."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.marker = folder / "marker"
        (folder / "stranger").mkdir(parents=True)
        (folder / "folder").mkdir()
        (folder / "folder" / "kept").write_text(SECRET)
        (folder / "secret").write_text(SECRET)
        for path in (folder / "evil.py", folder / "evil_module.py", folder / "stranger" / "evil.py"):
            path.write_text(f"MARKER = {str(self.marker)!r}\n{EVIL}")
        (folder / "evil.pkl").write_bytes(pickle.dumps(Bomb(str(self.marker))))
        self.before = self.state()

    def state(self) -> dict[str, bytes]:
        paths = sorted(p for p in self.folder.rglob("*") if "__pycache__" not in p.parts and p != self.marker)
        return {str(p): p.read_bytes() if p.is_file() else b"" for p in paths}

    def ran(self) -> bool:
        ran = self.marker.exists()
        self.marker.unlink(missing_ok=True)
        for name in [n for n in sys.modules if "evil" in n]:
            del sys.modules[name]
        return ran


class Bomb:
    """A pickle that leaves a marker when it is loaded."""

    def __init__(self, marker: str):
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.marker, "w")


def wrong_with(argv: list[str], stranger: Stranger, out: Path, run: Path) -> tuple[bool, str | None]:
    """Whether the stranger's code ran, and what else is wrong with the answer."""
    trust._vouched.clear()  # as in a process of another day
    try:
        code, _, errors = run_verb(argv, SECONDS)
    except (Exception, HangError) as error:
        return stranger.ran(), f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    ran = stranger.ran()
    if stranger.state() != stranger.before:
        return ran, "a file outside was written"
    pages = [p for folder in (out, run) for p in folder.rglob("*.html") if p.is_file() and not p.is_symlink()]
    forms = SECRET, base64.b64encode(SECRET.encode()).decode()
    if any(form in p.read_text(errors="replace") for p in pages for form in forms):
        return ran, "a file outside was shown"
    lines = [line for line in errors.splitlines() if "error:" in line]
    if code != 0 and (code not in CODES or len(lines) != 1 or "Traceback" in errors):
        return ran, f"exit {code}: {errors.strip()[-200:]}"
    return ran, None


@contextlib.contextmanager
def standing_in(folder: Path) -> Iterator[None]:
    """The current directory, which is on Python's path as in `python -m`."""
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.chdir(before)


def run(tries: int, seed: int, folder: Path, trained: Path | None = None) -> dict[str, object]:
    """`tries` of what a stranger may hand over and a verb that takes it; all there are, where they are no more."""
    folder.mkdir(exist_ok=True)
    whole = trained or make(folder)
    stranger = Stranger(folder / "elsewhere")
    cases = [*code_cases(stranger.folder), *file_cases()]
    pairs = [(what, hand_over, verb) for what, hand_over, verbs in cases for verb in verbs]
    chosen = random.Random(seed).sample(pairs, min(tries, len(pairs)))
    losses, executions = [], 0
    with standing_in(stranger.folder):
        for number, (what, hand_over, verb) in enumerate(chosen):
            if number % 50 == 49:
                tell(number, len(chosen), len(losses))
            copy = folder / f"copy-{number}"  # of its own: MLflow holds a store open for as long as the process lives
            here, out = copy / "run", copy / "out"
            shutil.copytree(whole, here, symlinks=True)
            out.mkdir()
            hand_over(here, stranger.folder)
            words = verb.replace("RUN", str(here)).replace("OUT", str(out)).replace("PARENT", str(here.parent))
            ran, wrong = wrong_with(words.split(), stranger, out, here)
            executions += ran
            losses += [f"{what}, {verb}: {wrong}"] if wrong else []
            if ran or wrong:
                print(f"{what}, {verb}: {'EXECUTED ' * ran}{wrong}", flush=True)
            shutil.rmtree(copy)
        for what, metadata in dataset_cases(stranger.folder) if tries >= len(pairs) else ():
            data = folder / "copy" / "data.minari"
            (data / "data").mkdir(parents=True)
            (data / "data" / "metadata.json").write_text(json.dumps(metadata))
            argv = ["train", str(data), "--algo", "bc", "--out", str(folder / "copy" / "out"), "--quiet"]
            ran, wrong = wrong_with(argv, stranger, folder / "copy", folder / "copy")
            chosen.append((what, dataset_cases, "train"))  # type: ignore[arg-type]
            executions += ran
            losses += [f"{what}: {wrong}"] if wrong else []
            shutil.rmtree(folder / "copy")
    words = f"{len(cases)} kinds of folders and {len({verb for _, _, verb in chosen})} verbs"
    detail = "; ".join([words, *losses[:5]])
    return {"tries": len(chosen), "losses": len(losses), "executions": executions, "detail": detail}
