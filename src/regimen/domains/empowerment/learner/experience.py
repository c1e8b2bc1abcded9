"""Where the empowerment learner's rows come from: a sweep of all reachable states, a replay of what was visited, or
both."""

import jax
import jax.numpy as jnp

from regimen.axes import device_count
from regimen.domains.empowerment.learner.model import Moments, WorldModel
from regimen.domains.empowerment.learner.targets import Transitions
from regimen.sources.replay import NStepTransitions, Replay, ReplayRows, Ring
from regimen.types import Array, Batch, PyTree, Spec

Marks = dict[str, PyTree]  # of the replay, in `State.aux`: "ring", and "stamp", the step at which rows were written


class Experience:
    """Moments to learn from. Where all of them are swept there is no replay: nobody would read it."""

    def __init__(self, spec: Spec, model: WorldModel, observes: bool, sweep: float, buffer_size: int):
        """`observes`: whole transitions are kept and drawn, not only where they began. `sweep`: share of each batch
        that is drawn uniformly from all reachable moments, whether anybody has been there or not."""
        self.model, self.observes, self.sweep = model, observes, sweep
        keeps = spec.rollout_rows and sweep < 1
        self.replay = Replay(buffer_size, spec.rollout_rows, spec.columns, spec.workers) if keeps else None

    # --- what is kept ------------------------------------------------------------------------------------------------

    def init(self) -> tuple[Marks, PyTree]:
        """An empty replay: its marks and its rows."""
        if self.replay is None:
            return {}, ()
        stamp = jnp.full((self.replay.workers, self.replay.capacity), -1.0)  # [W, C]; -1: never
        lead = (self.replay.capacity, self.replay.columns)
        obs, action, new = jax.tree.map(lambda x: jnp.zeros((*lead, *x.shape), x.dtype), self.example())
        flags = [jnp.zeros(lead, bool) for _ in range(3)]
        rows = ReplayRows(obs, action, jnp.zeros(lead), flags[0], flags[1], new, flags[2])
        return {"ring": self.replay.ring(), "stamp": stamp}, rows

    def example(self) -> tuple[PyTree, PyTree, PyTree]:
        """What is kept of an observation, an action and a successor."""
        world = self.model.world
        time, state = jnp.int32(0), jax.eval_shape(world.initial)
        state = jnp.zeros(state.shape, state.dtype)
        if not self.observes:
            return ({"place": time} if self.model.places else {"state": state, "time": time}), (), ()
        goal, p = jnp.zeros(world.humans, jnp.int32), jnp.zeros(world.humans)
        action = {"robot": time, "human": goal, "robot_p": jnp.zeros(()), "human_p": p}
        return {"state": state, "time": time, "goal": goal}, action, {"state": state, "time": time}

    def size(self, marks: Marks) -> Array:
        """Transitions that can be drawn from the replay."""
        assert self.replay is not None
        return marks["ring"].count.sum() * (self.replay.columns // self.replay.workers)

    def insert(
        self, marks: Marks, rows: PyTree, batch: Batch, t: Array, clear: Array | None = None
    ) -> tuple[Marks, PyTree]:
        """Marks and rows with a batch written at step `t`; where `clear` holds, rows before it do not count."""
        if self.replay is None:
            return {}, ()
        ring = marks["ring"]
        if clear is not None:
            ring = ring.replace(count=jnp.where(clear, 0, ring.count))
        worker = jnp.int32(0) if batch.worker is None else batch.worker
        times = jnp.full((1, batch.valid.shape[0]), jnp.asarray(t, jnp.float32))
        stamp = jax.lax.dynamic_update_slice(marks["stamp"], times, (worker, ring.cursor[worker]))
        ring, rows = self.replay.share(device_count()).insert(ring, rows, self.reduce(batch))
        return {"ring": ring, "stamp": stamp}, rows

    def reduce(self, batch: Batch) -> Batch:
        """The part of a batch that goes into the replay."""
        obs, action, new = self.example()
        if "place" in obs:
            lead = batch.valid.shape
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch.obs)
            return batch.replace(obs={"place": self.model.rows(flat).place.reshape(lead)}, action=(), next_obs=())
        return batch.replace(
            obs={name: batch.obs[name] for name in obs},
            action={name: batch.action[name] for name in action} or (),
            next_obs={name: batch.next_obs[name] for name in new} or (),
        )

    # --- what is drawn -----------------------------------------------------------------------------------------------

    def young(self, marks: Marks, limit: Array) -> Ring:
        """The ring without rows that were written before step `limit`; as it is where nothing would be left."""
        ring = marks["ring"]
        count = jnp.minimum(ring.count, (marks["stamp"] >= limit).sum(1).astype(jnp.int32))
        return ring.replace(count=jnp.where(count.sum() > 0, count, ring.count))

    def sample(self, marks: Marks, rows: PyTree, key: Array, size: int, limit: Array) -> Moments | Transitions:
        """A batch of `size` moments, some of them swept, the others not written before step `limit`; or of observed
        transitions."""
        keys, swept = jax.random.split(key), max(1, round(self.sweep * size)) if self.sweep else 0
        places = jax.random.randint(keys[0], (swept,), 0, max(1, self.model.places)) if swept else None
        if places is not None and swept == size:
            return self.model.at(places)
        assert self.replay is not None
        replay = self.replay.share(device_count())
        sample = replay.sample(self.young(marks, limit), rows, keys[1], size - swept, 1, 1.0)
        if self.observes:
            return self.transitions(sample)
        if "place" in sample.obs:
            visited = sample.obs["place"]
            return self.model.at(visited if places is None else jnp.concatenate([places, visited]))
        return self.model.rows(sample.obs)

    def transitions(self, sample: NStepTransitions) -> Transitions:
        """Transitions as targets need them."""
        model, world = self.model, self.model.world
        new, goal, action = sample.next_obs["state"], sample.obs["goal"], sample.action
        rows = model.rows(sample.obs)
        attained = jax.vmap(world.attained)(new)
        return Transitions(
            rows=rows,
            next=model.rows(sample.next_obs),
            over=jax.vmap(world.ended)(new) | model.last(rows),
            attained=jnp.take_along_axis(attained, goal[..., None], 2)[..., 0],
            goal=goal,
            robot=action["robot"],
            human=action["human"],
            robot_p=action["robot_p"],
            human_p=action["human_p"],
        )
