"""The animated picture of the README: the live page while three seeds of CartPole train.

    python docs/images/live.py [SECONDS]

A real training run is started and the page about it is photographed in a real browser until the run has ended, or for
so many seconds (by default 300). The frames are evenly spaced over that time and played faster than they were taken;
the last one stays. Writes live.gif. Needs chromium and playwright, which `regimen[dev]` and `.ci/run` install.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from regimen.dashboard.server import make_server

HERE = Path(__file__).parent
TRAIN = [
    "train",
    "cartpole",
    "--seeds",
    "3",
    "--total-steps",
    "60000",
    "--stop.metric",
    "none",
    "--no-track",
    "--quiet",
]
SIZE, SHOWN = (1240, 880), (900, 639)  # of the browser, of the picture
FRAMES, COLOURS = 36, 200


def overlay_all(page: Page) -> None:
    """Draw every run of the list."""
    for box in page.locator(".run input").all():
        if box.is_visible() and not box.is_checked():
            box.check()


def photograph(address: str, process: subprocess.Popen[bytes], seconds: float) -> list[Image.Image]:
    """Pictures of the page until the process has ended."""
    shots: list[Image.Image] = []
    with sync_playwright() as tool:
        browser = tool.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}, color_scheme="light")
        page.goto(address)
        page.locator(".run").nth(2).wait_for(state="attached", timeout=120_000)
        page.locator(".plot").first.wait_for(timeout=120_000)  # there is something to draw
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            running = process.poll() is None
            overlay_all(page)
            page.wait_for_timeout(400 if running else 2500)
            shots.append(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
            if not running:
                break
        browser.close()
    return shots


def write_gif(shots: list[Image.Image], path: Path) -> None:
    """So many of them as one animation with a common palette."""
    chosen = [shots[round(i * (len(shots) - 1) / (FRAMES - 1))] for i in range(FRAMES)]
    small = [shot.resize(SHOWN, Image.Resampling.LANCZOS) for shot in chosen]
    palette = small[-1].quantize(COLOURS)
    frames = [shot.quantize(palette=palette, dither=Image.Dither.NONE) for shot in small]
    durations = [160] * (FRAMES - 1) + [4000]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=durations, loop=0, optimize=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 300.0
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder, "runs")
        runs.mkdir()
        server, socket = make_server(runs)
        threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True).start()
        start = time.monotonic()
        process = subprocess.Popen([sys.executable, "-m", "regimen", *TRAIN, "--out", str(runs / "cartpole")])
        try:
            shots = photograph(f"http://127.0.0.1:{socket.getsockname()[1]}", process, seconds)
        finally:
            process.terminate()
            process.wait()
        print(f"{len(shots)} pictures in {time.monotonic() - start:.0f} s")
        server.should_exit = True
        write_gif(shots, HERE / "live.gif")


if __name__ == "__main__":
    main()
