"""Network defence beside figures measured with the reference simulator (CybORG 2.1, scenario 2; 40 episodes each).

    python benchmarks/network_defense_calibration.py [--episodes 1000]

z is the difference of the means over the standard error of both samples. The tests assert |z| < 3.
"""

from __future__ import annotations

import argparse
from typing import Any

import harness

REFERENCE = 40
RETURNS = {
    ("b_line", "sleep"): {30: (-215.3, 19.6), 50: (-477.3, 19.6), 100: (-1132.3, 19.6)},
    ("b_line", "random"): {30: (-142.0, 81.0), 50: (-308.0, 174.0), 100: (-669.0, 390.0)},
    ("meander", "sleep"): {30: (-37.4, 14.5), 50: (-261.0, 64.0), 100: (-960.0, 62.0)},
}
MIXES = {
    ("b_line", "sleep"): (0.021, 0.042, 0.043, 0.042, 0.853),
    ("b_line", "random"): (0.022, 0.064, 0.096, 0.075, 0.742),
    ("meander", "sleep"): (0.020, 0.100, 0.124, 0.102, 0.653),
}


def play(red: str, blue: str, episodes: int) -> tuple[Any, Any]:
    """Rewards and kinds of Red's actions [episodes, 100]."""
    import jax

    from regimen.domains.network_defense.env import NetworkDefense

    env = NetworkDefense(red=red)

    def episode(key):
        def body(carry, key):
            act_key, step_key = jax.random.split(key)
            state, ts = env.step(step_key, carry[0], env.baselines[blue](env, act_key, *carry))
            return (state, ts.obs), (ts.reward.sum(), state.red_kind)

        return jax.lax.scan(body, env.reset(key), jax.random.split(key, 100))[1]

    return jax.device_get(jax.jit(jax.vmap(episode))(jax.random.split(jax.random.key(0), episodes)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1000)
    args = parser.parse_args()
    import numpy as np

    from regimen.domains.network_defense.red import KINDS

    returns, mixes = [], []
    for (red, blue), expected in RETURNS.items():
        rewards, kinds = play(red, blue, args.episodes)
        for steps, (mean, deviation) in expected.items():
            ours = rewards[:, :steps].sum(1, dtype=np.float64)
            error = np.hypot(deviation / np.sqrt(REFERENCE), ours.std() / np.sqrt(len(ours)))
            row = [
                f"{mean} ({deviation})",
                f"{ours.mean():.1f} ({ours.std():.1f})",
                f"{(ours.mean() - mean) / error:+.1f}",
            ]
            returns.append([red, blue, steps, *row])
        for name, shares in (("reference", MIXES[red, blue]), ("here", [(kinds == k).mean() for k in range(5)])):
            mixes.append([red, blue, name, *(f"{share:.3f}" for share in shares)])
    print(harness.table(["red", "blue", "steps", "reference, mean (sd)", "here, mean (sd)", "z"], returns))
    print("\n" + harness.table(["red", "blue", "", *KINDS], mixes))


if __name__ == "__main__":
    main()
