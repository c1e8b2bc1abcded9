"""The pictures of the README, from a real run.

    regimen train cartpole --out RUN
    python docs/images/draw.py RUN

Writes training.png (the run's own plots/overview.png) and panel.svg (the live panel as it stood at the last row).
"""

from __future__ import annotations

import io
import re
import shutil
import sys
import time
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from regimen.files.console import _Panel
from regimen.files.run_dir import read_config, read_metrics

HERE = Path(__file__).parent


def panel(run: Path) -> str:
    """The panel after the run's last row, as an SVG."""
    points = read_metrics(run)
    made = _Panel(read_config(run)["total_steps"], "steps")
    returns: list[float] = []
    for point in points:
        if "rollout/return_mean" in point:
            returns.append(point["rollout/return_mean"])
        average = point.get("rollout/return_ma") or (mean(returns[-20:]) if returns else None)  # as the console does
        made.update(point, average, max(returns, default=None))
    made.started = time.monotonic() - points[-1]["wall_seconds"]  # its clocks show the run's time, not the drawing's
    made._marks.clear()
    made._marks.extend((made.started + p["wall_seconds"], float(p["env_steps"])) for p in (points[0], points[-1]))
    console = Console(record=True, width=92, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    console.print(made)
    svg = console.export_svg(title="regimen train cartpole", theme=DIMMED_MONOKAI)
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing is fetched to show it
    return svg.replace("Fira Code", "DejaVu Sans Mono, Menlo, Consolas").replace("arial", "DejaVu Sans, Arial")


def main() -> None:
    run = Path(sys.argv[1])
    shutil.copyfile(run / "plots" / "overview.png", HERE / "training.png")
    (HERE / "panel.svg").write_text(panel(run), encoding="utf-8")


if __name__ == "__main__":
    main()
