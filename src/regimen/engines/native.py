"""Native environments: an update collects a rollout and learns from it, both compiled, on every device its share."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from regimen import randomness, trees
from regimen.algorithms.base import Algorithm
from regimen.axes import DEVICES, all_devices, gather_over_devices
from regimen.engines.chunk import Buffers, CompiledEngine, Stretch, Turn, one_update
from regimen.engines.curriculum import Curriculum
from regimen.engines.device import Device
from regimen.sources.scan import ScanSource
from regimen.types import Array, Clock, PyTree, State

Carry = PyTree  # EnvCarry; with a curriculum or a lag {"envs": EnvCarry, "curriculum": its course, "history": policies}


def collect_and_learn(
    source: ScanSource,
    curriculum: Curriculum | None,
    lag: int,
    algo: Algorithm,
    env: PyTree,
    state: State,
    carry: Carry,
) -> Turn:
    """One rollout of this device's environments, and an update on those of all devices."""
    key = jax.random.fold_in(state.key, state.clock.updates)
    params, played, values, new, age = algo.actor_params(state), env, {}, {}, None
    if lag:
        params, new["history"], age = swap(carry["history"], params, state.clock, lag)
    if curriculum is not None:
        played, values = curriculum.apply(env, state.clock, carry["curriculum"])
    plain = curriculum is None and not lag
    envs, batch, rows, steps = source.next(played, algo, carry if plain else carry["envs"], params, key)
    if age is not None:
        batch = batch.replace(lag=jnp.full(batch.valid.shape[1], age))
    if curriculum is not None:
        new["curriculum"] = curriculum.after(carry["curriculum"], rows)
    steps, ended = gather_over_devices((steps, rows.count if rows.total is None else rows.total))
    update = one_update(algo, state, batch, ended.sum(), steps.sum())
    return Turn(
        state=update.state,
        carry=envs if plain else new | {"envs": envs},
        finite=all_devices(update.finite),
        steps=steps.sum(),
        ended=ended,
        metrics=update.metrics | values,
        episodes=rows,
    )


def swap(history: PyTree, params: PyTree, clock: Clock, lag: int) -> tuple[PyTree, PyTree, Array]:
    """The policy to act with, the history [lag, ...] that remembers the current one instead, and how old the former is.

    Asynchronous workers act with a policy some updates old; this repeats it exactly: update i acts with the policy of
    update i - lag, with the first one while there is none so old."""
    slot = clock.updates_modulo(lag)
    old = jax.tree.map(lambda x: x[slot], history)
    new = jax.tree.map(lambda x, p: x.at[slot].set(p), history, params)
    return old, new, jnp.where(clock.updates_high > 0, lag, jnp.minimum(clock.updates, lag))


class NativeEngine(CompiledEngine):
    """K learners on a native environment, in one program over `devices`. `init(key, algo)` makes a learner's first
    state. With `variants`, learner k has an algorithm of its own: all are `algo` but for their float hyper-parameters.

    Environments are split over the devices along their axis; what is learned is the same on all of them. So a snapshot
    does not depend on their number, and another number can go on from it.
    """

    def __init__(
        self,
        env: PyTree,
        algo: Algorithm,
        source: ScanSource,
        seeds: list[int],
        init: Callable[[Array, Algorithm], State],
        curriculum: Curriculum | None = None,
        lag: int = 0,
        devices: list[Device] | None = None,
        variants: list[Algorithm] | None = None,
    ):
        super().__init__(algo, len(seeds), variants)
        self.env = env
        self.source = source
        self.curriculum = curriculum
        self.lag = lag
        self.mesh = Mesh(np.array(devices or jax.local_devices()[:1]), (DEVICES,))
        reset = jax.jit(source.init)
        states, carries = [], []
        for k, seed in enumerate(seeds):  # one by one: initialisation runs on the host
            key, algo = randomness.key_of(seed), self.algo_of(k)
            states.append(init(randomness.fold_in(key, 0), algo))
            extra, first = {}, env
            if lag:
                params = algo.actor_params(states[-1])
                extra["history"] = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[None], lag, axis=0), params)
            if curriculum is not None:
                extra["curriculum"] = curriculum.start()
                first, _ = curriculum.apply(env, states[-1].clock, extra["curriculum"])
            envs = reset(first, algo, randomness.fold_in(key, 1))
            carries.append(extra | {"envs": envs} if extra else envs)
        self.place(self.stack(states), self.stack(carries))

    @property
    def inputs(self) -> PyTree:
        return self.env

    def turn(self, algo: Algorithm, inputs: PyTree, state: State, carry: Carry) -> Turn:
        source = self.source.share(self.mesh.size)
        return collect_and_learn(source, self.curriculum, self.lag, algo, inputs, state, carry)

    def specs(self, state: State) -> tuple[PyTree, PyTree]:
        """How a state and a carry lie on the devices: rows of environments are split, the rest is on all of them."""
        everywhere, by_env = P(), P(DEVICES) if self.learners == 1 else P(None, DEVICES)
        split = self.algo.by_env or ()
        aux = {name: by_env if name in split else everywhere for name in state.aux}
        columns = P(None, DEVICES) if self.learners == 1 else P(None, None, DEVICES)  # a replay is [time, rows, ...]
        common = State(everywhere, everywhere, everywhere, everywhere, aux, columns)  # type: ignore[arg-type]
        if self.curriculum is None and not self.lag:
            return common, by_env
        extra = {"curriculum": self.curriculum is not None, "history": bool(self.lag)}
        return common, {"envs": by_env} | {name: everywhere for name, there in extra.items() if there}

    def place(self, state: State, carry: Carry) -> None:
        specs = self.specs(state)
        self.state, self.carry = (on_mesh(tree, self.mesh, spec) for tree, spec in zip((state, carry), specs))

    def over_devices(self, run: Callable[..., Stretch]) -> Callable[..., Stretch]:
        state, carry = self.specs(self.state)
        everywhere: PyTree = P()
        rows: PyTree = P(DEVICES) if self.learners == 1 else P(None, DEVICES)
        end = Stretch(
            state=state,
            carry=carry,
            updates=everywhere,
            steps=everywhere,
            ended=everywhere,
            finite=everywhere,
            buffers=Buffers(everywhere, everywhere, rows, everywhere if self.source.sample else ()),
        )
        arguments = (everywhere, everywhere, state, carry, everywhere)
        return jax.shard_map(run, mesh=self.mesh, in_specs=arguments, out_specs=end, check_vma=False)


def on_mesh(tree: PyTree, mesh: Mesh, spec: PyTree) -> PyTree:
    """A copy of the tree on the devices of a mesh, by the specs of its parts."""

    def put(x: Array, sharding: NamedSharding) -> Array:
        if sharding.is_fully_addressable:
            return jax.device_put(jnp.copy(x), sharding)  # replicas may share what they were made of
        if trees.is_key(x):
            return jax.random.wrap_key_data(put(jax.random.key_data(x), sharding))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    def place(spec: P, part: PyTree) -> PyTree:
        return jax.tree.map(lambda x: put(x, NamedSharding(mesh, spec)), part)

    return jax.tree.map(place, spec, tree, is_leaf=lambda x: isinstance(x, P))
