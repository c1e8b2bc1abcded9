"""Makers of Gymnasium environments: their time limit, their copies, their failures in one line."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from regimen.config import trust
from regimen.envs.arguments import LIMIT, Arguments, bind, parameters_of, unknown_argument
from regimen.envs.imports import import_module, one_line
from regimen.errors import ConfigError, EnvError, RegimenError, nearest

if TYPE_CHECKING:
    import gymnasium

T = TypeVar("T")
LOOK = 100  # steps of a Gymnasium environment in which components of its reward are looked for


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
    names: dict[str, None] = {}
    try:
        env.reset(seed=0)
        env.action_space.seed(0)
        for _ in range(LOOK):
            _, reward, terminated, truncated, info = env.step(env.action_space.sample())
            parts = info.get("reward_components", ())
            names |= dict.fromkeys(parts)
            if terminated or truncated or (reward != 0 and not parts):
                break
    except Exception:  # a step that fails: the source and check-env report that with its cause
        pass
    return tuple(names) or ("total",)


def guarded(make: Callable[[], T], name: str) -> Callable[[], T]:
    """`make` with its failures as one line."""

    def guarded_make() -> T:
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
    make: Callable[[], gymnasium.Env], args: Arguments, name: str, others: Iterable[str] = ()
) -> Callable[[], gymnasium.Env]:
    """`make` with the only argument that needs nobody's help, a time limit."""
    for key in args:
        if key != LIMIT:
            raise unknown_argument(key, name, {LIMIT, *others})
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


def gym_factory(identifier: str, args: Arguments, name: str) -> tuple[Callable[[], gymnasium.Env], Arguments]:
    """A maker of a registered Gymnasium environment, and its arguments; `module:ID` imports the module first."""
    import gymnasium
    from gymnasium.envs.registration import load_env_creator

    module, _, gym_id = identifier.rpartition(":")
    if module:
        register = getattr(import_module(module), "register_envs", None)
        if callable(register) and gym_id not in gymnasium.registry:  # of packages that do not register on import
            if trust.judged() is not None:
                raise trust.refused(f"{module}.register_envs would be called, a function that could do anything")
            guarded(register, name)()
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
    create = functools.partial(creator, **spec.kwargs)
    bound, rest = bind(create, {k: v for k, v in args.items() if k != LIMIT}, name)
    for key in rest:
        raise unknown_argument(key, name, {LIMIT, *parameters_of(create)})
    make = guarded(lambda: gymnasium.make(spec, disable_env_checker=True, **limit, **bound), name)
    return make, bound | limit
