"""Run in processes of their own, with 8 virtual devices or as one of several processes: what they compute, as JSON."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

sys.path.insert(0, str(Path(__file__).parents[1]))

import kit
from regimen import rewards, trees
from regimen.axes import DEVICES, sum_over_devices
from regimen.cli.main import main
from regimen.config import layers
from regimen.engines import device
from regimen.engines.base import Limits
from regimen.engines.curriculum import newest
from regimen.envs import registry
from regimen.errors import ConfigError
from regimen.normalize import RunningStats
from regimen.runs import api, build, processes
from regimen.runs.build import make_engine
from regimen.schedule import Cost, for_minibatches, pack, shuffle
from regimen.types import EpisodeRows
from support import EPISODIC, command_line, tiny

FULL = {"algo.minibatch_size": 10**6, "algo.epochs": 2, "algo.lr": 1e-2, "rollout.num_envs": 16, "rollout.steps": 512}
PAIR = FULL | {"eval.every": "2", "checkpoint.every": "2"}  # settings of the run that two processes share
EVERYWHERE = P()
NORMALISED = {"algo.normalize_obs": True, "algo.normalize_reward": True}


def on_devices(f, *args, out=EVERYWHERE):
    """`f` on 8 devices, each with its part of the arguments' first axes."""
    mesh = Mesh(np.array(jax.devices()), (DEVICES,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P(DEVICES), out_specs=out, check_vma=False))(*args)


def uneven(rows=16, fewest=0):
    """Which rows of each device count: 0 to 14 of 16."""
    return jnp.asarray(np.arange(rows)[None] < np.arange(8)[:, None] * 2 + fewest)


# --- primitives ------------------------------------------------------------------------------------------------------


def pooled():
    """Statistics of rows that are spread unevenly: of one device none counts."""
    x = np.random.default_rng(0).normal(50.0, 3.0, (8, 16, 3)).astype(np.float32)
    stats = on_devices(lambda x, valid: RunningStats.of(x[0], valid[0]), x, uneven())
    real = x[np.asarray(uneven())].astype(np.float64)
    mean, deviation = np.abs(stats.mean - real.mean(0)).max(), np.abs(stats.std() - real.std(0)).max()
    return {"count": float(stats.count), "mean": float(mean), "std": float(deviation)}


def standardized():
    """Component advantages over the batch of all devices."""
    x = np.random.default_rng(1).normal(5.0, 3.0, (8, 4, 16, 2)).astype(np.float32)
    valid = np.broadcast_to(uneven(fewest=1)[:, None], (8, 4, 16))
    f = partial(rewards.standardize, method="zscore")
    many = on_devices(lambda x, v: f(x[0], v[0])[None], x, valid, out=P(DEVICES))
    one = f(jnp.asarray(x.swapaxes(0, 1).reshape(4, 128, 2)), jnp.asarray(valid.swapaxes(0, 1).reshape(4, 128)))
    covariance = [
        on_devices(lambda x, v: rewards.moments(x[0], v[0])[1], x, valid),
        rewards.moments(jnp.asarray(x.reshape(32, 16, 2)), jnp.asarray(valid.reshape(32, 16)))[1],
    ]
    return {
        "advantages": float(np.abs(np.asarray(many).swapaxes(0, 1).reshape(4, 128, 2) - one).max()),
        "covariance": float(np.abs(covariance[0] - covariance[1]).max()),
    }


def minibatches(valid, size, all_valid=False, epochs=3, limits=()):
    """How often each row was used, the sizes of the minibatches, and how far off the mean gradient is."""
    values = jnp.arange(128.0).reshape(8, 16, 1)

    def f(values, valid):
        cost = Cost(values[0].astype(jnp.int32) % 5, limits) if limits else None
        rows = pack({"x": values[0]}, valid[0][:, None], all_valid, cost=cost)

        def step(carry, batch):
            used, grads, sizes, i = carry
            grad, metrics = batch.gradient(
                lambda p, row: (p * row["x"], {"one": jnp.ones_like(row["x"])}), jnp.ones(())
            )
            own = batch.start + jnp.arange(16)
            index = shuffle(batch.words, own, rows.count)
            index = index if rows.order is None else rows.order[index]
            used = used.at[jnp.where(own < batch.stop, index, 16)].add(1, mode="drop")
            count = sum_over_devices(batch.stop - batch.start)
            return used, grads + grad * count, sizes.at[i].set(count * metrics["one"]), i + 1

        start = (jnp.zeros(16, jnp.int32), jnp.zeros(()), jnp.zeros(64), 0)
        carry, ran = for_minibatches(
            jax.random.key(0), rows, epochs=epochs, size=size, micro=None, step=step, carry=start
        )
        return carry[0][None], carry[1], carry[2], ran

    used, total, sizes, ran = on_devices(f, values, valid, out=(P(DEVICES), P(), P(), P()))
    expected = epochs * float(np.asarray(values)[..., 0][np.asarray(valid)].sum())
    return {
        "used": sorted(set(np.asarray(used)[np.asarray(valid)].tolist())),
        "padding": int(np.asarray(used)[~np.asarray(valid)].sum()),
        "ran": int(ran),
        "sizes": [float(x) for x in sizes[: int(ran)]],
        "error": abs(float(total) - expected) / expected,
    }


def ordered():
    """The newest episodes of all devices, by the step at which they ended."""
    counts = np.array([3, 0, 1, 5, 2, 2, 0, 4], np.int32)
    step = np.sort(np.random.default_rng(2).integers(1, 30, (8, 5)), axis=1).astype(np.int32)
    reward = np.arange(40.0, dtype=np.float32).reshape(8, 5, 1)

    def f(count, step, reward):
        flags = jnp.zeros(5, bool)
        rows = EpisodeRows(count[0], step[0], step[0], reward[0], step[0], flags, {})
        return newest(rows, 4)

    rows = on_devices(f, counts, step, reward)
    kept = [(step[d, i], d, reward[d, i, 0]) for d in range(8) for i in range(counts[d]) if i >= counts[d] - 4]
    expected = [x[-1] for x in sorted(kept, key=lambda x: x[:2])]
    count = int(rows.count)
    return {"count": count, "expected": len(kept), "same": np.array_equal(rows.reward[:count, 0], expected)}


# --- engines ---------------------------------------------------------------------------------------------------------


def engine_of(devices, env="cartpole", seeds=(0,), **overrides):
    engine = kit.engine_of(env, seeds, **{"devices": devices, **FULL, **NORMALISED, **overrides})
    engine.speed = 1e9
    return engine


def arrays(engine, k=0):
    return {name: x for name, x in trees.flatten(engine.snapshot(k)).items() if not name.startswith("carry/memory")}


def off(a, b, prefix="state/"):
    """The largest difference, relative to the size of the array's numbers."""
    names = [name for name, x in a.items() if name.startswith(prefix) and x.size]
    return max(float(np.abs(a[n] - b[n].astype(np.float64)).max() / max(np.abs(a[n]).max(), 1.0)) for n in names)


def same_episodes(a, b):
    x, y = (replace(p.episodes, count=0) for p in (a, b))
    exact = all(np.array_equal(getattr(x, n), getattr(y, n)) for n in ("update", "step", "length", "terminated"))
    return exact and np.array_equal(a.steps, b.steps)


def one_and_eight(**overrides):
    one, eight = engine_of(1, **overrides), engine_of(8, **overrides)
    (a,), (b,) = one.advance([Limits(3)]), eight.advance([Limits(3)])
    result = {
        "off": off(arrays(one), arrays(eight)),
        "moved": off(arrays(engine_of(1, **overrides)), arrays(one), "state/models/policy/params"),
        "metrics": max(float(np.nanmax(np.abs(a.metrics[k] - b.metrics[k]))) for k in a.metrics),
        "episodes": len(b.episodes.length),
        "same_episodes": same_episodes(a, b),
        "counted": int(eight.state.clock.episodes) == len(b.episodes.length),
        "steps": int(eight.state.clock.steps_low) == int(b.steps.sum()),
        "split": len(eight.carry.length.sharding.device_set),
    }
    return eight, result


def resumed(eight):
    """The same engine from a snapshot again, and two devices from that of eight."""
    start = arrays(eight)
    (a,) = eight.advance([Limits(2)])
    end = arrays(eight)
    eight.restore(0, start, "the snapshot")
    eight.advance([Limits(1)])
    eight.advance([Limits(1)])
    two = engine_of(2)
    two.restore(0, start, "the snapshot")
    (b,) = two.advance([Limits(2)])
    again = arrays(eight)
    return {
        "exact": all(np.array_equal(end[name], again[name]) for name in end),
        "two": off(end, arrays(two), ""),
        "same_episodes": same_episodes(a, b),
    }


def sac_engine(devices, starts):
    given = {"rollout.steps": 32, "rollout.num_envs": 16, "network.hidden": (8,), "total_steps": 10**6}
    algo = {"algo.buffer_size": 256, "algo.batch_size": 32, "algo.learning_starts": starts, "algo.update_ratio": 0.25}
    config = layers.build_config("pendulum", algo="sac", overrides={**given, **algo, "devices": devices})
    return make_engine(config, registry.resolve("pendulum"), [0], lambda: False)


def replayed():
    """Random actions fill the same replay on one device and on eight; what eight learn from it is one policy."""
    one, eight = sac_engine(1, 10**6), sac_engine(8, 10**6)
    one.advance([Limits(3)]), eight.advance([Limits(3)])
    learner = sac_engine(8, 32)
    before = arrays(learner)
    learner.advance([Limits(3)])
    middle = arrays(learner)
    learner.advance([Limits(2)])
    end = arrays(learner)
    learner.restore(0, middle, "the snapshot")
    learner.advance([Limits(2)])
    copies = [np.asarray(s.data) for s in learner.state.models["actor"].params["head"]["kernel"].addressable_shards]
    return {
        "off": off(arrays(one), arrays(eight)),
        "rows": int(eight.state.aux["ring"].count[0]),
        "moved": off(before, end, "state/models/actor/params"),
        "alike": all(np.array_equal(copies[0], c) for c in copies) and len(copies) == 8,
        "exact": all(np.array_equal(end[name], x) for name, x in arrays(learner).items()),
    }


def empowered(**algo):
    """An empowerment learner on two devices: from the replay, with networks or tables."""
    given = {"rollout.steps": 64, "rollout.num_envs": 16, "network.hidden": (8,), "total_steps": 512, "devices": 2}
    algo |= {"warmup_v_h_e_steps": 8, "warmup_q_r_steps": 8, "beta_r_rampup_steps": 8}
    overrides = given | {f"algo.{name}": value for name, value in algo.items()}
    config = layers.build_config("world/tiny3", algo="empowerment", overrides=overrides)
    engine = make_engine(config, registry.resolve("world/tiny3"), [0], lambda: False)
    before = arrays(engine)
    engine.advance([Limits(3)])
    leaves = jax.tree.leaves({name: m.params for name, m in engine.state.models.items()})
    copies = [[np.asarray(s.data) for s in x.addressable_shards] for x in leaves]
    return {
        "moved": off(before, arrays(engine), "state/models/v_h_e/params"),
        "alike": all(len(c) == 2 and np.array_equal(*c) for c in copies),
    }


def refused(**overrides):
    try:
        engine_of(**overrides)
    except ConfigError as error:
        return str(error)
    return None


def learned(devices):
    """The last training returns of small minibatches on CartPole."""
    given = {"rollout.num_envs": 16, "rollout.steps": 512, "algo.minibatch_size": 128, "algo.epochs": 10}
    engine = engine_of(devices, **given | {"algo.lr": 1e-3, "algo.normalize_reward": False, "network.hidden": (32,)})
    (progress,) = engine.advance([Limits(60)])
    return float(progress.episodes.reward[progress.episodes.update >= 50].mean())


def quick(folder):
    yield "pooled", pooled()
    yield "standardized", standardized()
    yield "minibatches_even", minibatches(jnp.ones((8, 16), bool), 24, all_valid=True)
    yield "minibatches_uneven", minibatches(uneven(fewest=1), 24)
    yield "minibatches_tiny", minibatches(uneven(fewest=1), 1)
    yield "minibatches_cost", minibatches(uneven(fewest=1), 24, limits=(1, 2, 4))
    yield "ordered", ordered()
    eight, result = one_and_eight()
    yield "steps", result
    yield "resumed", resumed(eight)
    yield "episodes", one_and_eight(**EPISODIC | {"rollout.episodes": 16, "rollout.num_envs": 8})[1]
    yield "sac", replayed()
    yield "empowerment", empowered()
    yield "empowerment_tables", empowered(use_lookup_tables=True)
    yield "not_shared", refused(devices=8, **{"rollout.num_envs": 12, "rollout.steps": 24})
    yield "too_many", refused(devices=9)
    yield "by_default", engine_of(None, **{"rollout.num_envs": 12, "rollout.steps": 24}).regimen.devices
    run = tiny(folder / "run", devices=2, **PAIR, total_steps=2048)
    yield "header", (run.run_dir / "log.txt").read_text()
    yield "summary", {k: run.summary[k] for k in ("env_steps", "updates", "episodes", "stop_reason")}


def slow(folder):
    yield "learned", {devices: learned(devices) for devices in (1, 8)}
    engine = engine_of(8, seeds=(0, 1))
    engine.advance([Limits(3), Limits(2)])
    alone = engine_of(8, seeds=(1,))
    alone.advance([Limits(2)])
    yield "seeds", off(arrays(alone), arrays(engine, 1))


def pair(folder, number, address):
    """One of two processes that train for two updates and resume for two more, through the command line."""
    engines = []
    build.make_engine, make = (
        (lambda *args, **kwargs: engines.append(make(*args, **kwargs)) or engines[-1]),
        make_engine,
    )
    api.make_engine = processes.make_engine = build.make_engine
    others = ["--distributed", address, "--process-id", number, "--num-processes", "2"]
    yield "trained", main(["train", "cartpole", *command_line(**PAIR, total_steps=1024, out=folder / "pair"), *others])
    yield "resumed", main(["resume", str(folder / "pair"), "--total-steps", "2048"])
    params = jax.tree.map(lambda x: x.addressable_data(0), engines[-1].state.models["policy"].params)
    yield "params", {name: x.tolist() for name, x in trees.flatten(params).items()}
    yield "envs", [x.data.shape[0] for x in engines[-1].carry.length.addressable_shards]


if __name__ == "__main__":
    checks = {"quick": quick, "slow": slow, "pair": pair}[sys.argv[1]]
    if sys.argv[1] != "pair":
        device.configure("cpu", native=True)
    print(json.dumps(dict(checks(Path(sys.argv[2]), *sys.argv[3:]))))
