"""Where the empowerment learner's rows come from: moments that agents have come to, each kept once; whole transitions,
where targets are observed; or all reachable moments, whether anybody has been there or not (`source`)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regimen.axes import device_count, gather_over_devices
from regimen.domains.empowerment.learner.model import Moments, WorldModel
from regimen.domains.empowerment.learner.table import mix
from regimen.domains.empowerment.learner.targets import Transitions
from regimen.sources.replay import NStepTransitions, Replay, ReplayRows
from regimen.types import Array, Batch, PyTree, Spec

Marks = dict[str, PyTree]  # what is kept in `State.aux`
SLOTS = 16  # of the table of what was seen, for each moment kept: so many times fewer share one by chance
MOST_SLOTS = 2**30  # whose numbers are int32


class Sweep:
    """All reachable moments, alike. Nothing is kept: nobody would read it."""

    most = 0  # rows kept

    def __init__(self, model: WorldModel):
        self.model = model

    def init(self) -> tuple[Marks, PyTree]:
        return {}, ()

    def size(self, marks: Marks) -> Array:
        """Rows that can be drawn."""
        return jnp.int32(self.model.places)

    def insert(self, marks: Marks, rows: PyTree, batch: Batch) -> tuple[Marks, PyTree]:
        return {}, ()

    def sample(self, marks: Marks, rows: PyTree, key: Array, size: int) -> Moments:
        return self.model.at(jax.random.randint(key, (size,), 0, self.model.places))


class Visits:
    """The moments that agents have come to, each once and drawn alike, however often they come back: targets from the
    model are expectations, and a second visit says nothing new. Where there are more than fit, the newest."""

    def __init__(self, model: WorldModel, buffer_size: int):
        self.model = model
        self.capacity = min(buffer_size, model.places) if model.places else buffer_size
        self.slots = model.places or min(2 ** math.ceil(math.log2(SLOTS * buffer_size)), MOST_SLOTS)

    def init(self) -> tuple[Marks, PyTree]:
        """Nothing seen yet. All of it is the same on every device, and so no replay of their own."""
        world = self.model.world
        state = jax.eval_shape(world.initial)
        row = {"place": jnp.int32(0)} if self.model.places else {"state": state, "time": jnp.int32(0)}
        kept = jax.tree.map(lambda x: jnp.zeros((self.capacity, *x.shape), x.dtype), row)
        slot = jnp.zeros(self.capacity, jnp.int32)  # of each row kept
        return {"kept": kept, "slot": slot, "seen": jnp.zeros(self.slots, bool), "count": jnp.int32(0)}, ()

    def size(self, marks: Marks) -> Array:
        return jnp.minimum(marks["count"], self.capacity)

    def insert(self, marks: Marks, rows: PyTree, batch: Batch) -> tuple[Marks, PyTree]:
        """Keep the moments [T, B] of a batch that were not seen before."""
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.obs)
        if self.model.places:
            row = {"place": self.model.rows(flat).place}
        else:
            row = {name: flat[name] for name in ("state", "time")}
        here = jax.tree.map(gather_over_devices, row | {"valid": batch.valid.reshape(-1)})  # each in its own type
        row = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), here)
        valid = row.pop("valid")
        n, slot = len(valid), row["place"] if self.model.places else self.hash(row)
        first = jnp.full(self.slots, n).at[slot].min(jnp.where(valid, jnp.arange(n), n))  # n: no valid row
        new = ~marks["seen"][slot] & (first[slot] == jnp.arange(n))
        new &= jnp.cumsum(new) <= self.capacity
        number = marks["count"] + jnp.cumsum(new) - 1
        at = jnp.where(new, number % self.capacity, self.capacity)
        kept = jax.tree.map(lambda x, y: x.at[at].set(y.astype(x.dtype), mode="drop"), marks["kept"], row)
        lost = jnp.where(
            number >= self.capacity, marks["slot"].at[at].get(mode="fill", fill_value=self.slots), self.slots
        )
        seen = marks["seen"].at[lost].set(False, mode="drop").at[slot].max(new)
        slots = marks["slot"].at[at].set(slot, mode="drop")
        count = marks["count"] + new.sum().astype(jnp.int32)
        count = jnp.where(count < 2 * self.capacity, count, self.capacity + count % self.capacity)  # has no upper end
        return {"kept": kept, "slot": slots, "seen": seen, "count": count}, ()

    def hash(self, row: dict[str, Array]) -> Array:
        """Slots [N] of states and times. Entries are mixed before they are summed: round numbers have nothing but zeros
        in the lower bits of their floats, and so would their sum have."""
        state, time = row["state"], row["time"] * int(self.model.timed)
        bits = state.reshape(len(time), -1)
        if jnp.issubdtype(bits.dtype, jnp.floating):
            bits = lax.bitcast_convert_type(bits.astype(jnp.float32), jnp.uint32)
        bits = jnp.concatenate([bits.astype(jnp.uint32), time[:, None].astype(jnp.uint32)], 1)
        factors = np.random.default_rng(0).integers(0, 2**32, bits.shape[1], dtype=np.uint32) | np.uint32(1)
        return (mix((mix(bits) * factors).sum(-1, dtype=jnp.uint32)) % self.slots).astype(jnp.int32)

    def sample(self, marks: Marks, rows: PyTree, key: Array, size: int) -> Moments:
        at = jax.random.randint(key, (size,), 0, jnp.maximum(self.size(marks), 1))
        row = jax.tree.map(lambda x: x[at], marks["kept"])
        return self.model.at(row["place"]) if self.model.places else self.model.rows(row)

    @property
    def most(self) -> int:
        """The most rows kept."""
        return self.capacity


class Observations:
    """A replay of whole transitions, for targets that are observed."""

    def __init__(self, spec: Spec, model: WorldModel, buffer_size: int):
        self.model = model
        size = buffer_size if spec.rollout_rows else 1  # a policy that is loaded collects nothing
        self.replay = Replay(size, max(1, spec.rollout_rows), spec.columns, spec.workers)

    @property
    def most(self) -> int:
        """The most rows kept."""
        return self.replay.capacity * self.replay.columns

    def init(self) -> tuple[Marks, PyTree]:
        """An empty replay: its marks and its rows."""
        lead = (self.replay.capacity, self.replay.columns)
        obs, action, new = jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), self.example())
        flags = [jnp.zeros(lead, bool) for _ in range(3)]
        return {"ring": self.replay.ring()}, ReplayRows(obs, action, jnp.zeros(lead), flags[0], flags[1], new, flags[2])

    def example(self) -> tuple[PyTree, PyTree, PyTree]:
        """What is kept of an observation, an action and a successor."""
        world, time = self.model.world, jnp.int32(0)
        state = jax.eval_shape(world.initial)
        moment = {"state": jnp.zeros(state.shape, state.dtype), "time": time}
        human, p = jnp.zeros(world.humans, jnp.int32), jnp.zeros(world.humans)
        return moment, {"robot": time, "human": human, "robot_p": jnp.zeros(()), "human_p": p}, moment

    def size(self, marks: Marks) -> Array:
        return marks["ring"].count.sum() * (self.replay.columns // self.replay.workers)

    def insert(self, marks: Marks, rows: PyTree, batch: Batch) -> tuple[Marks, PyTree]:
        obs, action, new = self.example()
        batch = batch.replace(
            obs={name: batch.obs[name] for name in obs},
            action={name: batch.action[name] for name in action},
            next_obs={name: batch.next_obs[name] for name in new},
        )
        ring, rows = self.replay.share(device_count()).insert(marks["ring"], rows, batch)
        return {"ring": ring}, rows

    def sample(self, marks: Marks, rows: PyTree, key: Array, size: int) -> Transitions:
        replay = self.replay.share(device_count())
        return self.transitions(replay.sample(marks["ring"], rows, key, size, 1, 1.0))

    def transitions(self, sample: NStepTransitions) -> Transitions:
        """Transitions as targets need them."""
        model, world = self.model, self.model.world
        new, action, rows = sample.next_obs["state"], sample.action, model.rows(sample.obs)
        return Transitions(
            rows=rows,
            next=model.rows(sample.next_obs),
            over=jax.vmap(world.ended)(new) | model.last(rows),
            attained=jax.vmap(world.attained)(new),
            robot=action["robot"],
            human=action["human"],
            robot_p=action["robot_p"],
            human_p=action["human_p"],
        )


Experience = Sweep | Visits | Observations
