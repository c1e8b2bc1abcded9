"""Environments by name, and everything else `--env` may be, as one `EnvHandle`.

Jax-free at import: an import string is resolved when its environment is asked for, so listing names costs nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from regimen.config import trust
from regimen.config.catalogue import ENVS, FILES, OTHERS, anchored, full_name, suggestion
from regimen.config.domains import EnvEntry
from regimen.config.validation import coerce
from regimen.envs.arguments import LIMIT, Arguments, bind, changed_fields, parameters_of, set_fields, unknown_argument
from regimen.envs.imports import load, one_line
from regimen.envs.makers import components_of, copies_of, guarded, gym_factory, limited, time_limit
from regimen.envs.metric import Metric, metrics_of
from regimen.errors import ConfigError, EnvError

if TYPE_CHECKING:
    import gymnasium

    from regimen.envs.copies import Copies
    from regimen.envs.frames import Frames
    from regimen.envs.protocol import Env, NativeEnv
    from regimen.types import PyTree

    EnvLike = str | Callable[..., object] | Env | NativeEnv | gymnasium.Env  # an id, a class, a factory or an instance


def register_env(name: str, target: EnvLike, description: str = "") -> None:
    """Make an environment of yours known by a name: `regimen train NAME` and all other verbs then find it.

    Args:
        name: letters, digits, `_`, `-` and `/`.
        target: an import string (`module:factory`), a class, a factory or an instance.
        description: a line for `regimen envs`.
    """
    if not name or ":" in name:
        raise ConfigError(f"register_env: '{name}' is not a name; use letters, digits, '_', '-' and '/', but no ':'")
    ENVS[name] = EnvEntry(target, description)


@dataclass(frozen=True, eq=False)
class EnvHandle:
    """An environment ready to be trained on: native, or a maker of Gymnasium environments or of `Team`s."""

    id: str
    native: Env | None
    make_host: Callable[[], Any] | None
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    reward_components: tuple[str, ...] = ("total",)
    metrics: dict[str, Metric] = field(default_factory=dict)
    max_episode_steps: int = 0  # 0: unknown
    return_threshold: float | None = None
    baselines: dict[str, Callable[..., PyTree]] = field(default_factory=dict)  # of a native one: `Baseline`s
    action_conditions: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)  # see `distributions.Joint`
    agents: tuple[str, ...] = ()  # names, where there are several
    copies: int = 0  # most that can be open in one process; 0: any number
    imitates: str = ""  # how the names begin of environments whose settings it takes, where it is their simulator
    env_args: Arguments = field(default_factory=dict)  # with `id`, what makes the same environment again
    frames: Frames | None = None  # what an observation is a stack of
    make_copies: Callable[[int], Copies] | None = None  # where they are not those of `make_host` in this process

    @property
    def kind(self) -> Literal["native", "host"]:
        return "host" if self.native is None else "native"

    @property
    def metric_reductions(self) -> dict[str, str]:
        """How an episode sums up each metric: all that sources need to know of them."""
        return {name: metric.reduce for name, metric in self.metrics.items()}


def make_env(env: EnvLike, **kwargs: object) -> Env | gymnasium.Env:
    """Make an environment by its name: a native one, or one of Gymnasium. `make_env("cartpole", gravity=3.7)`.

    Args:
        env: a name, `gym:ID`, `file.py:factory`, or a class, a factory or an instance.
        **kwargs: settings of the environment.
    """
    handle = resolve(env, kwargs)
    return handle.native if handle.make_host is None else handle.make_host()  # type: ignore[return-value]


def is_native(env: EnvLike) -> bool:
    """Whether an environment would be compiled. A factory function is taken to make a native environment until it is
    called."""
    import gymnasium

    _, target = locate(env)
    if isinstance(target, str):
        return target.startswith("gymnax:")
    on_host = issubclass(target, gymnasium.Env) if inspect.isclass(target) else isinstance(target, gymnasium.Env)
    return not (on_host or looks_parallel(target))


def resolve(env: EnvLike, env_args: Mapping[str, object] | None = None) -> EnvHandle:
    """A handle on an id (see `locate`), a class, a factory or an instance, native or of Gymnasium.

    `env_args` sets the fields of a native environment, the arguments of `gym.make`, of the class or of the factory;
    `max_episode_steps` always works, and `frame_stack` and `grey_scale` where an image is observed. What a file names
    is judged while it is made (`config/trust.py`).
    """
    from regimen.envs import frames

    args, images = frames.split(env_args)
    with trust.judging(env):
        return frames.framed(handle_on(*locate(env), args), images)


def handle_on(name: str, target: Any, env_args: Mapping[str, object] | None) -> EnvHandle:
    """A handle on what `locate` found."""
    import gymnasium

    args: Arguments = dict(env_args or {})
    if LIMIT in args:
        args[LIMIT] = coerce(args[LIMIT], int, f"env.{LIMIT}")
        if args[LIMIT] < 1:
            raise ConfigError(f"env.{LIMIT}: {args[LIMIT]} is out of range; it must be at least 1")

    if isinstance(target, str):
        kind, _, identifier = target.partition(":")
        if kind == "gymnax":
            from regimen.envs.adapters.gymnax import from_gymnax

            return native_handle(name, from_gymnax(identifier, **args), args)
        if kind == "pettingzoo":
            from regimen.envs.adapters.pettingzoo import parallel_factory

            maker = guarded(lambda: parallel_factory(identifier), name)()
            if trust.judged() is not None and ":" in identifier:
                required_env(maker)
            return parallel_handle(name, maker, args)
        if kind == "envpool":
            from regimen.envs.adapters.envpool import PoolCopies, PoolEnv, PoolTask

            task = PoolTask(identifier, args, name)
            handle = host_handle(name, lambda: PoolEnv(task), args)
            return dataclasses.replace(handle, make_copies=lambda n: PoolCopies(task, n))
        make, args = gym_factory(identifier, args, name)
        return host_handle(name, make, args)
    if isinstance(target, gymnasium.vector.VectorEnv):
        raise EnvError(f"{name}: a vector environment; give the single one, copies are made by rollout.num_envs")
    if isinstance(target, gymnasium.Env):
        spec = target.spec
        stored = {} if spec is None else dict(spec.kwargs) | ({LIMIT: limit} if (limit := time_limit(target)) else {})
        return host_handle(name, limited(copies_of(target, name), args, name), stored | args)
    if looks_parallel(target):
        return parallel_handle(name, target if inspect.isclass(target) else copies_of(target, name), args)
    if not callable(target) or looks_native(target):
        changed = set_fields(target, args, name)
        return native_handle(name, changed, changed_fields(changed) | args)

    factory: Callable[..., Any] = target
    bound, rest = bind(factory, args, name)
    maker = guarded(lambda: factory(**bound), name)
    first = maker()
    if looks_parallel(first):
        return parallel_handle(name, target, args)
    if isinstance(first, gymnasium.Env):
        first.close()
        return host_handle(name, limited(maker, rest, name, parameters_of(target)), bound | rest)
    return native_handle(name, set_fields(first, rest, name, parameters_of(target)), bound | rest)


def locate(env: EnvLike) -> tuple[str, Any]:
    """(id, target) of a registered name, `gym:ID`, `gymnax:ID`, `pettingzoo:MODULE`, `envpool:ID`, `PREFIX:FILE` (see
    `catalogue.FILES`), `module:factory`, `file.py:factory` or an object.

    The target is an object, or for the first four prefixes that very string.
    """
    if not isinstance(env, str):
        trust.vouch(name_of(env))
        return name_of(env), env
    env = full_name(env) or env
    trust.vouch(env)
    name, target = (env, ENVS[env].target) if env in ENVS else (anchored(env), env)
    if not isinstance(target, str) or target.startswith(("gym:", "gymnax:", "pettingzoo:", "envpool:")):
        return name, target
    prefix, colon, file = target.partition(":")
    if prefix in FILES:
        return name, load(FILES[prefix].target)(file)
    if colon:
        with trust.judging(target) as strange:
            return str(name), required_env(load(target)) if strange else load(target)
    raise ConfigError(f"unknown environment '{env}'{suggestion(env)} (or {OTHERS})")


def required_env(target: Any) -> Any:
    """What a file names, refused where it is no environment: any other function could do anything when it is called."""
    import gymnasium

    is_env = issubclass(target, gymnasium.Env) if inspect.isclass(target) else isinstance(target, gymnasium.Env)
    shaped = inspect.isclass(target) and all(callable(getattr(target, n, None)) for n in ("reset", "step"))
    if is_env or shaped or looks_parallel(target) or looks_native(target):
        return target
    raise trust.refused("it is no class of environments but a function, which could do anything")


def name_of(env: object) -> str:
    """The id that would make this class, factory or instance again, as far as one can."""
    if not inspect.isclass(env) and (spec := getattr(env, "spec", None)) is not None:
        return f"gym:{spec.id}"
    if not inspect.isclass(env) and isinstance(identifier := getattr(env, "id", None), str):
        return identifier
    what = env if inspect.isclass(env) or inspect.isroutine(env) else getattr(env, "func", type(env))
    path = f"{what.__module__}:{what.__qualname__}"
    return next((name for name, entry in ENVS.items() if entry.target in (path, env)), path)


def looks_native(env: object) -> bool:
    """An instance with the methods of a native environment."""
    return not inspect.isclass(env) and all(hasattr(env, n) for n in ("reset", "step", "observation_space"))


def native_handle(name: str, env: Any, args: Mapping[str, object]) -> EnvHandle:
    needs = ("observation_space", "action_space", "reset", "step", LIMIT, "reward_components", "metric_reductions")
    missing = [n for n in needs if not hasattr(env, n)]
    if missing == list(needs):
        raise EnvError(f"{name}: {type(env).__name__} is neither a gymnasium.Env nor a native environment (NativeEnv)")
    if missing:
        raise EnvError(f"{name}: {type(env).__name__} has no {', '.join(missing)}; see regimen.envs.protocol.NativeEnv")
    if not isinstance(env.max_episode_steps, int) or env.max_episode_steps < 1:
        raise ConfigError(f"env.{LIMIT}: {env.max_episode_steps} is not a whole number of at least 1")
    return EnvHandle(id=name, native=env, make_host=None, env_args=dict(args), **declared_by(env))


def declared_by(env: Any) -> dict[str, Any]:
    """What an environment of any kind declares of itself, as the fields of a handle."""
    return {
        "observation_space": env.observation_space,
        "action_space": env.action_space,
        "reward_components": tuple(env.reward_components),
        "metrics": metrics_of(env.metric_reductions),
        "max_episode_steps": env.max_episode_steps,
        "return_threshold": getattr(env, "return_threshold", None),
        "baselines": dict(getattr(env, "baselines", {})),
        "action_conditions": dict(getattr(env, "action_conditions", {})),
        "agents": tuple(getattr(env, "agents", ())),
        "copies": int(getattr(env, "copies", 0)),
        "imitates": str(getattr(env, "imitates", "")),
    }


def host_handle(name: str, make: Callable[[], gymnasium.Env], args: Mapping[str, object]) -> EnvHandle:
    env = make()
    inner = env.unwrapped
    try:
        return EnvHandle(
            id=name,
            native=None,
            make_host=make,
            observation_space=env.observation_space,
            action_space=env.action_space,
            reward_components=components_of(env),
            metrics=metrics_of(getattr(inner, "metric_reductions", {})),
            max_episode_steps=time_limit(env),
            return_threshold=getattr(inner, "return_threshold", env.spec.reward_threshold if env.spec else None),
            baselines=dict(getattr(inner, "baselines", {})),
            action_conditions=dict(getattr(inner, "action_conditions", {})),
            imitates=str(getattr(inner, "imitates", "")),
            env_args=dict(args),
        )
    except AttributeError as e:
        raise EnvError(f"{name}: {one_line(e)}; set observation_space and action_space in __init__") from e
    finally:
        env.close()


def looks_parallel(env: object) -> bool:
    """A PettingZoo ParallelEnv, or its class, without importing PettingZoo."""
    module = sys.modules.get("pettingzoo")
    parallel = getattr(module, "ParallelEnv", None)
    if parallel is None:
        return False
    return issubclass(env, parallel) if inspect.isclass(env) else isinstance(env, parallel)


def parallel_handle(name: str, make: Callable[..., Any], args: Arguments) -> EnvHandle:
    """A PettingZoo environment, its agents as rows beside each other."""
    from regimen.envs.adapters.pettingzoo import Team, require_pettingzoo

    require_pettingzoo()
    bound, rest = bind(make, {k: v for k, v in args.items() if k != LIMIT}, name)
    for key in rest:
        raise unknown_argument(key, name, {LIMIT, *parameters_of(make)})
    limit = args.get(LIMIT)

    def make_team() -> Team:
        env = make(**bound)
        if not looks_parallel(env):
            raise EnvError(f"{name}: {type(env).__name__} is not a pettingzoo.ParallelEnv; use its parallel_env()")
        return Team(env, limit)

    maker = guarded(make_team, name)
    team = maker()
    try:
        env_args = dict(bound) | ({} if limit is None else {LIMIT: limit})
        return EnvHandle(id=name, native=None, make_host=maker, env_args=env_args, **declared_by(team))
    finally:
        team.close()
