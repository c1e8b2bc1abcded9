"""A trained policy on its own: safetensors and a JSON file with all that inference needs. No pickle."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from regimen import spaces
from regimen.algorithms import policy_map
from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import make_algorithm
from regimen.config.calls import answered
from regimen.config.names import Answering
from regimen.config.schema import ALGORITHMS, NetworkConfig, TrainConfig
from regimen.config.trust import named, trustable
from regimen.config.validation import field_types
from regimen.engines.device import require_addresses
from regimen.envs import registry
from regimen.errors import ConfigError, EnvError, StorageError, nearest
from regimen.files.checkpoint import Checkpoints, digest, verify
from regimen.files.sealed import brief, load_object, reading, seal, unseal
from regimen.files.storage import Json
from regimen.trees import flatten, unflatten
from regimen.types import Array, PyTree, Spec
from regimen.words import notebook_table

SCHEMA = 2  # 1 had no digest of config.json
ORIGIN = ("env", "env_args", "seed", "env_steps")  # where a policy comes from


def load_frozen(config: TrainConfig, agents: tuple[str, ...]) -> dict[str, tuple[Algorithm, PyTree]]:
    """The policies that act beside those that learn: name -> bound algorithm and actor parameters."""
    policies = policy_map.parse(config.policy_map, agents)
    runs = policy_map.parse_frozen(config.frozen, policies)
    loaded = {name: load_policy(run) for name, run in runs.items()}
    return {name: (policy.algo, policy.params) for name, policy in loaded.items()}


@answered
class Policy(Answering):
    """A trained policy: it takes observations and gives actions, greedily by default. `regimen.load_policy` makes it.

    A recurrent policy remembers what it has seen: call `reset` where an episode begins. With several agents `act` takes
    and gives dictionaries by agent."""

    def __init__(self, algo: Algorithm, params: PyTree, meta: Json):
        self.algo, self.params, self.meta = algo, params, meta
        self.observation_space = algo.bound.spec.observation_space
        self.action_space = algo.bound.spec.action_space
        self.agents: tuple[str, ...] = algo.bound.spec.agents
        self.key = jax.random.key(0)

        self.memory: PyTree = None  # [N, ...] of the observations acted on last

        def act(params: PyTree, obs: PyTree, mask: PyTree, memory: PyTree, noise: PyTree) -> tuple[PyTree, PyTree]:
            action, memory, _ = algo.act(params, obs, memory, noise, mask=mask, greedy=noise is None)
            return algo.to_space(action), memory

        self._act = jax.jit(act)

    def reset(self) -> None:
        """Forget: the next observations are the first of their episodes. Without effect on a feed-forward policy."""
        self.memory = None

    def act(
        self, obs: PyTree, *, greedy: bool = True, mask: PyTree = None, deterministic: bool | None = None
    ) -> PyTree:
        """The action for one observation, in the environment's own form (an int, or an array).

        Args:
            obs: the observation; with several agents a dictionary of those that act. Then so is the action.
            greedy: whether to take the most probable action; False draws one.
            mask: which choices are allowed, where the environment says so.
            deterministic: another name of `greedy`.
        """
        greedy = greedy if deterministic is None else deterministic
        if self.is_by_agent(obs):
            return self.act_together(obs, greedy, mask or {})
        if isinstance(self.algo, policy_map.PolicyMap):
            raise ConfigError(f"agents have policies of their own; act on a dictionary of {', '.join(self.agents)}")
        batch = jax.tree.map(lambda x: np.asarray(x)[None], self.observe(obs))
        if mask is not None:
            mask = spaces.mask_row(self.action_space, mask)[None]
        return row_of(self.act_batch(batch, greedy=greedy, mask=mask), 0)

    def predict(
        self,
        obs: PyTree,
        state: PyTree = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = True,
        mask: PyTree = None,
    ) -> tuple[PyTree, PyTree]:
        """`(action, state)` as Stable-Baselines3 has it, for one observation or a batch of them. The state is what a
        recurrent policy remembers, None of a feed-forward one: hand it back with the next observation. Where
        `episode_start` is true it begins anew. `act` remembers by itself, and this does not touch what it remembers."""
        if self.is_by_agent(obs):
            raise ConfigError("predict takes no dictionary of agents; use act")
        single = not self.is_batch(obs)
        batch = jax.tree.map(lambda x: np.asarray(x)[None], self.observe(obs)) if single else obs
        if mask is not None and single:
            mask = spaces.mask_row(self.action_space, mask)[None]
        remembered, self.memory = self.memory, state
        if state is not None and episode_start is not None:
            starts = np.atleast_1d(np.asarray(episode_start, bool))
            blank = self.algo.initial_carry((len(starts),))
            self.memory = jax.tree.map(lambda new, old: np.where(_as(starts, old), new, old), blank, state)
        try:
            actions, after = self.act_batch(batch, greedy=deterministic, mask=mask), self.memory
        finally:
            self.memory = remembered
        return row_of(actions, 0) if single else actions, after if jax.tree.leaves(after) else None

    def is_batch(self, obs: PyTree) -> bool:
        """Whether there are several observations side by side."""
        try:
            self.observe(obs)
        except EnvError:
            try:
                self.observe(obs, batched=True)
            except EnvError:
                return False
            return True
        return False

    def _repr_html_(self) -> str:
        """What a notebook shows: what the policy is for, and where it comes from."""
        facts = {
            "observes": spaces.describe(self.observation_space),
            "acts": spaces.describe(self.action_space),
            "agents": ", ".join(self.agents) or None,
            "env steps": self.meta.get("env_steps"),
            "seed": self.meta.get("seed"),
        }
        return notebook_table(f"{self.meta.get('algorithm')} policy for {self.meta.get('env')}", facts)

    def observe(self, obs: PyTree, batched: bool = False) -> PyTree:
        """The observation, or a batch of them, as the policy takes it; EnvError where its shape is another."""
        try:
            cast = spaces.cast(self.observation_space, obs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EnvError(f"this is not an observation of {self.observation_space}: {error}") from error
        for name, part in spaces.split(self.observation_space, cast).items():
            shape = spaces.shape_of(spaces.leaves(self.observation_space)[name])
            if part.shape[batched:] != shape:
                what, lead = f"the part '{name}' of the observation" if name else "the observation", "N, " * batched
                expected = f"({lead}{', '.join(map(str, shape))}{',' * (len(shape) == 1 and not batched)})"
                raise EnvError(f"{what} has shape {part.shape}; this policy expects {expected}")
        return cast

    def is_by_agent(self, obs: PyTree) -> bool:
        """Whether `obs` is a dictionary of observations by agent, not one observation that is a dictionary itself."""
        if not self.agents or not isinstance(obs, Mapping):
            return False
        if not isinstance(self.observation_space, gym.Dict):
            return True
        parts = set(self.observation_space.spaces)
        return all(isinstance(one, Mapping) and set(one) == parts for one in obs.values())

    def act_together(self, obs: Mapping[str, PyTree], greedy: bool, mask: Mapping[str, PyTree]) -> dict[str, PyTree]:
        """Actions by agent. Every agent has its place, whether it acts or not; one policy for all may also be asked
        for agents of other names."""
        fixed = isinstance(self.algo, policy_map.PolicyMap) or set(obs) <= set(self.agents)
        names = self.agents if fixed else tuple(obs)
        for name in obs:
            if name not in names:
                raise ConfigError(f"there is no agent '{name}'{nearest(name, names)}")
        blank = spaces.zeros(self.observation_space)
        rows = [self.observe(obs[n]) if n in obs else blank for n in names]
        batch = jax.tree.map(lambda *x: np.stack(x), *rows)
        masks = None
        if mask:
            free = np.ones(spaces.logits(self.action_space), bool)
            masks = np.stack([spaces.mask_row(self.action_space, mask[n]) if n in mask else free for n in names])
        actions = self.act_batch(batch, greedy=greedy, mask=masks)
        return {name: row_of(actions, names.index(name)) for name in obs}

    def act_batch(self, obs: PyTree, *, greedy: bool = True, mask: PyTree = None) -> PyTree:
        """Actions [N, ...] for a batch of observations [N, ...]; of a hybrid space, a dict or tuple of them. `mask`
        [N, L] has a row over the options of every discrete part."""
        obs = self.observe(obs, batched=True)
        mask = None if mask is None else jnp.asarray(mask, bool)
        noise, lead = None, (jax.tree.leaves(obs)[0].shape[0],)
        if not greedy:
            self.key, key = jax.random.split(self.key)
            noise = self.algo.noise(key, lead)
        memory = self.algo.initial_carry(lead) if self.memory is None else self.memory
        if any(x.shape[0] != lead[0] for x in jax.tree.leaves(memory)):
            raise ConfigError(f"{lead[0]} observations after another number of them; call reset() where episodes begin")
        actions, self.memory = self._act(self.params, obs, mask, memory, noise)
        out = spaces.split(self.action_space, actions)
        leaves = spaces.leaves(self.action_space)
        return spaces.build(self.action_space, {k: np.asarray(v).astype(leaves[k].dtype) for k, v in out.items()})

    def for_entities(self, space: gym.Space, agents: tuple[str, ...]) -> Policy:
        """The same policy for an observation space that differs only in how many rows its two-dimensional parts and
        their masks have, where no parameter depends on that (`network.encoder set`); else itself."""
        if space == self.observation_space or isinstance(self.algo, policy_map.PolicyMap):
            return self
        parts = [spaces.leaves(x) for x in (self.observation_space, space)]
        if list(parts[0]) != list(parts[1]) or any(
            row_shape(a) != row_shape(b) for a, b in zip(*map(dict.values, parts))
        ):
            return self
        spec = dataclasses.replace(self.algo.bound.spec, observation_space=space, agents=agents)
        algo = self.algo.bind(spec)
        expected = algo.actor_params(algo.init(jax.random.key(0)))  # a loaded policy has no replay to allocate
        shapes = [jax.tree.map(jnp.shape, params) for params in (expected, self.params)]
        return Policy(algo, self.params, self.meta) if shapes[0] == shapes[1] else self

    def save(self, path: str | Path) -> None:
        """Write it to a folder, with what it says of its origin."""
        origin = {name: self.meta[name] for name in ORIGIN if name in self.meta}
        save_policy(Path(path), self.meta["algorithm"], self.algo, self.params, origin)


def _as(flags: np.ndarray, rows: Array) -> np.ndarray:
    """Flags [N] as they meet rows [N, ...]."""
    return flags.reshape(flags.shape + (1,) * (rows.ndim - 1))


def row_shape(space: gym.Space) -> tuple[object, ...]:
    """What entities of a part of an observation look like, however many they are: a mask may have any length."""
    shape = spaces.shape_of(space)
    return type(space), *(("any", *shape[1:]) if len(shape) == 2 or isinstance(space, gym.MultiBinary) else shape)


def row_of(actions: PyTree, i: int) -> PyTree:
    """One of several actions, its numbers as Python's."""
    return jax.tree.map(lambda x: x[i].item() if x.ndim == 1 else x[i], actions)


def save_policy(
    path: Path,
    algorithm: str,
    algo: Algorithm,
    params: PyTree,
    meta: Json,
    beside: Callable[[Json], Mapping[str, str]] = lambda config: {},
) -> None:
    """Write the policy folder: completely, or not at all. `beside` makes of the config more files, name -> text."""
    spec = algo.bound.spec
    tmp, old = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".old")
    try:
        shutil.rmtree(tmp, ignore_errors=True)
        tmp.mkdir(parents=True)
        save_file(flatten(params), tmp / "policy.safetensors")
        config = {
            "algorithm": algorithm,
            "algo": dataclasses.asdict(algo.config),
            "network": dataclasses.asdict(algo.network),
            "observation_space": spaces.to_json(spec.observation_space),
            "action_space": spaces.to_json(spec.action_space),
            "reward_components": list(spec.reward_components),
            "agents": list(spec.agents),
            "sha256": digest(tmp / "policy.safetensors"),
            **meta,
        }
        if isinstance(algo, policy_map.PolicyMap):
            config["policies"] = {m.name: member_config(m, algorithm, spec) for m in algo.members}
        config = seal(json.loads(json.dumps(config, default=float)), SCHEMA)
        text = json.dumps(config, indent=2) + "\n"
        for name, content in ({"config.json": text} | dict(beside(config))).items():
            (tmp / name).write_text(content, encoding="utf-8")
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
        os.rename(tmp, path)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as e:
        raise StorageError(f"cannot write the policy {path}: {e.strerror or e}") from e


@answered
@trustable
def load_policy(source: str | Path, checkpoint: str = "best", *, trust: bool = False) -> Policy:
    """Load the policy of a run and return it, ready to act.

    Args:
        source: a run directory, or a folder that `Policy.save` or `regimen export` wrote.
        checkpoint: `best` by evaluation, `final`, or the env step of a checkpoint.
        trust: whether code may run that the files name and that is not installed.
    """
    path = Path(source)
    if (path / "config.json").exists():
        return read_policy(path)
    if checkpoint == "best":
        return read_policy(path / "policy")
    folder = Checkpoints(path / "checkpoints").find(checkpoint)
    verify(folder)
    return read_policy(folder / "policy")


def read_policy(path: Path) -> Policy:
    """The policy in a folder of `save_policy`."""
    require_addresses()  # weights are initialised before the device is chosen
    meta, arrays = read_files(path)
    with reading(f"the policy in {path}"):
        return policy_of(meta, arrays, path)


def policy_of(meta: Json, arrays: dict[str, np.ndarray], path: Path) -> Policy:
    """The policy that the files in a folder describe."""
    components = tuple(meta.get("reward_components", ("total",)))
    observed, acted = (spaces.from_json(meta[name]) for name in ("observation_space", "action_space"))
    needs_env = "policies" not in meta and ALGORITHMS[meta["algorithm"]].load().needs_env
    env = registry.resolve(meta["env"], meta.get("env_args", {})).native if needs_env else None
    spec = Spec(observed, acted, components, tuple(meta.get("agents", ())), env=env)
    if "policies" in meta:
        algos = {name: saved_algorithm(one, path) for name, one in meta["policies"].items()}
        members = tuple(
            policy_map.Member(name, algos[name].bind(spec), tuple(spec.agents.index(a) for a in one["agents"]))
            for name, one in meta["policies"].items()
        )
        algo: Algorithm = policy_map.PolicyMap(members, policy_map.Members(spec, members))
    else:
        algo = saved_algorithm(meta, path).bind(spec)
    like = algo.actor_params(algo.init(jax.random.key(0)))
    return Policy(algo, unflatten(like, arrays, f"the policy in {path}"), meta)


def member_config(member: policy_map.Member, algorithm: str, spec: Spec) -> dict[str, object]:
    """What makes one policy of several again."""
    return {
        "algorithm": algorithm if member.learns else name_of(member.algo),
        "algo": dataclasses.asdict(member.algo.config),
        "network": dataclasses.asdict(member.algo.network),
        "agents": [spec.agents[place] for place in member.agents],
    }


def name_of(algo: Algorithm) -> str:
    return next(name for name, entry in ALGORITHMS.items() if entry.load() is type(algo))


def saved_algorithm(meta: Json, path: Path) -> Algorithm:
    """The algorithm that a policy's config.json describes, not bound yet."""
    name = meta["algorithm"]
    if name not in ALGORITHMS:
        raise StorageError(f"the policy in {path} is of algorithm '{name}', unknown here{nearest(name, ALGORITHMS)}")
    network = {"encoder": "mlp"} | meta["network"]  # before there were encoders, all was a vector
    network = NetworkConfig(**(network | {"hidden": tuple(network["hidden"])}))
    return make_algorithm(name, config_of(ALGORITHMS[name].config, meta["algo"]), network)


def config_of(cls: type, values: Mapping[str, object]) -> Any:
    """A configuration from plain data, sections within it included."""
    types = field_types(cls)
    nested = {k: config_of(types[k], v) for k, v in values.items() if isinstance(v, dict)}
    return cls(**{**values, **nested})


def read_files(path: Path) -> tuple[Json, dict[str, np.ndarray]]:
    """config.json and the arrays of a policy folder, verified."""
    weights, what = path / "policy.safetensors", f"the policy in {path}"
    for file in (path / "config.json", weights):
        if not file.exists():
            raise StorageError(f"no policy in {path}: {file.name} is missing")
    with reading(what):
        meta = unseal(load_object(path / "config.json"), f"{path / 'config.json'}", SCHEMA)
        schema = meta["schema"]
        if schema > SCHEMA:
            raise StorageError(f"{what} was written by a newer version (schema {schema} > {SCHEMA}); upgrade regimen")
        try:
            if meta.get("sha256") != digest(weights) and (schema > 1 or "sha256" in meta):
                raise StorageError(f"{what} is damaged: policy.safetensors has changed")
            return named(meta, path / "config.json"), load_file(weights)
        except (OSError, SafetensorError) as e:
            raise StorageError(f"{what} is damaged: {brief(e)}") from e


def require_match(stored: Mapping[str, str], expected: Mapping[str, str], what: str) -> None:
    """Refuse a state or policy (`what`) that belongs to something else, naming both."""
    for name, value in expected.items():
        if stored.get(name) != value:
            raise StorageError(f"{what} does not fit: its {name} is {stored.get(name)}, this run's is {value}")
