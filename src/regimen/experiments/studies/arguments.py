"""Flags that every study of `regimen study` has. Jax-free."""

from dataclasses import dataclass, field

from regimen.config.fields import Natural, Whole
from regimen.config.flags import positional


@dataclass(frozen=True)
class StudyArgs:
    """A study overrides what its own help says otherwise, and adds its options."""

    env: str = positional("ENV", default="")
    """A native environment of `regimen envs`, or gymnax:ID, or module:factory."""
    parts: str | None = None
    """Which parts, separated by commas; all of them when not given."""
    quick: bool = False
    """A look in a minute or two: fewer seeds, measurements and steps, where they are not given."""
    seeds: Natural | None = None
    """Seeds of every training."""
    seed: Whole = 0
    """The first of them."""
    budget: Natural | None = None
    """Env steps of every training."""
    out: str | None = None
    """Folder to write to; by default `studies/<study>-<env>-<time>`."""
    env_args: dict[str, object] = field(default_factory=dict)
    json: bool = False
    """Print the results as JSON, and nothing else, on standard output."""
    quiet: bool = False
    """Print no progress."""
