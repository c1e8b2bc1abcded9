"""The rooms of the house: what general code may not name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import regimen

SOURCE = Path(regimen.__file__).parent
ROOMS = ("algorithms", "cli", "config", "dashboard", "engines", "envs", "experiments", "files", "policies", "reports")
GENERAL = {name: sorted((SOURCE / name).rglob("*")) for name in (*ROOMS, "runs", "sources")}
GENERAL |= {"modules of no room": [path for path in sorted(SOURCE.glob("*.py")) if path.name != "__init__.py"]}
PATHS = f"import sys; sys.path[:] = {sys.path!r}\n"
WORDS = re.compile(
    r"(?<![a-z])(los|airspace|colony|colonies|compliance|aircraft|durotaxis|empowerment|network_defense)(?![a-z])", re.I
)


@pytest.mark.parametrize("room", GENERAL)
def test_general_code_names_no_domain(room):
    """A domain brings its words along: as labels of metrics, traits of classes and import strings."""
    files = [path for path in GENERAL[room] if path.suffix in (".py", ".js", ".html", ".css")]
    assert files
    hits = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert hits == []


def test_the_interface_imports_no_more_than_it_needs():
    """Optimisers, statistics and Orbax take a tenth of a second or more each: who trains or draws imports them."""
    heavy = {"optax", "scipy.stats", "orbax", "matplotlib", "mlflow"}
    code = f"import sys, regimen.runs.api; print({heavy} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_dense_networks_do_without_flax():
    """Its import takes longer than CartPole's policy learns."""
    code = "import sys, regimen; regimen.PPO; import regimen.runs.build; print({'flax'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"


def test_help_imports_no_more_than_it_shows():
    """The page of help needs the verbs of all domains, and nothing that a verb needs."""
    code = "import sys; from regimen.cli.main import main; main(['--help'])\n"
    code += "print({'yaml', 'typing', 'numpy'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-S", "-c", PATHS + code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "set()"


def test_every_package_of_the_lock_has_its_hashes():
    """`make` installs the files that were locked and no others. `python .ci/lock.py --hashes` adds what is missing."""
    text = (SOURCE.parents[1] / "requirements.lock").read_text()
    pins = text.replace("\\\n", "").splitlines()
    line = re.compile(r"[\w.-]+(\[[\w,.-]+\])?==\S+( +--hash=sha256:[0-9a-f]{64})+ *")
    assert len(pins) > 100 and [pin for pin in pins if not line.fullmatch(pin)] == []
