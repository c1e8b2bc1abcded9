"""`regimen study STUDY ENV`: measure what a way of training buys."""

import dataclasses
import importlib
import json
import shlex
import sys
from dataclasses import dataclass
from typing import Literal

from regimen.config.domains import Study, domains, load
from regimen.config.fields import Natural, Positive
from regimen.config.flags import parse, positional
from regimen.errors import UsageError, nearest
from regimen.experiments.studies.arguments import StudyArgs


@dataclass(frozen=True)
class BatchingArgs(StudyArgs):
    """Measure what collecting more episodes before each update buys, and write tables, plots and a summary.

      gradient  how noisy a gradient is, against the rollout's size
      target    steps and updates until the greedy policy reaches a return, for
                rollout sizes and the presets single_episode, parallel_25 and
                big_batch; spread over seeds, collapse, entropy
      epochs    1, 2, 4 and 6 passes over 10 episodes
      rates     a third, one and three times the learning rate
      outlier   the damage of one episode with huge rewards

    Results are written after each part; Ctrl+C keeps what is measured.

      regimen study batching cartpole --quick
      regimen study batching pendulum --target -200 --parts gradient,target --sizes 1 10 50
    """

    env: str = positional("ENV", default="cartpole")
    sizes: tuple[int, ...] | None = None
    """Episodes per update to compare (1 5 10 20, for gradients also 50; with --quick 1 10)."""
    seeds: Natural | None = None
    """Seeds of every training (10; with --quick 3)."""
    budget: Natural | None = None
    """Env steps of every training (the environment's own budget, else 200,000; with --quick 20,000)."""
    target: float | None = None
    """Evaluation return to reach; by default the environment's threshold."""
    repeats: Natural | None = None
    """Independent rollouts per gradient estimate (200; with --quick 48)."""
    epochs: Natural = 4
    """Passes over each batch of the rollout sizes."""
    minibatch_size: Natural = 64
    """Env steps per gradient step of the rollout sizes."""
    lr: Positive | None = None
    """Learning rate of all trainings, held constant; by default the environment's own."""
    factor: Positive = 100.0
    """What an outlier's rewards are multiplied by."""
    eval_episodes: Natural | None = None
    """Greedy episodes per evaluation (20; with --quick 10)."""
    preset: str | None = None
    """Preset of the other settings; by default the environment's tuned settings."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""


STUDIES: dict[str, Study] = {
    "batching": Study(
        "what collecting more episodes before each update buys",
        f"{__name__}:BatchingArgs",
        "regimen.experiments.studies.batching",
        "regimen study batching cartpole --quick",
    ),
    **{name: study for domain in domains().values() for name, study in domain.studies.items()},
}


def usage() -> str:
    """The page of `regimen study --help`."""
    return "\n".join(
        [
            "usage: regimen study STUDY [ENV] [OPTIONS]",
            "",
            "Measure what a way of training buys, and write tables, plots and a summary.",
            "",
            *(f"  {name:<12} {study.help}" for name, study in STUDIES.items()),
            "",
            "`regimen study STUDY --help` explains the options of one.",
            "",
            *(f"  {study.example}" for study in STUDIES.values()),
        ]
    )


def read(argv: list[str]) -> tuple[str, StudyArgs]:
    """Which study, and its arguments."""
    if not argv:
        raise UsageError(f"which STUDY? One of {', '.join(STUDIES)}; see `regimen study --help`")
    name, rest = argv[0], argv[1:]
    if name not in STUDIES:
        raise UsageError(f"unknown study '{name}'{nearest(name, STUDIES)}")
    return name, parse(load(STUDIES[name].args), rest, f"study {name}")


def run(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(usage())
        return 0
    name, args = read(argv)

    from regimen.experiments.studies.frame import Lines

    study = importlib.import_module(STUDIES[name].target).run(
        args.env,
        command=shlex.join(["regimen", "study", *argv]),
        console=Lines(args.quiet, sys.stderr if args.json else None),
        **{f.name: getattr(args, f.name) for f in dataclasses.fields(args) if f.name not in ("env", "json", "quiet")},
    )
    if args.json:
        print(json.dumps(study.summary(), indent=2))
    return study.exit_code
