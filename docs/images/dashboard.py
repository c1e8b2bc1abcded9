"""Pictures of the live page, from real runs, in a real browser.

    python docs/images/dashboard.py RUNS [OUT]

RUNS is a folder of runs; the newest ones are overlaid. Writes curves, pictures and settings at the sizes of a desk and
of a phone, light and dark, to OUT (this folder by default: then only the three that the documentation shows). Needs
chromium and playwright, which `regimen[dev]` and `.ci/run` install.
"""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from regimen.dashboard.server import make_server

HERE = Path(__file__).parent
DESK, PHONE = (1280, 860), (390, 844)
MOMENT = 0.4  # of an episode, for pictures with a slider
KEPT = {"dashboard", "dashboard_tracks", "dashboard_phone"}


def overlay(page: Page, names: list[str]) -> None:
    """Show these runs together, the first in focus."""
    for name in names[::-1]:
        box = page.get_by_label(f"Overlay {name}", exact=True)
        if not box.is_checked():
            box.check()
    checked = page.locator(".run input:checked").evaluate_all("boxes => boxes.map(b => b.ariaLabel)")
    for label in checked:
        if label.removeprefix("Overlay ") not in names:
            page.get_by_label(label, exact=True).uncheck()
    page.wait_for_timeout(700)


def choose(page: Page, name: str, tab: str) -> None:
    page.locator(f'.run .name[title="{name}"]').click()
    page.get_by_role("tab", name=tab).click()
    page.wait_for_timeout(900)


def shots(page: Page, runs: dict[str, dict[str, Any]], take: Any) -> None:
    plain = [n for n, r in runs.items() if str(r["env"]).startswith("cartpole") and not r["folder"]][:4]
    overlay(page, plain or list(runs)[:3])
    page.locator("#smooth").fill("2")
    take("dashboard")
    for name, run in runs.items():
        if str(run["env"]).startswith(("airspace", "durotaxis")) or run["folder"] or "views" in name:
            choose(page, name, "Pictures")
            options = page.locator("#panel-views select").first
            for i, title in enumerate(options.locator("option").all_inner_texts() if options.count() else []):
                options.select_option(index=i)
                page.wait_for_timeout(600)
                slider = page.locator("#panel-views input[type=range]")
                if slider.count() and slider.is_visible():
                    slider.fill(str(int(float(slider.get_attribute("max") or 0) * MOMENT)))
                tracks = i == 0 and "A1" in page.locator("#panel-views").inner_text()
                take("dashboard_tracks" if tracks else re.sub(r"\W", "_", f"view_{name}_{title}"))
            page.get_by_role("tab", name="Curves").click()
            page.wait_for_timeout(700)
            take(f"curves_{name}".replace("/", "_"))
    overlay(page, plain[:2])
    for tab in ("Settings", "Log", "Files"):
        page.get_by_role("tab", name=tab).click()
        page.wait_for_timeout(700)
        take(f"tab_{tab.lower()}")


def main() -> None:
    folder, out = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    server, socket = make_server(folder)
    threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    address = f"http://127.0.0.1:{socket.getsockname()[1]}"
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for size, (width, height), theme in (("", DESK, "light"), ("_dark", DESK, "dark"), ("_phone", PHONE, "light")):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
            page.goto(address)
            page.locator(".run").first.wait_for(state="attached")
            runs = {run["name"]: run for run in page.request.get(f"{address}/api/runs").json()["runs"]}

            def take(name: str, page: Page = page, size: str = size) -> None:
                name += size
                if out is None and name not in KEPT:
                    return
                page.screenshot(path=(out or HERE) / f"{name}.png")

            if size == "_phone":
                page.wait_for_timeout(1000)
                take("dashboard")
                page.get_by_role("button", name="Runs").click()
                take("list")
                page.locator(".run .name").nth(1).click()
                page.get_by_role("tab", name="Pictures").click()
                page.wait_for_timeout(900)
                take("view")
                wide = page.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"the page is {wide} pixels wide on a screen of {width}"
            else:
                shots(page, runs, take)
            page.close()
        browser.close()
    server.should_exit = True


if __name__ == "__main__":
    main()
