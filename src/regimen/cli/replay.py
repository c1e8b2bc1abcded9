"""`regimen replay RUN`: watch a trained policy."""

from __future__ import annotations

from dataclasses import dataclass, field

from regimen.config.fields import Natural, Whole
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class ReplayArgs:
    """Play episodes with a run's policy; write each as a table, and as an animation where the environment can draw."""

    run: str = positional("RUN")
    """Run directory, or a policy's folder."""
    episodes: Natural = 1
    """Episodes to play."""
    seed: Whole = 0
    """Seed of the first episode; the next one is one higher."""
    checkpoint: str = "best"
    """Which policy: `best`, `final` or a step."""
    fps: Natural = 30
    """Frames per second of the animation."""
    scenario: str | None = None
    """Play this scenario (a name or a file) instead of the one it was trained on, where the environment has several."""
    gif: bool = True
    """Draw the animation; without it only the table is written."""
    env_args: dict[str, object] = field(default_factory=dict)


def run(argv: list[str]) -> int:
    args = parse(ReplayArgs, argv, "replay")

    from regimen.reports.replay import replay

    others = (args.env_args, args.scenario, args.gif)
    for written in replay(args.run, args.checkpoint, args.episodes, args.seed, args.fps, *others):
        print(written)
    return 0
