"""Verbs that play episodes with a policy or hand it on: `evaluate`, `collect`, `replay`, `export`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from regimen.config.fields import Fraction, Natural, Whole
from regimen.config.flags import positional, renamed
from regimen.errors import UsageError

if TYPE_CHECKING:
    from regimen.policies.evaluate import Evaluation
    from regimen.policies.leaderboard import Board
    from regimen.policies.transfer import Transfer


@dataclass(frozen=True)
class EvaluateArgs:
    """Play episodes with a trained policy (RUN, or models:/NAME@champion) or with a baseline (ENV --policy NAME).

    With --in, also in another environment with the same spaces: does the policy do there what it does at home? The exit
    code is 0 whatever the answer; `verdict` of --json has it.

      regimen evaluate runs/first --episodes 1000
      regimen evaluate runs/first --in gym:CartPole-v1 --margin 5
      regimen evaluate runs/first --in simulator.py:make --margin return=1,success=0.02 --json
    """

    target: str = positional("RUN|ENV")
    """Run directory, environment, or registered model `models:/NAME@ALIAS`."""
    policy: str | None = None
    """`random` or a baseline that the environment registers, instead of the trained policy."""
    episodes: Natural = 100
    """Episodes to play."""
    seed: Whole = 0
    """Seed of the episodes."""
    checkpoint: str = "best"
    """Which policy of the run: `best`, `final` or a step."""
    in_env: str | None = renamed("in", default=None)
    """Also play the policy in this environment, over the same seeds: a name, `gym:ID`, `module:factory`,
    `file.py:factory`."""
    in_args: dict[str, object] = renamed("in", default_factory=dict)  # noqa: RUF009
    """Set a field or argument of the environment of --in; --env.KEY sets those of the run's own."""
    margin: str | None = None
    """With --in: a difference of the return that would not matter, or of several metrics (`return=1,success=0.02`). Two
    one-sided tests say whether the environments are equivalent within it."""
    leaderboard: bool = False
    """Play by the rules of a public leaderboard, and show the result beside what is published there."""
    env_args: dict[str, object] = field(default_factory=dict)
    tracking_uri: str | None = None
    """MLflow tracking store that holds a `models:/` target."""
    json: bool = False
    """Print the result as JSON, and nothing else, on standard output."""

    def __call__(self) -> None:
        result = self.leaders() if self.leaderboard else self.episodes_of()
        print(json.dumps(result.to_dict(), indent=2) if self.json else "\n".join(result.lines()))

    def episodes_of(self) -> Evaluation | Transfer:
        """Play by the environment's own rules, there and, with --in, elsewhere."""
        names = ("episodes", "seed", "env_args", "checkpoint", "tracking_uri")
        options = {name: getattr(self, name) for name in names}
        if self.in_env is None:
            if self.margin is not None or self.in_args:
                flag = "--margin" if self.margin is not None else f"--in.{next(iter(self.in_args))}"
                raise UsageError(f"{flag} goes with --in ENV, the other environment")
            from regimen.policies.evaluate import evaluate

            return evaluate(self.target, policy=self.policy, **options)
        if self.policy is not None:
            raise UsageError("--in plays the trained policy of a run; leave --policy out")
        from regimen.policies.transfer import evaluate_in

        return evaluate_in(self.target, self.in_env, self.margin, in_args=self.in_args, **options)

    def leaders(self) -> Board:
        """Play by the rules of a leaderboard."""
        for name in ("policy", "in_env", "margin"):
            if getattr(self, name) is not None:
                raise UsageError(f"--{name.removesuffix('_env')} has no effect with --leaderboard; leave one out")
        from regimen.policies.leaderboard import leaderboard

        return leaderboard(self.target, self.episodes, self.seed, self.env_args, self.checkpoint)


@dataclass(frozen=True)
class CollectArgs:
    """Play episodes with the policies of a run (RUN), or at random (ENV), and write them as a Minari dataset."""

    target: str = positional("RUN|ENV")
    """Run directory, or an environment for random actions."""
    out: str = ""
    """Folder to write, or `minari:ID` for a dataset in Minari's own root."""
    policy: str | None = None
    """Who acts: `expert` (the run's best policy), `medium` (the checkpoint halfway between random and best), `final`, a
    checkpoint's step, `random`, or `replay` (the run's replay buffer, else all its checkpoints in turn)."""
    mix: str | None = None
    """Several policies, each with its fraction of the episodes: `expert:0.5,random:0.5`."""
    checkpoint: str | None = None
    """The checkpoint whose policy acts, instead of --policy: `best`, `final` or a step."""
    episodes: Natural | None = None
    """Episodes to write; by default 100, or all of a replay buffer."""
    steps: Natural | None = None
    """Steps to write, at least; episodes are whole."""
    target_return: float | None = None
    """`medium` is the checkpoint whose evaluation is nearest to this."""
    epsilon: Fraction = 0.0
    """Probability of a uniform action instead of the policy's, at every step."""
    greedy: bool = False
    """Act greedily; by default actions are sampled."""
    seed: Whole = 0
    """Seed of the episodes."""
    env_args: dict[str, object] = field(default_factory=dict)
    json: bool = False
    """Print what was written as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""

    def __call__(self) -> None:
        if not self.out:
            raise UsageError("regimen collect needs --out DATASET: a folder, or minari:ID")

        from regimen.policies.collect import collect

        def report(text: str) -> None:
            if not self.quiet:
                print(text, file=sys.stderr if self.json else sys.stdout, flush=True)

        names = ("policy", "episodes", "steps", "mix", "checkpoint", "target_return", "epsilon", "greedy", "seed")
        options = {name: getattr(self, name) for name in (*names, "env_args")}
        data = collect(self.target, self.out, **options, report=report)
        print(json.dumps(data.describe(), indent=2) if self.json else f"{data.summary()} in {data.path}")


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
    """Play this scenario (a name or a file) instead of the one of training, if the environment has several."""
    gif: bool = True
    """Draw the animation; without it only the table is written."""
    env_args: dict[str, object] = field(default_factory=dict)

    def __call__(self) -> None:
        from regimen.reports.replay import replay

        others = (self.env_args, self.scenario, self.gif)
        for path in replay(self.run, self.checkpoint, self.episodes, self.seed, self.fps, *others):
            print(path)


@dataclass(frozen=True)
class ExportArgs:
    """Write a run's policy to a folder of its own: safetensors and JSON, all that `regimen.load_policy` needs, with
    metadata.json and a README.md that say what it is, how it was trained and how good it is."""

    run: str = positional("RUN")
    """Run directory."""
    out: str | None = None
    """Folder to write; by default RUN/export."""
    checkpoint: str = "best"
    """Which policy: `best`, `final` or a step."""
    format: Literal["policy", "stablehlo", "onnx"] = "policy"
    """Also write a program that acts without Regimen: `stablehlo` (needs jax only) or `onnx` (needs onnxruntime only;
    made by jax2onnx, `pip install 'regimen[onnx]'`). Its actions are compared with the policy's before it is kept."""
    form: str | None = renamed("as", default=None)
    """Also write the policy in the form that a tool of the environment's field runs. Each domain has its own forms; an
    unknown name lists them."""

    def __call__(self) -> None:
        from regimen.policies.export import export_policy

        print(export_policy(self.run, self.out, self.checkpoint, self.format, self.form))
