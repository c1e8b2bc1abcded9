"""`regimen check-env ENV`: what is wrong with an environment, before training."""

from __future__ import annotations

from dataclasses import dataclass, field

from regimen.config.flags import parse, positional
from regimen.errors import EnvError


@dataclass(frozen=True)
class CheckEnvArgs:
    """Reset and step an environment and say what breaks its contract. Exit code 4 when something does."""

    env: str = positional("ENV")
    """A name of `regimen envs`, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, object] = field(default_factory=dict)


def run(argv: list[str]) -> int:
    args = parse(CheckEnvArgs, argv, "check-env")

    from regimen.envs.check import check_env

    problems = check_env(args.env, args.env_args)
    for problem in problems:
        print(f"{problem.level}: {problem.message}")
    errors = sum(problem.level == "error" for problem in problems)
    if not errors:
        print(f"{args.env}: ok")
    return EnvError.exit_code if errors else 0
