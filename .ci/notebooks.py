"""Run the notebooks of examples/notebooks/ and keep what they show: `python .ci/notebooks.py [NAME...]`."""

from __future__ import annotations

import base64
import io
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def run(path: Path, folder: str) -> nbformat.NotebookNode:
    """The notebook with what its cells show, run in a folder of its own."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    return notebook


def smaller(picture: str) -> str:
    """A PNG with 64 colours: a third of its size, and a curve looks the same."""
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize(64)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main() -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                nbformat.write(run(path, folder), path)
            print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
