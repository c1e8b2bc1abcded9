"""`regimen rollouts RUN`: a learned robot beside others, in worlds that nobody can solve.

Two questions: do the equations hold where the robot comes to (Bellman residuals on visited moments), and do people
attain more of their goals beside it than beside others (episodes with the same starts, goals and chances).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regimen.algorithms.base import Algorithm
from regimen.algorithms.bind import bind_algorithm
from regimen.config.regimen import resolve
from regimen.domains.empowerment import reach
from regimen.domains.empowerment.learner import targets
from regimen.domains.empowerment.learner.algorithm import Empowerment
from regimen.domains.empowerment.learner.binding import solution_of
from regimen.domains.empowerment.learner.model import Moments
from regimen.domains.empowerment.rollouts import (
    Robot,
    Rollouts,
    Rule,
    at_random,
    exact_robot,
    idle,
    learned,
    play,
)
from regimen.domains.empowerment.validate import load_params, run_config
from regimen.domains.empowerment.worlds.world import World
from regimen.envs import registry
from regimen.errors import UsageError
from regimen.files.storage import require_own, write_json
from regimen.policies.policy import load_policy
from regimen.policies.target import environment
from regimen.reports.table import Table
from regimen.statistics import mean_interval
from regimen.types import Array, PyTree

MOMENTS = 2048  # on which residuals are computed, at most
DRAWS = 64  # of targets that are averaged, where they are not exact: what is left of their noise counts as residual


@dataclass(frozen=True)
class Beside:
    """What came of the episodes: a mean with its 95 % interval is a triple."""

    run: str
    env: str
    episodes: int
    attained: dict[str, list[float]]  # robot -> goals attained, per human and episode
    by_human: dict[str, list[float]]  # robot -> the mean of each human
    gains: dict[str, list[float]]  # robot -> how much more people attain beside the learned one, paired
    residuals: dict[str, list[float]]

    def to_dict(self) -> dict[str, object]:
        return dict(vars(self))

    def lines(self) -> list[str]:
        """The tables that `regimen rollouts` prints."""
        head = f"{self.env}: {self.episodes:,} episodes beside each robot; means with 95 % intervals"
        rows = []
        for name, (mean, low, high) in self.attained.items():
            gain = self.gains.get(name)
            more = "" if gain is None else f"{gain[0]:+.4f} ({gain[1]:+.4f} to {gain[2]:+.4f})"
            rows.append([name, f"{mean:.4f} ({low:.4f} to {high:.4f})", more])
        lines = [head, *Table(["robot", "goals of each human", "beside the learned one"], rows).lines()]
        if self.residuals:
            rows = [
                [name, f"{mean:.4g}", f"{low:.4g} to {high:.4g}"] for name, (mean, low, high) in self.residuals.items()
            ]
            lines += ["", *Table(["residual on visited moments", "mean", "95 %"], rows).lines()]
        return lines


def beside(
    run: str | Path,
    against: Sequence[str | Path] = (),
    episodes: int = 1000,
    seed: int = 0,
    checkpoint: str = "final",
    exact: bool = False,
    limit: int = reach.LIMIT,
    out: str | Path | None = None,
) -> Beside:
    """Compare the robot of a run with others by episodes, and return how many goals people attain beside each.

    Writes rollouts.json to the run directory. Beside the robots of `against` there are one that does nothing and one
    that acts at random.

    Args:
        run: the run directory of a robot that learned empowerment.
        against: other runs on the same world, of any algorithm.
        episodes: how many episodes are played beside each robot, from the same starts and with the same chances.
        seed: which episodes.
        checkpoint: `final`, `best` or an env step.
        exact: whether the exact robot is solved for, and plays too.
        limit: the largest world to solve, in states times joint actions.
        out: the file to write; by default `rollouts.json` in the run directory.
    """
    config, path = run_config(run)
    handle = environment(str(run), {"env": config.env, "env_args": config.env_args}, None, {}, "rollouts")
    world: Any = handle.native
    algo = bind_algorithm(config, handle, resolve(config, native=True))
    assert isinstance(algo, Empowerment) and isinstance(world, World)
    params = load_params(algo, path, checkpoint)
    robots = {"learned": Robot(learned(algo), params), "idle": Robot(idle), "random": Robot(at_random)}
    if exact:
        robots["exact"] = exact_robot(solution_of(world, algo.config, limit))
    for other in against:
        robots[str(other)] = robot_of(other, world)
    found = {name: play(world, robot, seed, episodes) for name, robot in robots.items()}
    residuals = residuals_of(algo, params, found["learned"], seed)
    result = summary(str(path), config.env, found, residuals)
    require_own(path)
    write_json(Path(out) if out is not None else path / "rollouts.json", result.to_dict())
    return result


def summary(run: str, env: str, found: dict[str, Rollouts], residuals: dict[str, list[float]]) -> Beside:
    """Means and intervals of episodes, and of their differences from the first robot's, pair by pair."""
    each = {name: r.attained.mean(1) for name, r in found.items()}  # [E]
    first, *others = each
    return Beside(
        run,
        env,
        len(each[first]),
        {name: triple(x) for name, x in each.items()},
        {name: r.attained.mean(0).tolist() for name, r in found.items()},
        {name: triple(each[first] - each[name]) for name in others},
        residuals,
    )


def triple(x: np.ndarray) -> list[float]:
    """A mean and its 95 % interval."""
    return [float(v) for v in (x.mean(), *mean_interval(x))]


def robot_of(run: str | Path, world: World) -> Robot:
    """The robot of another run on the same world: the soft policy of empowerment, or the greedy one of others."""
    policy = load_policy(run, "best")
    other: Any = registry.resolve(policy.meta["env"], policy.meta.get("env_args", {})).native
    fields = dataclasses.fields(world)  # type: ignore[arg-type]  # worlds are dataclasses
    names = [f.name for f in fields if f.name not in ("observation", "view")]
    if type(other) is not type(world) or any(getattr(other, name) != getattr(world, name) for name in names):
        raise UsageError(f"--against: {run} is a run on another world; take runs on the same one")
    if isinstance(policy.algo, Empowerment):
        path = run_config(run)[1]
        return Robot(learned(policy.algo), load_params(policy.algo, path, "final"))
    return Robot(greedy_of(policy.algo), policy.params)


def greedy_of(algo: Algorithm) -> Rule:
    """The greedy policy of another algorithm, which sees features and nobody's goal."""

    def rule(world: World, params: PyTree, key: Array, states: Array, time: Array) -> Array:
        obs = jax.vmap(world.shown, (0, None))(states, time)
        action, _, _ = algo.act(params, obs, algo.initial_carry((len(states),)), None, greedy=True)
        return algo.to_env(action)

    return rule


def residuals_of(algo: Empowerment, params: PyTree, found: Rollouts, seed: int) -> dict[str, list[float]]:
    """How far values are from the right-hand sides of their equations, at one moment of each episode, so that moments
    are independent: abilities as differences, all else as differences of logarithms."""
    model, c = algo.bound.model, algo.config
    if not model.world.modelled:
        return {}
    episodes = found.over.shape[1]
    length = np.maximum((~found.over).sum(0), 1)
    time = (np.random.default_rng(seed).random(episodes) * length).astype(np.int32)[:MOMENTS]
    states = found.states[time, np.arange(len(time))]

    @jax.jit
    def errors(algo: Empowerment, params: PyTree, states: Array, time: Array, key: Array) -> dict[str, Array]:
        rows = algo.bound.model.rows({"state": states, "time": time})

        def values(rows: Moments) -> targets.NetValues:
            return algo.values(params, rows, c.beta_r)

        here = values(rows)
        keys = jax.random.split(key, 1 if model.exact else DRAWS)
        aims = jax.lax.map(lambda k: targets.modelled(algo.bound.model, c, rows, here, values, k), keys)
        aim = jax.tree.map(lambda x: x.mean(0), aims.replace(log_q=jnp.exp(aims.log_q)))
        q = jnp.abs(here.log_q - jnp.log(aim.log_q)) * aim.q_weight
        out = {
            "V_h^e (6)": jnp.abs(here.v_h_e - aim.v_h_e).mean((1, 2)),
            "log X_h (7)": jnp.abs(here.log_x - jnp.log(jnp.maximum(aim.x_h, algo.nets.floor))).mean(1),
            "log Q_r (4)": q.sum(1) / jnp.maximum(aim.q_weight.sum(1), 1),
        }
        return out

    size, parts = max(1, min(64, len(time))), []
    for at in range(0, len(time) - size + 1, size):
        now = slice(at, at + size)
        parts.append(errors(algo, params, states[now], time[now], jax.random.key(at)))
    return {name: triple(np.concatenate([np.asarray(p[name]) for p in parts])) for name in parts[0]}
