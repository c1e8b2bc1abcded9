"""Write requirements.lock: the versions that are installed now, each with the SHA-256 of every file of it.

    make lock                        # freeze what is installed
    python .ci/lock.py --hashes      # keep the versions of the lock; add the hashes that are missing

pip then refuses any other file (`--require-hashes`, which the first hash switches on). A version has a file for each
platform and Python; the lock has those of Python 3.11 and newer and the source, so that it installs everywhere. Hashes
come from the index's page of the package; those of versions that stay in the lock are not asked for again.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).resolve().parents[1] / "requirements.lock"
INDEX = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
LINK = re.compile(r'<a [^>]*href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
OLDEST = 11  # of Python 3


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def usable(file: str) -> bool:
    """Whether a Python that is new enough could install a file of an index."""
    if not file.endswith(".whl"):
        return file.endswith((".tar.gz", ".zip", ".tar.bz2"))
    python, abi, _ = file.removesuffix(".whl").split("-")[-3:]
    tags = python.split(".")
    minors = [int(tag[3:]) for tag in tags if re.fullmatch(r"cp3\d+", tag)]
    return "py3" in tags or any(minor >= OLDEST or abi == "abi3" for minor in minors)


def version_of(file: str, name: str) -> str:
    """The version in a file's name."""
    stem = re.sub(r"\.(whl|tar\.gz|zip|tar\.bz2)$", "", file)
    if file.endswith(".whl"):
        return stem.split("-")[1]
    pattern = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace(r"\-", "-").replace(r"\.", "."))
    match = re.match(rf"{pattern}-(.+)$", stem, re.IGNORECASE)
    return match[1] if match else ""


def hashes_of(name: str, version: str) -> list[str]:
    """SHA-256 of every usable file of a version, as the index has them."""
    with urllib.request.urlopen(f"{INDEX}/{canonical(name)}/", timeout=120) as page:
        links = LINK.findall(page.read().decode())
    return sorted({sha for file, sha in links if usable(file) and version_of(file, name) == version})


def extras() -> dict[str, set[str]]:
    """Extras of packages that installed packages ask for. pip wants them in the lock where there are hashes."""
    needs = {
        canonical(d.metadata["Name"]): [Requirement(r) for r in d.requires or ()] for d in metadata.distributions()
    }
    out: dict[str, set[str]] = {}
    while True:
        before = sum(map(len, out.values()))
        for name, requirements in needs.items():
            wanted = ["", *out.get(name, ())]
            for r in requirements:
                if canonical(r.name) in needs and (
                    not r.marker or any(r.marker.evaluate({"extra": e}) for e in wanted)
                ):
                    out.setdefault(canonical(r.name), set()).update(r.extras)
        if sum(map(len, out.values())) == before:
            return out


def entries(text: str) -> dict[str, list[str]]:
    """`name==version` -> hashes."""
    out: dict[str, list[str]] = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split("#")[0].split()
        if words:
            out[re.sub(r"\[.*\]", "", words[0])] = [word.removeprefix("--hash=sha256:") for word in words[1:]]
    return out


def main(argv: list[str]) -> int:
    old = entries(LOCK.read_text())
    names = list(old)
    if "--hashes" not in argv:
        command = [sys.executable, "-m", "pip", "freeze", "--exclude-editable"]
        frozen = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        names = [line for line in frozen.splitlines() if "==" in line and not line.startswith("regimen")]
    missing = [name for name in names if not old.get(name)]
    with ThreadPoolExecutor(8) as pool:
        fresh = dict(zip(missing, pool.map(lambda name: hashes_of(*name.split("==", 1)), missing)))
    nowhere = [name for name in missing if not fresh[name]]
    if nowhere:
        print(f"{INDEX} has no file of {', '.join(nowhere)}", file=sys.stderr)
        return 1
    lines, asked = [], extras()
    for name in names:
        package, _, version = name.partition("==")
        more = ",".join(sorted(asked.get(canonical(package), ())))
        pin = f"{package}[{more}]=={version}" if more else name
        lines.append(" \\\n    ".join([pin, *(f"--hash=sha256:{sha}" for sha in old.get(name) or fresh[name])]))
    LOCK.write_text("\n".join(lines) + "\n")
    print(f"{len(names)} packages, {len(missing)} hashed anew")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
