"""Build the wheel and the source archive, look at what is in them, and train with the wheel where nothing else is.

    make dist                     # build and check
    python .ci/wheel.py --train   # and then: a fresh environment with the wheel and what it depends on, which trains

The environment has no extras: what works there needs jax, flax, optax, numpy, scipy, gymnasium, rich, tyro, pyyaml and
safetensors, and nothing else.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
LARGEST = {".whl": 3e6, ".gz": 20e6}  # bytes
STRANGERS = re.compile(
    r"__pycache__|\.pyc$|\.pytest_cache|\.ruff_cache|\.hypothesis|\.venv|^(runs|site|mlruns|build|dist)/|\.db$|\.tmp$"
)
EXTRAS = ("matplotlib", "mlflow", "ray", "optuna", "fastapi", "pandas", "minari", "pettingzoo", "gymnax")


def build() -> tuple[Path, Path]:
    """The wheel and the source archive of this version, alone in dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)], check=True)
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return DIST / f"regimen-{version}-py3-none-any.whl", DIST / f"regimen-{version}.tar.gz"


def look(path: Path, names: list[str], needed: list[str]) -> None:
    """Refuse an archive with something strange in it, without something that belongs there, or that is too large."""
    strangers = [name for name in names if STRANGERS.search(name)]
    missing = [name for name in needed if name not in names]
    size = path.stat().st_size
    print(f"{path.name}: {len(names)} files, {size / 1e6:.1f} MB")
    if strangers or missing or size > LARGEST[path.suffix]:
        raise SystemExit(f"{path.name}: does not belong there {strangers[:5]}; missing {missing}; {size:,} bytes")


def check(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        every = [str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*") if path.is_file()]
        look(
            wheel, archive.namelist(), [name for name in every if not STRANGERS.search(name) and "egg-info" not in name]
        )
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
        look(
            sdist,
            names,
            ["pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "tests/conftest.py"],
        )


def train(wheel: Path) -> None:
    """Install the wheel alone, and do with it what a newcomer does first."""
    with tempfile.TemporaryDirectory(prefix="regimen-wheel-") as folder:
        here = Path(folder)
        subprocess.run([sys.executable, "-m", "venv", str(here / "venv")], check=True)
        python = here / "venv" / "bin" / "python"
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True)
        code = f"import importlib.util as u, regimen; print([n for n in {EXTRAS} if u.find_spec(n)], regimen.__file__)"
        print(run(here, python, "-I", "-c", code))
        regimen = here / "venv" / "bin" / "regimen"
        for command in (
            "train cartpole --out runs/first --total-steps 4096 --eval.episodes 5",
            "evaluate runs/first --episodes 5",
            "resume runs/first --total-steps 6144",
            "compare runs/first",
            "report runs/first",
        ):
            print(f"$ regimen {command}\n{run(here, regimen, *command.split())}")
        summary = json.loads((here / "runs/first/summary.json").read_text())
        status = json.loads((here / "runs/first/status.json").read_text())
        if summary["env_steps"] < 6144 or status["delivery"] != {"state": "done"}:
            raise SystemExit(f"the run is not what was asked for: {summary['env_steps']} steps, {status['delivery']}")


def run(here: Path, *command: object) -> str:
    """What a command prints; without what this process has in its environment but a PATH."""
    env = {"PATH": "/usr/bin:/bin", "HOME": str(here), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*map(str, command)], cwd=here, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout.rstrip()


def main() -> None:
    wheel, sdist = build()
    check(wheel, sdist)
    if "--train" in sys.argv[1:]:
        train(wheel)


if __name__ == "__main__":
    main()
