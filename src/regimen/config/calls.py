"""Constructor calls of other trainers, answered with ours: `PPO("MlpPolicy", env, learning_rate=3e-4)`. Jax-free."""

from collections.abc import Mapping

from regimen.config import lookup, names
from regimen.config.schema import ALGORITHMS


def is_call(config: object, arguments: Mapping[str, object]) -> bool:
    """Whether an algorithm is made as another trainer makes it."""
    return isinstance(config, (str, Mapping)) or not arguments.keys().isdisjoint(("policy", "env"))


def answer_call(cls: str, config: object, env: object, arguments: Mapping[str, object]) -> str:
    """What `PPO("MlpPolicy", env, n_steps=64)` of another trainer is here: one line with what means the same, and the
    other arguments answered one by one."""
    arguments = {**(config if isinstance(config, Mapping) else {}), **arguments}
    _, env = arguments.pop("policy", None), arguments.pop("env", env)
    if env is None and isinstance(config, str) and not config.endswith("Policy"):  # PPO("CartPole-v1")
        env = config
    algorithm = cls.lower() if cls.lower() in ALGORITHMS else "ppo"
    leaves, inside, outside, others = lookup.usable(algorithm), [], [], []
    for name, value in arguments.items():
        setting = name if name in leaves else same_setting(name, algorithm, value)
        if setting is None:
            others.append(unknown_argument(cls, name, value))
        else:
            (inside if setting.startswith("algo.") else outside).append((setting, value))
    settings = ", ".join(f"{setting.removeprefix('algo.')}={value!r}" for setting, value in inside)
    name = repr(names.environment(env)) if isinstance(env, str) else "env" if env is not None else "ENV"
    more = ", **" + repr(dict(outside)) if outside else ""
    text = f"a policy network and an environment are not arguments of {cls}; here it is regimen.Trainer({name}, "
    text += f"algo=regimen.{cls}({settings}), total_steps=100_000{more}).train(), with the network in hidden=(64, 64)"
    return "; ".join([text, *others])


def unknown_argument(cls: str, name: str, value: object) -> str:
    """That an algorithm has no such setting, and which one is meant."""
    algorithm = cls.lower()
    if algorithm not in ALGORITHMS:
        return f"{cls} has no setting '{name}'"
    setting = same_setting(name, algorithm, value) or ""
    same = setting.startswith("algo.") and f"; here it is {setting.removeprefix('algo.')}={value!r}"
    return f"{cls} has no setting '{name}'{same or lookup.suggest(name, algorithm, given=value)}"


def same_setting(name: str, algorithm: str, value: object) -> str | None:
    """The setting in which a value means the same as under another trainer's name, or under ours without a section."""
    leaves = lookup.usable(algorithm)
    entry = names.name_of(name)
    setting = None if entry is None else names.setting_of(entry, leaves)
    if entry is None or setting is None:
        return f"algo.{name}" if f"algo.{name}" in leaves else None
    return setting if entry.value(setting, value) is not None else None
