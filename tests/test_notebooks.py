"""The notebooks of examples/notebooks/: they run, and what is stored in them is what a reader may see."""

import json
import re
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def cells(name: str) -> list[dict]:
    return [c for c in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if c["cell_type"] == "code"]


def test_there_are_three():
    assert NAMES == ["compare_and_sweep", "train_and_look", "your_environment"]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_stored(name):
    """Every cell was run, in order, without an error; nothing of the machine is in it; the file is small."""
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 250_000
    assert [cell["execution_count"] for cell in cells(name)] == list(range(1, len(cells(name)) + 1))
    outputs = [output for cell in cells(name) for output in cell["outputs"]]
    assert outputs and not [o for o in outputs if o["output_type"] == "error" or o.get("name") == "stderr"]
    shown = [
        json.dumps(o.get("text", {k: v for k, v in o.get("data", {}).items() if k != "image/png"})) for o in outputs
    ]
    assert not re.search(r"/(work|root|home|tmp|usr)/", " ".join(shown))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    sys.path.insert(0, str(FOLDER.parents[1] / ".ci"))
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    import notebooks

    notebook = notebooks.run(FOLDER / f"{name}.ipynb", str(tmp_path))
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    kept = [sorted({o["output_type"] for o in cell["outputs"]} - {"stream"}) for cell in cells(name)]
    assert [sorted({o.output_type for o in cell.outputs} - {"stream"}) for cell in code] == kept
