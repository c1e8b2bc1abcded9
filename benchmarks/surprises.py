"""Experiments that would refute the explanation of a surprising result: the rows of docs/surprises.md that name them.

    python benchmarks/surprises.py graph-blocks
    python benchmarks/surprises.py --help

Each takes a few minutes on two cores and prints a Markdown table. Speeds are ratios within one run, taking turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import harness

# --- speed -----------------------------------------------------------------------------------------------------------


def take_turns(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round, compiled before."""
    import jax

    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        jax.block_until_ready(case())
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(case())
            seconds[name].append(time.perf_counter() - start)
    return seconds


def graph_blocks(rounds: int) -> None:
    """Durotaxis: what makes the gradient of its two graph networks slow, memory between layers or empty slots?"""
    import jax
    import jax.numpy as jnp
    from jax.flatten_util import ravel_pytree

    from regimen import networks, schedule, spaces
    from regimen.config.schema import NetworkConfig
    from regimen.domains.durotaxis.env import Durotaxis

    space, number = Durotaxis().observation_space, 512  # rows of a minibatch, as the preset has it
    sizes = jnp.clip(2 + jnp.round(8 * jax.random.exponential(jax.random.key(1), (number,))), 2, 64)  # mean 10
    keys = jax.random.split(jax.random.key(2), number)
    obs = jax.jit(jax.vmap(lambda n, key: Durotaxis(init_nodes=n).reset(key)[1]))(sizes, keys)
    x = jax.vmap(lambda o: spaces.flatten(space, o))(obs)
    config, n = NetworkConfig(name="graph", hidden=(32, 32)), 64
    nets = [networks.make_net(config, networks.Shape(space, heads), 1.0) for heads in (((n, 2), (n, 8)), ((1, 7),))]
    flat, unravel = ravel_pytree([net.init(jax.random.key(0)) for net in nets])
    assert nets[0].cost is not None
    cost = nets[0].cost(x[None])

    def gradient(cost: schedule.Cost | None) -> Callable[[], Any]:
        def loss(flat: Any, rows: Any) -> Any:
            return sum(jnp.square(net.apply(p, rows)).mean(-1) for net, p in zip(nets, unravel(flat))), {}

        def whole(flat: Any, x: Any) -> Any:
            rows = schedule.pack(x[None], jnp.ones((1, number), bool), True, cost=cost)
            words = schedule.draw_words(jax.random.key(3))
            batch = schedule.Minibatch(rows, words, jnp.int32(0), jnp.int32(number), number, True, None)
            return batch.gradient(loss, flat)[0]

        with schedule.limited_cost() if cost is None else contextlib.nullcontext():
            compiled = jax.jit(whole).lower(flat, x).compile()
        return lambda: compiled(flat, x)

    cases = {
        "all at once": gradient(None),
        f"in pieces of {schedule.ALIKE}": gradient(cost._replace(limits=(n,))),
        "and only slots in use": gradient(cost),
    }
    cpu: dict[str, list[float]] = {name: [] for name in cases}

    def timed(name: str, case: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            start = time.process_time()
            out = jax.block_until_ready(case())
            cpu[name].append(time.process_time() - start)
            return out

        return run

    first, *others = (case() for case in cases.values())
    apart = max(float(jnp.abs(first - other).max() / jnp.abs(first).max()) for other in others)
    seconds = take_turns({name: timed(name, case) for name, case in cases.items()}, rounds)
    rows = []
    for name in cases:
        gains = [a / b for a, b in zip(cpu["all at once"], cpu[name])]
        of = f"{1000 * median(seconds[name]):.0f}", f"{1000 * median(cpu[name]):.0f}", harness.spread(gains, ".2f")
        rows.append([name, *of])
    head = [f"gradient over {number} graphs of {float(sizes.mean()):.0f} nodes", "ms", "CPU ms", "gain by CPU time"]
    print(harness.table(head, rows) + f"\n\nlargest difference of the gradients: {apart:.1e} of the largest entry")


def sac_seeds(rounds: int) -> None:
    """SAC's 8 vmapped seeds: are batched matrix products slower than one by one?"""
    import jax
    import jax.numpy as jnp

    a, b = (jax.random.normal(jax.random.key(k), (8, 256, 256)) for k in range(2))
    together = jax.jit(lambda a, b: a @ b)
    alone = jax.jit(lambda a, b: jnp.stack([x @ y for x, y in zip(a, b)]))
    seconds = take_turns(
        {
            "batched": lambda: [together(a, b) for _ in range(20)],
            "one by one": lambda: [alone(a, b) for _ in range(20)],
        },
        rounds,
    )
    ratios = [x / y for x, y in zip(seconds["batched"], seconds["one by one"])]
    print(harness.table(["8 products of 256 x 256", "ms"], [[n, f"{50 * median(s):.2f}"] for n, s in seconds.items()]))
    print(f"\nbatched / one by one: {harness.spread(ratios, '.2f')}")


# --- learning --------------------------------------------------------------------------------------------------------

CRITICS: dict[str, dict[str, Any]] = {  # of CQL on Pendulum, which had 1e-3
    "critic_lr 1e-3": {"algo.critic_lr": 1e-3},
    "critic_lr 1e-3, without the conservative term": {"algo.critic_lr": 1e-3, "algo.min_q_weight": 0.0},
    "as tuned": {},
    "without the term": {"algo.min_q_weight": 0.0},
    "critic_lr 1e-3, rewards not scaled": {"algo.critic_lr": 1e-3, "algo.reward_scale": 1.0, "algo.min_q_weight": 5.0},
}
SETTLING: dict[str, dict[str, Any]] = {  # of PPO on MountainCar
    "as tuned": {},
    "lr to 0": {"algo.lr_schedule": "linear"},
    "entropy bonus 0.01": {"algo.ent_coef": 0.01},
    "advantages as they are": {"algo.normalize_advantage": False},
    "batches 8 times as large": {"rollout.steps": 2048, "algo.minibatch_size": 512, "eval.every": "12 updates"},
    "clip_eps 0.1": {"algo.clip_eps": 0.1},
    "gamma 0.999": {"algo.gamma": 0.999},
    "rewards as they are": {"algo.normalize_reward": False},
}
SWINGS: dict[str, dict[str, Any]] = {  # of IMPALA on CartPole, without lag
    "as tuned": {},
    "lr 1e-3": {"algo.lr": 1e-3},
    "lr 2e-4": {"algo.lr": 2e-4},
    "lr does not fall": {"algo.lr_schedule": "constant"},
    "entropy bonus 0.01": {"algo.ent_coef": 0.01},
    "value loss 1/10": {"algo.vf_coef": 0.05},
    "gradients not clipped": {"algo.max_grad_norm": 0.0},
    "Adam epsilon 1e-8": {"adam_eps": 1e-8},
    "Adam epsilon 1e-3": {"adam_eps": 1e-3},
    "advantages as they are": {"algo.normalize_advantage": False},
    "batches 4 times as large": {"rollout.steps": 2048, "algo.minibatch_size": 512, "eval.every": "3 updates"},
    "gamma 0.99, lambda 0.95": {"algo.gamma": 0.99, "algo.trace_lambda": 0.95},
}
LOOKS = ["final", "by seed", "on 1,000 episodes", "deviation of an episode", "best", "late looks", "between looks"]
LOOKS += ["while training", "late looks at the threshold"]


def clone(seeds: int, steps: int | None) -> None:
    """Behaviour cloning better than its data: does the greedy policy of the expert do as well as its clone, from the
    starts that the clone is judged from?"""
    import numpy as np
    import offline

    import regimen

    with tempfile.TemporaryDirectory() as folder:
        settings = offline.EXPERT | {"track.enabled": False, "checkpoint.every": "never"}
        settings |= {"total_steps": steps} if steps else {}
        result = regimen.train("pendulum", "sac", out=str(Path(folder) / "expert"), seeds=seeds, **settings)
        rows = []
        for run in result.runs:
            same, other = (regimen.evaluate(run.run_dir, episodes=100, seed=s) for s in (offline.SEED, 0))
            data = regimen.collect(run.run_dir, Path(folder) / f"data-{len(rows)}", policy="expert", episodes=50)
            found = [np.mean(same.returns), np.mean(other.returns), data.returns.mean()]
            rows.append([str(len(rows)), *(f"{x:.1f}" for x in found)])
    head = ["seed", "expert, greedy, the clone's starts", "other starts", "its data: sampled actions"]
    print(harness.table(head, rows))


def slow_critics(folder: Path, seeds: int, steps: int) -> None:
    """CQL behind SAC on medium-replay: is it the conservative term, or the critics' step size?"""
    import offline

    rows = []
    for name, settings in CRITICS.items():
        small = {"algo.cql_samples": 4, "algo.batch_size": 128}
        found = offline.learn(folder / "pendulum-medium-replay.npz", "cql", seeds, steps, 1, **(small | settings))
        rows.append([name, f"{found['final'].mean():.1f}", " ".join(f"{x:.0f}" for x in found["final"])])
        print(harness.table([], rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + harness.table([f"CQL, {steps:,} gradient steps", "final return", "by seed"], rows))


def lost_solution(seeds: int, steps: int | None, cases: list[str]) -> None:
    """MountainCar with its whole budget ends below its best: what keeps it from settling there?"""
    looks("mountain_car", "ppo", SETTLING, cases, -110.0, seeds, steps)


def swings(seeds: int, steps: int | None, cases: list[str]) -> None:
    """The last policies of IMPALA on CartPole are far below the best ones, also without lag: what makes them so?"""
    looks("cartpole", "impala", SWINGS, cases, 475.0, seeds, steps or 150_000)


def looks(
    env: str, algo: str, known: dict[str, dict[str, Any]], cases: list[str], threshold: float, seeds: int, steps: Any
) -> None:
    """Train each case for its whole budget, and say how its evaluations of the last third differ.

    `between looks` is the deviation between the late evaluations of a seed. One policy, looked at again and again with
    100 episodes, would show a tenth of the deviation of an episode. `while training` is the return of late episodes
    with sampled actions.
    """
    import numpy as np

    import regimen

    rows = []
    for name in cases or known:
        settings = {"stop.metric": None, "stop.above": None, "track.enabled": False} | known[name]
        settings |= {"total_steps": steps} if steps else {}
        with tempfile.TemporaryDirectory() as folder, adam_epsilon(settings.pop("adam_eps", None)):
            result = regimen.train(env, algo=algo, seeds=seeds, out=str(Path(folder) / "run"), **settings)
            runs = result.runs or [result]
            longer = [regimen.evaluate(run.run_dir, episodes=1000, seed=9, checkpoint="final").returns for run in runs]
            histories = [run.history for run in runs]  # read from the folder
        final, best = ([run.summary[f"{kind}_return_mean"] for run in runs] for kind in ("final", "eval"))
        late = [late_values(history, "eval/return_mean") for history in histories]
        sampled = [late_values(history, "rollout/return_mean") for history in histories]
        numbers = {
            "case": name,
            "final": final,
            "longer": [float(np.mean(x)) for x in longer],
            "episode_std": float(np.mean([np.std(x) for x in longer])),
            "best": best,
            "late": late,
            "sampled": [float(np.mean(x)) for x in sampled],
        }
        print(json.dumps(numbers), flush=True)
        rows.append(
            [
                name,
                f"{np.mean(final):.1f}",
                " ".join(f"{x:.0f}" for x in final),
                f"{np.mean(numbers['longer']):.1f}",
                f"{numbers['episode_std']:.1f}",
                f"{np.mean(best):.1f}",
                f"{np.mean([np.mean(x) for x in late]):.1f}",
                f"{np.mean([np.std(x) for x in late]):.1f}",
                f"{np.mean(numbers['sampled']):.1f}",
                f"{np.mean([np.mean(np.array(x) >= threshold) for x in late]):.0%}",
            ]
        )
    print("\n" + harness.table([f"{env}, {algo}, {seeds} seeds", *LOOKS], rows))


def late_values(history: list[dict[str, Any]], name: str) -> list[float]:
    """Of a metric, in the last third of a run; an update in which no episode ended has no return."""
    late = [row for row in history if row["env_steps"] > history[-1]["env_steps"] * 2 / 3]
    return [row[name] for row in late if row.get(name) is not None and math.isfinite(row[name])]


@contextmanager
def adam_epsilon(eps: float | None) -> Iterator[None]:
    """While it lasts, IMPALA's optimiser has another epsilon than 1e-5."""
    import jax.numpy as jnp
    import optax

    from regimen.algorithms import impala

    def changed(c: Any) -> optax.GradientTransformation:
        limit = jnp.where(jnp.asarray(c.max_grad_norm) > 0, c.max_grad_norm, jnp.inf)
        return optax.chain(optax.clip_by_global_norm(limit), optax.scale_by_adam(eps=eps))  # type: ignore[arg-type]

    kept = impala.optimizer
    impala.optimizer = kept if eps is None else changed
    try:
        yield
    finally:
        impala.optimizer = kept


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["graph-blocks", "sac-seeds", "clone", "slow-critics", "lost-solution", "swings"]
    parser.add_argument("name", choices=names, help="which experiment")
    parser.add_argument("--rounds", type=int, default=9, help="of speeds")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=lambda x: int(float(x)), help="of each training (slow-critics: 5,000)")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="of slow-critics: offline.py --prepare FOLDER")
    parser.add_argument(
        "--cases", nargs="+", default=[], metavar="CASE", help="of lost-solution and swings; by default all"
    )
    args = parser.parse_args()
    load = harness.OtherLoad()
    match args.name:
        case "graph-blocks":
            graph_blocks(args.rounds)
        case "sac-seeds":
            sac_seeds(args.rounds)
        case "clone":
            clone(args.seeds, args.steps)
        case "slow-critics":
            slow_critics(args.data, args.seeds, args.steps or 5000)
        case "lost-solution":
            lost_solution(args.seeds, args.steps, args.cases)
        case "swings":
            swings(args.seeds, args.steps, args.cases)
    print(f"\n{load}")


if __name__ == "__main__":
    main()
