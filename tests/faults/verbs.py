"""Gate: every verb that takes long is stopped at a known place by SIGINT, SIGTERM and SIGKILL. It leaves one line (none
after SIGKILL), the run as it was, and no half-written file; the same command then comes to its end. After SIGKILL what
lies in its --out is removed first: a folder that is not empty is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import test_e2e_signals_verbs as verbs

import conftest  # noqa: F401 - how tests compile
from faults.watch import tell
from support import digest_of, tiny

AFTER = {"replay": "replays", "plot": "plots"}  # what a verb writes into the run


def digest(run: Path, verb: str) -> dict[str, str]:
    """The run without what the verb writes into it, and without temporary files, which the next writing replaces."""
    return {k: v for k, v in digest_of(run).items() if not k.startswith(AFTER.get(verb, "/")) and ".tmp" not in k}


def stop(words: list[str], number: signal.Signals, run: Path, out: Path) -> None:
    """One verb, one signal. AssertionError says what was lost."""
    verb, before = words[0], digest(run, words[0])
    process = verbs.start(*words, at=verbs.PAUSED[" ".join(words).replace(str(run), "RUN").replace(str(out), "OUT")])
    verbs.wait_for_line(process, "reached")
    if number == signal.SIGKILL:
        process.kill()
        process.communicate()
    else:
        verbs.ended_by(process, number, run, out)
        assert not [path for path in out.rglob("*") if path.is_file()], "a file was begun in vain"
    assert digest(run, verb) == before, "the run has changed"


def run(tries: int, seed: int, folder: Path) -> dict[str, object]:
    """`tries` pairs of a verb and a signal, in order; each verb runs to its end after a SIGKILL."""
    trained = tiny(folder / "run", updates=2).run_dir
    detail, done = [], 0
    for command in verbs.PAUSED:
        for number in (signal.SIGKILL, signal.SIGINT, signal.SIGTERM):
            if done == tries:
                break
            out = folder / f"{command.split()[0]}-{number.name}"
            out.mkdir()
            words = [word.replace("RUN", str(trained)).replace("OUT", str(out)) for word in command.split()]
            done += 1
            tell(done, tries, len(detail))
            try:
                stop(words, number, trained, out)
                if number == signal.SIGKILL:
                    shutil.rmtree(out)
                    out.mkdir()
                    again = verbs.start(*words)
                    said = again.communicate(timeout=3000)
                    assert again.returncode == 0, said
            except (AssertionError, subprocess.TimeoutExpired) as error:
                detail.append(f"{words[0]} {number.name}: {' '.join(str(error).split())[:160]}")
    words = "; ".join([f"{len(verbs.PAUSED)} verbs", *detail[:5]])
    return {"tries": done, "losses": len(detail), "executions": 0, "detail": words}
