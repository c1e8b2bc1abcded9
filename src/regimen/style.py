"""Colours of what verbs print: only on a terminal, never with NO_COLOR, always with FORCE_COLOR."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def coloured(stream: TextIO | None = None) -> bool:
    """Whether to use colours on a stream, by the conventions of no-color.org and force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = stream or sys.stdout
    return bool(getattr(stream, "isatty", lambda: False)()) and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str, stream: TextIO | None = None) -> str:
    return f"\x1b[{CODES[style]}m{text}\x1b[0m" if coloured(stream) else text
