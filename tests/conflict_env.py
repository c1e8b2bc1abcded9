"""A tiny environment with the metrics that rules about conflicts read; what happens in it is set, not learned."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from regimen.envs.metric import Metric
from regimen.envs.protocol import NativeEnv, native_env
from regimen.types import TimeStep


@native_env
class Crossing(NativeEnv):
    """Two steps. Each has a conflict with probability `risk`; the goal is missed with probability `miss`."""

    max_episode_steps: int = 2
    risk: float = 0.0
    miss: float = 0.0

    metric_reductions = {  # noqa: RUF012
        "los": Metric("max", "lower", "rate", violation=True, label="conflicts"),
        "reached": "last",
        "success": "last",
    }

    @property
    def observation_space(self):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return spaces.Discrete(2)

    def reset(self, key):
        return jnp.zeros(2), jnp.zeros(1)

    def step(self, key, state, action):
        conflict, missed = jax.random.uniform(key, (2,)) < jnp.stack([self.risk, self.miss])
        state = state + jnp.stack([1.0, conflict.astype(jnp.float32)])  # steps, conflicts
        reached = (~missed).astype(jnp.float32)
        success = reached * (state[1] == 0)
        metrics = {"los": conflict.astype(jnp.float32), "reached": reached, "success": success}
        reward = action.astype(jnp.float32) - conflict
        return state, TimeStep(obs=state[:1] / 2, reward=reward, terminated=state[0] >= 2, metrics=metrics)


@native_env
class Merging(Crossing):
    """The same under another name."""
