"""One HTML page that opens offline: the frame, its style, and what pages are made of. Text is escaped here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

from regimen.errors import StorageError

PICTURES = {".png": "image/png", ".gif": "image/gif"}

STYLE = """
:root { color-scheme: light dark; --text: #1a202c; --dim: #5a6778; --back: #ffffff; --card: #f7fafc; --line: #e2e8f0;
  --blue: #2b6cb0; --orange: #dd6b20; --green: #2f855a; --red: #c53030; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e2e8f0; --dim: #a0aec0; --back: #12161d; --card: #1c222c; --line: #2d3748; --blue: #63b3ed;
    --orange: #f6ad55; --green: #68d391; --red: #fc8181; }
  img.chart { filter: invert(0.9) hue-rotate(180deg); }
}
@media print { pre { white-space: pre-wrap; } details { break-inside: avoid; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 66rem;
  margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.stop { color: var(--dim); margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); } th { font-weight: 500; color: var(--dim); } td { overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } .scroll table { white-space: nowrap; font-size: .9rem; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; }
details > summary { cursor: pointer; color: var(--dim); margin-bottom: .4rem; }
figure { margin: 0 0 1.2rem; } figcaption { color: var(--dim); font-size: .9rem; }
img { max-width: 100%; height: auto; border-radius: 6px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 0 1.2rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .7rem; margin: 1.2rem 0 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .8rem; }
.tile b { display: block; font-size: 1.25rem; font-weight: 600; overflow-wrap: anywhere; }
.tile span { color: var(--dim); font-size: .85rem; }
.finding { border-left: 4px solid var(--orange); background: var(--card); border-radius: 0 6px 6px 0; margin: 0 0 .8rem;
  padding: .6rem .9rem; } .finding.error { border-color: var(--red); } .finding p { margin: .2rem 0; }
.finding small { color: var(--dim); }
"""


def page(title: str, below: str, sections: Iterable[str], style: str = "", script: str = "") -> str:
    """Return a page that needs nothing but itself, and may load nothing else. `style` is added to the common style,
    `script` (whole elements) to the end."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    policy += "; script-src 'unsafe-inline'" if script else ""
    return (
        "<!doctype html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
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
        data = base64.b64encode(path.read_bytes()).decode("ascii")
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
