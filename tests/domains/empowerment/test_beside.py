"""Robots beside each other: paired episodes, exact policies that are looked up, residuals of the equations."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import regimen
from regimen.cli.main import main
from regimen.domains.empowerment import beside, exact, rollouts
from regimen.domains.empowerment.beside import residuals_of, summary
from regimen.domains.empowerment.hyperparameters import EmpowermentConfig
from regimen.domains.empowerment.learner.algorithm import Empowerment
from regimen.domains.empowerment.theory import Theory
from regimen.envs import registry
from regimen.errors import ConfigError, UsageError
from regimen.types import Spec

pytestmark = pytest.mark.usefixtures("without_plots", "compilation_cache")


def bound(env: str, **settings) -> Empowerment:
    handle = registry.resolve(env, {})
    spaces = (handle.observation_space, handle.action_space, handle.reward_components)
    spec = Spec(*spaces, num_envs=4, rollout_rows=4, max_episode_steps=handle.max_episode_steps, env=handle.native)
    return Empowerment(EmpowermentConfig(**settings)).bind(spec)


def test_an_exact_robot_acts_as_its_solution_says():
    world = registry.make_env("world/corr5")
    solution = exact.solve(world, Theory())
    robot = rollouts.exact_robot(solution, size=100)
    for time in (0, 2):
        state = int(np.flatnonzero(solution.live(time))[-1])
        states = jnp.asarray(np.repeat(solution.table.states[[state]], 20_000, 0))
        actions = np.asarray(rollouts.looked_up(world, robot.params, jax.random.key(1), states, jnp.int32(time)))
        share = np.bincount(actions, minlength=5) / len(actions)
        np.testing.assert_allclose(share, solution.pi_r[time][state], atol=0.015)


def test_what_people_attain_beside_the_exact_robot_is_what_its_chain_says():
    """The goal at the end is one that was never attained, or one drawn since: in one step both are the prior's."""
    world = registry.make_env("world/corr5", max_episode_steps=1)
    solution = exact.solve(world, Theory())
    found = rollouts.play(world, rollouts.exact_robot(solution), 0, 20_000)
    expected = (world.goal_weights * solution.at().v_h_e).sum(1)  # of one step: the chance to be in the goal after it
    np.testing.assert_allclose(found.attained.mean(0), expected, atol=0.01)


def test_robots_meet_the_same_starts_goals_and_chances():
    world = registry.resolve("world/niches", {"maps": 5}).native
    one, other = (rollouts.play(world, rollouts.Robot(rollouts.idle), 3, 40) for _ in range(2))
    np.testing.assert_array_equal(one.attained, other.attained)
    chance = rollouts.play(world, rollouts.Robot(rollouts.at_random), 3, 40)
    np.testing.assert_array_equal(one.states[0], chance.states[0])
    assert len(np.unique(one.states[0][:, -1])) == 5  # maps
    assert not np.array_equal(one.states[-1], chance.states[-1])
    still = one.states[:, :, [0, 2]]  # the robot's place and direction
    np.testing.assert_array_equal(still, np.broadcast_to(still[0], still.shape))


def test_gains_are_paired():
    def episodes(attained):
        return rollouts.Rollouts(np.array(attained), np.zeros((1, 2, 1)), np.zeros((1, 2), bool))

    found = {"learned": episodes([[2, 0], [5, 3], [4, 0]]), "idle": episodes([[1, 0], [4, 2], [2, 1]])}
    result = summary("run", "world", found, {})
    assert result.attained["learned"][0] == pytest.approx(14 / 6) and result.by_human["idle"] == [
        pytest.approx(7 / 3),
        1,
    ]
    mean, low, high = result.gains["idle"]
    gains = np.array([0.5, 1.0, 0.5])
    half = 4.302653 * gains.std(ddof=1) / np.sqrt(3)
    assert (mean, low, high) == pytest.approx((gains.mean(), gains.mean() - half, gains.mean() + half), rel=1e-5)
    assert "learned" not in result.gains


def exact_tables(algo: Empowerment, solution: exact.Solution) -> dict:
    columns = {name: solution.column(name) for name in ("v_h_e", "x_h", "q_r")}
    return {name: {"table": jnp.asarray(x.reshape(len(x), -1), jnp.float32)} for name, x in columns.items()}


def test_residuals_vanish_at_the_solution_and_show_what_is_off():
    algo = bound("world/corr5", use_lookup_tables=True)
    world = algo.bound.model.world
    solution = exact.solve(world, Theory())
    params = exact_tables(algo, solution)
    found = rollouts.play(world, rollouts.Robot(rollouts.learned(algo), params), 0, 256)
    for mean, low, high in residuals_of(algo, params, found, 0).values():
        assert low <= mean <= high < 1e-5
    off = params | {"x_h": {"table": 1.1 * params["x_h"]["table"]}}
    residuals = residuals_of(algo, off, found, 0)
    assert residuals["log X_h (7)"][0] == pytest.approx(np.log(1.1), rel=1e-3)
    assert residuals["V_h^e (6)"][0] < 1e-5


def test_a_robot_that_serves_one_human():
    both = exact.solve(registry.make_env("world/unequal"), Theory())
    one = exact.solve(registry.make_env("world/unequal"), Theory(serves=1))
    at = one.at()
    assert at.u_r == pytest.approx(-(at.x_h[1] ** -1.1))
    assert not np.allclose(at.pi_r, both.at().pi_r, atol=0.01)
    algo = bound("world/unequal", use_lookup_tables=True, serves=1)
    tables = exact_tables(algo, one)
    found = rollouts.play(algo.bound.model.world, rollouts.Robot(rollouts.idle), 0, 64)
    assert max(r[2] for r in residuals_of(algo, tables, found, 0).values()) < 1e-5
    with pytest.raises(ConfigError, match="serves: there is no human 2"):
        exact.solve(registry.make_env("world/unequal"), Theory(serves=2))
    with pytest.raises(ConfigError, match="serves: there is no human 1"):
        bound("world/tiny3", serves=1)


def test_a_run_beside_others(tmp_path, capsys):
    options = {"track": False, "eval": {"every": "never"}, "rollout": {"steps": 64, "num_envs": 16}}
    power = {"training_steps_per_env_step": 0.25, "use_lookup_tables": True}
    regimen.train("world/tiny3", algo="empowerment", total_steps=256, out=str(tmp_path / "power"), **options, **power)
    shown = {"env_args": {"observation": "features"}}
    regimen.train("world/tiny3", algo="ppo", total_steps=256, out=str(tmp_path / "ppo"), **options, **shown)
    command = ["rollouts", str(tmp_path / "power"), "--against", str(tmp_path / "ppo"), "--episodes", "50", "--exact"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["attained"]) == {"learned", "idle", "random", "exact", str(tmp_path / "ppo")}
    assert json.loads((tmp_path / "power" / "rollouts.json").read_text()) == found
    assert set(found["residuals"]) == {"V_h^e (6)", "log X_h (7)", "log Q_r (4)"}
    assert main(["rollouts", str(tmp_path / "ppo")]) == 2
    assert "only runs of empowerment" in capsys.readouterr().err


def test_a_robot_of_another_world_is_refused(monkeypatch):
    other = SimpleNamespace(meta={"env": "world/corr5", "env_args": {"max_episode_steps": 7}})
    monkeypatch.setattr(beside, "load_policy", lambda *args: other)
    with pytest.raises(UsageError, match="another world"):
        beside.robot_of("run", registry.make_env("world/corr5"))
