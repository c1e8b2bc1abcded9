"""Environments by name. (temporary)"""

from __future__ import annotations
from dataclasses import dataclass, field
from typing import Any
import importlib


@dataclass(frozen=True)
class EnvEntry:
    target: Any
    description: str = ""
    gym_id: str | None = None


ENVS = {"cartpole": EnvEntry("regimen.envs.classic.cartpole:CartPole", "", "CartPole-v1")}


@dataclass
class EnvHandle:
    id: str
    native: Any
    make_host: Any
    observation_space: Any
    action_space: Any
    reward_components: tuple
    metric_reductions: dict
    max_episode_steps: int
    return_threshold: float | None
    baselines: dict


def is_native(env):
    return not str(env).startswith("gym:")


def register_env(name, target, description=""):
    ENVS[name] = EnvEntry(target, description)


def make_env(id, **kw): ...
def resolve(env, env_args):
    if isinstance(env, str) and env.startswith("gym:"):
        import gymnasium

        make = lambda: gymnasium.make(env[4:], disable_env_checker=True, **env_args)
        e = make()
        return EnvHandle(
            env,
            None,
            make,
            e.observation_space,
            e.action_space,
            ("total",),
            {},
            e.spec.max_episode_steps or 0,
            e.spec.reward_threshold,
            {},
        )
    m, _, c = ENVS[env].target.partition(":")
    e = getattr(importlib.import_module(m), c)(**env_args)
    return EnvHandle(
        env,
        e,
        None,
        e.observation_space,
        e.action_space,
        e.reward_components,
        e.metric_reductions,
        e.max_episode_steps,
        e.return_threshold,
        e.baselines,
    )
