"""`regimen study STUDY ENV`: measure what a way of training buys."""

from __future__ import annotations

import json as json_lib
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from regimen.cli.flags import parse, positional, ranged
from regimen.errors import UsageError, nearest
from regimen.validation import AT_LEAST_1, NOT_NEGATIVE, POSITIVE

STUDIES = ("batching", "empowerment")


@dataclass(frozen=True)
class StudyArgs:
    """Measure what a way of training buys, and write tables, plots and a summary.

    batching: collecting more episodes before each update, in parts
      gradient  how noisy a gradient is, against the rollout's size
      target    steps and updates until the greedy policy reaches a return, for
                rollout sizes and the presets single_episode, parallel_25 and
                big_batch; spread over seeds, collapse, entropy
      epochs    1, 2, 4 and 6 passes over 10 episodes
      rates     a third, one and three times the learning rate
      outlier   the damage of one episode with huge rewards

    empowerment: each documented choice of learning human power, scored against
    the exact values, in parts policy, ramp, clearing, decay, loss, targets,
    dropout, model, x_h_batch; takes --quick, --parts, --seeds, --seed, --budget

    Results are written after each part; Ctrl+C keeps what is measured.

      regimen study batching cartpole --quick
      regimen study empowerment world/corr5 --parts ramp,clearing --seeds 3
      regimen study batching pendulum --target -200 --parts gradient,target --sizes 1 10 50
    """

    study: str = positional("STUDY")
    """`batching` or `empowerment`."""
    env: str | None = positional("ENV", default=None)
    """A native environment of `regimen envs`, or gymnax:ID, or module:factory; cartpole when not given, world/corr5 for
    `empowerment`."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    quick: bool = False
    """A look in a minute or two: fewer seeds, sizes, rollouts and steps, where they are not given."""
    sizes: tuple[int, ...] | None = None
    """Episodes per update to compare (1 5 10 20, for gradients also 50; with --quick 1 10)."""
    seeds: int | None = ranged(None, AT_LEAST_1)
    """Seeds of every training (10, of empowerment 5; with --quick 3 and 2)."""
    seed: int = ranged(0, NOT_NEGATIVE)
    """The first of them."""
    budget: int | None = ranged(None, AT_LEAST_1)
    """Env steps of every training (the environment's own budget, else 200,000; with --quick 20,000)."""
    target: float | None = None
    """Evaluation return to reach; the environment's threshold when not given."""
    repeats: int | None = ranged(None, AT_LEAST_1)
    """Independent rollouts per gradient estimate (200; with --quick 48)."""
    epochs: int = ranged(4, AT_LEAST_1)
    """Passes over each batch of the rollout sizes."""
    minibatch_size: int = ranged(64, AT_LEAST_1)
    """Env steps per gradient step of the rollout sizes."""
    lr: float | None = ranged(None, POSITIVE)
    """Learning rate of all trainings, held constant; the environment's own when not given."""
    factor: float = ranged(100.0, POSITIVE)
    """What an outlier's rewards are multiplied by."""
    eval_episodes: int | None = ranged(None, AT_LEAST_1)
    """Greedy episodes per evaluation (20; with --quick 10)."""
    preset: str | None = None
    """Where the other settings come from; the environment's tuned ones when not given."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""
    out: str | None = None
    """Folder to write to; by default `studies/<study>-<env>-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


OPTIONS = ("parts", "sizes", "seeds", "seed", "budget", "target", "repeats", "epochs", "minibatch_size", "lr", "factor")


def run(argv: list[str]) -> int:
    args = parse(StudyArgs, argv, "study")
    if args.study not in STUDIES:
        raise UsageError(f"unknown study '{args.study}'{nearest(args.study, STUDIES)}")

    from regimen.study.jobs import Console

    console = Console(args.quiet, sys.stderr if args.json else None)
    if args.study == "empowerment":
        from regimen.study import empowerment

        mine = {name: getattr(args, name) for name in ("out", "parts", "quick", "seeds", "seed", "budget", "env_args")}
        found = empowerment.run(args.env or "world/corr5", console=console, **mine)
        if args.json:
            print(json_lib.dumps(found.summary(), indent=2))
        return found.exit_code

    from regimen.study import batching

    study = batching.run(
        args.env or "cartpole",
        out=args.out,
        quick=args.quick,
        preset=args.preset,
        env_args=args.env_args,
        device=args.device,
        command=shlex.join(["regimen", "study", *argv]),
        console=console,
        eval_episodes=args.eval_episodes,
        **{name: getattr(args, name) for name in OPTIONS},
    )
    if args.json:
        print(json_lib.dumps(study.summary(), indent=2))
    return study.exit_code
