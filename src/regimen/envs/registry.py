"""Environments by name, and everything else `--env` may be, as one `EnvHandle`.

Jax-free at import: an import string is resolved when its environment is asked for, so listing names costs nothing.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from regimen.config.catalogue import ENVS, FILES, OTHERS, anchored, suggestion
from regimen.config.domains import EnvEntry
from regimen.config.validation import coerce, optional
from regimen.envs.metric import Metric, metrics_of
from regimen.errors import ConfigError, EnvError, RegimenError, nearest

if TYPE_CHECKING:
    import gymnasium

    from regimen.envs.protocol import Env

LIMIT = "max_episode_steps"
LOOK = 100  # steps of a Gymnasium environment in which components of its reward are looked for


def register_env(name: str, target: Any, description: str = "") -> None:
    """Make `name` an environment: `target` is an import string, a class, a factory or an instance."""
    if not name or ":" in name:
        raise ConfigError(f"register_env: '{name}' is not a name; use letters, digits, '_', '-' and '/', but no ':'")
    ENVS[name] = EnvEntry(target, description)


@dataclass(frozen=True, eq=False)
class EnvHandle:
    """An environment ready to be trained on: native, or a maker of Gymnasium environments or of `Team`s."""

    id: str
    native: Env | None
    make_host: Callable[[], Any] | None
    observation_space: Any
    action_space: Any
    reward_components: tuple[str, ...] = ("total",)
    metrics: dict[str, Metric] = field(default_factory=dict)
    max_episode_steps: int = 0  # 0: unknown
    return_threshold: float | None = None
    baselines: dict[str, Any] = field(default_factory=dict)
    action_conditions: dict[str, Any] = field(default_factory=dict)  # see `distributions.Joint`
    agents: tuple[str, ...] = ()  # names, where there are several
    env_args: dict[str, Any] = field(default_factory=dict)  # with `id`, what makes the same environment again

    @property
    def kind(self) -> Literal["native", "host"]:
        return "host" if self.native is None else "native"

    @property
    def metric_reductions(self) -> dict[str, str]:
        """How an episode sums up each metric: all that sources need to know of them."""
        return {name: metric.reduce for name, metric in self.metrics.items()}


def make_env(env: Any, **kwargs: Any) -> Env | gymnasium.Env:
    """The native environment, or one Gymnasium environment: `make_env("cartpole", gravity=3.7)`."""
    handle = resolve(env, kwargs)
    return handle.native if handle.make_host is None else handle.make_host()  # type: ignore[return-value]


def is_native(env: Any) -> bool:
    """Whether it would be compiled. A factory function is taken to make a native environment until it is called."""
    import gymnasium

    _, target = locate(env)
    if isinstance(target, str):
        return target.startswith("gymnax:")
    on_host = issubclass(target, gymnasium.Env) if inspect.isclass(target) else isinstance(target, gymnasium.Env)
    return not (on_host or looks_parallel(target))


def resolve(env: Any, env_args: Mapping[str, Any] | None = None) -> EnvHandle:
    """A handle on an id (see `locate`), a class, a factory or an instance, native or of Gymnasium.

    `env_args` sets the fields of a native environment, the arguments of `gym.make`, of the class or of the factory;
    `max_episode_steps` always works.
    """
    import gymnasium

    name, target = locate(env)
    args = dict(env_args or {})
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

            return parallel_handle(name, guarded(lambda: parallel_factory(identifier), name)(), args)
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

    given, rest = bind(target, args, name)
    made = guarded(lambda: target(**given), name)
    first = made()
    if looks_parallel(first):
        return parallel_handle(name, target, args)
    if isinstance(first, gymnasium.Env):
        first.close()
        return host_handle(name, limited(made, rest, name, parameters_of(target)), given | rest)
    return native_handle(name, set_fields(first, rest, name, parameters_of(target)), given | rest)


# --- what an id means ------------------------------------------------------------------------------------------------


def locate(env: Any) -> tuple[str, Any]:
    """(id, target) of a registered name, `gym:ID`, `gymnax:ID`, `pettingzoo:MODULE`, `PREFIX:FILE` (see
    `catalogue.FILES`), `module:factory`, `file.py:factory` or an object.

    The target is an object, or for the first three prefixes that very string.
    """
    if not isinstance(env, str):
        return name_of(env), env
    name, target = (env, ENVS[env].target) if env in ENVS else (anchored(env), env)
    if not isinstance(target, str) or target.startswith(("gym:", "gymnax:", "pettingzoo:")):
        return name, target
    prefix, colon, file = target.partition(":")
    if prefix in FILES:
        return name, load(FILES[prefix].target)(file)
    if colon:
        return name, load(target)
    raise ConfigError(f"unknown environment '{env}'{suggestion(env)} (or {OTHERS})")


def name_of(env: Any) -> str:
    """The id that would make this class, factory or instance again, as far as one can."""
    if not inspect.isclass(env) and getattr(env, "spec", None) is not None:
        return f"gym:{env.spec.id}"
    if not inspect.isclass(env) and isinstance(getattr(env, "id", None), str):
        return env.id
    what = env if inspect.isclass(env) or inspect.isroutine(env) else getattr(env, "func", type(env))
    path = f"{what.__module__}:{what.__qualname__}"
    return next((name for name, entry in ENVS.items() if entry.target in (path, env)), path)


def load(target: str) -> Any:
    """The object an import string names: `module:attribute` or `path/to/file.py:attribute`."""
    where, _, attribute = target.rpartition(":")
    if not where or not attribute:
        raise ConfigError(f"environment '{target}': write module:factory or path/to/file.py:factory")
    found: Any = import_file(where) if where.endswith(".py") else import_module(where)
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")]
            raise EnvError(f"environment '{target}': {where} has no '{part}'{nearest(part, public)}")
        found = getattr(found, part)
    return found


def import_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last, so that a user's file never hides an installed package
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as e:
        close = difflib.get_close_matches(name, ["gym", "gymnax", "pettingzoo"], n=1)
        hint = f"; did you mean '{close[0]}:...'?" if close else ""
        if isinstance(e, ModuleNotFoundError) and e.name == name.split(".")[0] and not hint:
            hint = "; run from the directory that holds it, or write path/to/file.py:factory"
        raise EnvError(f"cannot import the environment module '{name}': {one_line(e)}{hint}") from e


def import_file(path: str) -> ModuleType:
    file = Path(path).expanduser().resolve()
    if not file.is_file():
        raise EnvError(f"cannot import the environment file '{path}': no such file")
    name = f"regimen_user_{file.stem}_{zlib.crc32(str(file).encode()):08x}"  # one module per file, imported once
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look their module up
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # its neighbours can be imported
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:
        del sys.modules[name]
        raise EnvError(f"cannot import the environment file '{path}': {one_line(e)}") from e
    return module


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


# --- arguments -------------------------------------------------------------------------------------------------------


def bind(function: Callable, args: Mapping[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split `args` into those `function` takes, as the types it declares, and the rest."""
    try:
        takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in
        return dict(args), {}
    hints, named = hints_of(function), parameters_of(function)
    given, rest = {}, {}
    for key, value in args.items():
        if key in named:
            given[key] = coerce(value, hint_of(hints.get(key), named[key].default), f"env.{key}")
        else:
            (given if takes_any else rest)[key] = value
    missing = [n for n, p in named.items() if p.default is p.empty and n not in given]
    if missing:
        raise ConfigError(f"{name}: the argument '{missing[0]}' has no default; give --env.{missing[0]} VALUE")
    return given, rest


def parameters_of(function: Callable) -> dict[str, inspect.Parameter]:
    """Arguments that can be given by name."""
    parameters = inspect.signature(function).parameters
    return {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def hints_of(function: Any) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    try:
        return typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    except Exception:  # names only a type checker sees
        return {}


def hint_of(hint: Any, default: Any) -> Any:
    """The type an argument is read as: the one declared when it is plain, else its default's, else anything."""
    plain = (int, float, bool, str)

    def is_plain(h: Any) -> bool:
        return h in (*plain, type(None), ...) or (bool(typing.get_args(h)) and all(map(is_plain, typing.get_args(h))))

    if hint is not None and (is_plain(hint) or typing.get_origin(optional(hint)[0]) is Literal):
        return hint
    if hint is None and type(default) in plain:
        return int | float if type(default) is int else type(default)  # `goal_velocity=0` may be a fraction
    return Any


def set_fields(env: Any, args: Mapping[str, Any], name: str, known: Iterable[str] = ()) -> Any:
    """A native environment with these fields; `known` are other names that an error may suggest."""
    fields = {f.name: f for f in dataclasses.fields(env) if f.init} if dataclasses.is_dataclass(env) else {}
    hints = hints_of(type(env))
    for key in args:
        if key not in fields:
            raise unknown_argument(key, name, {*fields, *known})
    kinds = {k: hint_of(hints.get(k), fields[k].default) for k in args}
    given = {k: "none" if v is None and kinds[k] is str else v for k, v in args.items()}  # as flags and YAML read it
    values = {k: coerce(v, kinds[k], f"env.{k}") for k, v in given.items()}
    return dataclasses.replace(env, **values) if values else env  # type: ignore[type-var]


def changed_fields(env: Any) -> dict[str, Any]:
    """Fields of an instance that differ from their defaults."""
    fields = dataclasses.fields(env) if dataclasses.is_dataclass(env) else ()
    found = {f.name: (getattr(env, f.name), f.default) for f in fields if f.default is not dataclasses.MISSING}
    return {k: v for k, (v, default) in found.items() if isinstance(v, (int, float, str, bool)) and v != default}


def unknown_argument(key: str, name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"env.{key}: {name} has no such argument{nearest(key, known)}")


# --- native ----------------------------------------------------------------------------------------------------------


def looks_native(env: Any) -> bool:
    """An instance with the methods of a native environment."""
    return not inspect.isclass(env) and all(hasattr(env, n) for n in ("reset", "step", "observation_space"))


def native_handle(name: str, env: Any, args: Mapping[str, Any]) -> EnvHandle:
    wanted = ("observation_space", "action_space", "reset", "step", LIMIT, "reward_components", "metric_reductions")
    missing = [n for n in wanted if not hasattr(env, n)]
    if missing == list(wanted):
        raise EnvError(f"{name}: {type(env).__name__} is neither a gymnasium.Env nor a native environment (NativeEnv)")
    if missing:
        raise EnvError(f"{name}: {type(env).__name__} has no {', '.join(missing)}; see regimen.envs.protocol.NativeEnv")
    if not isinstance(env.max_episode_steps, int) or env.max_episode_steps < 1:
        raise ConfigError(f"env.{LIMIT}: {env.max_episode_steps} is not a whole number of at least 1")
    return EnvHandle(
        id=name,
        native=env,
        make_host=None,
        observation_space=env.observation_space,
        action_space=env.action_space,
        reward_components=tuple(env.reward_components),
        metrics=metrics_of(env.metric_reductions),
        max_episode_steps=env.max_episode_steps,
        return_threshold=getattr(env, "return_threshold", None),
        baselines=dict(getattr(env, "baselines", {})),
        action_conditions=dict(getattr(env, "action_conditions", {})),
        agents=tuple(getattr(env, "agents", ())),
        env_args=dict(args),
    )


# --- host ------------------------------------------------------------------------------------------------------------


def host_handle(name: str, make: Callable[[], gymnasium.Env], args: Mapping[str, Any]) -> EnvHandle:
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
            env_args=dict(args),
        )
    except AttributeError as e:
        raise EnvError(f"{name}: {one_line(e)}; set observation_space and action_space in __init__") from e
    finally:
        env.close()


def looks_parallel(env: Any) -> bool:
    """A PettingZoo ParallelEnv, or its class, without importing PettingZoo."""
    module = sys.modules.get("pettingzoo")
    parallel = getattr(module, "ParallelEnv", None)
    if parallel is None:
        return False
    return issubclass(env, parallel) if inspect.isclass(env) else isinstance(env, parallel)


def parallel_handle(name: str, make: Callable[..., Any], args: Mapping[str, Any]) -> EnvHandle:
    """A PettingZoo environment, its agents as rows beside each other."""
    from regimen.envs.adapters.pettingzoo import Team, require_pettingzoo

    require_pettingzoo()
    given, rest = bind(make, {k: v for k, v in args.items() if k != LIMIT}, name)
    for key in rest:
        raise unknown_argument(key, name, {LIMIT, *parameters_of(make)})
    limit = args.get(LIMIT)

    def make_team() -> Team:
        env = make(**given)
        if not looks_parallel(env):
            raise EnvError(f"{name}: {type(env).__name__} is not a pettingzoo.ParallelEnv; use its parallel_env()")
        return Team(env, limit)

    made = guarded(make_team, name)
    team = made()
    try:
        return EnvHandle(
            id=name,
            native=None,
            make_host=made,
            observation_space=team.observation_space,
            action_space=team.action_space,
            reward_components=team.reward_components,
            metrics=metrics_of(team.metric_reductions),
            max_episode_steps=team.max_episode_steps,
            return_threshold=team.return_threshold,
            action_conditions=team.action_conditions,
            agents=team.agents,
            env_args=dict(given) | ({} if limit is None else {LIMIT: limit}),
        )
    finally:
        team.close()


def time_limit(env: gymnasium.Env) -> int:
    """Steps after which an episode is cut short, by its TimeLimit wrapper or its own account; 0 when unknown."""
    limit = env.spec.max_episode_steps if env.spec is not None else None
    wrapper: Any = env
    while limit is None and wrapper is not env.unwrapped:
        limit = getattr(wrapper, "_max_episode_steps", None)
        wrapper = wrapper.env
    return limit or getattr(env.unwrapped, LIMIT, None) or 0


def components_of(env: gymnasium.Env) -> tuple[str, ...]:
    """Names of the reward's components: declared, or those in the infos of a random episode's beginning. A step whose
    reward is 0 need not have any; one that pays and has none says that there are none."""
    declared = getattr(env.unwrapped, "reward_components", None)
    if declared is not None:
        return tuple(declared)
    found: dict[str, None] = {}
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(LOOK):
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            parts = info.get("reward_components", ())
            found |= dict.fromkeys(parts)
            if terminated or truncated or (reward != 0 and not parts):
                break
    except Exception:  # a step that fails: the source and check-env report that with its cause
        pass
    return tuple(found) or ("total",)


def guarded(make: Callable[[], Any], name: str) -> Callable[[], Any]:
    """`make` with its failures as one line."""

    def guarded_make() -> Any:
        import gymnasium

        try:
            return make()
        except RegimenError:
            raise
        except (gymnasium.error.DependencyNotInstalled, ImportError) as e:
            raise EnvError(f"{name}: {missing_dependency(e)}") from e
        except Exception as e:
            raise EnvError(f"{name}: cannot be made: {one_line(e)}") from e

    return guarded_make


def missing_dependency(error: Exception) -> str:
    """What to install; Gymnasium's own errors say it themselves."""
    text = " ".join(str(error).split())
    missing = getattr(error, "name", None)
    return f"{text}; pip install the package that provides '{missing}'" if missing and "pip" not in text else text


def limited(
    make: Callable[[], gymnasium.Env], args: Mapping[str, Any], name: str, known: Iterable[str] = ()
) -> Callable[[], gymnasium.Env]:
    """`make` with the only argument that needs nobody's help, a time limit."""
    for key in args:
        if key != LIMIT:
            raise unknown_argument(key, name, {LIMIT, *known})
    if LIMIT not in args:
        return make

    def make_limited() -> gymnasium.Env:
        from gymnasium.wrappers import TimeLimit

        return TimeLimit(make(), args[LIMIT])

    return make_limited


def copies_of(env: gymnasium.Env, name: str) -> Callable[[], gymnasium.Env]:
    """Copies of an instance as it is now; evaluation alone needs a second one."""
    import gymnasium

    try:
        original = copy.deepcopy(env)
        return lambda: copy.deepcopy(original)
    except Exception as e:
        if (spec := env.spec) is not None:
            return guarded(lambda: gymnasium.make(spec, disable_env_checker=True), name)
        raise EnvError(f"{name}: the instance cannot be copied ({one_line(e)}); pass its class or a factory") from e


def gym_factory(identifier: str, args: dict[str, Any], name: str) -> tuple[Callable[[], gymnasium.Env], dict[str, Any]]:
    """A maker of a registered Gymnasium environment, and its arguments; `module:ID` imports the module first."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    module, _, gym_id = identifier.rpartition(":")
    if module:
        import_module(module)
    try:
        spec = copy.deepcopy(gymnasium.spec(gym_id))
    except gymnasium.error.Error as e:
        hint = nearest(gym_id, gymnasium.registry).replace("'", "'gym:", 1)
        hint = hint or "; import the package that registers it with gym:MODULE:ID"
        raise ConfigError(f"{name}: no such Gymnasium environment{hint}") from e
    spec.order_enforce = False  # a wrapper in the hot loop that checks what the source guarantees
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        entry_point = creator
        creator = guarded(lambda: load_env_creator(entry_point), name)()
    limit = {LIMIT: args[LIMIT]} if LIMIT in args else {}
    own = functools.partial(creator, **spec.kwargs)
    given, rest = bind(own, {k: v for k, v in args.items() if k != LIMIT}, name)
    for key in rest:
        raise unknown_argument(key, name, {LIMIT, *parameters_of(own)})
    make = guarded(lambda: gymnasium.make(spec, disable_env_checker=True, **limit, **given), name)
    return make, given | limit
