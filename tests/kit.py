"""What tests of algorithms, sources, engines and verbs begin with: a bound algorithm, a rollout, a trained policy, an
engine, a refusal. Whole runs and their files are in `support.py`."""

import re

import jax
import jax.numpy as jnp
import numpy as np

from regimen.config import layers
from regimen.config.schema import NetworkConfig
from regimen.envs import registry
from regimen.envs.protocol import agents_of
from regimen.runs.build import make_engine
from regimen.schedule import Steps
from regimen.sources.scan import ScanSource
from regimen.types import Spec
from support import TINY

NET, WIDE = NetworkConfig(hidden=(8,)), NetworkConfig(hidden=(16,))


def bound(cls, env, *, num_envs=4, network=NET, rows=0, **settings):
    """An algorithm bound to a native environment. `rows` are the time rows of a rollout, which a replay asks for."""
    spec = Spec(
        env.observation_space,
        env.action_space,
        env.reward_components,
        agents=agents_of(env),
        num_envs=num_envs,
        rollout_rows=rows,
        env=env,
        action_conditions=getattr(env, "action_conditions", None),
    )
    return cls(network=network, **settings).bind(spec)


def rollout(algo, env, schedule, start=1, key=2):
    """(state, carry, Batch, EpisodeRows, env steps) of a first rollout; `start` and `key` number its random keys."""
    state, source = algo.init(jax.random.key(0)), ScanSource(schedule, algo.bound.spec.num_envs)
    carry = source.init(env, algo, jax.random.key(start))
    return state, *jax.jit(source.next)(env, algo, carry, algo.actor_params(state), jax.random.key(key))


def learn(cls, env, updates, *, schedule=None, first=False, **settings):
    """A bound algorithm and its state after some updates, which act with the newest policy, or all with the first."""
    algo = bound(cls, env, **settings)
    source = ScanSource(schedule or Steps(128), algo.bound.spec.num_envs)
    start = algo.init(jax.random.key(0))

    @jax.jit
    def run(start, carry):
        def body(_, x):
            state, carry = x
            params = algo.actor_params(start if first else state)
            key = jax.random.fold_in(state.key, state.clock.updates)
            carry, batch, rows, steps = source.next(env, algo, carry, params, key)
            state, _ = algo.update(state, batch)
            return state.replace(clock=state.clock.advance(steps, rows.count)), carry

        return jax.lax.fori_loop(0, updates, body, (start, carry))[0]

    return algo, run(start, source.init(env, algo, jax.random.key(1)))


def greedy(algo, state, obs, mask=None):
    """The greedy action, as the environment takes it, for one observation."""
    obs = np.asarray(obs, np.float32) if isinstance(obs, list) else obs
    obs, mask = (jax.tree.map(lambda x: jnp.asarray(x)[None], x) for x in (obs, mask))
    action = algo.act(algo.actor_params(state), obs, algo.initial_carry((1,)), None, mask=mask, greedy=True)[0]
    return jax.tree.map(lambda x: np.asarray(x)[0], algo.to_env(action))


def value(algo, state, obs):
    """V of one observation by an actor-critic."""
    x = algo.features(jnp.asarray(obs, jnp.float32)[None], state.norm.get("obs"))
    return float(algo.bound.critic.apply(state.models["policy"].params["critic"], x)[0, 0])


def engine_of(env, seeds=(0,), settings=TINY, **overrides):
    """The engine of a tiny configuration without an end; a setting of None is the default."""
    settings = {**settings, "total_steps": 10**6, **overrides}
    config = layers.build_config(env, overrides={k: v for k, v in settings.items() if v is not None})
    return make_engine(config, registry.resolve(env, config.env_args), list(seeds), lambda: False)


def refused(capsys, argv, code, message):
    """Run a command that must fail with this exit code and one line that matches; the line."""
    from regimen.cli.main import main

    capsys.readouterr()
    assert main([str(a) for a in argv]) == code
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("regimen: error: "), error
    assert re.search(message, error), error
    return error
