"""The pieces of the Ray engine in one process: workers are plain objects, which do what they are asked for at once or
when it is wanted. So the lag of every batch is known beforehand."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regimen.config import layers
from regimen.config import schema as configuration
from regimen.config.regimen import Regimen
from regimen.engines.base import Limits
from regimen.engines.host import host_seed
from regimen.envs import registry
from regimen.errors import EnvError, LostProcessError
from regimen.runs.build import make_engine
from support import TINY

pytest.importorskip("ray")

from ray import exceptions

from ray_envs import Eager, EagerConfig
from regimen.engines.ray import fleet as fleet_module
from regimen.engines.ray.cluster import Cluster, TemporaryFolder
from regimen.engines.ray.engine import rollout_key
from regimen.engines.ray.fleet import Fleet, WorkerHandle
from regimen.engines.ray.worker import Post, Worker, native_key, share_key

pytestmark = pytest.mark.usefixtures("compilation_cache")
FRAGILE = "ray_envs:Fragile"
REGIMEN = Regimen("steps", TINY["rollout.steps"], TINY["rollout.num_envs"], native=False, workers=2)


class Ref:
    """An answer; `make` gives it, now or when it is asked for."""

    def __init__(self, make, at_once):
        self.make, self.value = make, None
        if at_once:
            self.get()

    def get(self):
        if self.make is not None:
            self.value, self.make = self.make(), None
        return self.value


class Actor:
    """A worker whose calls give references."""

    def __init__(self, worker, at_once):
        self.worker, self.at_once = worker, at_once
        self.rollout, self.offer, self.status = (
            SimpleNamespace(remote=getattr(self, f"_{name}")) for name in ("rollout", "offer", "status")
        )

    def _rollout(self, *args):
        both = Ref(lambda: self.worker.rollout(*args), self.at_once)
        return Ref(lambda: both.get()[0], self.at_once), Ref(lambda: both.get()[1], self.at_once)

    def _offer(self, *args):
        self.worker.offer(*args)

    def _status(self):
        return Ref(self.worker.status, True)


class InProcess:
    """What the fleet needs of Ray. With `at_once` a worker is as far ahead as it may be; otherwise it begins a rollout
    when the learner wants it."""

    def __init__(self, at_once):
        self.at_once = at_once

    def remote(self, **options):
        return lambda cls: SimpleNamespace(remote=lambda post: Actor(cls(post), self.at_once))

    def wait(self, refs, num_returns=1, timeout=None, fetch_local=True):
        return refs[:1], refs[1:]

    def get(self, ref):
        return ref.get()

    def put(self, x):
        return x

    def kill(self, actor): ...

    def is_initialized(self):
        return True


@pytest.fixture(params=["ahead", "on demand"])
def engine(request, monkeypatch):
    """One asynchronous worker that may be three rollouts ahead."""
    configuration.register_algorithm("eager", Eager, EagerConfig)
    in_process = InProcess(request.param == "ahead")
    monkeypatch.setattr(fleet_module, "ray", in_process)
    monkeypatch.setattr("regimen.engines.ray.engine.ray", in_process)
    monkeypatch.setattr("regimen.engines.ray.cluster.Cluster.start", lambda self: "this process")
    monkeypatch.setattr("regimen.engines.ray.cluster.Cluster.stop", lambda self: None)
    given = TINY | {"engine": "ray", "workers": 1, "engine.queue": 3, "total_steps": 10_000, "algo.max_lag": 2}
    config = layers.build_config(FRAGILE, algo="eager", overrides=given)
    handle = registry.resolve(config.env, config.env_args)
    made = make_engine(config, handle, [config.seed], lambda: False)
    made.ahead = request.param == "ahead"
    yield made
    made.close()
    del configuration.ALGORITHMS["eager"]


def test_the_lag_of_every_batch(engine):
    """Three rollouts with the first weights, then each with those of its order: 0, 1, 2 updates old, and the fourth
    would be 3, which is more than allowed. A worker that begins when it is wanted has the newest weights."""
    offered, offer = [], engine.fleet.offer
    engine.fleet.offer = lambda version, weights: offered.append(version) or offer(version, weights)
    lags, dropped, told = [], [], []
    learn = engine.learn
    engine.learn = lambda begun, batch, *rest: lags.append(batch.lag.tolist()) or learn(begun, batch, *rest)
    for _ in range(7):
        (progress,) = engine.advance([Limits()])
        dropped.append(int(progress.metrics["dropped_batches"][-1]))
        told.append([int(progress.metrics[f"lag_{name}"][-1]) for name in ("min", "mean", "max")])
    expected = [0, 1, 2, 2, 2, 2, 2] if engine.ahead else [0] * 7
    assert lags == [[lag] * 4 for lag in expected] and told == [[lag] * 3 for lag in expected]
    assert dropped == ([0, 0, 0, 1, 1, 1, 2] if engine.ahead else [0] * 7)
    assert offered == [1, 2, 3, 4, 5, 6, 7], "after every update"
    assert engine.summary()["dropped_batches"] == dropped[-1]
    assert len(engine.fleet.members[0].requests) == 3


def test_the_lag_of_every_batch_past_the_limits_of_32_bits(engine):
    """The learner's updates, what it offers, and the seeds of workers that begin there."""
    begin = {"updates": jnp.int32(2**31 - 3), "steps_high": jnp.int32(2**10 - 1), "steps_low": jnp.int32(2**30 - 64)}
    engine.state = engine.state.replace(clock=engine.state.clock.replace(**begin, episodes_high=jnp.int32(1)))
    offered, offer = [], engine.fleet.offer
    engine.fleet.offer = lambda version, weights: offered.append(version) or offer(version, weights)
    lags, learn = [], engine.learn
    engine.learn = lambda begun, batch, *rest: lags.append(int(batch.lag.max())) or learn(begun, batch, *rest)
    for _ in range(7):
        assert not engine.advance([Limits()])[0].diverged
    assert lags == ([0, 1, 2, 2, 2, 2, 2] if engine.ahead else [0] * 7)
    assert offered == [2**31 - 3 + n for n in range(1, 8)]
    clock = engine.state.clock
    assert clock.count("updates") == 2**31 + 4 and clock.count("steps") > 2**40 and clock.count("episodes") > 2**30


def test_keys_of_rollouts_are_none_of_updates():
    """Those of updates are made with `~updates`, the upper half of 32 bits."""
    key = jax.random.key(3)
    np.testing.assert_array_equal(rollout_key(key, 2**31 + 5), rollout_key(key, 5))
    np.testing.assert_array_equal(rollout_key(key, 2**31 - 1), jax.random.key_data(jax.random.fold_in(key, 2**31 - 1)))


# --- a worker --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def order():
    """Settings of a run, its policy's parameters, and a rollout's key."""
    given = {k: v for k, v in TINY.items() if k != "track"} | {"engine": "ray", "workers": 2, "seed": 3}
    config = layers.build_config(FRAGILE, overrides=given | {"total_steps": 64})
    from regimen.algorithms.bind import bind_algorithm

    algo = bind_algorithm(config, registry.resolve(FRAGILE), REGIMEN)
    key = np.asarray(jax.random.key_data(jax.random.key(1)))
    return layers.to_dict(config), algo.actor_params(algo.init(jax.random.key(0))), key


def worker_of(order, index=0, start=(0, 0)):
    return Worker(Post(index, order[0], REGIMEN, FRAGILE, ("", ""), start))


def test_workers_and_their_successors_play_other_episodes(order):
    """An environment's observation begins with its seed, times a thousand: of each worker's two, other ones than those
    of its neighbour, of a resumed run, and of whoever it replaces."""
    _, weights, key = order
    seen = set()
    for index, start in ((0, (0, 0)), (1, (0, 0)), (0, (5, 0)), (0, (5, 1)), (0, (5, 2)), (1, (5, 1))):
        report, batch = worker_of(order, index, start).rollout(key, 0, weights)
        assert (report.worker, report.steps, batch.obs.shape) == (index, 16, (8, 2, 2))
        first = host_seed(3, *start) + 2 * index
        np.testing.assert_array_equal(batch.obs[0, :, 0], [(first + i) % 1000 * 1000 + 1 for i in range(2)])
        seen |= set(batch.obs[0, :, 0].tolist())
    assert len(seen) == 12
    assert host_seed(3, 5, 1) != host_seed(3, 5, 0) != host_seed(3, 4, 0) != host_seed(2, 4, 0)


def test_compiled_environments_of_a_successor_start_elsewhere():
    def key(worker, start):
        return tuple(jax.random.key_data(native_key(3, SimpleNamespace(worker=worker, start=start))).tolist())

    keys = {key(worker, start) for worker in (0, 1) for start in ((0, 0), (5, 0), (5, 1), (5, 2), (0, 1))}
    assert len(keys) == 10
    own = jax.random.key(4)
    assert jnp.array_equal(jax.random.key_data(share_key(own, 0)), jax.random.key_data(own)), "alone: the local engine"
    assert not jnp.array_equal(jax.random.key_data(share_key(own, 1)), jax.random.key_data(share_key(own, 2)))


def test_the_newest_of_what_was_asked_and_what_was_offered(order):
    _, weights, key = order
    worker = worker_of(order)
    one_sided = jax.tree.map(lambda x: jnp.zeros_like(x), weights)
    other = one_sided | {
        "actor": one_sided["actor"] | {"head": one_sided["actor"]["head"] | {"bias": jnp.array([9.0, -9.0])}}
    }
    assert worker.rollout(key, 4, weights)[0].version == 4
    worker.offer(6, other)
    worker.offer(5, weights)  # late
    report, batch = worker.rollout(key, 4, weights)
    assert report.version == 6 and not batch.action.any(), "with the weights of that version"
    report, batch = worker.rollout(key, 7, weights)
    assert report.version == 7 and batch.action.any()


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_as_many_restarts_as_allowed(budget, monkeypatch):
    monkeypatch.setattr(fleet_module, "ray", InProcess(False))
    posts, orders, said = [], [], []
    config = configuration.EngineConfig(name="ray", workers=2, restarts=budget)
    fleet = Fleet(config, lambda *which: posts.append(which), lambda m: orders.append(m.index), lambda: False)
    fleet.tell = said.append
    fleet.actor = SimpleNamespace(remote=lambda post: None)
    fleet.members = [WorkerHandle(0), WorkerHandle(1, steps=40, collected=48)]
    member = fleet.members[1]
    for _ in range(budget):
        fleet.replace(member, "it fell over")
    with pytest.raises(EnvError, match=r"worker 1: it fell over; engine\.restarts"):
        fleet.replace(member, "it fell over")
    assert fleet.restarts == member.restarts == budget and fleet.members[0].restarts == 0
    assert posts == [(1, n + 1) for n in range(budget)], "each with a number of its own"
    assert orders == [1] * budget, "and asked for what is owed"
    assert all(text.endswith(f"replaced ({n} of {budget} restarts)") for n, text in enumerate(said, 1))
    assert member.env_steps == 48, "what others collected in its place still counts"


def test_a_fault_is_taken_for_what_it_is():
    """A worker's process may die and another live; a mistake in a program would only come back."""
    died = exceptions.RayActorError()
    assert fleet_module.explain(died, proven=False) == "its process died"
    assert fleet_module.explain(exceptions.OutOfMemoryError("x"), True).startswith("Ray ended it because")
    mistake = exceptions.RayTaskError("rollout", "traceback", KeyError("head"))
    with pytest.raises(RuntimeError, match="a worker failed: KeyError"):
        fleet_module.explain(mistake, proven=True)


def watched(monkeypatch, **settings):
    """A fleet of one worker that only watches it, the worker, and what it says of faults."""
    monkeypatch.setattr(fleet_module, "ray", InProcess(False))
    config = configuration.EngineConfig(name="ray", workers=1, **settings)
    fleet, told = Fleet(config, lambda *which: None, lambda m: None, lambda: False), []
    fleet.replace = lambda member, why: told.append(why)
    member = WorkerHandle(0, start_time=fleet_module.time.monotonic())
    member.question_time = float("inf")  # no new question
    fleet.members = [member]
    return fleet, member, told


def test_a_hanging_environment_is_replaced_when_its_time_is_over(monkeypatch):
    fleet, member, told = watched(monkeypatch, step_timeout=2.0)
    for what, seconds in (("step", 1.9), ("act", 60.0), ("start", 60.0), ("wait", 60.0), ("collect", 60.0)):
        member.status = member.status._replace(what=what, env=3, seconds=seconds)
        fleet.look()
    assert told == []
    for what in ("step", "reset"):
        member.status = member.status._replace(what=what, seconds=2.1)
        fleet.look()
    assert told == [
        f"its environment 3 has been in {what}() for more than 2 s (engine.step_timeout)" for what in ("step", "reset")
    ]


def test_a_worker_that_hangs_is_replaced_by_default(monkeypatch):
    """A minute, or 20 times the slowest rollout; compiled environments too, once they have delivered something."""
    fleet, member, told = watched(monkeypatch)
    member.status, member.collected = member.status._replace(what="step", env=1, seconds=61.0), 32
    fleet.slowest = 4.0
    fleet.look()
    assert told == []
    fleet.slowest = 0.1
    fleet.look()
    member.status = member.status._replace(what="collect")
    fleet.look()
    member.status, member.question = member.status._replace(what="wait"), Ref(lambda: None, False)
    monkeypatch.setattr(Fleet, "hear", lambda self, member: None)  # no answer comes
    member.question_time = fleet_module.time.monotonic() - 71
    fleet.look()
    assert [text.split(" for ")[0] for text in told] == [
        "its environment 1 has been in step()",
        "its compiled environments have been running",
        "it has not answered",
    ]
    assert all("engine.step_timeout" in text for text in told)


def test_nobody_is_blamed_while_the_learner_was_away(monkeypatch):
    fleet, member, told = watched(monkeypatch)
    member.question = Ref(lambda: None, False)
    monkeypatch.setattr(Fleet, "hear", lambda self, member: None)
    fleet.look_time -= 1000  # it was stopped, or evaluated
    member.question_time = member.start_time = fleet_module.time.monotonic() - 1000
    fleet.look()
    assert told == []


def test_a_worker_that_hangs_while_it_starts_is_replaced_a_few_times(monkeypatch):
    fleet, member, told = watched(monkeypatch, start_timeout=30.0)
    fleet.look()
    assert told == []
    member.start_time -= 31
    fleet.look()
    assert told == ["it has been starting for more than 30 s (engine.start_timeout)"]
    member.restarts = 2
    with pytest.raises(EnvError, match="3 times, and no worker has delivered anything"):
        fleet.look()
    fleet.proven = True
    fleet.look()
    assert len(told) == 2


def test_nothing_is_asked_of_a_ray_that_has_ended(monkeypatch):
    fleet, member, _ = watched(monkeypatch)
    cluster = Cluster(configuration.EngineConfig(name="ray"), 0)
    with subprocess.Popen(["sleep", "60"]) as process:
        cluster.processes, fleet.require = {"raylet": [process]}, cluster.require
        fleet.look()
        process.kill()
    for ask in (fleet.look, lambda: fleet.ask(member, None, 0, None), lambda: Fleet.replace(fleet, member, "it fell")):
        with pytest.raises(LostProcessError, match="raylet of Ray has ended"):
            ask()


def test_temporary_folders_of_processes_that_ended_are_removed(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("regimen.engines.ray.cluster.LONGEST", 1000)
    code = "import os; from regimen.engines.ray import cluster as c; c.LONGEST = 1000; c.TemporaryFolder(); os._exit(1)"
    subprocess.run([sys.executable, "-c", code], check=False)
    (tmp_path / "regimen-of-somebody").mkdir()
    assert len(list(tmp_path.iterdir())) == 2
    own, other = TemporaryFolder(), TemporaryFolder()
    assert sorted(tmp_path.iterdir()) == sorted(map(Path, (tmp_path / "regimen-of-somebody", own.path, other.path)))
    own.remove()
    other.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["regimen-of-somebody"]


def test_what_a_worker_is_said_to_do():
    member = WorkerHandle(2, steps_before=100, collected=64, steps=150, restarts=1)
    member.status = fleet_module.Status("reset", 1, 0.0, 50, 77)
    row = member.row()
    found = [row[name] for name in ("worker", "state", "waiting_for", "restarts", "pid")]
    assert found == [2, "collecting", "environment 1", 1, 77]
    assert row["env_steps"] == 164, "delivered, though its last answer was earlier"
