"""What is assumed of humans and wanted of robots, as one validated value. Jax-free."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from regimen.config.fields import AtLeastOne, Discount, Fraction, Negative, NotNegative, Whole
from regimen.config.validation import read_field
from regimen.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Equations:
    """The parameters of equations (1) to (9) that solvers and the learner have alike; see docs/empowerment.md."""

    gamma_r: Discount = 0.99
    """The robot's discount."""
    gamma_h: Discount = 0.99
    """Humans' discount: reaching a goal in k steps is worth gamma_h^(k-1)."""
    zeta: AtLeastOne = 2.0
    """How much reliable goals count more than gambles; 1 means not at all."""
    xi: AtLeastOne = 1.0
    """Aversion to inequality between humans; 1 already protects a person's last bit of power."""
    eta: AtLeastOne = 1.1
    """Further aversion to inequality over time; stay close to 1."""
    beta_r: NotNegative = 10.0
    """How strictly the robot prefers better actions; 0: not at all. A finite one never rules an action out."""
    terminal_v_r: Negative = -1e-10
    """V_r where the world has ended; must be below 0."""
    form: Literal["mean", "sum"] = "mean"
    """Whether X_h and U_r are means over goals and humans, or the sums of the paper."""
    robot_policy: Literal["power", "boltzmann"] = "power"
    """power is (-Q_r)^-beta_r; boltzmann is exp(beta_r Q_r / range of Q_r), the paper's alternative."""
    nu_h: Fraction = 0.0
    """Share of human actions that are habit: drawn at random instead of from the prior."""
    serves: Whole | None = None
    """The one human whose power counts in (8), by number: a robot that serves this person alone, to compare with."""

    def check_humans(self, humans: int) -> None:
        """Refuse a robot that serves a human who is not there."""
        if self.serves is not None and self.serves >= humans:
            raise ConfigError(f"serves: there is no human {self.serves}; the world has {humans}, counted from 0")


@dataclass(frozen=True, kw_only=True)
class Theory(Equations):
    """All parameters that the solvers take. Those of humans describe, the robot's are chosen."""

    terminal_v_r: float = Equations.terminal_v_r
    """V_r where the world has ended; below 0."""
    beta_r: NotNegative | Literal["inf"] = 10.0
    """How strictly the robot prefers better actions; 0: not at all; inf: it takes one of the best."""
    beta_h: NotNegative | Literal["inf"] = 10.0
    """How strictly humans of a computed prior choose their best action; inf means always."""
    prior: Literal["heuristic", "cautious", "optimistic", "mean"] = "heuristic"
    """How humans act: by the world's own prior, or computed for the worst, the best or the average robot."""

    def __post_init__(self):
        for f in dataclasses.fields(Theory):
            value = getattr(self, f.name)
            certain = f.name in ("beta_h", "beta_r") and str(value).strip().lower() in ("inf", "+inf", "infinity")
            object.__setattr__(self, f.name, math.inf if certain else read_field(Theory, f.name, value, f.name))
        if self.prior == "heuristic" and self.beta_h != Theory.beta_h:
            raise ConfigError(
                f"beta_h: {self.beta_h:g} would change nothing, the heuristic prior is the world's own; set env.beta_h "
                "(--env.beta_h), or a prior that is computed (--prior cautious)"
            )
        if not self.terminal_v_r < 0:
            raise ConfigError(f"terminal_v_r: {self.terminal_v_r:g} is out of range; it must be below 0, as V_r is")
