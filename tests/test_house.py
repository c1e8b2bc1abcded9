"""The rooms of the house: what general code may not name."""

import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "regimen"
GENERAL = (
    "sources",
    "engines",
    "envs",
    "files",
    "policies",
    "reports",
    "runs",
    "experiments",
    "dashboard",
    "algorithms",
)
WORDS = re.compile(
    r"(?<![a-z])(los|airspace|colony|colonies|compliance|aircraft|durotaxis|network_defense)(?![a-z])", re.I
)


@pytest.mark.parametrize("room", GENERAL)
def test_general_code_names_no_domain(room):
    """A domain brings its words along: as labels of metrics, traits of classes and import strings."""
    files = [path for path in (SOURCE / room).rglob("*") if path.suffix in (".py", ".js", ".html", ".css")]
    assert files
    hits = [
        f"{path.relative_to(SOURCE)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if WORDS.search(line)
    ]
    assert hits == []
