"""Experiments that would refute an explanation of a surprising result of PPO: rows of docs/surprises.md.

    python benchmarks/surprises_ppo.py late-collapse --seeds 10   # Platform: target_kl and the bonus, each and both
    python benchmarks/surprises_ppo.py within-episodes --seeds 10 # Durotaxis: is it the shift of rewards, or the scale?
    python benchmarks/surprises_ppo.py within-episodes --env network_defense --seeds 3
    python benchmarks/surprises_ppo.py outlier --seeds 10         # CartPole: is it the number of gradient steps?

Each case prints a row as it is measured, and the numbers of every seed as a line of JSON. The first two take minutes on
a GPU and long on two cores. `--first-seed` goes on where another run has ended.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ablation
import harness

COLLAPSE: dict[str, dict[str, Any]] = {
    "tuned": {},
    "no target_kl": {"algo.target_kl": None},
    "bonus on the parameters": {"algo.ent_continuous": 1.0},
    "both": {"algo.target_kl": None, "algo.ent_continuous": 1.0},
}
EPISODIC: dict[str, tuple[dict[str, Any], int]] = {  # settings and steps of within-episodes
    "durotaxis": (
        {"env.border": "fail", "algo.gae_lambda": 0.8, "algo.vf_coef": 0.5},
        200_000,
    ),  # as in docs/results.md
    "network_defense": ({"rollout.steps": 2500, "rollout.num_envs": 25, "algo.minibatch_size": 256}, 1_000_000),
}
WITHIN = ("as they are", "z-scores", "shifted only", "divided only")
OUTLIERS: dict[str, tuple[int, int, bool]] = {  # episodes per update, minibatch size, advantages normalised
    "20 episodes, many gradient steps": (20, 64, True),
    "20 episodes, few gradient steps": (20, 1280, True),
    "1 episode, few gradient steps": (1, 64, True),
    "1 episode, many gradient steps": (1, 3, True),
    "20 episodes, many gradient steps, raw advantages": (20, 64, False),
    "1 episode, few gradient steps, raw advantages": (1, 64, False),
}


def show(row: Sequence[Any], **numbers: Any) -> None:
    print(harness.table([], [row]).splitlines()[-1])
    print(json.dumps({"case": row[0], **numbers}, default=float), flush=True)


def late_collapse(cases: Sequence[str], seeds: int, first: int, steps: int | None) -> None:
    """Platform: which of the two keeps what has been learned?"""
    print(harness.table(["Platform", "success at the end", "steps to 90%", "lowest success after that", "return"], []))
    for name in cases:
        out = ablation.train("platform", COLLAPSE[name], seeds, steps, 200, first)
        lowest = [x for x in out["lowest_later"] if x is not None]
        shown = harness.spread(lowest, ".2f") if lowest else "never at 90%"
        row = [name, harness.spread(out["success"], ".2f"), ablation.reached(out["steps_to_90"]), shown]
        kept = {x: out[x] for x in ("success", "steps_to_90", "lowest_later", "return")}
        last = {x: out["last"].get(x) for x in ("approx_kl", "clip_fraction", "entropy")}
        show([*row, harness.spread(out["return"], ".3f")], **kept, last=last)


@contextmanager
def standardised(name: str) -> Iterator[None]:
    """While it lasts, `norm_over: episode` does one half of what it does: it subtracts an episode's mean reward from
    each component, or divides by the deviation."""
    import jax
    import jax.numpy as jnp

    from regimen import rewards

    whole = rewards.standardize_episodes

    def half(reward: Any, batch: Any, method: str) -> Any:
        done = (batch.terminated | batch.truncated) & batch.valid
        ids = ((jnp.cumsum(done, axis=0) - done) * done.shape[1] + jnp.arange(done.shape[1])).reshape(-1)
        flat, valid = reward.reshape(-1, reward.shape[-1]), batch.valid.reshape(-1, 1)
        total = lambda x: jax.ops.segment_sum(jnp.where(valid, x, 0.0), ids, done.size)[ids]  # noqa: E731
        count = jnp.maximum(total(jnp.ones_like(flat)), 1.0)
        mean = total(flat) / count
        deviation = jnp.sqrt(total(jnp.square(flat - mean)) / count)
        out = flat - mean if name == "shifted only" else flat / jnp.where(deviation > 1e-6, deviation, 1.0)
        return jnp.where(count < 3, flat, out).reshape(reward.shape)

    if name in ("shifted only", "divided only"):
        rewards.standardize_episodes = half
    try:
        yield
    finally:
        rewards.standardize_episodes = whole


def within_episodes(cases: Sequence[str], seeds: int, first: int, steps: int | None, env: str) -> None:
    """Rewards standardised within episodes: does losing the episode's sum cost success? In network defence, whose
    updates here are 25 whole episodes of 100 steps, nothing but the rewards tells a good episode from a bad one."""
    print(harness.table([f"{env}, rewards within episodes", "success", "steps to 90%", "return"], []))
    given, budget = EPISODIC[env]
    for name in cases:
        settings = given | ({} if name == "as they are" else ablation.VARIANTS["norm_episode"])
        with standardised(name):
            out = ablation.train(env, settings, seeds, steps or budget, 200, first)
        kept = {x: out[x] for x in ("success", "steps_to_90", "return")}
        show(
            [name, ablation.row(name, out)[1], ablation.reached(out["steps_to_90"]), ablation.row(name, out)[4]], **kept
        )


def outlier(cases: Sequence[str], seeds: int, first: int, steps: int | None) -> None:
    """CartPole, one episode with rewards times 100 in one update, from the same half-trained policies in every case."""
    import numpy as np

    from regimen.experiments.studies import bench
    from regimen.experiments.studies.batching import options
    from regimen.experiments.studies.curves import estimate
    from regimen.experiments.studies.gradients import adopt

    chosen = options.BatchingOptions(budget=steps or 50_000, seeds=seeds, eval_episodes=50, checks=10)
    config, _, chosen = options.prepare("cartpole", chosen, None, {}, "auto", {})
    judge: list[Any] = []

    def make(episodes: int, minibatch: int, normalised: bool) -> bench.Bench:
        regimen = bench.Recipe.episodes(episodes, chosen.epochs, minibatch)
        mine = config.replace(algo=dataclasses.replace(config.algo, normalize_advantage=normalised))
        numbers = list(range(first, first + seeds))
        evaluator = judge[0] if judge else None
        made = bench.Bench(regimen, mine, numbers, chosen.budget, chosen.checks, chosen.eval_episodes, evaluator)
        judge.append(made.evaluator)
        return made

    lr = float(config.algo.lr)
    base = make(20, 64, True)
    base.train(lr, until=lambda curves: base.middle is not None)
    middle = base.middle
    print(f"half-trained policies: {' '.join(f'{x:.0f}' for x in middle.returns)}\n")
    print(harness.table(["CartPole, an outlier of 100 times", "drop of the return", "after it", "without"], []))
    for name in cases:
        made = make(*OUTLIERS[name])
        state, carry = bench.copied(made.start)
        made.middle = bench.Middle(adopt(state, middle.state), carry, middle.steps, middle.returns)
        hit, control = (np.array([c.returns[0] for c in made.after_outlier(lr, x, (1,))]) for x in (100.0, 1.0))
        drop = estimate(control - hit, np.mean)
        shown = f"{drop.value:.1f} ({drop.low:.1f} to {drop.high:.1f})"
        show([name, shown, f"{hit.mean():.1f}", f"{control.mean():.1f}"], outlier=list(hit), control=list(control))


EXPERIMENTS = {
    "late-collapse": (late_collapse, list(COLLAPSE)),
    "within-episodes": (within_episodes, list(WITHIN)),
    "outlier": (outlier, list(OUTLIERS)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(EXPERIMENTS), help="which experiment")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="some of its cases only")
    parser.add_argument("--env", choices=list(EPISODIC), default="durotaxis", help="of within-episodes")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=lambda x: int(float(x)), help="of each training, instead of its own budget")
    args = parser.parse_args()
    experiment, cases = EXPERIMENTS[args.name]
    for case in args.cases or ():
        if case not in cases:
            parser.error(f"--cases: '{case}' is not one of {', '.join(cases)}")
    more = {"env": args.env} if args.name == "within-episodes" else {}
    experiment(args.cases or cases, args.seeds, args.first_seed, args.steps, **more)


if __name__ == "__main__":
    main()
