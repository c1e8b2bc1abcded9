"""Experiments that would refute an explanation of a surprising result in the airspace: rows of docs/surprises.md.

    python benchmarks/surprises_airspace.py critics --cases "as tuned" "critic_lr 5e-3" --seeds 3   # CQL that swings
    python benchmarks/surprises_airspace.py late-loss --seeds 20                # is it steps that do not get smaller?
    python benchmarks/surprises_airspace.py family --cases converging --seeds 1 # the generic policy, one family more
    python benchmarks/surprises_airspace.py independent --seeds 2               # is it too little data?
    python benchmarks/surprises_airspace.py unseen --seeds 5                    # what do seeds that fail do otherwise?

Each case prints a row as it is measured, and the numbers of every seed as a line of JSON. `--first-seed` goes on where
another run has ended.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import airspace
import harness

WHOLE = {"stop.perfect_streak": None, "stop.zero_conflict_streak": None}
CRITICS: dict[str, dict[str, Any]] = {
    "as tuned": {},
    "critic_lr 5e-3": {"algo.critic_lr": 5e-3},
    "critic_lr 2e-4": {"algo.critic_lr": 2e-4},
    "lr 3e-5": {"algo.lr": 3e-5},
}
RATES: dict[str, dict[str, Any]] = {
    "lr to 0, as tuned": {},
    "constant lr": {"algo.lr_schedule": "constant"},
}
FAMILIES = ("as shipped", "converging")
OWN = {"policy_map": "independent"}
SHARES: dict[str, tuple[float, dict[str, Any]]] = {  # times the budget, settings
    "shared": (1, {}),
    "shared, a quarter of the steps": (0.25, {}),
    "independent": (1, OWN),
    "independent, four times the steps": (4, OWN),
    "independent, four times the gradient steps": (1, OWN | {"algo.minibatch_size": 512}),
}
UNSEEN = ("cross_2x2", "canonical_crossing")


def show(row: Sequence[Any], **numbers: Any) -> None:
    print(harness.table([], [row]).splitlines()[-1])
    print(json.dumps({"case": row[0], **numbers}, default=float), flush=True)


def looks(run: Any, name: str) -> list[float]:
    """A column of the run's evaluations during training."""
    return [row[name] for row in run.history if row.get(name) is not None]


def critics(cases: Sequence[str], seeds: dict[str, int], steps: int | None) -> None:
    """CQL on `head_on`: does the size of its steps decide how far evaluations are from each other?"""
    import numpy as np

    import regimen

    print(harness.table(["CQL, head_on", "deviation of later evaluations", "lowest of them", "last", "best"], []))
    with tempfile.TemporaryDirectory() as folder:
        data = f"{folder}/ppo"
        regimen.train("airspace/head_on", out=data, track=False)
        for name in cases:
            given = CRITICS[name] | seeds | ({"total_steps": steps} if steps else {})
            out = f"{folder}/{name.replace(' ', '-')}"
            result = regimen.train("airspace/head_on", "cql", data=data, out=out, track=False, **WHOLE, **given)
            found = [looks(run, "eval/return_mean") for run in result.runs]
            late = [np.array(x[len(x) // 2 :]) for x in found]
            means = [np.mean([f(x) for x in late]) for f in (np.std, np.min, lambda x: x[-1])]
            best = np.mean([max(x) for x in found])
            q, true = ([looks(run, f"train/{x}_mean")[-1] for run in result.runs] for x in ("q_data", "mc_return"))
            show([name, *(f"{x:.2f}" for x in (*means, best))], evaluations=found, q=q, returns_of_data=true)


def late_loss(cases: Sequence[str], seeds: dict[str, int], steps: int | None) -> None:
    """`merge_4all` with its whole budget and `time_cost` 0.01: do losses at the end come from steps that stay large?"""
    import regimen

    print(harness.table(["merge_4all", "seeds that were perfect", "of these: a loss in the last 5 looks", "last"], []))
    for name in cases:
        with tempfile.TemporaryDirectory() as folder:
            given = RATES[name] | seeds | {"env.time_cost": 0.01, "total_steps": steps or 120 * 8192}
            looked = {"eval.every": "5 updates", "eval.episodes": 50}
            out = f"{folder}/run"
            result = regimen.train("airspace/merge_4all", out=out, track=False, **WHOLE, **looked, **given)
            lost, success = ([looks(run, f"eval/{x}") for run in result.runs] for x in ("los", "success_rate"))
        perfect = [max(x[:-5], default=0.0) == 1.0 for x in success]
        late = [good and max(x[-5:]) > 0 for good, x in zip(perfect, lost)]
        last = [good and x[-1] > 0 for good, x in zip(perfect, lost)]
        show([name, f"{sum(perfect)} of {len(lost)}", sum(late), sum(last)], lost=lost, success=success)


@contextmanager
def another_family(name: str) -> Iterator[None]:
    """While it lasts, the generator also draws aircraft that come from all sides to waypoints close to each other."""
    import jax.numpy as jnp

    from regimen.domains.airspace import generator
    from regimen.domains.airspace.generator import Routes, along, between

    def converging(env: Any, u: Any, w: Any, place: Any, number: Any, tas: Any) -> Routes:
        goal = 2 * jnp.pi * (place + between(w[1], -0.3, 0.3)) / number
        radius = between(u[6], 2.0, 5.0)
        angle = 2 * jnp.pi * w[2]
        back = between(u[7], 9.0, 16.0) + between(w[3], -1.0, 1.0)
        return along(radius * jnp.cos(goal), radius * jnp.sin(goal), angle, back, 0.0 * w[4])

    if name == "converging":
        generator.FAMILIES[name] = converging
    try:
        yield
    finally:
        generator.FAMILIES.pop("converging", None)


def family(cases: Sequence[str], seeds: dict[str, int], steps: int | None) -> None:
    """The generic policy loses separation on `converging`: does it, when the generator draws such scenes?"""
    given = {"total_steps": steps} if steps else {}
    print(harness.table(["generator", "scenario", "policy, LoS", "policy, reached", "MVP, LoS"], []))
    for name in cases:
        with another_family(name), tempfile.TemporaryDirectory() as folder:
            rows = airspace.generic(seeds["seeds"], 100, Path(folder), seed=seeds["seed"], **given)
        for row in rows:
            show([name, *row[:4]], scenario=row[0], seed=seeds["seed"])


def independent(cases: Sequence[str], seeds: dict[str, int], steps: int | None, scenario: str = "cross_4all") -> None:
    """Policies of their own hardly arrive: do they with as much data, or with as many gradient steps?"""
    import regimen

    print(harness.table([scenario, "env steps", "loss of separation", "arrived"], []))
    for name in cases:
        times, settings = SHARES[name]
        budget = int(times * (steps or 200_000))
        with tempfile.TemporaryDirectory() as folder:
            given = settings | seeds | WHOLE | {"total_steps": budget}
            result = regimen.train(f"airspace/{scenario}", out=f"{folder}/run", track=False, **given)
            policies = [regimen.load_policy(run.run_dir, "final") for run in result.runs]
        played = [airspace.judge({"snap": True, **airspace.PERTURBED}, scenario, p, 100) for p in policies]
        lost, arrived = ([float(e.metrics[x].mean()) for e in played] for x in ("los", "reached"))
        means = [f"{sum(x) / len(x):.1%}" for x in (lost, arrived)]
        show([name, f"{budget:,}", *means], lost=lost, arrived=arrived, **seeds)


def flown(policy: Any, scenario: str, episodes: int) -> dict[str, Any]:
    """Episodes of a shared policy: observations of aircraft that fly [N, D], commanded turns in degrees of the first
    twelve decisions [E, A], which episodes lose separation [E], and the share of aircraft that arrive."""
    import jax
    import numpy as np

    from regimen.envs import registry

    env = registry.resolve(f"airspace/{scenario}", {"snap": True, "fly_on": True, **airspace.PERTURBED}).native
    assert env is not None
    keys = jax.random.split(jax.random.key(11), episodes)
    state, obs = jax.jit(jax.vmap(env.reset))(keys)
    step, alive = jax.jit(jax.vmap(env.step)), jax.jit(jax.vmap(env.alive))
    seen, turned, lost = [], np.zeros(obs.shape[:2]), np.zeros(episodes, bool)
    for t in range(env.max_episode_steps):
        flying = np.asarray(alive(state))
        if not flying.any():
            break
        seen.append(np.asarray(obs)[flying & ~lost[:, None]])
        action = policy.act_batch(np.asarray(obs).reshape(-1, obs.shape[-1]))
        state, timestep = step(keys, state, np.asarray(action).reshape(*obs.shape[:2], -1))
        obs = timestep.obs
        if t < 12:
            turned += np.asarray(state.command)[..., 0]
        lost |= np.asarray(state.first_los) >= 0
    return {"obs": np.concatenate(seen), "turned": turned, "lost": lost, "arrived": np.asarray(state.reached).mean()}


def distance(queries: Any, known: Any, rows: int = 2000) -> float:
    """Mean distance of a query to the nearest known row: root mean square over columns, which are about -1 to 1."""
    import numpy as np

    rng = np.random.default_rng(0)
    q, k = (x[rng.permutation(len(x))[:rows]] for x in (queries, known))
    squared = (q**2).sum(1)[:, None] + (k**2).sum(1)[None] - 2 * q @ k.T
    return float(np.sqrt(np.maximum(squared, 0).min(1) / q.shape[1]).mean())


def unseen(cases: Sequence[str], seeds: dict[str, int], steps: int | None) -> None:
    """Shared policies of `cross_2x2` on `canonical_crossing`: how often they fail by seed, how far what they see there
    is from what they see at home, and whether at home all aircraft turn the same way."""
    import numpy as np

    import regimen

    home, away = UNSEEN
    head = ["seed", f"{home}: loss", f"{away}: loss", "arrived there", "distance of observations", "turn the same way"]
    print(harness.table([*head, "turn, degrees"], []))
    with tempfile.TemporaryDirectory() as folder:
        given = seeds | WHOLE | {"total_steps": steps or 200_000}
        result = regimen.train(f"airspace/{home}", out=f"{folder}/run", track=False, **given)
        for k, run in enumerate(result.runs):
            policy = regimen.load_policy(run.run_dir, "final")
            own, other = (flown(policy, name, 100) for name in UNSEEN)
            same = float(np.abs(np.sign(own["turned"]).mean(1)).mean())
            numbers = {
                "home": float(own["lost"].mean()),
                "away": float(other["lost"].mean()),
                "arrived": float(other["arrived"]),
                "distance": distance(other["obs"], own["obs"]),
                "same_way": same,
                "turn": float(np.abs(own["turned"]).mean()),
            }
            show([str(seeds["seed"] + k), *(f"{x:.3f}" for x in numbers.values())], **numbers)


EXPERIMENTS = {
    "critics": (critics, list(CRITICS)),
    "late-loss": (late_loss, list(RATES)),
    "family": (family, list(FAMILIES)),
    "independent": (independent, list(SHARES)),
    "unseen": (unseen, [UNSEEN[0]]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(EXPERIMENTS), help="which experiment")
    parser.add_argument("--cases", nargs="+", metavar="CASE", help="some of its cases only")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=lambda x: int(float(x)), help="of each training, instead of its own budget")
    args = parser.parse_args()
    experiment, cases = EXPERIMENTS[args.name]
    for case in args.cases or ():
        if case not in cases:
            parser.error(f"--cases: '{case}' is not one of {', '.join(cases)}")
    experiment(args.cases or cases, {"seed": args.first_seed, "seeds": args.seeds}, args.steps)


if __name__ == "__main__":
    main()
