"""The hyper-parameters of CQL. Jax-free; the docstring under a field is its `--help` text."""

from dataclasses import dataclass
from typing import Annotated

from regimen.config.algorithms.sac import SACConfig
from regimen.config.domains import AlgorithmEntry
from regimen.config.fields import Natural, NotNegative, Positive, Range, Whole
from regimen.errors import ConfigError


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Conservative Q-learning (Kumar et al. 2020, arXiv 2006.04779): SAC's hyper-parameters and its own."""

    lr: Positive = 1e-4
    """Adam's learning rate of the policy, and of critics and temperatures that have none of their own."""
    critic_lr: Positive | None = 3e-4
    """Learning rate of the critics and of the Lagrange multiplier; by default `lr`."""
    alpha: Positive = 0.1
    """Temperature at the start, or always if `learn_alpha` is off."""
    learning_starts: Whole = 0
    """Env steps with uniformly random actions before learning begins, if training continues online."""
    min_q_weight: NotNegative = 5.0
    """Weight of the conservative term (alpha), beside 1/2 of the squared error. With `lagrange`, its value at the
    start."""
    cql_samples: Natural = 10
    """Sampled actions of each of three distributions (uniform, policy, policy at the successor) for continuous
    actions."""
    importance_sampling: bool = True
    """Weigh sampled actions by their density, which makes the term the logarithm of an integral."""
    lagrange: Annotated[float, Range(-1000000.0, 1000000.0)] | None = None
    """Hold the conservative gap at this threshold by learning its weight; off if not set."""
    backup_entropy: bool = False
    """Let the critics' targets include the entropy bonus, as SAC's do; otherwise Q is the return alone."""
    max_q_backup: bool = False
    """Take the largest Q of `cql_samples` actions of the policy in the target."""
    bc_steps: Whole = 0
    """Gradient steps in which the policy is cloned from the data before it follows the critics."""
    reward_scale: Positive = 1.0
    """Factor of the rewards in learning; logged returns and `q_data_mean` keep their own units."""
    behaviour_steps: Natural = 10000
    """Env steps of the run of SAC that collects data if none is given."""
    online_steps: Whole = 0
    """How many of the last steps of the budget are online, starting from the offline policy with the data in the
    replay."""
    online_q_weight: NotNegative = 0.0
    """Weight of the conservative term while online (not with `lagrange`)."""

    def validate(self) -> None:
        if self.lagrange is not None and self.min_q_weight == 0:
            raise ConfigError("algo.min_q_weight: the multiplier of algo.lagrange cannot start at 0")


ENTRY = AlgorithmEntry(
    CQLConfig,
    "regimen.algorithms.cql:CQL",
    "Conservative Q-learning: SAC on a dataset, with lower values for actions that the data does not contain.",
    "Use it if there is data and no environment to explore, or if online learning should start from data.",
    offline=True,
    online=False,
)
