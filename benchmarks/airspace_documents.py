"""Air traffic as its document has it, and with the tuned settings: every algorithm, both rewards, all 14 scenarios.

    python benchmarks/airspace_documents.py --algos ppo --kinds tuned-compat atc-compat --out ppo.jsonl
    python benchmarks/airspace_documents.py head_on --algos sac --kinds atc-compat --seconds 400  # ends there
    python benchmarks/airspace_documents.py --read *.jsonl     # the tables of several such files
    python benchmarks/airspace_documents.py --quick            # a minute, measures nothing

A kind is a set of settings (`tuned`, or the document's `atc_*` preset with its values for the device) and a reward
(`clean`, `compat`). All scenarios of as many aircraft and all their seeds are learners of one compiled program, each
with the environment and the settings that `regimen train airspace/NAME` has. There are no stopping rules: every learner
shows its whole budget. CQL has no policy of its own that collects: SAC acts first, with the same settings of the
environment, for as many env steps as `behaviour_steps` says, as `regimen train --algo cql` has it.

A line of JSON is written as soon as a program is done, or when the time is up; it says how far it came. An evaluation
is conflict-free if no episode of it loses separation (20 episodes; from perturbed starts with the tuned settings, from
the scenario's own start, where all are alike, with the document's). The final greedy policy is judged from the
scenario's own start by the `compat` reward, beside doing nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness

ALGORITHMS = ("ppo", "sac", "impala", "appo", "cql")
KINDS = (("atc", "compat"), ("tuned", "compat"), ("tuned", "clean"), ("atc", "clean"))
STEPS = {"ppo": 500_000, "appo": 500_000, "impala": 500_000, "sac": 200_000, "cql": 10_000}  # cql: gradient steps
EVERY = {"ppo": 8192, "appo": 8192, "impala": 8192, "sac": 4000, "cql": 500}
MOST = {"sac": 300_000}  # rows of a replay, so that many of them fit beside each other
TOGETHER = {"sac": 6, "cql": 4}  # scenarios in one program; of the others all
RANGES = {2: (50_000, 100_000), 4: (150_000, 250_000)}  # env steps to convergence by aircraft, as published
RANGE_OF = {"sac": (100_000, 200_000), "impala": (150_000, 300_000)}
HEAD = ["scenario", "conflict-free evaluation at (env steps)", "20 in a row at", "last evaluation: conflicts, success"]
HEAD += ["final without loss", "all reached", "least separation, NM", "compat return (lowest, median)", "doing nothing"]
HEAD += ["published: before, in, after"]
STREAK = 20


# --- one program: several scenarios, several seeds -------------------------------------------------------------------


def fleet_classes() -> tuple[type, type, type]:
    """An environment that is one of several scenarios, and the engines whose learners have one each."""
    import jax
    import jax.numpy as jnp

    from regimen.axes import SEEDS
    from regimen.domains.airspace.env import Airspace
    from regimen.domains.airspace.files import load
    from regimen.domains.airspace.state import stack
    from regimen.engines.base import Limits
    from regimen.engines.chunk import CompiledEngine, chunk
    from regimen.engines.native import NativeEngine, on_mesh
    from regimen.engines.offline import OfflineEngine
    from regimen.envs.protocol import native_env

    @native_env
    class OneOf(Airspace):
        """One of several scenarios with as many aircraft: which one is data of the compiled program."""

        names: tuple[str, ...] = ()
        place: float = 0.0

        @property
        def agents(self) -> tuple[str, ...]:
            return load(self.names[0]).ids

        def choose(self, key):
            table = stack([load(name).arrays() for name in self.names])
            return jax.tree.map(lambda x: x[jnp.asarray(self.place).astype(jnp.int32)], table)

    class OwnInputs(CompiledEngine):
        """Learner k has inputs of its own, the row k of `inputs`."""

        def compile(self) -> Any:
            def run(algo, inputs, state, carry, limits):
                return chunk(lambda state, carry: self.turn(algo, inputs, state, carry), state, carry, limits)

            each = jax.vmap(run, in_axes=(None, 0, 0, 0, 0), axis_name=SEEDS)
            jitted = jax.jit(self.over_devices(each), donate_argnums=(2, 3))
            limits = self.device_limits([Limits()] * self.learners)
            with self.compilation():
                return jitted.lower(self.played, self.inputs, self.state, self.carry, limits).compile()

    class Fleet(OwnInputs, NativeEngine):
        def __init__(self, envs, algo, source, seeds, init):
            NativeEngine.__init__(self, envs[0], algo, source, seeds, init)
            reset = jax.jit(source.init)
            keys = [jax.random.fold_in(jax.random.key(seed), 1) for seed in seeds]
            carry = self.stack([reset(env, algo, key) for env, key in zip(envs, keys)])
            self.carry = on_mesh(carry, self.mesh, self.specs(self.state)[1])
            self.env = self.stack(envs)

    class OfflineFleet(OwnInputs, OfflineEngine):
        def __init__(self, data, algo, steps, seeds, init):
            OfflineEngine.__init__(self, algo, data[0], steps, seeds, init)
            self.data = self.stack(data)

    return OneOf, Fleet, OfflineFleet


def settings_of(algo: str, preset: str, reward: str, steps: int, extra: dict[str, Any]) -> dict[str, Any]:
    """Everything that differs from `regimen train airspace/NAME --algo ALGO`."""
    import jax

    from regimen.config import layers, presets

    settings: dict[str, Any] = {"total_steps": steps, "track.enabled": False, "log.episodes": False}
    settings |= {f"stop.{name}": None for name in ("zero_conflict_streak", "perfect_streak")}
    if preset == "atc":
        stored = presets.load_preset(f"atc_{algo}")
        column = "cpu" if jax.default_backend() == "cpu" else "gpu"
        settings |= layers.flatten(stored.columns[column], algo) | {"preset": stored.name}
    if reward == "compat":
        settings["env_args"] = {"reward": "compat"}
    if algo in MOST:
        settings["algo.buffer_size"] = MOST[algo]
    return settings | extra


def train(job: dict[str, Any], names: list[str], seeds: int, deadline: float) -> Iterator[dict[str, Any]]:
    """Train all seeds of these scenarios, which have as many aircraft; what came of each scenario. Past the deadline
    (by the monotonic clock) training ends at the next evaluation."""
    import dataclasses

    import jax
    import numpy as np

    from regimen.config.layers import build_config
    from regimen.config.regimen import resolve
    from regimen.engines import device
    from regimen.engines.base import IDLE, Limits
    from regimen.envs import registry
    from regimen.runs.build import bind_algorithm, resolve_horizon
    from regimen.schedule import Steps
    from regimen.sources import play
    from regimen.sources.scan import ScanSource

    begun, algo_name, offline = time.monotonic(), job["algo"], job["algo"] == "cql"
    OneOf, Fleet, OfflineFleet = fleet_classes()
    settings = settings_of(algo_name, job["preset"], job["reward"], job["steps"], job["settings"])
    configs = [build_config(f"airspace/{name}", algo=algo_name, overrides=settings) for name in names]
    device.configure(configs[0].device, True)
    config = resolve_horizon(configs[0])
    assert all((c.algo, c.network, c.rollout) == (configs[0].algo, config.network, config.rollout) for c in configs)

    def one_of(place: int, handle: registry.EnvHandle) -> Any:
        fields = {f.name: getattr(handle.native, f.name) for f in dataclasses.fields(handle.native)}
        return OneOf(**fields | {"scenario": names[0]}, names=tuple(names), place=float(place))

    handles = [registry.resolve(f"airspace/{name}", c.env_args) for name, c in zip(names, configs)]
    envs = [one_of(i, handle) for i, handle in enumerate(handles)]
    handle = dataclasses.replace(handles[0], native=envs[0])
    every = [one for one in envs for _ in range(seeds)]
    numbers = list(range(seeds)) * len(names)

    def online(config: Any) -> Any:
        regimen = resolve(config, True, len(handle.agents), handle.max_episode_steps)
        algo = bind_algorithm(config, handle, regimen, {})
        source = ScanSource(Steps(regimen.n), regimen.num_envs)

        def init(key: Any, one: Any) -> Any:
            state = one.init(key)  # a replay of zeros takes no room on the host
            nothing = jax.tree.map(lambda x: np.broadcast_to(np.zeros((), x.dtype), x.shape), state.replay)
            return state.replace(replay=nothing)

        return Fleet(every, algo, source, numbers, init)

    if offline:
        engine = offline_engine(config, handle, online, OfflineFleet, numbers)
    else:
        engine = online(config)
    algo, learners = engine.algo, len(numbers)
    actor = play.greedy_actor(algo)

    def played(episodes: int) -> Any:
        def one(env, params, key):
            carry = play.play_resets(env, actor, params, key, episodes).carry
            return carry.reward.sum(-1), carry.metrics

        return jax.jit(jax.vmap(one, (0, 0, None)))

    params = jax.jit(jax.vmap(algo.actor_params))
    evaluate, stacked = played(job["episodes"]), engine.stack(every)
    done, curves = np.zeros(learners, int), []
    while done.min() < job["steps"] and time.monotonic() < deadline:
        goal = min(int(done.min()) + job["every"], job["steps"])
        while done.min() < goal:
            limits = [Limits(256, int(goal - d)) if d < goal else IDLE for d in done]
            for k, progress in enumerate(engine.advance(limits)):
                if progress.diverged:
                    raise SystemExit(f"{job} {names[k // seeds]} seed {k % seeds} diverged at {done[k]}")
                done[k] += int(progress.steps.sum())
        _, metrics = evaluate(stacked, params(engine.state), jax.random.key(2**20 + len(curves)))
        los, success = (np.asarray(metrics[name]).mean(-1) for name in ("los", "success"))  # [learners]
        curves.append((int(done.max()), los, success, time.monotonic() - begun))
    own = [registry.resolve(f"airspace/{name}", {"reward": "compat", "snap": True}) for name in names]
    judges = [one_of(i, handle) for i, handle in enumerate(own)]
    judges = engine.stack([judge for judge in judges for _ in range(seeds)])
    returns, metrics = jax.device_get(played(1)(judges, params(engine.state), jax.random.key(0)))
    wall = round(time.monotonic() - begun, 1)
    for i, name in enumerate(names):
        mine = slice(i * seeds, (i + 1) * seeds)
        free = np.array([[los[k] == 0 for k in range(mine.start, mine.stop)] for _, los, _, _ in curves])  # [n, seeds]
        steps = [at for at, *_ in curves]
        yield {
            "job": {k: job[k] for k in ("algo", "preset", "reward", "every")} | {"scenario": name, "steps": steps[-1]},
            "aircraft": len(handle.agents),
            "first": [first_time(free[:, k], steps, 1) for k in range(seeds)],
            "seconds": [first_time(free[:, k], [round(x[3], 1) for x in curves], 1) for k in range(seeds)],
            "streak": [first_time(free[:, k], steps, STREAK) for k in range(seeds)],
            "last_los": np.round(curves[-1][1][mine], 3).tolist(),
            "last_success": np.round(curves[-1][2][mine], 3).tolist(),
            "los": metrics["los"][mine, 0].tolist(),
            "reached": metrics["reached"][mine, 0].tolist(),
            "return": np.round(returns[mine, 0], 2).tolist(),
            "separation": np.round(metrics["min_separation"][mine, 0], 2).tolist(),
            "nothing": doing_nothing(name),
            "wall": wall,
            "learners": learners,
            "backend": jax.default_backend(),
        }


def offline_engine(config: Any, handle: Any, online: Any, kind: type, numbers: list[int]) -> Any:
    """CQL's engine: every learner has the transitions of a SAC of its own."""
    import jax
    import numpy as np

    from regimen.algorithms.bind import make_algorithm, spec_of
    from regimen.config.layers import build_config
    from regimen.config.regimen import resolve
    from regimen.engines.base import IDLE, Limits
    from regimen.sources import dataset

    steps = config.common.behaviour_steps
    first = {"env_args": config.env_args, "total_steps": steps, "algo.gamma": config.algo.gamma}
    acting = build_config(config.env, algo="sac", overrides=first | {"algo.buffer_size": 4 * steps})
    sac, done = online(acting), np.zeros(len(numbers), int)
    while done.min() < steps:
        for k, progress in enumerate(sac.advance([Limits(256, int(steps - d)) if d < steps else IDLE for d in done])):
            done[k] += int(progress.steps.sum())
    regimen = resolve(config, True, len(handle.agents), handle.max_episode_steps)
    algo = make_algorithm(config.algorithm, config.algo, config.network).bind(spec_of(handle))
    replay = sac.algo.bound.replay
    data = []
    for k in range(len(numbers)):
        state = jax.device_get(sac.at(sac.state, k))
        count = int(np.asarray(state.aux["ring"].count).min())
        rows = jax.tree.map(lambda x, n=count: x[:n].reshape(-1, *x.shape[2:]), state.replay)  # [T, B] to rows
        data.append(as_data(dataset, rows, replay, algo))
    length = min(one.rows.valid.shape[0] for one in data)
    assert all(one.rows.valid.shape[0] == length for one in data)
    return kind(data, algo, regimen.n, numbers, lambda key: algo.init(key))


def as_data(dataset: Any, rows: Any, replay: Any, algo: Any) -> Any:
    """A learner's replay as a dataset on the device: transitions that agents did not take do not count."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    n = rows.valid.shape[0]
    some = np.linspace(0, n - 1, min(dataset.PROBE, n)).astype(int)
    table = jax.tree.map(jnp.asarray, rows)
    return dataset.Data(
        rows=jax.tree.map(lambda x: x[:, None], table),
        ring=dataset.Ring(jnp.zeros(1, jnp.int32), jnp.full(1, n, jnp.int32)),
        probe=jax.tree.map(lambda x: x[some], table),
        mc_return=jnp.zeros(len(some)),
    )


def first_time(free: Any, values: list[float], streak: int) -> float | None:
    """The value at the end of the first run of so many conflict-free evaluations."""
    run = 0
    for value, yes in zip(values, free):
        run = run + 1 if yes else 0
        if run >= streak:
            return value
    return None


def doing_nothing(name: str) -> list[float]:
    """Its `compat` return, and whether separation is lost."""
    from regimen.envs import registry
    from regimen.policies.evaluate import baseline_evaluator

    played = baseline_evaluator(registry.resolve(f"airspace/{name}", {"reward": "compat"}), "no_op")((), 0, 1)
    return [float(played.returns[0]), float(played.metrics["los"].max())]


# --- the tables ------------------------------------------------------------------------------------------------------


def published(algo: str, aircraft: int) -> tuple[int, int] | None:
    return RANGE_OF.get(algo) or (None if algo == "cql" else RANGES.get(aircraft))


def row(one: dict[str, Any]) -> list[str]:
    job, seeds = one["job"], len(one["los"])
    reached = [x for x in one["first"] if x is not None]
    within = published(job["algo"], one["aircraft"])
    word = ""
    if within is not None:
        early, inside = (sum(low <= x <= within[1] for x in reached) for low in (0, within[0]))
        word = f"{within[0] // 1000}k to {within[1] // 1000}k: {early - inside}, {inside}, {seeds - early}"
    returns = sorted(one["return"])
    streaks = [x for x in one["streak"] if x is not None]
    nothing, lost = one["nothing"]
    return [
        f"{job['scenario']} ({one['aircraft']})",
        f"{span(reached)} ({len(reached)} of {seeds})",
        f"{span(streaks)} ({len(streaks)} of {seeds})",
        f"{sum(one['last_los']) / seeds:.0%}, {sum(one['last_success']) / seeds:.0%}",
        f"{sum(x == 0 for x in one['los'])} of {seeds}",
        f"{sum(x == 1 for x in one['reached'])} of {seeds}",
        f"{min(one['separation']):.2f}",
        f"{returns[0]:.1f}, {returns[seeds // 2]:.1f}",
        f"{nothing:.1f}" + (" (loses)" if lost else ""),
        word,
    ]


def span(values: list[float]) -> str:
    if not values:
        return "never"
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


TOTALS = ["algorithm, settings, reward", "env steps", "a conflict-free evaluation", "20 in a row", "final without loss"]
TOTALS += ["final without loss and all reached", "better than doing nothing", "published: before, in, after"]


def report(lines: list[dict[str, Any]]) -> None:
    """A table for each algorithm, settings and reward, and one of them all."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for one in lines:
        groups.setdefault(tuple(one["job"][k] for k in ("algo", "preset", "reward")), []).append(one)
    totals = []
    for (algo, preset, reward), members in groups.items():
        job, wall = members[0]["job"], sorted({m["wall"] for m in members})
        where = f"{members[0]['backend']}, {span(wall)} s for a program of {members[0]['learners']} learners"
        print(f"\n{algo}, {preset}, {reward}; {job['steps']:,} steps, every {job['every']:,}; {where}\n")
        print(harness.table(HEAD, [row(one) for one in members]))
        totals.append(total([f"{algo}, {preset}, {reward}", f"{job['steps']:,}"], members))
    print("\n" + harness.table(TOTALS, totals))


def total(names: list[str], members: list[dict[str, Any]]) -> list[str]:
    """How many of all runs of a kind did what."""
    count = sum(len(m["los"]) for m in members)
    pairs = [(los, all_there) for m in members for los, all_there in zip(m["los"], m["reached"])]
    better = sum(value > m["nothing"][0] + 0.05 for m in members for value in m["return"])
    before = inside = after = 0
    for m in members:
        within = published(m["job"]["algo"], m["aircraft"])
        for x in m["first"] if within else ():
            early = x is not None and x < within[0]
            before, inside = before + early, inside + (x is not None and within[0] <= x <= within[1])
            after += x is None or x > within[1]
    return [
        *names,
        f"{sum(x is not None for m in members for x in m['first'])} of {count}",
        f"{sum(x is not None for m in members for x in m['streak'])} of {count}",
        f"{sum(los == 0 for los, _ in pairs)} of {count}",
        f"{sum(los == 0 and there == 1 for los, there in pairs)} of {count}",
        f"{better} of {count}",
        f"{before}, {inside}, {after}" if before + inside + after else "none published",
    ]


ONLINE = {"rollout.steps": 64, "rollout.num_envs": 4, "algo.minibatch_size": 64, "network.hidden": [8]}
REPLAY = {"network.hidden": [8], "algo.batch_size": 16, "algo.update_ratio": 0.1, "algo.learning_starts": 64}
QUICK: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("ppo", "appo", "impala"), ONLINE),
    "sac": REPLAY | {"rollout.steps": 64, "rollout.num_envs": 4, "algo.buffer_size": 1000},
    "cql": {"network.hidden": [8], "algo.batch_size": 16, "rollout.steps": 64, "algo.behaviour_steps": 1500},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="default: all 14")
    parser.add_argument("--algos", nargs="+", default=list(ALGORITHMS), choices=ALGORITHMS)
    parser.add_argument("--kinds", nargs="+", default=["-".join(kind) for kind in KINDS], help="as tuned-compat")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--total-steps", type=float)
    parser.add_argument("--together", type=int, help="scenarios in one program")
    parser.add_argument("--seconds", type=float, default=1e6, help="end training after this")
    parser.add_argument("--out", type=Path, help="append a line of JSON for each scenario")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; measures nothing")
    parser.add_argument("--read", nargs="+", help="tables of the lines in these files, without training")
    args = parser.parse_args()
    if args.read:
        texts = [line for path in args.read for line in Path(path).read_text().splitlines() if line.startswith("{")]
        report([json.loads(text) for text in texts])
        return
    if args.seeds < 2:
        parser.error("--seeds: a fleet has at least 2 learners")
    from regimen.domains.airspace.files import NAMES, load

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    begun, lines = time.monotonic(), []
    groups: dict[int, list[str]] = {}
    for name in args.scenarios or NAMES:
        groups.setdefault(len(load(name).ids), []).append(name)
    for kind in args.kinds:
        for algo in args.algos:
            preset, reward = kind.split("-")
            job = {"algo": algo, "preset": preset, "reward": reward, "every": EVERY[algo], "episodes": 20}
            job |= {"steps": int(args.total_steps or STEPS[algo]), "settings": {}}
            if args.quick:
                job |= {"steps": 128, "every": 64, "settings": QUICK[algo], "episodes": 2}
            for _, names in sorted(groups.items(), reverse=True):
                size = args.together or TOGETHER.get(algo, len(names))
                for part in (names[i : i + size] for i in range(0, len(names), size)):
                    if time.monotonic() - begun > args.seconds:
                        continue
                    for line in train(job, part, 2 if args.quick else args.seeds, begun + args.seconds):
                        lines.append(line)
                        print(json.dumps(line), flush=True)
                        if args.out:
                            with args.out.open("a") as file:
                                file.write(json.dumps(line) + "\n")
    report(lines)


if __name__ == "__main__":
    main()
