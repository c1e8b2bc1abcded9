"""Several policies in one environment: each learns from the rows of its own agents, or is frozen and only acts.

To the rest it is one algorithm. Its state holds those of its members, their entries named `policy.entry`; a member sees
a batch with the columns of its agents and nothing else.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from regimen import spaces
from regimen.algorithms.base import Algorithm, Binding
from regimen.axes import applied_state, sum_over_devices
from regimen.errors import ConfigError, nearest
from regimen.types import Array, Batch, Model, PyTree, Spec, State

SHARED, INDEPENDENT, BY_ROLE = "shared", "independent", "role"


@dataclasses.dataclass(frozen=True)
class Member:
    """One policy and its agents."""

    name: str
    algo: Algorithm
    agents: tuple[int, ...]  # their places among all
    frozen: PyTree = None  # actor parameters of a policy that does not learn

    @property
    def learns(self) -> bool:
        return self.frozen is None


class Members(Binding):
    """The policies of one environment."""

    def __init__(self, spec: Spec, members: tuple[Member, ...]):
        super().__init__(spec, members[0].algo.bound.dist)
        self.members = members

    def replay_bytes(self) -> int:
        return sum(m.algo.bound.replay_bytes() for m in self.members if m.learns)

    def replay_rows(self) -> int:
        return sum(m.algo.bound.replay_rows() for m in self.members if m.learns)

    def activation_bytes(self) -> int:
        return max(m.algo.bound.activation_bytes() for m in self.members)  # they learn one after the other


class PolicyMap(Algorithm):
    """Members that act side by side. `config` and `network` are those that the learning ones have in common."""

    def __init__(self, members: tuple[Member, ...], binding: Members):
        self.members, self.binding = members, binding
        first = next((m.algo for m in members if m.learns), None)
        if first is None:
            raise ConfigError("policy_map: every policy is frozen; nothing would be learned")
        self.learner = first
        self.config, self.network = first.config, first.network
        self.asynchronous = first.asynchronous
        if first.by_env is not None:
            self.by_env = tuple(f"{m.name}.{entry}" for m in members if m.learns for entry in m.algo.by_env or ())

    @property
    def max_lag(self) -> int | None:
        return self.learner.max_lag

    @classmethod
    def of(
        cls,
        algo: Algorithm,
        spec: Spec,
        policies: Mapping[str, tuple[str, ...]],
        frozen: Mapping[str, tuple[Algorithm, PyTree]],
    ) -> PolicyMap:
        """`algo` for every one of the `policies` (name -> agents), except those given as `frozen` (name -> (bound
        algorithm, actor parameters))."""
        members = []
        for name, agents in policies.items():
            places = tuple(spec.agents.index(agent) for agent in agents)
            if name in frozen:
                bound, params = frozen[name]
                members.append(Member(name, bound, places, jax.tree.map(jnp.asarray, params)))
            else:
                members.append(Member(name, algo.bind(dataclasses.replace(spec, agents=agents)), places))
        return cls(tuple(members), Members(spec, tuple(members)))

    def columns(self, member: Member, tree: PyTree, axis: int) -> PyTree:
        """The columns of a member's agents; `axis` is that of all rows, environments times agents."""
        agents, places = len(self.binding.spec.agents), self.places(member, axis)
        return jax.tree.map(lambda x: side_by_side(by_agent(x, agents, axis)[places], axis), tree)

    def places(self, member: Member, axis: int) -> tuple:
        """The index of a member's agents in an array [..., environments, agents, ...]."""
        return (slice(None),) * (axis + 1) + (np.array(member.agents),)

    def join(self, pieces: list[PyTree], axis: int) -> PyTree:
        """Rows of each member as rows of all, in their order."""
        order = np.argsort(np.concatenate([m.agents for m in self.members]))

        def interleave(*leaves: Array) -> Array:
            each = [by_agent(x, len(m.agents), axis) for x, m in zip(leaves, self.members)]
            return side_by_side(jnp.take(jnp.concatenate(each, axis=axis + 1), order, axis=axis + 1), axis)

        return jax.tree.map(interleave, *pieces)

    def state_of(self, member: Member, state: State) -> State:
        """A member's own, with a randomness of its own."""

        def entries(tree: dict[str, PyTree]) -> dict[str, PyTree]:
            start = f"{member.name}."
            return {key.removeprefix(start): value for key, value in tree.items() if key.startswith(start)}

        key = jax.random.fold_in(state.key, 1 + self.members.index(member))
        replay = state.replay[member.name] if isinstance(state.replay, dict) else ()
        return State(entries(state.models), entries(state.norm), key, state.clock, entries(state.aux), replay)

    def init(self, key: Array) -> State:
        states = {m.name: m.algo.init(jax.random.fold_in(key, i)) for i, m in enumerate(self.members) if m.learns}
        frozen = {f"{m.name}.frozen": Model(m.frozen) for m in self.members if not m.learns}
        state = next(iter(states.values())).replace(models=frozen, norm={}, aux={}, replay={})
        for m in filter(lambda m: m.learns, self.members):
            state = self.with_state(state, m, states[m.name])
        return state.replace(replay=state.replay if any_leaves(state.replay) else ())

    def with_state(self, state: State, member: Member, part: State) -> State:
        """The state of all with that of one member in it."""

        def merged(whole: dict[str, PyTree], entries: dict[str, PyTree]) -> dict[str, PyTree]:
            return whole | {f"{member.name}.{key}": value for key, value in entries.items()}

        replay = state.replay | {member.name: part.replay} if isinstance(state.replay, dict) else state.replay
        return state.replace(
            models=merged(state.models, part.models),
            norm=merged(state.norm, part.norm),
            aux=merged(state.aux, part.aux),
            replay=replay,
        )

    def actor_params(self, state: State) -> PyTree:
        return {
            m.name: m.algo.actor_params(self.state_of(m, state))
            if m.learns
            else state.models[f"{m.name}.frozen"].params
            for m in self.members
        }

    def initial_carry(self, lead: tuple[int, ...]) -> PyTree:
        """What the policies remember by member, each for all rows: those of other agents are never looked at."""
        carries = {m.name: m.algo.initial_carry(lead) for m in self.members}
        return carries if any_leaves(carries) else ()

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        return {m.name: m.algo.noise(jax.random.fold_in(key, i), shape) for i, m in enumerate(self.members)}

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        one = jax.tree.leaves(spaces.zeros(self.binding.spec.observation_space))[0]
        axis = jax.tree.leaves(obs)[0].ndim - 1 - one.ndim
        actions, extras, carries = [], [], dict(carry) if carry != () else {}
        for m in self.members:
            view, allowed, before = (self.columns(m, x, axis) for x in (obs, mask, carries.get(m.name, ())))
            lots = None if noise is None else self.columns(m, noise[m.name], axis)
            action, after, extra = m.algo.act(params[m.name], view, before, lots, mask=allowed, greedy=greedy)
            actions.append(action)
            extras.append(extra if m.learns else None)
            if any_leaves(after):
                carries[m.name] = self.put(m, carries[m.name], after, axis)
        like = next(x for x in extras if x is not None)
        filled = [self.blank(like, action, axis) if x is None else x for x, action in zip(extras, actions)]
        return self.join(actions, axis), carries if carry != () else (), self.join(filled, axis)

    def put(self, member: Member, whole: PyTree, part: PyTree, axis: int) -> PyTree:
        """`whole` with the columns of a member's agents replaced."""
        agents, places = len(self.binding.spec.agents), self.places(member, axis)

        def write(x: Array, y: Array) -> Array:
            new = by_agent(y, len(member.agents), axis)
            return side_by_side(by_agent(x, agents, axis).at[places].set(new), axis)

        return jax.tree.map(write, whole, part)

    def blank(self, like: PyTree, action: PyTree, axis: int) -> PyTree:
        """What a frozen member says of its choices: nothing that is learned from."""
        rows = jax.tree.leaves(action)[0].shape[axis]
        return jax.tree.map(lambda x: jnp.zeros((*x.shape[:axis], rows, *x.shape[axis + 1 :]), x.dtype), like)

    def to_env(self, action: PyTree) -> PyTree:
        leaf = jax.tree.leaves(action)[0]
        axis = leaf.ndim - 1 - jax.tree.leaves(self.binding.dist.zeros(()))[0].ndim
        out = self.join([m.algo.to_env(self.columns(m, action, axis)) for m in self.members], axis)
        return jax.tree.map(np.asarray, out) if isinstance(leaf, (np.ndarray, np.generic)) else out

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """Each learning member on its own columns; one whose agents were all absent stays as it is. Metrics are means
        over those that learned, and by policy."""
        reports: dict[str, dict[str, Array]] = {}
        acted: dict[str, Array] = {}
        columns = batch.replace(length=None, worker=None, lag=None)
        for m in filter(lambda m: m.learns, self.members):
            part = self.columns(m, columns, 1).replace(length=batch.length, worker=batch.worker)
            if batch.lag is not None:
                part = part.replace(lag=self.columns(m, batch.lag, 0))
            before = self.state_of(m, state)
            new, reports[m.name] = m.algo.update(before, part)
            acted[m.name] = sum_over_devices(part.valid.sum(dtype=jnp.float32)) > 0
            state = self.with_state(state, m, applied_state(acted[m.name], new, before))
        there = jnp.stack(list(acted.values()))
        names = next(iter(reports.values()))
        each = {k: jnp.stack([x[k] for x in reports.values()]) for k in names}
        metrics = {k: jnp.where(there, x, 0.0).sum() / there.sum() for k, x in each.items()}
        if len(reports) > 1:
            by_policy = [(k, name) for name in reports for k in ("loss", "entropy") if k in names]
            metrics |= {f"{k}/{name}": jnp.where(acted[name], reports[name][k], jnp.nan) for k, name in by_policy}
        return state, metrics


def by_agent(x: Array, agents: int, axis: int) -> Array:
    """The rows of an axis as two: environments, and the agents of each."""
    return x.reshape(*x.shape[:axis], -1, agents, *x.shape[axis + 1 :])


def side_by_side(x: Array, axis: int) -> Array:
    """Join the axes of environments and their agents again: the inverse of `by_agent`."""
    return x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])


def any_leaves(tree: PyTree) -> bool:
    return bool(jax.tree.leaves(tree))


def _flatten(algo: PolicyMap):
    return tuple(m.algo for m in algo.members), algo.binding


def _unflatten(binding: Members, algos: tuple[Algorithm, ...]) -> PolicyMap:
    members = tuple(dataclasses.replace(m, algo=a) for m, a in zip(binding.members, algos))
    return PolicyMap(members, binding)


jax.tree_util.register_pytree_node(PolicyMap, _flatten, _unflatten)


def role_of(agent: str) -> str:
    """An agent's name without its number: `adversary_0` is an `adversary`, `A1` an `A`."""
    return re.sub(r"[_-]?\d+$", "", agent) or agent


def parse(text: str, agents: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Policy -> agents, of `shared`, `independent`, `role`, or `agent=policy,role=policy,...`."""
    if text == SHARED:
        return {SHARED: agents}
    if not agents:
        raise ConfigError(f"policy_map: '{text}' needs an environment of several agents; use 'shared'")
    if text == INDEPENDENT:
        return {agent: (agent,) for agent in agents}
    policies = {role: role for role in map(role_of, agents)}  # of an agent or a role
    if text != BY_ROLE:
        roles, policies = policies, {}
        for item, who, policy in assignments(text):
            if not re.fullmatch(r"[A-Za-z0-9_-]+", policy):
                words = f"{SHARED}, {INDEPENDENT}, {BY_ROLE}, or agent=policy,agent=policy"
                raise ConfigError(f"policy_map: '{item}' is not an assignment; write {words}")
            if who not in agents and who not in roles:
                hint = nearest(who, (*agents, *roles))
                raise ConfigError(f"policy_map: '{who}' is neither an agent nor a role{hint}")
            policies[who] = policy
    out: dict[str, tuple[str, ...]] = {}
    for agent in agents:
        policy = policies.get(agent) or policies.get(role_of(agent))
        if policy is None:
            raise ConfigError(f"policy_map: the agent '{agent}' has no policy; add {agent}=NAME")
        out[policy] = (*out.get(policy, ()), agent)
    return out


def assignments(text: str) -> Iterator[tuple[str, str, str]]:
    """(item, name, value) of every `name=value` between commas; the value is empty where there is none."""
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = item.partition("=")
        yield item, name.strip(), value.strip()


def parse_frozen(text: str | None, policies: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Policy -> run, of `policy=RUN,policy=RUN`."""
    out: dict[str, str] = {}
    for item, name, run in assignments(text or ""):
        if not run:
            raise ConfigError(f"frozen: '{item}' is not an assignment; write policy=RUN")
        if name not in policies:
            raise ConfigError(f"frozen: there is no policy '{name}'{nearest(name, policies)}")
        out[name] = run
    return out
