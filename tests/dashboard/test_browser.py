"""The page in a real browser, at the sizes of a desk and a phone. Skipped where there is no Chromium."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from live_page import points, serving, write_run
from PIL import Image

from regimen.files import views

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip(
        "no chromium: the page is not tested in a browser (Debian: apt-get install chromium)", allow_module_level=True
    )
playwright = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install 'regimen[dev]'")

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}
SIZES = pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
MARKUP = "<img src=x onerror='document.title=1'>"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as tool:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = tool.chromium.launch(executable_path=CHROMIUM, args=[*arguments, "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture
def visit(browser):
    """Opens pages; at the end, none may have raised an error or asked another server for anything."""
    with contextlib.ExitStack() as stack:
        troubles: list[str] = []

        def opened(address: str, size: dict[str, int], theme: str = "light"):
            context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")
            stack.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(15_000)
            page.on("pageerror", lambda error: troubles.append(str(error)))
            page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
            page.on("request", lambda r: None if r.url.startswith(address) else troubles.append(r.url))
            page.goto(address)
            page.locator("#live.on").wait_for(state="attached")
            return page

        yield opened
        assert troubles == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser") / "runs"
    write_run(root / "first", 60)
    write_run(root / "second", 40, algo={"lr": 0.25})
    run = write_run(root / "flight", 20, env="airspace/head_on")
    times = list(range(0, 60, 10))
    agents = [
        {"name": "A1", "x": [0.0] * 6, "y": [-10.0, -6, -2, 2, 6, 10], "goal": [0, 12]},
        {"name": "A2", "x": [1.0] * 6, "y": [10.0, 6, 2, -2, -6, None], "goal": [1, -12]},
    ]
    views.write(run, "a flight", views.tracks("Flight", [views.episode("one", times, agents)], separation=5, unit="NM"))
    frame = views.grid_frame([[None, 1, 2], [3, 4, 5]], [{"name": "robot", "row": 1, "column": 1}], [[0, 1, 1, 0]])
    views.write(run, "b grid", views.grid("Power", ["#..", "..."], [frame], unit="bits"))
    nodes = [{"name": name, "x": i, "y": i % 2} for i, name in enumerate("abc")]
    states = [{"state": [0, 1, 2], "note": f"step {t}"} for t in range(4)]
    views.write(run, "c network", views.network("Net", ["clean", "scanned", "lost"], nodes, [[0, 1], [1, 2]], states))
    believed = [{"name": f"c{i}", "mean": i, "low": i - 1, "high": i + 2, "observed": [i]} for i in range(9)]
    views.write(run, "d posterior", views.posterior("Belief", [{"candidates": believed}]))
    line = {"name": "gp", "x": [0, 1, 2], "y": [3, 2, 1], "low": [2, 1, 0], "high": [4, 3, 2]}
    views.write(run, "e series", views.series("Regret", [line]))
    (run / "plots").mkdir()
    Image.new("RGB", (1, 1)).save(run / "plots" / "a.png")
    views.write(run, "f image", views.image("Plot", "plots/a.png"))
    (run / "views" / "g broken.json").write_text('{"kind": "grid", "rows": 3}')
    with serving(root) as made:
        yield made


def show(page, *names: str) -> None:
    """Overlay exactly these runs."""
    narrow = page.locator("#show-runs").is_visible()
    if narrow:
        page.locator("#show-runs").click()
    wanted = {f"Overlay {name}" for name in names}
    page.wait_for_function("n => document.querySelectorAll('.run').length >= n", arg=len(names))
    for box in page.locator(".run input").all():
        label = box.get_attribute("aria-label")
        if box.is_visible() and box.is_checked() != (label in wanted):
            box.click()
    if narrow:
        page.keyboard.press("Escape")


def chart(page, title: str):
    return page.locator("figure.chart", has=page.get_by_text(title, exact=True)).first


def inked(page, selector: str) -> int:
    """How many pixels of a canvas are drawn."""
    return page.evaluate(
        "s => { const c = document.querySelector(s);"
        " const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        " let n = 0; for (let i = 3; i < d.length; i += 4) n += d[i] > 0; return n }",
        selector,
    )


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """A real training run, in a process of its own."""
    out = tmp_path_factory.mktemp("training") / "runs" / "cartpole"
    command = [sys.executable, "-m", "regimen", "train", "cartpole", "--total-steps", "1e8", "--no-track"]
    command += ["--stop.above", "1e9", "--eval.episodes", "2", "--out", str(out)]  # it does not end by itself
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 90
        while not (out / "metrics.jsonl").exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.1)
        with serving(out.parent) as made:
            yield made, process, out
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def test_legends_are_words_and_success_is_that_of_evaluations(tmp_path, visit):
    run = write_run(tmp_path / "runs" / "one")
    (run / "replays").mkdir()
    (run / "replays" / "best.gif").write_bytes(b"GIF89a")
    status = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps(status | {"legend": "Blue: the agent."}))
    more = {"train/approx_kl": 0.1, "train/approx_kl/choice": 0.1, "train/approx_kl/run": 0.1, "train/loss_q_r": 1.0}
    more |= {"rollout/success_rate": 0.0, "eval/success_rate": 1.0}
    more |= {"train/weight/cost": 0.4, "train/weight/progress": 0.6}
    (run / "metrics.jsonl").write_text("".join(json.dumps(row | more) + "\n" for row in points(20)))
    wanted = {
        "Losses": {"policy loss", "loss of q_r"},
        "KL divergence": {"approximate KL", "choice", "run"},
        "Success": {"success rate", "eval success rate"},
    }
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        show(page, "one")
        for title, labels in wanted.items():
            chart(page, title).locator(".legend li").first.wait_for()
            assert set(chart(page, title).locator(".legend li").all_inner_texts()) == labels
        weights = chart(page, "Component weights").locator(".legend li")
        assert weights.all_inner_texts() == ["progress", "cost"]  # as in the chart of the components: the same colours
        assert "100% in evaluation" in page.locator("#focus .facts").inner_text()
        page.get_by_role("tab", name="Pictures").click()
        page.get_by_text("Blue: the agent.").wait_for()


def test_metrics_with_a_label_have_a_chart_of_that_name(tmp_path, visit):
    run = write_run(tmp_path / "runs" / "one")
    rows = [row | {"rollout/near": 0.5, "eval/nearer": 0.25, "rollout/effort": 1.0} for row in points(20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = json.loads((run / "status.json").read_text())
    declared = {name: {"reduce": "max", "label": "near misses"} for name in ("near", "nearer")}
    (run / "status.json").write_text(json.dumps(status | {"metrics": declared | {"effort": {"reduce": "mean"}}}))
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        show(page, "one")
        both = chart(page, "Near misses")
        both.wait_for()
        assert "eval nearer" in both.inner_text() and chart(page, "Effort").count() == 0


@SIZES
def test_points_arrive_during_a_live_run(training, visit, size):
    site, process, _ = training
    page = visit(site.address, size)
    assert process.poll() is None
    page.locator("#focus .chip.running").wait_for()
    canvas = chart(page, "Return").locator(".plot")
    page.wait_for_function("() => +document.querySelector('figure.chart .plot')?.dataset.points > 2")
    before = int(canvas.get_attribute("data-points"))
    steps = page.locator("#focus .facts").inner_text()
    page.wait_for_function("n => +document.querySelector('figure.chart .plot').dataset.points > n + 3", arg=before)
    page.wait_for_function("old => document.querySelector('#focus .facts').innerText !== old", arg=steps)
    assert inked(page, "figure.chart canvas") > 500


def test_a_killed_run_is_shown_as_gone(training, visit):
    site, process, _ = training
    page = visit(site.address, DESK)
    page.locator("#focus .chip.running").wait_for()
    process.send_signal(signal.SIGKILL)
    page.locator("#focus .chip.dead").wait_for()
    assert "is gone" in page.locator("#focus .detail").inner_text()


@SIZES
def test_two_runs_are_overlaid_and_their_settings_compared(site, visit, size):
    page = visit(site.address, size)
    show(page, "first", "second")
    figure = chart(page, "Return")
    playwright.expect(figure.locator(".plot")).to_have_attribute("data-lines", "2")
    assert sorted(figure.locator(".legend li").all_inner_texts()) == ["first", "second"]
    playwright.expect(figure.locator(".plot")).to_have_attribute("data-points", str(60 + 40))
    page.get_by_role("tab", name="Settings").click()
    rows = page.locator("#panel-settings tbody tr")
    playwright.expect(rows).to_have_count(1)
    assert "algo.lr" in rows.inner_text() and "0.25" in rows.inner_text()
    page.get_by_label("only what differs").uncheck()
    assert rows.count() > 3


def test_the_tab_that_is_open_is_in_sight_on_a_phone(site, visit):
    page = visit(site.address, PHONE)
    for name in ("Compare", "Curves"):
        page.keyboard.press({"Compare": "6", "Curves": "1"}[name])
        tab, tabs = page.get_by_role("tab", name=name), page.locator(".tabs")
        playwright.expect(tab).to_have_attribute("aria-selected", "true")
        (left, wide), (start, room) = ((b["x"], b["width"]) for b in (tab.bounding_box(), tabs.bounding_box()))
        assert start - 1 <= left and left + wide <= start + room + 1, name


@SIZES
def test_the_time_slider_moves_aircraft(site, visit, size):
    page = visit(site.address, size)
    show(page, "flight")
    page.get_by_role("tab", name="Pictures").click()
    slider = page.get_by_role("slider", name="Time", exact=True)
    canvas, state = page.locator(".view canvas"), page.locator(".view .state")
    playwright.expect(canvas).to_have_attribute("data-at", "0")
    assert "20.02 NM" in state.inner_text()
    first = canvas.screenshot()
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    playwright.expect(canvas).to_have_attribute("data-at", "2")
    assert "separation lost" in state.inner_text() and page.locator(".view output").inner_text() == "20 s"
    assert canvas.screenshot() != first
    slider.fill("5")
    assert "1 of 2 under way" in state.inner_text()
    page.get_by_role("button", name="Play").click()
    playwright.expect(canvas).to_have_attribute("data-at", "1")


@SIZES
def test_the_theme_is_switched_and_remembered(site, visit, size):
    page = visit(site.address, size)

    def back() -> str:
        return page.evaluate("getComputedStyle(document.documentElement).backgroundColor")

    light = back()
    page.get_by_role("button", name="Switch to dark theme").click()
    assert back() != light and sum(map(int, back()[4:-1].split(","))) < 150
    page.reload()
    page.locator("#live.on").wait_for(state="attached")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.get_by_role("button", name="Switch to light theme").click()
    assert back() == light and page.locator("html").get_attribute("data-theme") is None  # the system's own again
    page.emulate_media(color_scheme="dark")
    assert back() != light


def test_every_kind_of_picture_is_drawn(site, visit):
    page = visit(site.address, DESK)
    show(page, "flight")
    page.get_by_role("tab", name="Pictures").click()
    choose = page.get_by_label("Picture", exact=True)
    drawn = {}
    titles = {
        "a flight": "Flight",
        "b grid": "Power",
        "c network": "Net",
        "d posterior": "Belief",
        "e series": "Regret",
    }
    for title, name in titles.items():
        choose.select_option(label=title)
        page.locator("#panel-views figure", has=page.get_by_text(name, exact=True)).wait_for()
        page.wait_for_timeout(100)
        drawn[title] = inked(page, "#panel-views canvas")
    assert all(n > 1000 for n in drawn.values()), drawn
    choose.select_option(label="f image")
    page.wait_for_function("() => document.querySelector('#panel-views img')?.naturalWidth === 1")
    choose.select_option(label="g broken")
    assert page.get_by_role("alert").inner_text() == "views/g broken.json: rows: not a list"


@SIZES
def test_nothing_is_wider_than_the_screen(site, visit, size):
    page = visit(site.address, size)
    show(page, "first", "second", "flight")
    for tab in ("Curves", "Pictures", "Settings", "Log", "Files", "Compare"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(250)
        wide, over = page.evaluate(
            "() => [document.documentElement.scrollWidth, [...document.querySelectorAll('main *, header *')]"
            ".filter(e => !e.closest('.scroll, .tabs, .legend, .unseen, .plot'))"
            ".filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
            ".map(e => e.className || e.tagName)]"
        )
        assert wide <= size["width"] and over == [], tab


def test_reading_smoothing_axes_and_zoom(site, visit):
    page = visit(site.address, DESK)
    show(page, "first")
    figure = chart(page, "Return")
    canvas = figure.locator(".plot")
    playwright.expect(canvas).to_have_attribute("data-points", "60")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 21, box["y"] + 80)
    tip = figure.locator(".tip")
    assert "6000 steps" in tip.inner_text() and "29.5" in tip.inner_text()  # the moving average there
    page.locator("#axis").select_option("wall_seconds")
    page.wait_for_timeout(500)
    page.mouse.move(box["x"] + box["width"] - 22, box["y"] + 80)
    assert "30 s" in tip.inner_text()
    before = canvas.screenshot()
    page.locator("#smooth").fill("10")
    page.get_by_label("log y").check()
    page.mouse.move(2, 2)
    assert canvas.screenshot() != before and page.locator("#smooth-out").inner_text() == "10%"
    page.mouse.move(box["x"] + 150, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 80)
    page.mouse.up()
    page.get_by_role("button", name="Whole range").wait_for()
    page.wait_for_function("() => +document.querySelector('figure.chart .plot').dataset.points < 40")
    page.get_by_role("button", name="Whole range").click()
    page.wait_for_function("() => +document.querySelector('figure.chart .plot').dataset.points == 60")
    page.locator("#add").select_option("time/steps_per_second")
    page.get_by_role("button", name="Remove time/steps_per_second").click()
    playwright.expect(page.locator("figure.chart", has_text="time/steps_per_second")).to_have_count(
        0
    )  # "Speed" is there


def test_all_charts_show_one_moment_and_a_double_click_ends_a_zoom(site, visit):
    page = visit(site.address, DESK)
    show(page, "first", "second")
    figure = chart(page, "Return")
    playwright.expect(figure.locator(".plot")).to_have_attribute("data-points", "100")
    over = figure.locator(".u-over")
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    assert page.locator(".u-cursor-x:visible").count() == page.locator("figure.chart").count() > 4
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60)  # `second` has ended there: its last value is read
    tip = figure.locator(".tip").inner_text()
    assert "first" in tip and "second" in tip and "19.5" in tip
    assert page.locator(".tip:visible").count() == 1
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 60)
    page.mouse.up()
    page.get_by_role("button", name="Whole range").wait_for()
    page.wait_for_timeout(500)
    over.dblclick()
    playwright.expect(page.get_by_role("button", name="Whole range")).to_be_hidden()


def test_logarithms_keep_signs_and_leave_out_what_has_none(tmp_path, visit):
    """Values of both signs are spread by arcsinh; the step 0 has no place on a logarithmic x axis."""
    run = write_run(tmp_path / "runs" / "signs", 0)
    rows = [{"env_steps": 100 * i, "updates": i, "train/loss": (-1) ** i * 10.0**i} for i in range(5)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        page.wait_for_function("() => +document.querySelector('figure.chart .plot')?.dataset.points == 5")
        plot = page.locator("figure.chart .plot").first
        linear = plot.screenshot()
        page.get_by_label("log y").check()
        both = plot.screenshot()
        page.get_by_label("log x").check()
        plot.focus()
        page.keyboard.press("Home")
        assert page.locator("#say").inner_text() == "100 steps: loss -10"
        page.keyboard.press("End")
        assert page.locator("#say").inner_text() == "400 steps: loss 10k"
        assert len({linear, both, plot.screenshot()}) == 3


def test_everything_by_keyboard(site, visit):
    page = visit(site.address, DESK)
    page.locator(".run").first.wait_for()
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible() and "overlay the run" in page.get_by_role("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("sec")
    playwright.expect(page.locator(".run")).to_have_count(1)
    page.keyboard.press("Escape")
    page.locator("#filter").fill("")
    page.locator("#filter").blur()
    for _ in range(3):
        page.keyboard.press("k")
    top = page.locator(".run.focus .name").inner_text()
    page.keyboard.press("j")
    assert page.locator(".run.focus .name").inner_text() != top
    for key, name in zip("23451", ("views", "settings", "log", "files", "curves")):
        page.keyboard.press(key)
        playwright.expect(page.locator(f"#panel-{name}")).to_be_visible()
        playwright.expect(page.locator("[role=tabpanel]:visible")).to_have_count(1)
    page.keyboard.press("x")
    assert page.locator(".run input:checked").count() == 0
    page.keyboard.press("x")
    page.keyboard.press("t")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    page.keyboard.press("t")
    page.wait_for_function("() => document.querySelector('figure.chart .plot canvas')")
    page.wait_for_timeout(500)  # what is asked for after the last key moves the charts
    chart(page, "Return").locator(".plot").focus()
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    assert "steps: " in page.locator("#say").inner_text()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    unnamed = page.evaluate(
        "() => [...document.querySelectorAll('button, input, select, progress, canvas:not([role=img] canvas)')]"
        ".filter(e => e.checkVisibility() && !e.textContent.trim())"
        ".filter(e => !e.getAttribute('aria-label') && !e.closest('label'))"
        ".map(e => e.outerHTML)"
    )
    assert unnamed == []


def test_markup_in_names_stays_text(tmp_path, visit):
    run = write_run(tmp_path / "runs" / MARKUP.replace("/", ""), 0, env=MARKUP)
    rows = [row | {f"train/{MARKUP}": 1.0, "train/<b>bold</b>_loss": 2.0} for row in points(3)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "log.txt").write_text(f"{MARKUP}\n")
    (run / "views").mkdir()
    (run / "views" / f"{MARKUP.replace('/', '')}.json").write_text(json.dumps({"kind": MARKUP}))
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        page.locator(".run").first.wait_for()
        assert page.locator("#focus h2").inner_text() == MARKUP
        for tab in ("Curves", "Settings", "Log", "Pictures"):
            page.get_by_role("tab", name=tab).click()
            page.wait_for_timeout(200)
        assert MARKUP in page.get_by_role("alert").inner_text()
        assert (
            page.locator("img:not([src='/icon.svg'])").count() == 0
            and page.locator("main script, figure b b").count() == 0
        )
        assert page.title() == "runs – Regimen"


def test_a_run_that_begins_while_the_page_is_open(tmp_path, visit, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.index.SLOW", 0.1)
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, PHONE)
        assert "Waiting for runs" in page.locator("#focus").inner_text()
        write_run(tmp_path / "runs" / "new", 4, state="running")
        playwright.expect(page.locator("#focus h2")).to_have_text("new")
        page.wait_for_function("() => +document.querySelector('figure.chart .plot')?.dataset.points === 4")


def test_a_picture_written_anew_is_shown_at_once(tmp_path, visit, monkeypatch):
    monkeypatch.setattr("regimen.dashboard.index.SLOW", 0.1)
    folder = tmp_path / "runs" / "search"

    def write(trials: int) -> None:
        believed = [{"name": "a", "mean": 1, "low": 0, "high": 2}]
        frames = [{"title": f"after {t} trials", "candidates": believed} for t in range(trials)]
        views.write(folder, "belief", views.posterior("Belief", frames))

    write(3)
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        page.locator(".run .name").click()
        page.get_by_role("tab", name="Pictures").click()
        clock = page.locator(".view output")
        playwright.expect(clock).to_have_text("3 / 3")
        write(5)
        playwright.expect(clock).to_have_text("5 / 5", timeout=15_000)  # it was at the end, and stays there


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(site, browser, scheme):
    """axe-core: names, roles, contrast, headings, on every tab."""
    package = pytest.importorskip("axe_playwright_python", reason="no axe: pip install 'regimen[dev]'")
    script = (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
    page = browser.new_page(viewport=DESK, color_scheme=scheme)
    page.goto(site.address)
    show(page, "first", "second", "flight")
    page.evaluate(script)
    for tab in ("Curves", "Pictures", "Settings", "Log", "Files", "Compare"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(400)
        violations = page.evaluate("() => axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        assert [(v["id"], v["nodes"][0]["html"]) for v in violations] == [], tab
    page.close()


def test_runs_are_compared_as_on_the_command_line(tmp_path, visit):
    for name, lift in (("one", 0.0), ("two", 5.0)):
        run = write_run(tmp_path / "runs" / name, 0, state="running")
        rows = [row | {k: v + lift for k, v in row.items() if k == "eval/return_mean"} for row in points(30)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        show(page, "one")
        page.keyboard.press("6")
        playwright.expect(page.locator("#panel-compare")).to_contain_text("Choose two runs or more")
        show(page, "one", "two")
        playwright.expect(page.locator(".verdict")).to_contain_text("two is ahead of one by 5", timeout=60_000)
        assert "30" in page.locator("#panel-compare table").first.inner_text()


def test_runs_of_several_folders_have_short_names_that_differ(tmp_path, visit):
    """A legend of whole paths was cut before the part that tells trials apart, and so was the head of a group."""
    long = "cartpole-ppo-sweep-20261119T213630-with-a-long-name"
    for folder, name in ((f"{long}/trial-0000", "seed-0"), (f"{long}/trial-0001", "seed-0"), ("plain", "first")):
        write_run(tmp_path / "runs" / folder / name, 20)
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        show(page, f"{long}/trial-0000/seed-0", f"{long}/trial-0001/seed-0")
        legend = chart(page, "Return").locator(".legend li")
        playwright.expect(legend).to_have_text(["trial-0000/seed-0", "trial-0001/seed-0"])
        head = page.locator(".group-head b").filter(has_text="trial-0001").locator("span").last
        assert head.evaluate("e => e.scrollWidth <= e.clientWidth"), "its end is in sight"
        show(page, f"{long}/trial-0000/seed-0", "plain/first")
        playwright.expect(legend).to_have_text(["seed-0", "first"])


def test_a_long_list_comes_in_pages_and_is_filtered_as_a_whole(tmp_path, visit):
    for i in range(215):
        write_run(tmp_path / "runs" / f"run-{i:03}", 1)
    with serving(tmp_path / "runs") as site:
        page = visit(site.address, DESK)
        more = page.get_by_role("button", name="Show 15 more of 215")
        more.wait_for()
        assert page.locator(".run").count() == 200
        more.click()
        playwright.expect(page.locator(".run")).to_have_count(215)
        page.locator("#filter").fill("run-007")
        playwright.expect(page.locator(".run")).to_have_count(1)
