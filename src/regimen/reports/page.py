"""One HTML page that opens offline: the frame, its style, and what pages are made of. Text is escaped here."""

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from regimen.errors import StorageError
from regimen.files.storage import read_bytes

PICTURES = {".png": "image/png", ".gif": "image/gif"}

STYLE = Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def page(title: str, below: str, sections: Iterable[str], style: str = "", script: str = "") -> str:
    """Return a page that needs nothing but itself, and may load nothing else. `style` is added to the common style,
    `script` (whole elements) to the end."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy += "; script-src 'unsafe-inline'" if script else ""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<p class='stop'>{escape(below)}</p>\n"
        + "".join(sections)
        + f"{script}</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a section with its heading; nothing without a body."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}</section>\n" if body else ""


def facts(values: Mapping[str, str]) -> str:
    """Return names and values below each other; nothing where there are none."""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>\n" for name, text in values.items())
    return f"<table>\n{rows}</table>\n" if rows else ""


def tiles(values: Iterable[tuple[str, str]]) -> str:
    """Return the numbers to be seen first, as (number, what it is)."""
    body = "".join(f"<div class='tile'><b>{escape(a)}</b><span>{escape(b)}</span></div>" for a, b in values)
    return f"<div class='tiles'>{body}</div>\n"


def embed(path: Path, caption: str, chart: bool = True) -> str:
    """Return a picture as a part of the page; a chart is drawn on white and is inverted in the dark."""
    try:
        data = base64.b64encode(read_bytes(path)).decode("ascii")
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from error
    text, kind = escape(caption), PICTURES.get(path.suffix.lower(), "image/png")
    mark = " class='chart'" if chart else ""
    return f"<figure><img{mark} alt='{text}' src='data:{kind};base64,{data}'><figcaption>{text}</figcaption></figure>\n"


def folded(title: str, text: str) -> str:
    """Return a text that is shown at a click; nothing where it is empty."""
    return f"<details><summary>{escape(title)}</summary>\n{literal(text)}</details>\n" if text.strip() else ""


def literal(text: str) -> str:
    """Return a text as it stands, such as a command; nothing where it is empty."""
    return f"<pre>{escape(text.strip())}</pre>\n" if text.strip() else ""
