"""A robot that softly maximises aggregate human power.

Heitzig and Potham 2025 (arXiv 2508.00159): V_h^e says how well each human attains each possible goal, X_h and U_r turn
that into the power of each and of all, Q_r and V_r accumulate it, and the robot follows (-Q_r)^-beta_r. Networks join
one by one (`empowerment_schedule.py`) and learn from rows of a replay, or of all reachable states, towards equations
(4) to (9) (`empowerment_targets.py`); docs/algorithms/empowerment.md explains all of it.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen.algorithms.base import Algorithm, register
from regimen.axes import device_count, gather_over_devices, mean_over_devices, own_key, sync
from regimen.config.schema import NetworkConfig
from regimen.domains.empowerment.hyperparameters import STAGES, EmpowermentConfig
from regimen.domains.empowerment.learner import targets as aims
from regimen.domains.empowerment.learner.model import Rows
from regimen.domains.empowerment.learner.networks import Nets, descend, dropped, error_loss, log_error, log_policy, move
from regimen.domains.empowerment.learner.parts import EmpowermentBinding
from regimen.domains.empowerment.learner.schedule import RAMP, effective_beta, epsilon, oldest, rate
from regimen.domains.empowerment.learner.targets import Targets, Values
from regimen.types import Array, Batch, Clock, Model, PyTree, Spec, State

Models = dict[str, Model]
NEVER = 1e12  # steps of a run without a budget
NEVER_AN_INDEX = 2**30


@register
class Empowerment(Algorithm):
    """Five networks, or what they stand for, by name: v_h_e, x_h, u_r, q_r, v_r."""

    config_class = EmpowermentConfig
    default_network = NetworkConfig(hidden=(64, 64), activation="tanh")
    asynchronous = True  # learns from what any earlier policy collected
    needs_env = True  # also to act: networks read what the world makes of a state
    stages = STAGES
    progress = ("beta_r",)
    by_env = ()

    def build(self, spec: Spec) -> EmpowermentBinding:
        return EmpowermentBinding(spec, self.network, self.config)

    @property
    def sync_every(self) -> int | None:
        return self.config.actor_sync_freq

    def training_steps(self, state: State) -> int:
        return int(state.aux["training_steps"])

    @property
    def nets(self) -> Nets:
        return self.bound.nets

    def init(self, key: Array) -> State:
        parts, c = self.bound, self.config
        root, *keys = jax.random.split(key, 1 + len(self.nets.names))
        models = {name: self.nets.init(name, k, c) for name, k in zip(self.nets.names, keys)}
        aux: dict[str, PyTree] = {"owed": jnp.zeros(()), "training_steps": jnp.int32(0), "stage": jnp.int32(0)}
        replay: PyTree = ()
        if parts.replay is not None:
            aux |= {"ring": parts.replay.ring(), "stamp": parts.no_stamps()}
            replay = parts.empty_replay()
        return State(models, {}, root, Clock.zero(), aux, replay)

    # --- schedules ---------------------------------------------------------------------------------------------------

    def total(self) -> Array:
        """Length of training in the unit of the schedules."""
        c, parts = self.config, self.bound
        per_env_step = self.ratio() if c.schedule_unit == "training_steps" else 1.0
        if c.num_training_steps is not None:
            return jnp.float32(
                c.num_training_steps if c.schedule_unit == "training_steps" else c.num_training_steps / self.ratio()
            )
        if self.horizon is None:
            return jnp.float32(NEVER)
        scale = {"steps": 1, "episodes": parts.model.horizon, "updates": parts.spec.rollout_rows * parts.spec.num_envs}
        return jnp.asarray(self.horizon.length, jnp.float32) * scale[self.horizon.unit] * per_env_step

    def ratio(self) -> Any:
        """Training steps per env step: what is asked for; with several workers no fewer than the throttle allows."""
        c = self.config
        if self.bound.spec.workers == 1:
            return jnp.asarray(c.training_steps_per_env_step, jnp.float32)
        return jnp.maximum(c.training_steps_per_env_step, 1 / c.max_env_steps_per_training_step)

    def time(self, state: State, done: Array) -> Array:
        """The step that schedules read."""
        return done if self.config.schedule_unit == "training_steps" else state.clock.read("steps")

    # --- acting ------------------------------------------------------------------------------------------------------

    def actor_params(self, state: State) -> PyTree:
        """What acting needs: Q_r's target network, and how soft and how random to be."""
        c, models = self.config, state.models
        t = self.time(state, state.aux["training_steps"])
        params = {"q_r": models["q_r"].target}
        if self.nets.shared:
            params["v_h_e"] = {"encoder": models["v_h_e"].target["encoder"]}
        epsilons = {
            "epsilon_r": epsilon(c.epsilon_r_start, c.epsilon_r_end, c.epsilon_r_decay_steps, t),
            "epsilon_h": epsilon(c.epsilon_h_start, c.epsilon_h_end, c.epsilon_h_decay_steps, t),
        }
        return {"nets": params, "beta_r": effective_beta(c, self.bound.plan, t)} | epsilons

    def noise(self, key: Array, shape: tuple[int, ...]) -> PyTree:
        keys, world = jax.random.split(key, 3), self.bound.model.world
        return {
            "robot": jax.random.gumbel(keys[0], (*shape, world.robot_choices)),
            "human": jax.random.gumbel(keys[1], (*shape, world.humans, world.num_actions)),
            "resample": jax.random.uniform(keys[2], shape),
        }

    def act(self, params: PyTree, obs: PyTree, carry: PyTree, noise: PyTree, *, mask: PyTree = None, greedy=False):
        """The robots' joint action. Where it explores, also what the humans do, whether their goals are drawn anew, and
        how likely all that was. Greedily, humans are left to the world."""
        c, model = self.config, self.bound.model
        lead = obs["time"].shape
        rows = model.rows(jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[len(lead) :]), obs))
        allowed = None if mask is None else jnp.asarray(mask).reshape(len(rows.time), -1)
        log_q = self.nets.log_q(params["nets"], rows, c)
        log_pi = log_policy(log_q, params["beta_r"], c.robot_policy, allowed)
        if greedy:
            best = jnp.argmin(jnp.where(jnp.isfinite(log_pi), log_q, jnp.inf), -1)
            return best.astype(jnp.int32).reshape(lead), carry, {}
        free = jnp.ones_like(log_pi) if allowed is None else allowed.astype(jnp.float32)
        free = free / free.sum(-1, keepdims=True)
        p = (1 - params["epsilon_r"]) * jnp.exp(log_pi) + params["epsilon_r"] * free
        robot, robot_p = draw(p, noise["robot"].reshape(p.shape))
        goal = obs["goal"].reshape(len(rows.time), -1)
        prior = model.prior(rows)
        p = prior[jnp.arange(len(goal))[:, None], jnp.arange(goal.shape[1]), goal]  # [N, H, A]
        p = (1 - params["epsilon_h"]) * p + params["epsilon_h"] / p.shape[-1]
        human, human_p = draw(p, noise["human"].reshape(p.shape))
        action = {"robot": robot, "human": human, "robot_p": robot_p, "human_p": human_p}
        action = {name: x.reshape(*lead, *x.shape[1:]) for name, x in action.items()}
        return action | {"resample": noise["resample"] < c.goal_resample_prob}, carry, {}

    def to_env(self, action: PyTree) -> PyTree:
        return action

    def to_space(self, action: PyTree) -> PyTree:
        return action["robot"] if isinstance(action, dict) else action

    # --- losses ------------------------------------------------------------------------------------------------------

    def values(self, params: PyTree, rows: Rows, beta_r: Any) -> Values:
        return aims.values(self.nets, self.config, params, rows, beta_r)

    def losses(self, params: PyTree, rows: Rows, at: Targets, x_rows: Rows, x_at: Targets, keys: PyTree):
        """Loss of each network, a mean over rows; their sum, of which each has its own gradient, and they by name."""
        c, nets, exact = self.config, self.nets, self.bound.exact
        out = {}

        def raw(name: str, rows: Rows) -> Array:
            drop = dropped(keys[name], getattr(c, f"{name}_dropout")) if nets.drops[name] else None
            return nets.raw(name, params, rows, drop)

        error = nets.v_h_e(raw("v_h_e", rows), train=True) - at.v_h_e
        out["v_h_e"] = (at.v_h_e_weight * error_loss(c, error)).sum((1, 2)).mean()
        error = log_error(c, nets.log_value(raw("q_r", rows), c), at.log_q, exact)
        out["q_r"] = (at.q_weight * error_loss(c, error)).sum(1).mean()
        if "x_h" in nets.names:
            error = nets.x_h(raw("x_h", x_rows), train=True) - x_at.x_h
            out["x_h"] = (some_humans(keys["humans"], error, c.x_h_sample_humans) * error_loss(c, error)).sum(1).mean()
        if "u_r" in nets.names:
            whole = exact and c.u_r_sample_humans is None
            out["u_r"] = error_loss(c, log_error(c, nets.log_y(raw("u_r", rows), c.form), at.log_y, whole)).mean()
        if "v_r" in nets.names:
            error = log_error(c, nets.log_value(raw("v_r", rows), c)[..., 0], at.log_v, exact)
            out["v_r"] = error_loss(c, error).mean()
        return sum(out.values()), out

    # --- update ------------------------------------------------------------------------------------------------------

    def update(self, state: State, batch: Batch) -> tuple[State, dict[str, Array]]:
        """Keep the batch, then take the training steps that are due."""
        c, parts, total = self.config, self.bound, self.total()
        assert parts.replay is not None, "Spec.rollout_rows: not known to the algorithm"
        done, devices = state.aux["training_steps"], device_count()
        steps = batch.valid.size * devices
        t = self.time(state, done)
        stage = parts.plan.stage(t)
        ring = state.aux["ring"]
        if c.buffer_clearing == "hard":
            enters = (stage > state.aux["stage"]) & (stage >= RAMP)
            ring = ring.replace(count=jnp.where(enters, 0, ring.count))
        stamp = parts.stamped(state.aux["stamp"], ring, batch, t)
        ring, kept = parts.replay.share(devices).insert(ring, state.replay, parts.kept(batch))
        owed = state.aux["owed"] + self.ratio() * steps
        due = jnp.floor(owed).astype(jnp.int32)
        root = jax.random.fold_in(state.key, ~state.clock.updates)  # the rollout's is fold_in(key, updates)

        def step(i: Array, carry: Any, cache: PyTree, targets: Any) -> Any:
            models, totals = carry
            models = {name: m.replace(target=targets[name]) for name, m in models.items()}
            key = own_key(jax.random.fold_in(root, i))
            models, metrics = self.training_step(
                models, cache, ring, kept, stamp, key, self.time(state, done + i), total
            )
            models = {name: m.replace(target=()) for name, m in models.items()}
            return models, jax.tree.map(jnp.add, totals, metrics)

        def block(carry: Any) -> Any:
            """Training steps up to the next that may begin with a copy: between, targets are not touched."""
            i, models, cache, totals = carry
            models, cache = self.copy_targets(models, cache, done + i, self.time(state, done + i))
            targets = {name: m.target for name, m in models.items()}
            stop = jnp.minimum(due, i + parts.interval - (done + i) % parts.interval)
            stop = -sync(-jnp.where(i < due, stop, NEVER_AN_INDEX))  # the first of any seed that is not through
            learned = {name: m.replace(target=()) for name, m in models.items()}
            learned, totals = lax.fori_loop(i, stop, lambda n, c: step(n, c, cache, targets), (learned, totals))
            return stop, {n: m.replace(target=targets[n]) for n, m in learned.items()}, cache, totals

        cache = self.aim(state.models, t) if parts.cached else ()
        shapes = jax.eval_shape(lambda: self.training_step(state.models, cache, ring, kept, stamp, root, t, total)[1])
        zeros = {name: jnp.zeros(()) for name in shapes}
        start = (jnp.int32(0), state.models, cache, zeros)
        _, models, _, totals = lax.while_loop(lambda x: sync(x[0] < due), block, start)
        metrics = mean_over_devices({name: x / due for name, x in totals.items()})
        metrics |= self.told(state, ring, due, steps, total)
        now = done + due
        aux = state.aux | {"ring": ring, "stamp": stamp, "owed": owed - due, "training_steps": now, "stage": stage}
        return state.replace(models=models, aux=aux, replay=kept), metrics

    def told(self, state: State, ring: Any, due: Array, steps: int, total: Array) -> dict[str, Array]:
        """What schedules say at the end of an update, and how much was learned from how much."""
        c, parts = self.config, self.bound
        done = state.aux["training_steps"] + due
        t = self.time(state, done)
        acting = self.actor_params(state)
        out = {name: acting[name] for name in ("epsilon_r", "epsilon_h")}
        out |= {f"lr_{name}": getattr(c, f"lr_{name}") * rate(c, parts.plan, t, total) for name in self.nets.names}
        out |= {"stage": parts.plan.stage(t), "beta_r": effective_beta(c, parts.plan, t)}
        out |= {"training_steps": done, "gradient_steps": due}
        out["env_steps_per_training_step"] = jnp.where(due > 0, steps / due, jnp.nan)
        out["replay_size"] = ring.count.sum() * (parts.replay.columns // parts.replay.workers)
        return {name: jnp.asarray(x, jnp.float32) for name, x in out.items()}

    def copy_targets(self, models: Models, cache: PyTree, now: Array, t: Array) -> tuple[Models, PyTree]:
        """Copies that are due at this training step, and with them the targets that are looked up."""
        c, new, any_due = self.config, {}, jnp.zeros((), bool)
        for name, model in models.items():
            due = now % getattr(c, f"{name}_target_update_interval") == 0
            target = jax.tree.map(lambda a, b, due=due: jnp.where(due, a, b), model.params, model.target)
            new[name], any_due = model.replace(target=target), any_due | due
        if not self.bound.cached:
            return new, cache
        return new, lax.cond(sync(any_due), lambda: self.aim(new, t), lambda: cache)

    def aim(self, models: Models, t: Array) -> Targets:
        """Targets of all reachable rows. They stay as they are until the next copy or update, also while beta_r
        rises."""
        model, c, beta_r = self.bound.model, self.config, effective_beta(self.config, self.bound.plan, t)
        params = {name: m.target for name, m in models.items()}
        known = aims.in_blocks(lambda n: self.values(params, model.at(n), beta_r), model.places)

        def there(rows: Rows) -> Values:
            return jax.tree.map(lambda x: x[rows.place], known)

        def some(numbers: Array) -> Targets:
            rows = model.at(numbers)
            return aims.modelled(model, c, rows, there(rows), there, jax.random.key(0))

        return aims.in_blocks(some, model.places)

    def training_step(
        self, models: Models, cache: PyTree, ring: Any, kept: Any, stamp: Array, key: Array, t: Array, total: Array
    ) -> tuple[Models, dict[str, Array]]:
        c, parts = self.config, self.bound
        keys = dict(zip(("rows", "x_rows", "targets", "humans", *self.nets.names), jax.random.split(key, 9)))
        limit = oldest(c, parts.plan, t, total) if c.buffer_clearing == "gradual" else jnp.float32(-1)
        fresh = parts.fresh(ring, stamp, limit)
        beta_r = effective_beta(c, parts.plan, t)

        def drawn(key: Array, size: int) -> tuple[Rows, Targets]:
            sample = parts.sample(fresh, kept, key, size)
            if parts.cached:
                return sample, jax.tree.map(lambda x: x[sample.place], cache)
            return self.targets_of(models, sample, beta_r, keys["targets"])

        def own(size: int) -> int:
            return max(1, size // device_count())

        rows, at = drawn(keys["rows"], own(c.batch_size))
        x_rows, x_at = (rows, at) if c.x_h_batch_size is None else drawn(keys["x_rows"], own(c.x_h_batch_size))
        if "u_r" in models and c.u_r_sample_humans is not None:
            at = at.replace(log_y=self.sampled_y(models, rows, keys["humans"]))
        new, metrics, factor = dict(models), {}, rate(c, parts.plan, t, total)
        lrs = {name: getattr(c, f"lr_{name}") * factor for name in models}
        active = {name: parts.plan.active(name, t) for name in models}
        if self.nets.tables:
            for name, model in models.items():
                where, *aim = self.table_target(name, rows, at, x_rows, x_at)
                where, (wanted, weight) = of_all_devices(where), of_all_devices(aim)  # tables stay the same on all
                error = weight * jnp.square(wanted - model.params["table"][where])
                metrics[f"loss_{name}"] = 0.5 * error.sum(-1).mean()
                new[name] = move(c, model, where, wanted, weight, lrs[name], active[name])
            norm = jnp.zeros(())
        else:
            params = {name: m.params for name, m in models.items()}
            grads, found = jax.grad(self.losses, has_aux=True)(params, rows, at, x_rows, x_at, keys)
            grads = mean_over_devices(grads)
            metrics = {f"loss_{name}": x for name, x in found.items()}
            norm = optax.global_norm(grads)
            for name, model in models.items():
                new[name] = descend(c, name, model, grads[name], lrs[name], active[name])
        return new, metrics | {"loss": sum(metrics.values()), "grad_norm": norm}

    def targets_of(self, models: Models, sample: Any, beta_r: Array, key: Array) -> tuple[Rows, Targets]:
        """Rows and their targets by the target networks as they are now."""
        model, c = self.bound.model, self.config
        params = {name: m.target for name, m in models.items()}
        if self.bound.observes:
            here, new = (self.values(params, rows, beta_r) for rows in (sample.rows, sample.next))
            return sample.rows, aims.observed(model, c, sample, here, new, key)
        here = self.values(params, sample, beta_r)
        return sample, aims.modelled(model, c, sample, here, lambda rows: self.values(params, rows, beta_r), key)

    def sampled_y(self, models: Models, rows: Rows, key: Array) -> Array:
        """log of the mean of X_h^-xi over some humans of each row [N]; their expectation is that over all."""
        c, count = self.config, self.config.u_r_sample_humans
        params = {name: m.target for name, m in models.items()}
        log_x = self.values(params, rows, 0.0).log_x
        chosen = some_humans(key, log_x, count)
        y = (chosen * jnp.exp(-c.xi * log_x)).mean(-1)
        return jnp.log(y * (1 if c.form == "mean" else log_x.shape[-1]))

    def table_target(
        self, name: str, rows: Rows, at: Targets, x_rows: Rows, x_at: Targets
    ) -> tuple[Array, Array, Array]:
        """Places [N], what a table should hold there [N, size], and weights."""
        n = len(rows.place)
        match name:
            case "v_h_e":
                return rows.place, at.v_h_e.reshape(n, -1), at.v_h_e_weight.reshape(n, -1)
            case "x_h":
                return x_rows.place, x_at.x_h, jnp.ones_like(x_at.x_h)
            case "q_r":
                return rows.place, -jnp.exp(at.log_q), at.q_weight
            case "u_r":
                return rows.place, jnp.exp(at.log_y)[:, None], jnp.ones((n, 1))
        return rows.place, -jnp.exp(at.log_v)[:, None], jnp.ones((n, 1))


def of_all_devices(tree: PyTree) -> PyTree:
    """Rows [N, ...] of every device below each other, on all of them."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), gather_over_devices(tree))


def draw(p: Array, gumbel: Array) -> tuple[Array, Array]:
    """A choice from probabilities [..., n], and how likely it was."""
    choice = jnp.argmax(jnp.log(p) + gumbel, -1).astype(jnp.int32)
    return choice, jnp.take_along_axis(p, choice[..., None], -1)[..., 0]


def some_humans(key: Array, like: Array, count: int | None) -> Array:
    """Weights [N, H]: of `count` humans drawn for each row, scaled to a mean of 1; all where there is no count."""
    if count is None or count >= like.shape[-1]:
        return jnp.ones_like(like)
    lots = jax.random.uniform(key, like.shape)
    rank = jnp.argsort(jnp.argsort(lots, -1), -1)
    return (rank < count) * (like.shape[-1] / count)
