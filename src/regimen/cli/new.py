"""`regimen new env|algorithm NAME`: a file to start from, and a test of it that passes."""

import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from regimen.config.flags import positional
from regimen.errors import StorageError, UsageError, nearest

KINDS = {"env": "an environment", "algorithm": "an algorithm"}


@dataclass(frozen=True)
class NewArgs:
    """Write NAME.py, an environment or an algorithm that works as it is, and test_NAME.py, which tests it.

    regimen new env line_walk
    regimen new algorithm reinforce --out mypackage
    """

    kind: str = positional("KIND")
    """`env` or `algorithm`."""
    name: str = positional("NAME")
    """Name of the module: lower-case letters, digits and underscores."""
    out: str = "."
    """Folder to write to."""

    def __call__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"KIND: '{self.kind}' is none of {', '.join(KINDS)}{nearest(self.kind, KINDS)}")
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name) or keyword.iskeyword(self.name):
            raise UsageError(f"NAME: '{self.name}' is no name of a module; write it as my_{self.kind}")
        folder = Path(self.out)
        files = {folder / f"{self.name}.py": self.kind, folder / f"test_{self.name}.py": f"test_{self.kind}"}
        for path in files:
            if path.exists():
                raise StorageError(f"{path} is there already; choose another name, or another --out")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for path, skeleton in files.items():
                path.write_text(self.filled(skeleton), encoding="utf-8")
                print(path)
        except OSError as error:
            raise StorageError(f"cannot write to {folder}: {error.strerror or error}") from error
        test = f"python -m pytest {folder / f'test_{self.name}.py'}"
        module = folder / f"{self.name}.py"
        run = f"regimen train {module}:{self.title}" if self.kind == "env" else f"python {module}"
        print(f"try it: {run}\ntest it: {test}")

    @property
    def title(self) -> str:
        """The name of the class."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    def filled(self, skeleton: str) -> str:
        """The text of a skeleton with its names."""
        text = (Path(__file__).with_name("skeletons") / f"{skeleton}.txt").read_text(encoding="utf-8")
        return text.replace("NAME", self.name).replace("TITLE", self.title)
