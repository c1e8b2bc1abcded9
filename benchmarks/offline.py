"""Behaviour cloning, CQL and offline SAC on sets that Regimen's own runs wrote: the table of docs/algorithms/cql.md.

    python benchmarks/offline.py pendulum --prepare sets        # once: train, collect, write sets/pendulum-*.npz
    python benchmarks/offline.py pendulum --data sets --seeds 5

The second needs neither Minari nor h5py. Seeds are one program on shared data, with the settings that the tuned presets
have. Returns are of the greedy policy on 100 episodes that nothing was selected on, after the last gradient step.

`Q on data` is the critics' mean on evenly spaced rows of the set. Beside it, for the same rows: `return in data`, the
discounted return that followed there (an episode that was cut goes on with the mean of its last 50 rewards), and
`return of policy`, what the learned policy truly gets from there: the environment is put into the row's state, the
row's action is taken, and the policy is followed for 1,000 steps without a time limit. Q estimates the latter; a policy
that is better than the data has a larger one than the data's own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import harness

SETS = ("random", "medium", "medium-replay", "expert")
ALGORITHMS = ("bc", "cql", "sac")
HEAD = ["set", "its return", "algorithm", "final return (95% interval)", "best", "Q on data", "return in data"]
HEAD += ["return of policy", "wall s"]
EPISODES, SEED, HORIZON = 100, 7, 1000  # SEED: of the final episodes
MARGIN = 0.1  # of over-estimation that is allowed

# SAC on Pendulum: one run that stops near -500, and one from nothing to the end
SAC: dict[str, Any] = {
    "network.hidden": (64, 64),
    "rollout": {"steps": 8, "num_envs": 4},
    "algo.buffer_size": 20_000,
    "total_steps": 20_000,
}
MEDIUM = SAC | {
    "algo.lr": 5e-4,
    "eval.every": "248 steps",
    "eval.episodes": 20,
    "stop.metric": "eval/return_mean",
    "stop.above": -600,
}
EXPERT = SAC | {"algo.lr": 1e-3, "eval.every": "1000 steps", "eval.episodes": 50}


# --- sets ------------------------------------------------------------------------------------------------------------


def prepare(env: str, folder: Path, steps: int = 10_000, **settings: Any) -> list[str]:
    """Train to medium and to expert, collect, and write one .npz file for each set; their summaries."""
    import regimen
    from regimen.sources import dataset

    folder.mkdir(parents=True, exist_ok=True)
    quiet = {"track.enabled": False, "checkpoint.every": "never"} | settings
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        runs = {name: Path(scratch) / name for name in ("medium", "expert")}
        if env == "pendulum":
            regimen.train(env, "sac", out=str(runs["medium"]), **(MEDIUM | quiet))
            regimen.train(env, "sac", out=str(runs["expert"]), **(EXPERT | quiet))
        else:  # PPO: its replay is the data of its successive checkpoints
            often = {"eval.every": "1", "checkpoint.every": "1", "checkpoint.keep": 50, "track.enabled": False}
            half = {"stop.metric": "eval/return_mean", "stop.above": 200}
            regimen.train(env, out=str(runs["medium"]), **(often | half | settings))
            regimen.train(env, out=str(runs["expert"]), **quiet)
        parts = {
            "random": (env, {"policy": "random", "steps": steps}),
            "medium": (runs["medium"], {"policy": "final", "steps": steps}),
            "medium-replay": (runs["medium"], {"policy": "replay"} | ({} if env == "pendulum" else {"steps": steps})),
            "expert": (runs["expert"], {"policy": "expert", "steps": steps}),
        }
        for name, (source, options) in parts.items():
            data = regimen.collect(source, Path(scratch) / f"{env}-{name}", **options)
            lines.append(dataset.read(data.save_npz(folder / f"{env}-{name}.npz")).summary())
            print(lines[-1], flush=True)
    return lines


# --- one algorithm on one set ----------------------------------------------------------------------------------------


def learn(path: Path, algorithm: str, seeds: int, steps: int | None, looks: int, **settings: Any) -> dict[str, Any]:
    """Train all seeds in one program; what came of each."""
    import jax
    import numpy as np

    from regimen.config import layers as regimen_settings
    from regimen.config.regimen import resolve
    from regimen.engines import offline
    from regimen.engines.base import CHUNK, Limits
    from regimen.envs import registry
    from regimen.policies.evaluate import make_evaluator
    from regimen.sources import dataset

    start = time.monotonic()
    given = {"total_steps": steps} if steps is not None else {}
    config = regimen_settings.build_config(str(path), algo=algorithm, overrides=given | settings)
    handle = registry.resolve(config.env, config.env_args)
    regimen = resolve(config, handle.native is not None)
    engine: Any = offline.make_engine(config, regimen, handle, list(range(seeds)), lambda: None, lambda state: state)
    play = make_evaluator(handle, engine.algo)
    total, done = config.total_steps or 0, 0
    best, lost = np.full(seeds, -np.inf), np.zeros(seeds, bool)
    for look in range(1, looks + 1):
        while done < total * look // looks and not lost.all():
            left = total * look // looks - done
            progress = engine.advance([Limits(0, 0, 0) if gone else Limits(CHUNK, left) for gone in lost])
            lost |= np.array([p.diverged for p in progress])
            done += max(int(p.steps.sum()) for p in progress)
        scores = [play(engine.actor_params(k), 1000 + look, 20).returns.mean() for k in range(seeds)]
        best = np.maximum(best, scores)
    final = np.array([play(engine.actor_params(k), SEED, EPISODES).returns.mean() for k in range(seeds)])
    data = dataset.read(path)
    out = {"algorithm": algorithm, "final": final, "best": best, "diverged": int(lost.sum()), "set": data.returns}
    if algorithm != "bc":
        measure = jax.jit(lambda algo, state, data: algo.overestimation(state, data))
        states = [engine.at(engine.state, k) for k in range(seeds)]
        found = [jax.device_get(measure(engine.algo, state, engine.data)) for state in states]
        out |= {k: np.array([f[k] for f in found]) for k in ("q_data_mean", "mc_return_mean")}
        true = [policy_return(handle.native, engine.algo, engine.actor_params(k), engine.data) for k in range(seeds)]
        out["policy_return"] = np.array(true)
    return out | {"seconds": time.monotonic() - start, "steps": total}


def policy_return(env: Any, algo: Any, params: Any, data: Any) -> float:
    """The mean discounted return of the policy from the rows of `data.probe`, the first action being the row's."""
    import jax
    import jax.numpy as jnp

    def play(env: Any, algo: Any, params: Any, probe: Any) -> Any:
        state = jax.vmap(lambda obs: state_of(type(env).__name__, obs))(probe.obs)
        n, root = len(probe.reward), jax.random.key(0)

        def step(t: Any, carry: Any) -> Any:
            state, obs, going, total = carry
            key = jax.random.fold_in(root, t)
            chosen = algo.act(params, obs, algo.initial_carry((n,)), algo.noise(key, (n,)))[0]
            action = jax.tree.map(lambda a, b: jnp.where(t == 0, a, b), probe.action, chosen)
            state, ts = jax.vmap(env.step)(jax.random.split(key, n), state, algo.to_env(action))
            total = total + going * algo.config.gamma**t * jnp.reshape(ts.reward, (n, -1)).sum(-1)
            return state, ts.obs, going * ~ts.terminated, total

        start = (state, probe.obs, jnp.ones(n), jnp.zeros(n))
        return jax.lax.fori_loop(0, HORIZON, step, start)[3].mean()

    return float(jax.jit(play)(env, algo, params, data.probe))


def state_of(env: str, obs: Any) -> Any:
    """The state of an environment that its observation shows completely."""
    import jax.numpy as jnp

    return jnp.stack([jnp.arctan2(obs[1], obs[0]), obs[2]]) if env == "Pendulum" else obs


# --- the table -------------------------------------------------------------------------------------------------------


def row(name: str, r: dict[str, Any]) -> list[str]:
    low, high = interval(r["final"])

    def column(key: str) -> str:
        return f"{r[key].mean():.1f} ± {r[key].std():.1f}" if key in r else ""

    return [
        name,
        f"{r['set'].mean():.1f}",
        r["algorithm"] + (f" ({r['diverged']} diverged)" if r["diverged"] else ""),
        f"{r['final'].mean():.1f} ({low:.1f} to {high:.1f})",
        f"{r['best'].mean():.1f}",
        column("q_data_mean"),
        f"{r['mc_return_mean'].mean():.1f}" if "mc_return_mean" in r else "",
        column("policy_return"),
        f"{r['seconds']:.0f}",
    ]


def interval(x: Any) -> tuple[float, float]:
    import numpy as np

    from regimen.statistics import bootstrap_interval

    return bootstrap_interval(x, np.mean) if len(x) > 1 else (float(x[0]), float(x[0]))


def over(q: Any, happened: Any) -> bool:
    """Whether the critics' mean is above what happened by more than the margin."""
    return float(q.mean()) > float(happened.mean()) + MARGIN * abs(float(happened.mean()))


def verdicts(results: dict[tuple[str, str], dict[str, Any]]) -> list[str]:
    """What is asked of CQL, and whether it holds."""

    def line(holds: bool, text: str) -> str:
        return f"{'meets' if holds else 'MISSES'}: {text}"

    out = []
    if {("medium-replay", "cql"), ("medium-replay", "bc")} <= results.keys():
        ours, theirs = (interval(results["medium-replay", a]["final"]) for a in ("cql", "bc"))
        text = f"CQL beats BC on medium-replay beyond the intervals ({ours[0]:.1f} against {theirs[1]:.1f})"
        out.append(line(ours[0] > theirs[1], text))
    if ("expert", "cql") in results and ("random", "bc") in results:
        r = results["expert", "cql"]
        low, top = results["random", "bc"]["set"].mean(), r["set"].mean()
        share = (r["final"].mean() - low) / (top - low)
        out.append(
            line(share >= 0.9, f"CQL reaches {share:.0%} of the expert on expert data, random being 0% (90% asked)")
        )
    for (name, algorithm), r in results.items():
        if algorithm == "cql":
            text = f"CQL's Q on {name} is at most the policy's own return plus {MARGIN:.0%}"
            out.append(line(not over(r["q_data_mean"], r["policy_return"]), text))
    if ("expert", "cql") in results:
        r = results["expert", "cql"]
        text = f"CQL's Q on expert is at most the return in the data plus {MARGIN:.0%}"
        out.append(line(not over(r["q_data_mean"], r["mc_return_mean"]), text))
    for (name, algorithm), r in results.items():
        if algorithm == "sac":
            fails = "over-estimates" if over(r["q_data_mean"], r["policy_return"]) else "does not over-estimate"
            out.append(
                f"offline SAC {fails} on {name}: Q {r['q_data_mean'].mean():.1f}, {r['policy_return'].mean():.1f}"
            )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", choices=["pendulum", "cartpole"])
    parser.add_argument("--prepare", type=Path, metavar="FOLDER", help="write the sets here, and nothing else")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="where the sets are")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=lambda x: int(float(x)), help="gradient steps, instead of the presets'")
    parser.add_argument("--looks", type=int, default=10, help="evaluations on the way, for the best")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--algos", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="other settings of the algorithms")
    parser.add_argument("--json", type=Path, help="write every number here")
    args = parser.parse_args()
    if args.prepare is not None:
        prepare(args.env, args.prepare)
        return
    if args.data is None:
        parser.error("--data FOLDER: where the sets are; --prepare FOLDER writes them")
    import jax

    print(
        f"jax {jax.__version__}, {jax.default_backend()}, {os.cpu_count()} cores; {args.seeds} seeds in one program\n"
    )
    settings, results, rows = dict(item.split("=", 1) for item in args.set), {}, []
    for name in args.sets:
        for algorithm in args.algos:
            path = args.data / f"{args.env}-{name}.npz"
            known = {k: v for k, v in settings.items() if algorithm != "bc" or not k.startswith("algo.")}
            results[name, algorithm] = learn(path, algorithm, args.seeds, args.steps, args.looks, **known)
            rows.append(row(name, results[name, algorithm]))
            print(harness.table(HEAD, rows[-1:]).splitlines()[-1], flush=True)
    print("\n" + harness.table(HEAD, rows) + "\n")
    print("\n".join(verdicts(results)))
    if args.json is not None:
        plain = {
            "/".join(k): {n: getattr(x, "tolist", lambda x=x: x)() for n, x in r.items()} for k, r in results.items()
        }
        args.json.write_text(json.dumps(plain, indent=2) + "\n")


if __name__ == "__main__":
    main()
