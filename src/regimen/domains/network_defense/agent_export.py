"""`regimen export RUN --as cage-agent`: a policy as an agent that CybORG's own evaluation of the challenge runs."""

from __future__ import annotations

import importlib.util
import io
import shutil
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from regimen.domains.network_defense import network as net
from regimen.domains.network_defense.env import NetworkDefense
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.files.storage import write_atomic
from regimen.policies.policy import Policy
from regimen.trees import flatten

AGENT = Path(__file__).with_name("cage_agent.py")
OBSERVATIONS = 1000  # on which the agent has to act like the policy


def write_agent(policy: Policy, folder: Path) -> Path:
    """Write `agent.py` and `agent.npz`, and refuse an agent that does not act like the policy."""
    env = registry.resolve(policy.meta["env"], policy.meta.get("env_args", {})).native
    if not isinstance(env, NetworkDefense) or env.workflow != "none":
        raise ConfigError("--as cage-agent: the policy follows a workflow, which the challenge does not have")
    file = io.BytesIO()
    np.savez(file, **weights(policy, env))  # type: ignore[arg-type]
    write_atomic(folder / "agent.npz", file.getvalue())
    path = folder / "agent.py"
    shutil.copyfile(AGENT, path)
    same = agreement(policy, path, env)
    if same < 1.0:
        raise ConfigError(f"--as cage-agent: the agent acts like the policy in {same:.1%} of {OBSERVATIONS} steps only")
    return path


def weights(policy: Policy, env: NetworkDefense) -> dict[str, np.ndarray]:
    """Everything that the agent reads: networks, normaliser, and the rules of decoys."""
    config, params = policy.algo.network, policy.params
    if not isinstance(params, dict) or not {"actor"} <= set(params) <= {"actor", "log_std", "core", "norm"}:
        raise ConfigError("--as cage-agent: only policies of PPO, IMPALA and APPO are written")
    if config.name not in ("mlp", "mlp_norm"):
        raise ConfigError(f"--as cage-agent: network.name '{config.name}' is not written; train with mlp")
    parts = {name: params[name] for name in ("actor", "core") if name in params}
    out = {name: np.asarray(x, np.float64) for name, x in flatten(parts).items()}
    if "norm" in params:
        out |= {
            "norm/mean": np.asarray(params["norm"].mean, float),
            "norm/std": np.asarray(params["norm"].std(), float),
        }
    opens, needs = net.DECOY_PORTS[1 << np.arange(len(net.DECOYS))], net.DECOY_NEEDS
    return out | {
        "activation": np.array(config.activation),
        "history": np.array(env.history),
        "decoy_blocks": (opens[:, None] & needs[None, :]) > 0,
        "decoy_hosts": ((net.DECOY_HOSTS[:, None] >> np.arange(net.N)) & 1) > 0,
    }


def agreement(policy: Policy, path: Path, env: NetworkDefense) -> float:
    """The share of steps of native episodes in which the agent, shown 52 bits, acts like the policy."""
    agent, steps = agent_module(path).CageAgent(), min(env.max_episode_steps, 100)
    step, reset = jax.jit(env.step), jax.jit(env.reset)
    equal = 0
    for i in range(OBSERVATIONS):
        key = jax.random.key(i)
        if i % steps == 0:
            policy.reset()
            agent.end_episode()
            state, obs = reset(key)
        action = policy.act(obs)
        equal += int(agent.get_action(np.asarray(obs)[: 4 * net.N]) == action)
        state, timestep = step(key, state, jnp.int32(action))
        obs = timestep.obs
    return equal / OBSERVATIONS


def agent_module(path: Path) -> ModuleType:
    """The agent's file, imported by its path."""
    spec = importlib.util.spec_from_file_location("cage_agent_written", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
