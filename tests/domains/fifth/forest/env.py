"""One step: plant where the observation says that there is room."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen import NativeEnv, native_env
from regimen.envs.metric import Metric
from regimen.types import TimeStep


@native_env
class Forest(NativeEnv):
    """Plant (1) or leave it (0); right is what the observation says."""

    max_episode_steps: int = 4
    """Steps of an episode."""
    growth_gamma: float = 0.99
    """The learner's discount."""

    metric_reductions = {  # noqa: RUF012
        "felled": Metric("max", "lower", "rate", violation=True, label="felled trees"),
        "planted": "sum",
    }
    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, key):
        room = jax.random.bernoulli(key).astype(jnp.float32)
        return room, room[None]

    def step(self, key, state, action):
        room = jax.random.bernoulli(key).astype(jnp.float32)
        reward = (action == state).astype(jnp.float32)
        felled = ((action == 1) & (state == 0)).astype(jnp.float32)
        metrics = {"felled": felled, "planted": action.astype(jnp.float32)}
        return room, TimeStep(obs=room[None], reward=reward, terminated=jnp.bool_(False), metrics=metrics)
