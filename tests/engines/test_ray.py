"""The Ray engine: the same as the local one on the same noise, and going on when workers fail."""

import os
import signal

import jax
import numpy as np
import pytest

import regimen
from regimen.algorithms.bind import bind_algorithm
from regimen.cli.main import main
from regimen.config import layers
from regimen.config import schema as configuration
from regimen.config.regimen import resolve, share_rollout
from regimen.engines.base import Limits
from regimen.engines.host import HostEngine, host_seed
from regimen.envs import registry
from regimen.errors import ConfigError, EnvError
from regimen.files.run_dir import read_metrics
from regimen.runs.build import make_engine
from regimen.schedule import Episodes, Steps
from regimen.sources.host import HostSource
from regimen.types import EpisodeRows
from support import TINY, final_state, tiny

ray = pytest.importorskip("ray")

from ray_envs import Eager, EagerConfig  # noqa: E402
from regimen.engines.ray.cluster import Cluster  # noqa: E402
from regimen.engines.ray.engine import RayEngine  # noqa: E402
from regimen.engines.ray.worker import NativeSource, join, join_rows, native_key, share_key  # noqa: E402

pytestmark = [pytest.mark.usefixtures("without_plots", "compilation_cache"), pytest.mark.timeout(180)]
FRAGILE = "ray_envs:Fragile"
ANY = [Limits()]


@pytest.fixture(scope="module")
def cluster():
    """One for all tests of this module; engines find it and leave it running."""
    own = Cluster(configuration.EngineConfig(name="ray", workers=8), 0)
    own.start()
    yield own
    own.stop()


@pytest.fixture
def eager():
    configuration.register_algorithm("eager", Eager, EagerConfig)
    yield "eager"
    del configuration.ALGORITHMS["eager"]


def configured(env, algo="ppo", **overrides):
    """A tiny run's configuration, and its environment."""
    given = TINY | {"engine": "ray", "total_steps": 10_000} | overrides
    config = layers.build_config(env, algo=algo, overrides={k: v for k, v in given.items() if v is not None})
    handle = registry.resolve(config.env, config.env_args)
    return share_rollout(config, handle.native is not None), handle


def engine_for(env, algo="ppo", **overrides):
    config, handle = configured(env, algo, **overrides)
    engine = make_engine(config, handle, [config.seed], lambda: False)
    engine.events, engine.batches, learn = [], [], engine.learn
    engine.watch(engine.events.append, lambda rows: setattr(engine, "table", rows))

    def noted(start, batch, *args):
        engine.batches.append(jax.tree.map(np.array, batch))
        return learn(start, batch, *args)

    engine.learn = noted
    return engine


def leaves(engine):
    return [np.asarray(x) for x in jax.tree.leaves((engine.state.models, engine.state.norm))]


# --- parity ----------------------------------------------------------------------------------------------------------


class Shares:
    """What Ray workers do, one after the other in this process: the reference."""

    def __init__(self, config, handle, algo):
        regimen = resolve(config, handle.native is not None)
        workers = config.engine.workers
        schedule = Steps(regimen.n // workers) if regimen.kind == "steps" else Episodes(regimen.n // workers)
        share = regimen.num_envs // workers
        self.parts = []
        for w in range(workers):
            if handle.native is not None:
                post = type("Post", (), {"worker": w, "start": (0, 0)})
                self.parts.append(NativeSource(handle.native, schedule, share, algo, native_key(config.seed, post)))
                continue
            source = HostSource(handle.make_host, schedule, share, max_episode_steps=handle.max_episode_steps)
            source.init(host_seed(config.seed, 0) + w * share)
            self.parts.append(source)

    def init(self, seed): ...

    def next(self, algo, params, key):
        found = [s.next(algo, params, share_key(key, w)) for w, s in enumerate(self.parts)]
        batches, rows, steps = zip(*found)
        batches, rows = jax.tree.map(np.asarray, (list(batches), list(rows)))
        return join(batches), join_rows(rows, sum(steps)), sum(steps)


EPISODIC = {"rollout.steps": None, "rollout.episodes": 4, "rollout.num_envs": 2}
CASES = {
    "host": ("gym:CartPole-v1", {"algo.normalize_obs": True, "algo.normalize_reward": True}),
    "hybrid, native, episodes": ("probe/hybrid", EPISODIC),
    "host, episodes without a limit": (FRAGILE, EPISODIC),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.long
def test_two_workers_are_their_shares_joined(cluster, case):
    """Synchronous runs depend on nothing but the seed: not on which worker is faster, nor on Ray."""
    env, overrides = CASES[case]
    config, handle = configured(env, **overrides)
    engine = engine_for(env, **overrides)
    algo = bind_algorithm(config, handle, resolve(config, handle.native is not None))
    reference = HostEngine(algo, Shares(config, handle, algo), config.seed, algo.init)
    try:
        for _ in range(3):
            (a,), (b,) = engine.advance(ANY), reference.advance(ANY)
            assert a.steps == b.steps
            for x, y in zip(jax.tree.leaves(a.episodes), jax.tree.leaves(b.episodes), strict=True):
                np.testing.assert_array_equal(x, y)
            assert list(a.episodes.step) == sorted(a.episodes.step)
    finally:
        engine.close()
    for x, y in zip(leaves(engine), leaves(reference), strict=True):
        np.testing.assert_array_equal(x, y)


def test_one_worker_is_the_local_engine(cluster, tmp_path):
    """A whole run and its continuation: state, episodes and evaluation are those without Ray, bit for bit."""
    same = {"env": "gym:CartPole-v1", "eval.every": "2", "checkpoint.every": "2"}
    local = tiny(tmp_path / "local", **same)
    remote = tiny(tmp_path / "ray", **same, engine="ray", workers=1)
    assert (tmp_path / "local/episodes.csv").read_bytes() == (tmp_path / "ray/episodes.csv").read_bytes()
    for name, x in final_state(tmp_path / "local")[0].items():
        np.testing.assert_array_equal(x, final_state(tmp_path / "ray")[0][name], err_msg=name)
    assert remote.summary["eval_return_mean"] == local.summary["eval_return_mean"]
    assert (remote.summary["workers"], remote.summary["restarts"]) == (1, 0)
    row = read_metrics(tmp_path / "ray")[-1]
    assert 0 < row["time/learner_busy"] < 1 and row["time/bytes_per_step"] > 8 * 4
    table = (tmp_path / "ray/workers.csv").read_text().splitlines()
    assert table[0].split(",")[2:5] == ["worker", "state", "env_steps"] and len(table) > 1
    regimen.resume(tmp_path / "ray", total_steps=6 * 32, checkpoint="64")
    regimen.resume(tmp_path / "local", total_steps=6 * 32, checkpoint="64")
    for name, x in final_state(tmp_path / "local")[0].items():
        np.testing.assert_array_equal(x, final_state(tmp_path / "ray")[0][name], err_msg=name)


def test_no_workers_is_without_ray(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(Cluster, "start", refuse)
    tiny(tmp_path / "none", env="gym:CartPole-v1", engine="ray", workers=0)
    tiny(tmp_path / "local", env="gym:CartPole-v1")
    for name, x in final_state(tmp_path / "local")[0].items():
        np.testing.assert_array_equal(x, final_state(tmp_path / "none")[0][name], err_msg=name)


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fragile(cluster, tmp_path_factory):
    """An engine whose environments fail when told to."""
    folder = tmp_path_factory.mktemp("faults")
    engine = engine_for(FRAGILE, env_args={"folder": str(folder)}, **{"engine.step_timeout": 1.0, "restarts": 20})
    engine.folder = folder
    engine.advance(ANY)
    yield engine
    engine.close()


def assert_whole(engine):
    """Every batch is full, and in every column each step follows from the one before, within one episode."""
    for batch in engine.batches:
        assert batch.valid.all() and batch.valid.shape == (8, 4)
        going = ~(batch.terminated | batch.truncated)[:-1]
        np.testing.assert_array_equal(batch.next_obs[:-1][going], batch.obs[1:][going])
        np.testing.assert_array_equal(batch.next_obs[..., 1], batch.obs[..., 1] + 1)
        np.testing.assert_array_equal(batch.obs[..., 0], batch.next_obs[..., 0])


@pytest.mark.parametrize("fault", ["SIGKILL", "raise", "hang", "exit"])
def test_a_worker_that_fails_is_replaced(fragile, fault):
    before, events = fragile.fleet.restarts, len(fragile.events)
    if fault == "SIGKILL":
        while not (pid := fragile.fleet.members[1].status.pid):
            fragile.advance(ANY)
        os.kill(pid, signal.SIGKILL)
    else:
        (fragile.folder / fault).touch()
    updates = int(fragile.state.clock.updates)
    for _ in range(3):
        (progress,) = fragile.advance(ANY)
    assert int(fragile.state.clock.updates) == updates + 3
    assert fragile.fleet.restarts == before + 1 == progress.metrics["restarts"][-1]
    assert sum(row["restarts"] for row in fragile.table) == before + 1
    said = {
        "SIGKILL": "worker 1: its process died",
        "raise": "the environment's step failed: ValueError: the gripper broke",
        "hang": "has been in step() for more than 1 s",
        "exit": "its process died",
    }
    told = [text for text in fragile.events[events:] if "replaced" in text]
    assert len(told) == 1 and said[fault] in told[0] and f"({before + 1} of 20 restarts)" in told[0]
    assert_whole(fragile)


def test_the_budget_of_restarts(cluster, tmp_path, capsys):
    """An environment that always fails ends the run with its own message, and the files say so."""
    flags = ["--engine", "ray", "--workers", "1", "--engine.restarts", "1", "--env.always", "raise", "--no-track"]
    flags += ["--out", str(tmp_path / "run"), "--rollout.steps", "32", "--total-steps", "64"]
    code = main(["train", FRAGILE, *flags])
    said = capsys.readouterr()
    assert code == 4
    assert "ValueError: the gripper broke; engine.restarts: all 1 are spent" in said.err
    assert "replaced (1 of 1 restarts)" in said.out
    log = (tmp_path / "run/log.txt").read_text()
    assert "replaced (1 of 1 restarts)" in log and "failed: worker 0" in log


def test_an_environment_that_cannot_be_made_is_not_tried_again(cluster):
    engine = engine_for(FRAGILE, workers=1)
    engine.env = "ray_envs:Missing"
    try:
        with pytest.raises(EnvError, match="has no 'Missing'"):
            engine.advance(ANY)
    finally:
        engine.close()
    assert engine.fleet.restarts == 0


# --- asynchronous ----------------------------------------------------------------------------------------------------


def everything_done(engine):
    """Wait until the workers have done all that they were asked for."""
    asked = [rollout.report for member in engine.fleet.members for rollout in member.requests]
    ray.wait(asked, num_returns=len(asked))


def test_batches_as_they_come(cluster, eager, monkeypatch):
    """Lag and worker of each batch, one broadcast per version, and no more rollouts ahead than allowed."""
    puts = []
    broadcast = RayEngine.broadcast
    monkeypatch.setattr(RayEngine, "broadcast", lambda engine: puts.append(1) or broadcast(engine))
    engine = engine_for(FRAGILE, eager, **{"engine.queue": 3})
    try:
        updates = 0
        while updates < 12 or {int(b.worker) for b in engine.batches} != {0, 1}:  # one may be slow to start
            (progress,) = engine.advance(ANY)
            assert progress.steps == 16  # a worker's share
            updates += 1
            assert updates < 20_000
        assert len(puts) == updates + 1  # the first weights, and those of each update
        for i, batch in enumerate(engine.batches):
            assert batch.lag.shape == (2,) and batch.lag.min() >= 0 and batch.lag.max() <= i
        assert progress.metrics["lag_max"] == engine.batches[-1].lag.max()
        assert progress.metrics["dropped_batches"] == 0
        everything_done(engine)  # the learner is busy elsewhere: workers go on as far ahead as they may
        steps = [ray.get(m.actor.status.remote()).steps for m in engine.fleet.members]
        assert [len(m.requests) for m in engine.fleet.members] == [3, 3]
        taken = sum(int(b.valid.sum()) for b in engine.batches)
        assert sum(steps) == taken + 2 * 3 * 16
        # what waited was collected with older weights than what is collected from now on
        engine.batches.clear()
        for _ in range(10):
            engine.advance(ANY)
        assert max(b.lag.max() for b in engine.batches) >= 3
        pid = engine.fleet.members[0].status.pid
        os.kill(pid, signal.SIGKILL)
        engine.batches.clear()
        while engine.fleet.restarts == 0 or {int(b.worker) for b in engine.batches[-6:]} != {0, 1}:
            engine.advance(ANY)
        assert engine.fleet.restarts == 1
    finally:
        engine.close()


def test_old_batches_are_dropped(cluster, eager):
    """What is older than max_lag is counted and not learned from."""
    engine = engine_for(FRAGILE, eager, workers=1, **{"engine.queue": 4, "algo.max_lag": 1})
    try:
        for _ in range(8):
            engine.advance(ANY)
            everything_done(engine)
        assert engine.dropped > 0
        assert max(b.lag.max() for b in engine.batches) <= 1
        assert engine.summary()["dropped_batches"] == engine.dropped
    finally:
        engine.close()


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rollout.num_envs": 4, "workers": 3}, "rollout.steps: 32 cannot .* workers 2 or 4, or steps 30 or 33"),
        ({"rollout.num_envs": 2, "workers": 4}, "rollout.num_envs: 2 cannot .* num_envs 4, or workers 2"),
        ({"rollout.num_envs": None, "rollout.steps": 5, "workers": 8}, "nearest valid: workers 5, or steps 8"),
    ],
)
def test_shares(overrides, message):
    with pytest.raises(ConfigError, match=message):
        configured("cartpole", **overrides)


def test_num_envs_that_fit():
    given = {"rollout.num_envs": None, "rollout.steps": 60, "workers": 5}
    assert configured("cartpole", **given)[0].rollout.num_envs == 5
    given = {"rollout.num_envs": None, "rollout.steps": None, "rollout.episodes": 24, "workers": 8}
    assert configured("gym:CartPole-v1", **given)[0].rollout.num_envs == 8


def test_refused_before_ray_starts(monkeypatch, tmp_path):
    class Local(type(registry.resolve(FRAGILE).make_host())):
        pass

    monkeypatch.setattr(Cluster, "start", lambda self: pytest.fail("Ray was started"))
    with pytest.raises(ConfigError, match="workers make the environment by themselves"):
        regimen.train(Local(), engine="ray", out=str(tmp_path / "a"), **TINY)
    with pytest.raises(ConfigError, match="curriculum: workers do not follow one"):
        regimen.train("cartpole", engine="ray", out=str(tmp_path / "b"), curriculum={"gravity": "5 @ 0"}, **TINY)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'regimen\[ray\]'"):
        regimen.train("cartpole", engine="ray", out=str(tmp_path / "c"), **TINY)
    assert not any((tmp_path / name).exists() for name in "abc")


def test_rows_of_several_workers():
    """In the order in which they ended; a column that some episodes lack is left out."""

    def rows(step, success):
        n = len(step)
        zeros = np.zeros(n, np.int32)
        metrics = {"success": np.ones(n, np.float32)} if success else {}
        step = np.array(step, np.int32)
        return EpisodeRows(np.int32(n), zeros, step, np.array(step)[:, None], step + 1, zeros == 0, metrics)

    both = join_rows([rows([4, 8, 12], True), rows([2, 8], True), rows([], False)], 30)
    assert both.count == 5
    np.testing.assert_array_equal(both.step, [6, 12, 24, 24, 30])
    np.testing.assert_array_equal(both.length, [3, 5, 9, 9, 13])
    assert list(both.metrics) == ["success"]
    assert join_rows([rows([4], True), rows([2], False)], 8).metrics == {}
    assert join_rows([rows([], False)] * 2, 8).count == 0
