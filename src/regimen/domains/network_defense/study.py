"""The flags of `regimen study updates`, a study of any native environment that was made for this one."""

from dataclasses import dataclass
from typing import Literal

from regimen.config.fields import Natural, Positive
from regimen.config.flags import positional
from regimen.experiments.studies.arguments import StudyArgs


@dataclass(frozen=True)
class UpdatesArgs(StudyArgs):
    """Compare when to update: after 1, 5 and 10 episodes, 25 parallel ones, 20,000 steps, and from a replay.

      race        env steps and seconds until the greedy policy reaches returns,
                  return at the end, memory
      gradient    how noisy an update's gradient is at fixed policies
      overfit     how much of an update's claimed gain a new batch confirms
      compliance  on network_defense: episodes until the bound of compliance
                  with a workflow passes the gate

    Each strategy has its documented epochs, as full batches, with z-scored Monte-Carlo returns and with GAE.
    Results are written after each part; Ctrl+C keeps what is measured.

      regimen study updates network_defense --quick
      regimen study updates network_defense --seeds 3 --parts race --strategies "10 episodes,25 parallel"
      regimen study updates cartpole --targets 200 475 --budget 3e5
    """

    env: str = positional("ENV", default="network_defense")
    strategies: str | None = None
    """Which of "1 episode, 5 episodes, 10 episodes, 25 parallel, 20,000 steps, replay", separated by commas."""
    targets: tuple[float, ...] | None = None
    """Evaluation returns to reach; by default those that the environment names, else its threshold."""
    seeds: Natural | None = None
    """Seeds of every training (5; with --quick 2)."""
    budget: Natural | None = None
    """Env steps of every training (1,000,000; with --quick 50,000)."""
    replay_share: Positive | None = None
    """Share of the budget for the replay, which takes a gradient step for every env step (0.03)."""
    repeats: Natural | None = None
    """Rollouts or updates for each estimate of noise and overfitting (64; with --quick 8)."""
    eval_episodes: Natural | None = None
    """Greedy episodes per evaluation (100)."""
    gate: Positive | None = None
    """What the lower bound of the rate that the environment gates must reach (0.95)."""
    workflow: str | None = None
    """The task for which that rate is measured: on network_defense the order to comply with (critical_first)."""
    device: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to train."""
