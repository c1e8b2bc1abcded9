"""The pages become a site that needs nobody else: every link leads somewhere, every page is in the tree."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"not installed: {', '.join(MISSING)}; pip install 'regimen[docs]'"
)


def build(source: Path, out: Path) -> subprocess.CompletedProcess:
    """As `make docs` does."""
    argv = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", str(ROOT / "docs")]
    argv += ["-d", str(out.with_name("doctrees")), str(source), str(out)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT / "docs", out)
    assert done.returncode == 0, done.stderr
    return out


def test_every_page_is_in_the_site_and_in_its_tree(site):
    first = (site / "index.html").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        place = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / place).is_file(), place
        assert page.name == "index.md" or f'href="{place}"' in first, f"{place}: not in the navigation"


@pytest.mark.parametrize(("name", "lost"), [("search", True), ("looking", False)])
def test_a_page_that_sphinx_writes_over_fails_the_build(name, lost, tmp_path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text(f"# All\n\n[one]({name}.md)\n")
    (tmp_path / "source" / f"{name}.md").write_text("# `regimen search` <&> others\n\nA sentence.\n")
    done = build(tmp_path / "source", tmp_path / "site")
    assert (f"{name}: its page was written over" in done.stderr) == lost, done.stderr


@pytest.mark.parametrize(("picture", "lost"), [("there", False), ("gone", True)])
def test_a_picture_of_a_tag_comes_along_or_fails_the_build(picture, lost, tmp_path):
    """Sphinx copies what Markdown's own pictures name; those of `<img>` were missing in the site without a word."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "there.png").write_bytes((ROOT / "docs" / "images" / "training.png").read_bytes())
    (tmp_path / "source" / "index.md").write_text(f'# All\n\n<img src="{picture}.png" alt="a picture" width="20">\n')
    done = build(tmp_path / "source", tmp_path / "site")
    assert ("gone.png" in done.stderr) == lost, done.stderr  # of one page only, so that others are missed, too
    assert lost or "there.png is not there" not in done.stderr


def test_nothing_is_fetched_from_elsewhere(site):
    """Scripts, styles, fonts and pictures are in the folder; so it opens from a disk without a network."""
    tag = re.compile(
        r"<(?:script|img|link|iframe|source)\b[^>]*?\b(?:src|href)=[\"'](?:https?:)?//[^\"']+", re.IGNORECASE
    )
    for page in site.rglob("*.html"):
        assert tag.findall(page.read_text()) == [], page.name
    for style in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//[^)]+|@import [\"'](?:https?:)?//", style.read_text()) == [], (
            style.name
        )


@pytest.mark.long
def test_formulas_are_typeset_without_a_network(site):
    """By the copy of MathJax that is in the repository: no page asks anybody, and no formula has an error."""
    tool = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium")
    pages = [page for page in site.rglob("*.html") if 'class="math ' in page.read_text()]
    assert len(pages) > 8
    with tool.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page()
        asked: list[str] = []
        view.on("request", lambda request: asked.append(request.url))
        for page in pages:
            view.goto(page.as_uri())
            view.wait_for_function("window.MathJax?.startup?.promise")
            view.evaluate("MathJax.startup.promise")
            written, typeset = (view.locator(kind).count() for kind in (".math", ".math mjx-container"))
            assert written == typeset > 0, page.name
            assert view.locator("[data-mjx-error]").count() == 0, page.name
            assert "\\" not in "".join(view.locator(".math mjx-assistive-mml").all_text_contents()), page.name
        browser.close()
    assert [url for url in asked if not url.startswith("file:")] == []


def test_linked_source_files_come_along(site):
    assert [path.name for path in site.glob("_downloads/*/custom_env.py")] == ["custom_env.py"]


def test_notebooks_are_pages(site):
    """With what their cells showed, and the notebook itself to take along."""
    page = (site / "notebooks" / "train_and_look.html").read_text()
    assert "data:image/png;base64," in page and "evaluation return" in page and "<h1>Train and look" in page
    assert len(list(site.glob("_downloads/*/*.ipynb"))) == 3


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("[there](second.md#a-part)", True),
        ("[there](third.md)", False),
        ("[there](second.md#no-such-part)", False),
        ("![there](images/none.png)", False),
    ],
)
def test_a_broken_link_fails(target, found, tmp_path):
    """Of a small folder, whose navigation is not ours: only what is said about its page counts."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "index.md").write_text("# All\n\n[one](first.md), [two](second.md)\n")
    (tmp_path / "source" / "first.md").write_text(f"# First\n\n{target}\n")
    (tmp_path / "source" / "second.md").write_text("# Second\n\n## A part\n\n[back](first.md)\n")
    done = build(tmp_path / "source", tmp_path / "site")
    assert done.returncode != 0
    assert ("first.md:3" not in done.stderr) == found, done.stderr
