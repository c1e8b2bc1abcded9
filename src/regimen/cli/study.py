"""`regimen study STUDY ENV`: measure what a way of training buys."""

from __future__ import annotations

import dataclasses
import importlib
import json as json_lib
import shlex
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

from regimen.config.fields import Natural, Positive, Whole
from regimen.config.flags import parse, positional
from regimen.errors import UsageError, nearest

USAGE = """usage: regimen study STUDY [ENV] [OPTIONS]

Measure what a way of training buys, and write tables, plots and a summary.

  batching     what collecting more episodes before each update buys
  updates      when to update, side by side: per episode, per N, parallel, from a replay
  empowerment  each documented choice of learning human power, against the exact values

`regimen study STUDY --help` explains the options of one.

  regimen study batching cartpole --quick
  regimen study updates network_defense --quick
  regimen study empowerment world/corr5 --parts ramp,clearing --seeds 3"""


@dataclass(frozen=True)
class BatchingArgs:
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
    """A native environment of `regimen envs`, or gymnax:ID, or module:factory."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    quick: bool = False
    """A look in a minute or two: fewer seeds, sizes, rollouts and steps, where they are not given."""
    sizes: tuple[int, ...] | None = None
    """Episodes per update to compare (1 5 10 20, for gradients also 50; with --quick 1 10)."""
    seeds: Natural | None = None
    """Seeds of every training (10; with --quick 3)."""
    seed: Whole = 0
    """The first of them."""
    budget: Natural | None = None
    """Env steps of every training (the environment's own budget, else 200,000; with --quick 20,000)."""
    target: float | None = None
    """Evaluation return to reach; the environment's threshold when not given."""
    repeats: Natural | None = None
    """Independent rollouts per gradient estimate (200; with --quick 48)."""
    epochs: Natural = 4
    """Passes over each batch of the rollout sizes."""
    minibatch_size: Natural = 64
    """Env steps per gradient step of the rollout sizes."""
    lr: Positive | None = None
    """Learning rate of all trainings, held constant; the environment's own when not given."""
    factor: Positive = 100.0
    """What an outlier's rewards are multiplied by."""
    eval_episodes: Natural | None = None
    """Greedy episodes per evaluation (20; with --quick 10)."""
    preset: str | None = None
    """Where the other settings come from; the environment's tuned ones when not given."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""
    out: str | None = None
    """Folder to write to; by default `studies/batching-<env>-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


@dataclass(frozen=True)
class UpdatesArgs:
    """Compare when to update: after 1, 5 and 10 episodes, 25 parallel ones, 20,000 steps, and from a replay.

      race        env steps and seconds until the greedy policy reaches returns,
                  return at the end, memory
      gradient    how noisy an update's gradient is at fixed policies
      overfit     how much of an update's claimed gain a new batch confirms
      compliance  episodes until the bound of compliance with a workflow passes
                  the gate, where the environment has workflows

    Each strategy has its documented epochs, as full batches, with z-scored Monte-Carlo returns and with GAE.
    Results are written after each part; Ctrl+C keeps what is measured.

      regimen study updates network_defense --quick
      regimen study updates network_defense --seeds 3 --parts race --strategies "10 episodes,25 parallel"
      regimen study updates cartpole --targets 200 475 --budget 3e5
    """

    env: str = positional("ENV", default="network_defense")
    """A native environment of `regimen envs`, or gymnax:ID, or module:factory."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    strategies: str | None = None
    """Which of "1 episode, 5 episodes, 10 episodes, 25 parallel, 20,000 steps, replay", separated by commas."""
    quick: bool = False
    """A look in a minute or two: fewer seeds, strategies, updates and steps, where they are not given."""
    targets: tuple[float, ...] | None = None
    """Evaluation returns to reach; on network_defense -100 -50 -25, else the environment's threshold."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    seed: Whole = 0
    """The first of them."""
    budget: Natural | None = None
    """Env steps of every training (1,000,000; with --quick 50,000)."""
    replay_share: Positive | None = None
    """Share of the budget for the replay, which takes a gradient step for every env step (0.03)."""
    repeats: Natural | None = None
    """Rollouts or updates for each estimate of noise and overfitting (64; with --quick 8)."""
    eval_episodes: Natural | None = None
    """Greedy episodes per evaluation (100)."""
    gate: Positive | None = None
    """Compliance whose lower bound must be reached (0.95)."""
    workflow: str | None = None
    """The order to comply with (critical_first)."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""
    out: str | None = None
    """Folder to write to; by default `studies/updates-<env>-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


@dataclass(frozen=True)
class EmpowermentArgs:
    """Score each documented choice of learning human power against the exact values of a world.

    Parts: policy (power law or Boltzmann), ramp, clearing (of the replay), decay (of learning rates), loss (MSE or
    Huber), targets (copies on or off), dropout, model (model-based or sampled targets), x_h_batch. Results are written
    after each part; Ctrl+C keeps what is measured.

      regimen study empowerment world/corr5 --quick
      regimen study empowerment world/way1x5 --parts ramp,clearing --seeds 3
    """

    env: str = positional("ENV", default="world/asym1x7")
    """A world that can be solved exactly: a name of `regimen envs`, world:FILE, or module:factory."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    quick: bool = False
    """A look in a minute or two: fewer seeds and steps, where they are not given."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    seed: Whole = 0
    """The first of them."""
    budget: Natural | None = None
    """Env steps of every training (32,768; with --quick 8,192)."""
    out: str | None = None
    """Folder to write to; by default `studies/empowerment-<world>-<time>`."""
    env_args: dict[str, Any] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""


MODULES = {"empowerment": "regimen.domains.empowerment.study"}
STUDIES: dict[str, type] = {"batching": BatchingArgs, "updates": UpdatesArgs, "empowerment": EmpowermentArgs}


def read(argv: list[str]) -> tuple[str, Any]:
    """Which study, and its arguments."""
    if not argv:
        raise UsageError(f"which STUDY? One of {', '.join(STUDIES)}; see `regimen study --help`")
    name, rest = argv[0], argv[1:]
    if name not in STUDIES:
        raise UsageError(f"unknown study '{name}'{nearest(name, STUDIES)}")
    return name, parse(STUDIES[name], rest, f"study {name}")


def run(argv: list[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    name, args = read(argv)

    from regimen.experiments.studies.jobs import Console

    study = importlib.import_module(MODULES.get(name, f"regimen.experiments.studies.{name}")).run(
        args.env,
        command=shlex.join(["regimen", "study", *argv]),
        console=Console(args.quiet, sys.stderr if args.json else None),
        **{f.name: getattr(args, f.name) for f in dataclasses.fields(args) if f.name not in ("env", "json", "quiet")},
    )
    if args.json:
        print(json_lib.dumps(study.summary(), indent=2))
    return study.exit_code
