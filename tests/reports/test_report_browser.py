"""A report copied to another place, opened by a real browser that has no network."""

import shutil

import numpy as np
import pytest

from regimen.reports.plots import plot_run
from regimen.reports.run_report import write_report
from synthetic_run import make_run

BROWSER = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: reports are not looked at in a browser")

SHOWN = """() => [...document.images].map(
  i => [i.alt, i.complete && i.naturalWidth > 0, i.getBoundingClientRect().width])"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as p:
        found = p.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


def open_offline(browser, path, **options):
    """A page of that file, and every address it asked for."""
    context = browser.new_context(offline=True, **options)
    page, asked, errors = context.new_page(), [], []
    page.on("request", lambda r: asked.append(r.url))
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(f"file://{path}", wait_until="load")
    assert errors == []
    return page, [url for url in asked if not url.startswith("data:")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The only thing left of a run with curves, an animation and markup in its names."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("report")
    run = make_run(folder / "run", updates=24, components=True)
    plot_run(run)
    (run / "replays").mkdir()
    frames = [Image.fromarray(np.full((60, 90, 3), 40 * i, np.uint8)) for i in range(5)]
    frames[0].save(run / "replays" / "episode_0.gif", save_all=True, append_images=frames[1:], duration=80)
    frames[1].save(run / "plots" / "<b>tracks.png")
    write_report(run)
    alone = folder / "elsewhere" / "copied.html"
    alone.parent.mkdir()
    shutil.copy(run / "report.html", alone)
    pictures = sum(1 for p in run.rglob("*") if p.suffix in (".png", ".gif"))
    shutil.rmtree(run)
    return alone, pictures


@pytest.mark.parametrize("options", [{}, {"viewport": {"width": 390, "height": 800}}, {"color_scheme": "dark"}])
def test_all_its_pictures_show(browser, report, options, tmp_path):
    path, pictures = report
    page, asked = open_offline(browser, path, **options)
    assert asked == [f"file://{path}"], "it asks for nothing but itself"
    shown = page.evaluate(SHOWN)
    assert len(shown) == pictures and all(complete and width > 50 for _, complete, width in shown)
    assert page.locator("h2").all_inner_texts()[:4] == ["Diagnosis", "Curves", "Pictures", "Evaluation"]
    assert page.locator("b", has_text="tracks").count() == 0, "markup in a file's name is text"
    wide = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0, "nothing sticks out"
    page.screenshot(path=str(tmp_path / "report.png"), full_page=True)  # to be looked at


def test_without_pictures_it_says_how_curves_are_drawn(browser, tmp_path):
    run = make_run(tmp_path / "run", updates=40)
    write_report(run)
    page, asked = open_offline(browser, run / "report.html")
    assert len(asked) == 1
    text = page.locator("section", has_text="Curves").first.inner_text()
    assert f"regimen plot {run}" in text and "regimen[plots]" in text
