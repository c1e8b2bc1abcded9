"""Episodes of network defence for the tests, a thousand at a time: every state, reward and action of them."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.env import NetworkDefense

EPISODES, STEPS = 1000, 100


def restore_some(env, key, state, obs):
    """Restores compromised hosts of a few types, drawn for each episode by its foothold and key: it reaches states
    that neither sleeping nor random actions do."""
    lucky, which, random = jax.random.split(key, 3)
    chosen = jax.random.randint(jax.random.fold_in(jax.random.key(7), state.red.foothold), (), 0, 32)
    chosen = (chosen + state.time // 20 * 7) % 32
    hosts = sum(jnp.where((chosen >> t) & 1, int(m), 0) for t, m in enumerate(net.TYPE_HOSTS))
    candidates = (((state.sessions & hosts & ~(1 << net.USER0)) >> np.arange(net.N)) & 1) > 0
    host = jax.random.categorical(which, jnp.where(candidates, 0.0, -jnp.inf))
    fix = jax.random.uniform(lucky) < 0.7
    anything = jax.random.randint(random, (), 0, net.BLUE_ACTIONS)
    return jnp.where(jnp.any(candidates) & fix, 132 + host, anything)


def removes(env, key, state, obs):
    """Removes at random from the hosts on b_line's way."""
    return 15 + jnp.asarray([1, 2, 3, 7, 7])[jax.random.randint(key, (), 0, 5)]


POLICIES = {name: NetworkDefense.baselines[name] for name in ("sleep", "random", "greedy", "oracle")}
POLICIES |= {
    "some": restore_some,
    "removes": removes,
    "once": lambda env, key, state, obs: jnp.where(state.time == 0, 132 + net.OP_SERVER, net.SLEEP),
}


@partial(jax.jit, static_argnames=("policy", "episodes", "steps"))
def play(env, key, policy, episodes, steps):
    def episode(key):
        def body(carry, key):
            state, obs = carry
            act_key, step_key = jax.random.split(key)
            action = POLICIES[policy](env, act_key, state, obs)
            new, ts = env.step(step_key, state, action)
            out = {"before": state, "after": new, "reward": ts.reward, "action": action, "obs": ts.obs}
            words = jax.random.bits(step_key, (2,), jnp.uint32)
            return (new, ts.obs), out | {"metrics": ts.metrics, "words": words, "terminated": ts.terminated}

        return jax.lax.scan(body, env.reset(key), jax.random.split(key, steps))[1]

    return jax.vmap(episode)(jax.random.split(key, episodes))


@lru_cache(maxsize=12)
def rollout(policy: str, episodes: int = EPISODES, steps: int = STEPS, seed: int = 0, **fields):
    """Everything as numpy, [episodes, steps, ...]. Tests share them: a program is compiled for each environment, policy
    and size."""
    return jax.device_get(play(NetworkDefense(**fields), jax.random.key(seed), policy, episodes, steps))


def returns(out, steps: int) -> np.ndarray:
    return out["reward"][:, :steps].sum((1, 2), dtype=np.float64)
