"""`regimen evaluate RUN|ENV`: play episodes and report the returns."""

from __future__ import annotations

import json as json_lib
from dataclasses import dataclass, field

from regimen.config.fields import Natural, Whole
from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class EvaluateArgs:
    """Play episodes with a trained policy (RUN, or models:/NAME@champion) or with a baseline (ENV --policy NAME)."""

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
    env_args: dict[str, object] = field(default_factory=dict)
    tracking_uri: str | None = None
    """MLflow tracking store that holds a `models:/` target."""
    json: bool = False
    """Print the result as JSON, and nothing else, on standard output."""


def run(argv: list[str]) -> int:
    args = parse(EvaluateArgs, argv, "evaluate")

    from regimen.policies.evaluate import evaluate

    result = evaluate(
        args.target,
        policy=args.policy,
        episodes=args.episodes,
        seed=args.seed,
        env_args=args.env_args,
        checkpoint=args.checkpoint,
        tracking_uri=args.tracking_uri,
    )
    print(json_lib.dumps(result.to_dict(), indent=2) if args.json else "\n".join(result.lines()))
    return 0
