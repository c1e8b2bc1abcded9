"""`regimen analyse RUN`: how safe an airspace policy is, and under which shifts it stops being so."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from regimen.config.fields import Natural, NotNegative, Whole
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class AnalyseArgs:
    """Fly an airspace policy many times and measure losses of separation, alerts, overheads and collision risk.

    RUN is a run directory, a folder of them, or a baseline: no_op, waypoint, mvp. Several can be given.

      regimen analyse RUN
      regimen analyse RUN --shifts position,heading --range micro --targets A1,all
      regimen analyse runs/all --matrix
      regimen analyse mvp --scenario all
    """

    run: tuple[str, ...] = positional("RUN...")
    """Run directories, folders of them, or baselines (no_op, waypoint, mvp)."""
    scenario: str | None = None
    """Names or JSON files, separated by commas, or `all`; what the policy was trained on when not given."""
    shifts: str = "auto"
    """`all`, `none`, or which: position, heading, speed, waypoint, type, wind, delay. `auto`: all for one policy on one
    scenario, else none."""
    range: Literal["micro", "macro"] | None = None
    """Only small or only large shifts."""
    targets: str | None = None
    """Which aircraft are shifted: ids, `each`, `all` (together); representative ones and all when not given."""
    episodes: Natural = 100
    """Episodes of each configuration."""
    stochastic: bool = False
    """Draw actions from the policy instead of taking the most likely one."""
    jitter: NotNegative = 1.0
    """Scale of the perturbation of starts: 1 is 0.5 NM, 2 deg and 5 kt, 0 is none."""
    matrix: bool = False
    """Fly every policy on every scenario: the transfer matrix."""
    baselines: bool = True
    """no_op, waypoint and mvp in the same table."""
    checkpoint: str = "best"
    """Which policy of a run: `best`, `final` or a step."""
    seed: Whole = 0
    """Seed of the perturbations and of the policy's draws."""
    out: str | None = None
    """Folder to write to; by default `analysis` in the run's directory."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the summary as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


def run(argv: list[str]) -> int:
    args = parse(AnalyseArgs, argv, "analyse")

    from regimen.domains.airspace.analysis import analyse
    from regimen.files.storage import plain

    options: dict[str, Any] = dict(vars(args))
    as_json = options.pop("json")
    analysis = analyse(options.pop("run"), options.pop("scenario"), shift_range=options.pop("range"), **options)
    if as_json:
        print(json.dumps(plain(analysis.to_dict()), indent=2))
    else:
        print("\n".join([*analysis.lines(), f"written to {analysis.out}"]))
    return 0
