"""How the pages become a site: `make docs` builds it into site/, `make docs-serve` shows it on this machine.

The pages are plain Markdown that reads well in the repository, too; what only the site needs is here. Nothing of it is
fetched from elsewhere, and it works without a server, the search included.
"""

import html
import json
import re
from pathlib import Path
from urllib.parse import unquote

from sphinx.errors import SphinxError

project = "Regimen"
author = "The Regimen developers"
copyright = "The Regimen developers"
html_title = "Regimen"
language = "en_GB"

extensions = ["myst_parser", "sphinx.ext.mathjax", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 6  # anchors as the repository's viewer makes them: a link works in both
myst_links_external_new_tab = True
myst_enable_extensions = ["dollarmath", "html_image"]  # $formula$, and <img> tags, whose pictures come along
myst_fence_as_directive = ["math"]  # ```math, as the repository's viewer has it, too
mathjax_path = "mathjax/tex-svg.js"  # MathJax 3.2.2 with its fonts in one file: nothing is fetched
mathjax3_config = {"options": {"enableMenu": False}, "svg": {"fontCache": "global", "scale": 0.95}}
source_suffix = {".md": "markdown", ".ipynb": "markdown"}  # notebooks/ leads to examples/notebooks
nitpicky = True  # with -W: a broken link fails the build
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures have no page of their own
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {"Numbers": "Numbers", "Kinds": "Kinds"}
default_role = "literal"  # `name` in a docstring is code, as in Markdown
add_module_names = False
python_maximum_signature_line_length = 100
exclude_patterns = ["images", "static"]  # scripts and pictures; a picture that a page shows is copied
suppress_warnings = ["misc.highlighting_failure"]  # usage lines are not always shell or YAML

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
html_logo = html_favicon = "../src/regimen/dashboard/static/icon.svg"
html_copy_source = False
html_show_sphinx = False
pygments_style = "tango"
pygments_dark_style = "github-dark"

NAVIGATION = {
    "Start": ["getting_started", "concepts", "tour", "gallery", "glossary"],
    "Notebooks": [f"notebooks/{name}" for name in ("train_and_look", "your_environment", "compare_and_sweep")],
    "Training": [
        *("schedules", "curricula", "encoders", "memory", "agents", "offline", "scaling", "deploying", "own_loop"),
    ],
    "Algorithms": [
        f"algorithms/{name}" for name in ("ppo", "sac", "impala", "appo", "cql", "bc", "empowerment", "rewards")
    ],
    "Environments": [
        *("environments", "classic_control", "hybrid", "durotaxis", "airspace", "airspace_safety"),
        *("network_defense", "empowerment", "worlds"),
    ],
    "Seeing and steering runs": [
        *("dashboard", "runs", "tracking", "comparing", "other_simulators", "sweeps", "workflow_search", "studies"),
    ],
    "Results and help": ["results", "performance", "surprises", "reliability", "troubleshooting"],
    "Coming from": [
        "migrating",
        *(f"coming_from/{name}" for name in ("stable_baselines3", "cleanrl", "rllib", "batch_training", "ppo_trainer")),
        *(f"coming_from/{name}" for name in ("air_traffic", "empowerment_learner", "update_strategies")),
    ],
    "Inside": [
        *("run_directory", "api", "extending", "architecture"),
        *("project/contributing", "project/security", "project/changelog", "roadmap", "project/licence"),
    ],
}


def add_navigation(app, name, source):
    """The tree of pages, at the end of the first one: a page that is not in it fails the build."""
    if name == "index":
        for caption, pages in NAVIGATION.items():
            source[0] += "\n\n".join(["", f"```{{toctree}}\n:hidden:\n:caption: {caption}\n", *pages]) + "\n```\n"


def show_notebook(app, name, source):
    """A notebook as Markdown: its cells, and what they showed when `.ci/notebooks.py` ran them."""
    if app.env.doc2path(name).suffix != ".ipynb":
        return
    parts = []
    for cell in json.loads(source[0])["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```ipython3\n{text}\n```")
        parts += [show_output(output) for output in cell.get("outputs", ())]
    path = Path(app.srcdir, "notebooks", Path(name).name + ".ipynb").resolve()
    parts.append(f"The notebook itself: {{download}}`{path.name} <{path.name}>`")
    source[0] = "\n\n".join(parts)


def show_output(output):
    """What a cell showed: a picture, a table, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img src="data:image/png;base64,{"".join(data["image/png"]).strip()}" alt="What the cell above draws">'
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>", "", "".join(data["text/html"]), flags=re.DOTALL)
        return "<div class='output'>" + re.sub(r"\n\s*", "", table) + "</div>"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return "```text\n" + re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() + "\n```"


def find_lost_pages(app, error):
    """A page whose name Sphinx needs for one of its own (`search`, `genindex`) would be written over without a word, and a
    picture that only a tag of HTML names would not be in the site."""
    for page in () if error else sorted(app.env.found_docs):
        written = Path(app.outdir, app.builder.get_target_uri(page)).read_text(encoding="utf-8")
        if app.env.titles[page].astext() not in html.unescape(re.sub("<[^>]+>", "", written.partition("<h1")[2])):
            raise SphinxError(f"{page}: its page was written over by one of Sphinx's own; give it another name")
        for source in re.findall(r'<img\b[^>]*?\bsrc="([^":]+)"', written):
            if not Path(app.outdir, app.builder.get_target_uri(page)).parent.joinpath(unquote(source)).is_file():
                raise SphinxError(f"{page}: the picture {source} is not there")


def setup(app):
    app.connect("source-read", add_navigation)
    app.connect("source-read", show_notebook)
    app.connect("env-get-outdated", lambda *_: ["index"])  # its tree of pages is above, not in its file
    app.connect("build-finished", find_lost_pages)
    return {"parallel_read_safe": True}
