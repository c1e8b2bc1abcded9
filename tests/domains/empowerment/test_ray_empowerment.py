"""Asynchronous empowerment: actors on Ray reach the values of the synchronous run, which are the exact ones."""

from types import SimpleNamespace

import pytest

import regimen
from regimen.algorithms.bind import bind_algorithm
from regimen.config import layers
from regimen.config import schema as configuration
from regimen.config.regimen import resolve, share_rollout
from regimen.domains.empowerment import exact, validate
from regimen.domains.empowerment.learner import schedule
from regimen.domains.empowerment.learner.algorithm import Empowerment
from regimen.engines.base import Limits
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.runs.build import make_engine

ray = pytest.importorskip("ray")

from regimen.engines.ray.cluster import Cluster  # noqa: E402
from regimen.engines.ray.engine import RayEngine  # noqa: E402

pytestmark = [pytest.mark.usefixtures("compilation_cache"), pytest.mark.timeout(300)]
WORKERS, ENVS, EPISODES, HORIZON = 2, 16, 8, 3
LEARN = {
    "use_lookup_tables": True,
    "lr_v_h_e": 1.0,
    "lr_x_h": 1.0,
    "lr_q_r": 1.0,
    "lr_decay": "constant",
    "epsilon_r_end": 1.0,
    "epsilon_h_end": 0.5,
    "warmup_v_h_e_steps": 200,
    "warmup_x_h_steps": 200,
    "training_steps_per_env_step": 1.0,
    "warmup_q_r_steps": 200,
    "beta_r_rampup_steps": 400,
    "v_h_e_target_update_interval": 20,
    "q_r_target_update_interval": 20,
    "actor_sync_freq": 300,
}


def configured(**overrides):
    given = {"rollout.steps": ENVS * EPISODES * HORIZON, "rollout.num_envs": ENVS, "total_steps": 4000, "track": False}
    given |= {"engine": "ray", "engine.workers": WORKERS} | {f"algo.{k}": v for k, v in LEARN.items()} | overrides
    config = layers.build_config("world/tiny3", algo="empowerment", overrides=given)
    return share_rollout(config, True), registry.resolve("world/tiny3")


@pytest.fixture(scope="module")
def cluster():
    own = Cluster(configuration.EngineConfig(name="ray", workers=WORKERS), 0)
    own.start()
    yield own
    own.stop()


@pytest.mark.long
def test_actors_reach_the_exact_values(cluster):
    config, handle = configured()
    engine = make_engine(config, handle, [0], lambda: False)
    assert isinstance(engine, RayEngine) and engine.asynchronous
    versions = set()
    try:
        for _ in range(12):
            progress = engine.advance([Limits()])[0]
            assert not progress.diverged
            versions.add(engine.version)
        told = progress.metrics
    finally:
        engine.close()
    share = ENVS // WORKERS * EPISODES * HORIZON
    assert progress.steps.tolist() == [share] and told["env_steps_per_training_step"] == 1.0
    assert told["stage"] == 6 and told["training_steps"] == 12 * share
    assert len(versions) < 12  # weights go out every 300 training steps, not after every update of 192
    params = {name: m.params for name, m in engine.state.models.items()}
    found = validate.compare(engine.algo, params, exact.solve(handle.native, config.algo.theory()))
    numbers = validate.measure(found, config.algo.beta_r)
    assert numbers["v_r_start_error"] < 1e-3 and numbers["tv_mean"] < 1e-3


def test_weights_go_out_as_often_as_asked():
    engine = SimpleNamespace(algo=Empowerment(actor_sync_freq=100), synced=0)
    engine.state = SimpleNamespace(aux={"training_steps": 99})
    assert not RayEngine.due(engine) and engine.synced == 0
    engine.state.aux["training_steps"] = 100
    assert RayEngine.due(engine) and engine.synced == 100
    assert not RayEngine.due(engine)
    engine.state.aux["training_steps"] = 60  # a count that was held below 32 bits
    assert RayEngine.due(engine) and engine.synced == 60
    engine.algo = regimen.PPO()
    assert RayEngine.due(engine)  # other algorithms: after every update


def test_rollouts_are_whole_episodes_so_that_weights_change_between_them():
    config, handle = configured(**{"rollout.steps": ENVS * 4})
    with pytest.raises(ConfigError, match=r"rollout.steps: actors take up new weights between episodes of 3 steps.*48"):
        bind_algorithm(config, handle, resolve(config, native=True))


def test_the_throttle_makes_training_keep_up():
    config, handle = configured(**{"algo.training_steps_per_env_step": 0.01, "algo.max_env_steps_per_training_step": 4})
    algo = bind_algorithm(config, handle, resolve(config, native=True))
    assert float(schedule.ratio(algo.config, algo.bound.spec.workers)) == 0.25
