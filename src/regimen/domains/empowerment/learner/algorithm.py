"""A robot that softly maximises aggregate human power.

Heitzig and Potham 2025 (arXiv 2508.00159): V_h^e says how well each human attains each possible goal, X_h and U_r turn
that into the power of each and of all, Q_r and V_r accumulate it, and the robot follows (-Q_r)^-beta_r. Networks join
one by one (`schedule.py`) and learn from rows of a replay, or of all reachable states (`experience.py`), towards
equations (4) to (9) (`targets.py`); docs/algorithms/empowerment.md explains all of it.
"""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jax import lax

from regimen.algorithms.base import Algorithm, register
from regimen.algorithms.off_policy import learn
from regimen.axes import device_count, mean_over_devices, own_key, sync
from regimen.config.schema import NetworkConfig
from regimen.domains.empowerment.equations import Number
from regimen.domains.empowerment.hyperparameters import STAGES, EmpowermentConfig
from regimen.domains.empowerment.learner import networks, schedule
from regimen.domains.empowerment.learner import targets as aims
from regimen.domains.empowerment.learner.binding import EmpowermentBinding
from regimen.domains.empowerment.learner.model import Moments
from regimen.domains.empowerment.learner.networks import Nets, dropped, error_loss, log_error, log_policy
from regimen.domains.empowerment.learner.targets import NetValues, Targets
from regimen.types import Array, Batch, Clock, Model, PyTree, Spec, State, hold

Models = dict[str, Model]
Metrics = dict[str, Array]
NEVER_AN_INDEX = 2**30


@register
class Empowerment(Algorithm):
    """The learner of five networks, or of what they stand for: v_h_e, x_h, u_r, q_r, v_r."""

    config_class = EmpowermentConfig
    default_network = NetworkConfig(hidden=(64, 64), activation="tanh")
    asynchronous = True
    needs_env = True  # networks read what the world makes of a state
    stages = STAGES
    progress = ("beta_r",)
    labels: ClassVar[dict[str, str]] = {"human_power": "human power (bits)"}
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
        root, *keys = jax.random.split(key, 1 + len(self.nets.names))
        models = {name: self.nets.init(name, k, self.config) for name, k in zip(self.nets.names, keys)}
        aux: dict[str, PyTree] = {"owed": jnp.zeros(()), "training_steps": jnp.int32(0), "stage": jnp.int32(0)}
        marks, replay = self.bound.experience.init()
        return State(models, {}, root, Clock.zero(), aux | marks, replay)

    # --- schedules ---------------------------------------------------------------------------------------------------

    def total(self) -> Array:
        """Length of training in the unit of the schedules."""
        return schedule.total(self.config, self.horizon, self.bound.spec, self.bound.model.horizon)

    def time(self, state: State, training_steps: Array) -> Array:
        """The step that schedules read."""
        return training_steps if self.config.schedule_unit == "training_steps" else state.clock.read("steps")

    # --- acting ------------------------------------------------------------------------------------------------------

    def actor_params(self, state: State) -> PyTree:
        """What acting needs: Q_r's target network, and how soft and how random to be."""
        c, models = self.config, state.models
        t = self.time(state, state.aux["training_steps"])
        params = {"q_r": models["q_r"].target}
        if self.nets.shared:
            params["v_h_e"] = {"encoder": models["v_h_e"].target["encoder"]}
        epsilons = {
            "epsilon_r": schedule.epsilon(c.epsilon_r_start, c.epsilon_r_end, c.epsilon_r_decay_steps, t),
            "epsilon_h": schedule.epsilon(c.epsilon_h_start, c.epsilon_h_end, c.epsilon_h_decay_steps, t),
        }
        return {"nets": params, "beta_r": schedule.effective_beta(c, self.bound.plan, t)} | epsilons

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

    def values(self, params: PyTree, rows: Moments, beta_r: Number) -> NetValues:
        return aims.values(self.nets, self.config, params, rows, beta_r)

    def losses(self, params: PyTree, rows: Moments, at: Targets, keys: PyTree):
        """Loss of each network, a mean over rows; their sum, of which each has its own gradient, and they by name."""
        c, nets, exact = self.config, self.nets, self.bound.exact
        out = {}

        def raw(name: str) -> Array:
            drop = dropped(keys[name], getattr(c, f"{name}_dropout")) if nets.drops[name] else None
            return nets.raw(name, params, rows, drop)

        error = nets.v_h_e(raw("v_h_e"), train=True) - at.v_h_e  # (6)
        out["v_h_e"] = (at.v_h_e_weight * error_loss(c, error)).sum((1, 2)).mean()
        error = log_error(c, nets.log_value(raw("q_r"), c), at.log_q, exact)  # (4)
        out["q_r"] = (at.q_weight * error_loss(c, error)).sum(1).mean()
        if "x_h" in nets.names:
            error = log_error(c, nets.log_x(raw("x_h")), jnp.log(jnp.maximum(at.x_h, nets.floor)), exact)  # (7)
            out["x_h"] = error_loss(c, error).sum(1).mean()
        if "u_r" in nets.names:
            error = log_error(c, nets.log_y(raw("u_r"), c.form), at.log_y, exact)  # (8)
            out["u_r"] = error_loss(c, error).mean()
        if "v_r" in nets.names:
            error = log_error(c, nets.log_value(raw("v_r"), c)[..., 0], at.log_v, exact)  # (9)
            out["v_r"] = error_loss(c, error).mean()
        return sum(out.values()), out

    # --- update ------------------------------------------------------------------------------------------------------

    def update(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Keep the batch where rows are drawn from it, then take the training steps that are due."""
        c, bound, past = self.config, self.bound, state.aux["training_steps"]
        env_steps = batch.valid.size * device_count()
        stage = bound.plan.stage(self.time(state, past))
        marks, rows = bound.experience.insert(state.aux, state.replay, batch)
        owed = state.aux["owed"] + schedule.ratio(c, bound.spec.workers) * env_steps
        due = jnp.floor(owed).astype(jnp.int32)
        state = state.replace(aux=state.aux | marks, replay=rows)
        models, totals = self.learn(state, due)
        metrics = mean_over_devices({name: x / due for name, x in totals.items()})
        metrics |= self.report(state, due, env_steps)
        values = self.target_values({n: m.replace(target=m.params) for n, m in models.items()}, 1.0)
        metrics["human_power"] = aims.human_power(bound.model, c, values, batch)
        aux = state.aux | {"owed": owed - due, "training_steps": hold(past + due, bound.period), "stage": stage}
        return state.replace(models=models, aux=aux), metrics

    def learn(self, state: State, due: Array) -> tuple[Models, Metrics]:
        """The models after `due` training steps, and sums of their metrics."""
        bound, past = self.bound, state.aux["training_steps"]
        root = jax.random.fold_in(state.key, ~state.clock.updates)  # the rollout's is fold_in(key, updates)

        def block(carry: tuple[Array, Models, PyTree, Metrics]) -> tuple[Array, Models, PyTree, Metrics]:
            """Training steps up to the next that may begin with a copy: between, targets are not touched."""
            i, models, cache, totals = carry
            models, cache = self.copy_targets(models, cache, past + i, self.time(state, past + i))
            targets = {name: m.target for name, m in models.items()}
            stop = jnp.minimum(due, i + bound.interval - (past + i) % bound.interval)
            stop = -sync(-jnp.where(i < due, stop, NEVER_AN_INDEX))  # the first of any seed that is not through

            def step(n: Array, models: Models) -> tuple[Models, Metrics]:
                models, key = with_targets(models, targets), own_key(jax.random.fold_in(root, n))
                models, metrics = self.training_step(models, cache, state, key, self.time(state, past + n))
                return with_targets(models, dict.fromkeys(models, ())), metrics

            models, totals = learn(step, with_targets(models, dict.fromkeys(models, ())), stop, i, totals)
            return stop, with_targets(models, targets), cache, totals

        t = self.time(state, past)
        cache = self.aim(state.models, t) if bound.cached else ()
        shapes = jax.eval_shape(lambda: self.training_step(state.models, cache, state, root, t)[1])
        zeros = {name: jnp.zeros(()) for name in shapes}
        start = (jnp.int32(0), state.models, cache, zeros)
        _, models, _, totals = lax.while_loop(lambda x: sync(x[0] < due), block, start)
        return models, totals

    def report(self, state: State, due: Array, env_steps: int) -> Metrics:
        """What schedules say at the end of an update, and how much was learned from how much."""
        c, bound = self.config, self.bound
        training_steps = state.aux["training_steps"] + due
        t, total = self.time(state, training_steps), self.total()
        acting = self.actor_params(state)
        out = {name: acting[name] for name in ("epsilon_r", "epsilon_h")}
        factor = schedule.rate(c, bound.plan, t, total)
        out |= {f"lr_{name}": getattr(c, f"lr_{name}") * factor for name in self.nets.names}
        out |= {"stage": bound.plan.stage(t), "beta_r": schedule.effective_beta(c, bound.plan, t)}
        out |= {"training_steps": training_steps, "gradient_steps": due}
        out["env_steps_per_training_step"] = jnp.where(due > 0, env_steps / due, jnp.nan)
        out["replay_size"] = bound.experience.size(state.aux)
        return {name: jnp.asarray(x, jnp.float32) for name, x in out.items()}

    def copy_targets(self, models: Models, cache: PyTree, now: Array, t: Array) -> tuple[Models, PyTree]:
        """Make the copies that are due at this training step, and with them the targets that are looked up."""
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
        values = self.target_values(models, schedule.effective_beta(self.config, self.bound.plan, t))
        return aims.of_all_rows(self.bound.model, self.config, values)

    def target_values(self, models: Models, beta_r: Number) -> Callable[[Moments], NetValues]:
        """A function that gives the target networks' values of rows."""
        params = {name: m.target for name, m in models.items()}
        return lambda rows: self.values(params, rows, beta_r)

    def training_step(
        self, models: Models, cache: PyTree, state: State, key: Array, t: Array
    ) -> tuple[Models, Metrics]:
        """The models one training step on, on rows of the state's replay or of the sweep, and their losses."""
        c, bound, total = self.config, self.bound, self.total()
        keys = dict(zip(("rows", "targets", *self.nets.names), jax.random.split(key, 7)))
        rows = bound.experience.sample(state.aux, state.replay, keys["rows"], max(1, c.batch_size // device_count()))
        if bound.cached:
            at = jax.tree.map(lambda x: x[rows.place], cache)
        else:
            values = self.target_values(models, schedule.effective_beta(c, bound.plan, t))
            rows, at = aims.of_sample(bound.model, c, rows, values, keys["targets"])
        factor = schedule.rate(c, bound.plan, t, total)
        lrs = {name: getattr(c, f"lr_{name}") * factor for name in models}
        active = {name: bound.plan.active(name, t) for name in models}
        if self.nets.tables:
            new, losses = networks.move_tables(c, models, aims.table_aims(rows, at), lrs, active)
            norm = jnp.zeros(())
        else:
            params = {name: m.params for name, m in models.items()}
            grads, losses = jax.grad(self.losses, has_aux=True)(params, rows, at, keys)
            grads = mean_over_devices(grads)
            norm = optax.global_norm(grads)
            new = {n: networks.descend(c, n, m, grads[n], lrs[n], active[n]) for n, m in models.items()}
        metrics = {f"loss_{name}": x for name, x in losses.items()}
        return new, metrics | {"loss": sum(metrics.values()), "grad_norm": norm}


def with_targets(models: Models, targets: dict[str, PyTree]) -> Models:
    """The models with other target networks."""
    return {name: m.replace(target=targets[name]) for name, m in models.items()}


def draw(p: Array, gumbel: Array) -> tuple[Array, Array]:
    """A choice from probabilities [..., n], and how likely it was."""
    choice = jnp.argmax(jnp.log(p) + gumbel, -1).astype(jnp.int32)
    return choice, jnp.take_along_axis(p, choice[..., None], -1)[..., 0]
