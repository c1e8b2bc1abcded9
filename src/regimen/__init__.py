"""Regimen: reinforcement-learning training in JAX. One package, one command line, one loop.

import regimen

result = regimen.train("cartpole", total_steps=100_000)
regimen.evaluate(result.run_dir, episodes=100).to_dict()
action = regimen.load_policy(result.run_dir).act(observation)

What belongs to a domain is under its name: `regimen.airspace.analyse`, `regimen.empowerment.solve`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, which takes a tenth of the time of `regimen --help` to import

__version__ = "1.0.0"

# name -> module; imported when first used, so that `import regimen` and the command line start at once
_LAZY = {
    "APPO": "regimen.algorithms.appo",
    "BC": "regimen.algorithms.bc",
    "CQL": "regimen.algorithms.cql",
    "IMPALA": "regimen.algorithms.impala",
    "NativeEnv": "regimen.envs.protocol",
    "PPO": "regimen.algorithms.ppo",
    "Policy": "regimen.policies.policy",
    "Result": "regimen.runs.result",
    "SAC": "regimen.algorithms.sac",
    "Spec": "regimen.types",
    "TimeStep": "regimen.types",
    "Trainer": "regimen.runs.trainer",
    "TrajectoryBuffer": "regimen.sources.trajectory_buffer",
    "check_env": "regimen.envs.check",
    "collect": "regimen.policies.collect",
    "compare": "regimen.reports.comparison",
    "evaluate": "regimen.policies.evaluate",
    "evaluate_in": "regimen.policies.transfer",
    "leaderboard": "regimen.policies.leaderboard",
    "load_policy": "regimen.policies.policy",
    "make_env": "regimen.envs.registry",
    "native_env": "regimen.envs.protocol",
    "register_algorithm": "regimen.config.schema",
    "register_env": "regimen.envs.registry",
    "register_network": "regimen.networks",
    "resume": "regimen.runs.api",
}

if TYPE_CHECKING:
    from typing import Any

    from regimen.algorithms.appo import APPO
    from regimen.algorithms.bc import BC
    from regimen.algorithms.cql import CQL
    from regimen.algorithms.impala import IMPALA
    from regimen.algorithms.ppo import PPO
    from regimen.algorithms.sac import SAC
    from regimen.config.schema import register_algorithm
    from regimen.envs.check import check_env
    from regimen.envs.protocol import NativeEnv, native_env
    from regimen.envs.registry import make_env, register_env
    from regimen.networks import register_network
    from regimen.policies.collect import collect
    from regimen.policies.evaluate import evaluate
    from regimen.policies.leaderboard import leaderboard
    from regimen.policies.policy import Policy, load_policy
    from regimen.policies.transfer import evaluate_in
    from regimen.reports.comparison import compare
    from regimen.runs.api import resume
    from regimen.runs.result import Result
    from regimen.runs.session import Callback
    from regimen.runs.trainer import AlgoLike, Trainer
    from regimen.sources.trajectory_buffer import TrajectoryBuffer
    from regimen.types import Spec, TimeStep

__all__ = ["APPO", "BC", "CQL", "IMPALA", "PPO", "SAC"]
__all__ += ["NativeEnv", "Policy", "Result", "Spec", "TimeStep", "Trainer", "TrajectoryBuffer"]
__all__ += ["check_env", "collect", "compare", "evaluate", "evaluate_in", "leaderboard"]
__all__ += ["load_policy", "make_env", "native_env"]
__all__ += ["register_algorithm", "register_env", "register_network", "resume", "train"]


def train(
    env: Any = "cartpole",
    algo: AlgoLike = None,
    callback: Callback | None = None,
    trust: bool = False,
    **overrides: Any,
) -> Result:
    """Train a policy and return the `Result` of the run.

    Args:
        env: a name such as `cartpole`, `gym:ID`, `file.py:factory`, or an environment itself (object, class or
            factory). `NAME/all` trains on every environment of a family; their results are in `runs`.
        algo: a name such as `sac`, an algorithm with its settings (`regimen.PPO(lr=1e-3)`) or its settings alone. Left
            out, it is the algorithm of `preset`, and otherwise PPO. `all` trains with each.
        callback: called with a dictionary after every update; returning True stops the run.
        trust: whether code may run that a file of yours names and that is not installed.
        **overrides: any setting by its name: `total_steps=1e5`, `lr=1e-3`, `rollout={"episodes": 10}`,
            `**{"eval.every": "5000 steps"}`.
    """
    from regimen.config.trust import trusting
    from regimen.experiments import many

    with trusting(trust):
        if many.is_several(env, algo):
            named = {} if algo is None else {"algorithm": algo}
            return many.train_all(many.plan(env, overrides=overrides | named), callback=callback)
        from regimen.runs.trainer import Trainer

        return Trainer(env, algo, **overrides).train(callback)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    if not name.startswith("_"):
        from regimen.config.domains import domains

        if name in domains():
            return domains()[name]
        from regimen.config.names import equivalent

        hint = equivalent("regimen", name)
        if hint and sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
            # `from regimen import PPOTrainer` asks here first, and would hide what an AttributeError says
            raise ImportError(f"cannot import name '{name}' from 'regimen'{hint}")
        raise AttributeError(f"module 'regimen' has no attribute '{name}'{hint}")
    raise AttributeError(f"module 'regimen' has no attribute '{name}'")


def __dir__() -> list[str]:
    from regimen.config.domains import domains

    return sorted([*__all__, *(name for name, domain in domains().items() if domain.functions), "__version__"])
