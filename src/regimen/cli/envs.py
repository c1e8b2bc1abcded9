"""`regimen envs [NAME]`: the environments, or one's spaces and the fields that `--env.KEY` sets."""

from __future__ import annotations

from dataclasses import dataclass, field

from regimen.config.flags import field_docs, parse, positional
from regimen.config.layers import check_env_name


@dataclass(frozen=True)
class EnvsArgs:
    """List the environments, or show one: its spaces and what --env.KEY can set."""

    name: str | None = positional("[NAME]", default=None)
    """An environment: a name of the list, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, object] = field(default_factory=dict)


def run(argv: list[str]) -> int:
    args = parse(EnvsArgs, argv, "envs")
    if args.name is None:
        return list_envs()
    check_env_name(args.name)

    from regimen.envs.registry import resolve
    from regimen.spaces import describe

    env = resolve(args.name, args.env_args)
    print(args.name)
    print(f"  observation         {describe(env.observation_space)}")
    print(f"  action              {describe(env.action_space)}")
    print(f"  reward components   {', '.join(env.reward_components)}")
    print(f"  max episode steps   {env.max_episode_steps or 'no limit'}")
    if env.return_threshold is not None:
        print(f"  solved at return    {env.return_threshold:g}")
    print(f"  baseline policies   {', '.join(dict.fromkeys(('random', *env.baselines)))}")
    for name, texts in getattr(env.native, "curricula", {}).items():
        print(f"  --curriculum {name:<15} {'; '.join(f'{field}: {text}' for field, text in texts.items())}")
    if not hasattr(env.native, "settings"):
        print("  --env.KEY VALUE     an argument of the environment's constructor, or max_episode_steps")
        return 0
    for line in env.native.notes():  # type: ignore[union-attr]
        print(f"  {line}")
    docs = field_docs(type(env.native))
    for name, value in env.native.settings().items():  # type: ignore[union-attr]
        print(f"  --env.{name:<22} {value!s:<10} {docs.get(name, '')}".rstrip())
    return 0


def list_envs() -> int:
    from regimen.config.catalogue import ENVS, FILES

    for name, entry in ENVS.items():
        print(f"{name:<26} {entry.description}")
    print(f"{'gym:ID':<26} any installed Gymnasium environment, for example gym:LunarLander-v3")
    print(f"{'gymnax:ID':<26} any gymnax environment, for example gymnax:Breakout-MinAtar")
    for prefix, kind in FILES.items():
        print(f"{f'{prefix}:{kind.file}':<26} {kind.description}")
    print(f"{'module:factory':<26} your own: a function or class that makes a native or a Gymnasium environment")
    return 0
