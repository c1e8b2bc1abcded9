"""`regimen export RUN`: a policy in a folder of its own, with what it is and where it comes from."""

from __future__ import annotations

import shutil
from pathlib import Path

from regimen import spaces
from regimen.errors import StorageError
from regimen.files.run_dir import read_metrics, versions
from regimen.files.storage import Json, read_json, utc_now, write_atomic, write_json
from regimen.policies.policy import Policy, load_policy
from regimen.statistics import interval_from_moments
from regimen.words import clock, score

SCHEMA = 1
STREAKS = ("zero_conflict_streak", "perfect_streak")
COUNTS = ("env_steps", "agent_steps", "updates", "episodes", "wall_seconds")
PROGRAMS = {
    "stablehlo": """
## Without Regimen

`policy.stablehlo` is the greedy policy as a program; `signature.json` names its inputs. It needs jax only.

```python
import jax
import numpy as np

act = jax.export.deserialize(bytearray(open("policy.stablehlo", "rb").read())).call
(action,) = act(np.zeros((1, 4), np.float32))  # a batch of observations
```
""",
    "onnx": """
## Without Regimen

`policy.onnx` is the greedy policy as a program; `signature.json` names its inputs. It needs onnxruntime only.

```python
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession("policy.onnx")
(action,) = session.run(None, {"observation": np.zeros((1, 4), np.float32)})  # a batch of observations
```
""",
}
OF_THE_RUN = (*COUNTS, "stop_reason", "stop_detail", "converged", *STREAKS)


def export_policy(
    run: str | Path, out: str | Path | None = None, checkpoint: str = "best", program: str = "policy"
) -> Path:
    """Copy a run's policy to a folder of its own, with `metadata.json` and `README.md`; an existing one is left alone.
    All that `regimen.load_policy` needs is in it; with `program` `stablehlo` or `onnx` also a file that acts without
    it."""
    run = Path(run)
    path = run / "export" if out is None else Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise StorageError(f"--out: {path} already exists and is not empty; choose another --out")
    policy = load_policy(run, checkpoint)
    fresh = not path.exists()
    policy.save(path)
    found = metadata(run, policy, checkpoint)
    if program != "policy":
        from regimen.policies.export_program import write_program

        try:
            found["program"] = write_program(policy, path, program).name
        except BaseException:
            if fresh:
                shutil.rmtree(path, ignore_errors=True)
            raise
    write_json(path / "metadata.json", found)
    write_atomic(path / "README.md", readme(found) + PROGRAMS.get(program, ""))
    return path


def metadata(run: Path, policy: Policy, checkpoint: str = "best") -> Json:
    """What a policy is, how it was trained and how good it is, as far as its run says."""
    summary, status, meta = read_json(run / "summary.json"), read_json(run / "status.json"), policy.meta
    returns = [row["eval/return_mean"] for row in read_metrics(run) if "eval/return_mean" in row]
    out: Json = {
        "schema": SCHEMA,
        "algorithm": meta["algorithm"],
        "env": meta.get("env"),
        "env_args": meta.get("env_args", {}),
        "seed": meta.get("seed"),
        "agents": summary.get("agents", 1),
        "observation_space": spaces.describe(policy.observation_space),
        "action_space": spaces.describe(policy.action_space),
        "policy": checkpoint,
        "policy_env_steps": meta.get("env_steps"),
        "run": run.resolve().name,
        "best_return": max(returns, default=None),
        "evaluation": evaluation(summary, checkpoint),
    }
    out |= {name: summary[name] for name in OF_THE_RUN if summary.get(name) is not None}
    out |= {"device": status.get("device"), "started": status.get("started"), "finished": status.get("updated")}
    out |= {"versions": status.get("versions") or versions(), "git_revision": status.get("git_revision")}
    return {k: v for k, v in out.items() if v is not None} | {"exported": utc_now()}


def evaluation(summary: Json, checkpoint: str) -> Json | None:
    """The evaluation at the end of the run, of the policy that is exported; None where there is none of it."""
    prefix = {"best": "eval", "final": "final"}.get(checkpoint)
    if prefix is None or f"{prefix}_return_mean" not in summary:
        return None
    mean, std, n = summary[f"{prefix}_return_mean"], summary[f"{prefix}_return_std"], summary["eval_episodes"]
    out = {"episodes": n, "return_mean": mean, "return_std": std, "return_ci95": interval_from_moments(mean, std, n)}
    if prefix == "eval":
        out |= {"metrics": summary.get("eval_metrics", {}), "metrics_ci95": summary.get("eval_metrics_ci95", {})}
    return out


def readme(about: Json) -> str:
    """The same for a person."""
    env, algorithm = about.get("env", "an environment"), str(about["algorithm"]).upper()
    args = ", ".join(f"{k} {v}" for k, v in about.get("env_args", {}).items())
    agents = about.get("agents", 1)
    rows = {
        "environment": f"`{env}`" + (f" ({args})" if args else ""),
        "algorithm": algorithm,
        "seed": about.get("seed"),
        "agents": agents,
        "observation": f"`{about['observation_space']}`",
        "action": f"`{about['action_space']}`",
        "policy": which(about),
        "trained for": trained(about),
        "stopped": about.get("stop_detail"),
        "best evaluation in training": None if "best_return" not in about else score(about["best_return"]),
        "evaluation": evaluated(about.get("evaluation")),
    }
    rows |= {name.replace("_", " "): about[name] for name in STREAKS if name in about}
    rows |= metric_rows(about.get("evaluation") or {})
    known = about.get("versions", {})
    names = [n for n in ("regimen", "python", "jax", "numpy") if n in known]
    rows["versions"] = ", ".join(f"{n} {known[n]}" for n in names)
    rows["git revision"] = about.get("git_revision")
    table = "\n".join(f"| {name} | {value} |" for name, value in rows.items() if value is not None)
    call = "{agent: observation}" if agents > 1 else "observation"
    result = "actions" if agents > 1 else "action"
    return f"""# {algorithm} on {env}

A policy trained with Regimen. `policy.safetensors` holds its numbers, `config.json` all that acting needs,
`metadata.json` the table below for programs. No pickle.

| | |
|---|---|
{table}

## Use it

```python
import regimen

policy = regimen.load_policy("this/folder")
{result} = policy.act({call})
```

`regimen evaluate this/folder --episodes 100` plays episodes with it.
"""


def which(about: Json) -> str:
    names = {"best": "the best by evaluation", "final": "the last"}
    step = about.get("policy_env_steps")
    return names.get(about["policy"], "of a checkpoint") + ("" if step is None else f", of env step {step:,}")


def trained(about: Json) -> str | None:
    if "env_steps" not in about:
        return None
    parts = [
        f"{about[name]:,} {name.replace('_', ' ')}" for name in ("env_steps", "episodes", "updates") if name in about
    ]
    if about.get("agents", 1) > 1 and "agent_steps" in about:
        parts.insert(1, f"{about['agent_steps']:,} agent steps")
    where = f" on {about['device']}" if "device" in about else ""
    return ", ".join(parts) + f" in {clock(about.get('wall_seconds', 0.0))}{where}"


def evaluated(found: Json | None) -> str | None:
    if found is None:
        return None
    text = f"return {score(found['return_mean'])} ± {score(found['return_std'])} over {found['episodes']} new episodes"
    between = found.get("return_ci95")
    return text + ("" if between is None else f" (95% interval {score(between[0])} to {score(between[1])})")


def metric_rows(found: Json) -> dict[str, str]:
    """Each metric of the evaluation with its interval; the return has a row of its own."""
    rows = {}
    for name, value in found.get("metrics", {}).items():
        between = found.get("metrics_ci95", {}).get(name)
        if name != "return_mean":
            shown = "" if between is None else f" (95% interval {between[0]:.4g} to {between[1]:.4g})"
            rows[f"evaluation: {name.replace('_', ' ')}"] = f"{value:.4g}{shown}"
    return rows
