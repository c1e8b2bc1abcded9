"""What a policy is and where it comes from, beside it in its folder; and `regimen export RUN`: a policy in a folder of
its own."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from regimen import spaces
from regimen.config.domains import domains, load
from regimen.errors import ConfigError, nearest
from regimen.files.run_dir import read_metrics, read_status, read_summary, versions
from regimen.files.sealed import reading
from regimen.files.storage import Json, check_free, filling, plain, utc_now, write_atomic, write_json
from regimen.policies.policy import Policy, load_policy
from regimen.statistics import interval_from_moments
from regimen.words import clock, interval, score

SCHEMA = 1
STREAKS = ("zero_conflict_streak", "perfect_streak")
COUNTS = ("env_steps", "agent_steps", "updates", "episodes", "wall_seconds")
OF_THE_RUN = (*COUNTS, "stop_reason", "stop_detail", "converged", *STREAKS)


def export_policy(
    run: str | Path,
    out: str | Path | None = None,
    checkpoint: str = "best",
    program: str = "policy",
    form: str | None = None,
) -> Path:
    """Copy a run's policy to a folder of its own, with `metadata.json` and `README.md`; an existing one is left alone.
    All that `regimen.load_policy` needs is in it; with `program` `stablehlo` or `onnx` also a file that acts without
    it, with `form` what a tool of the environment's field runs (`Domain.exports`)."""
    run = Path(run)
    path = run / "export" if out is None else Path(out)
    check_free(path)
    policy = load_policy(run, checkpoint)
    write_form = form_of(form, policy) if form is not None else None
    returns = [row["eval/return_mean"] for row in read_metrics(run) if "eval/return_mean" in row]
    with reading(run):
        about = metadata(run, policy.meta, read_summary(run), max(returns, default=None), checkpoint)
        text = readme(about)
    with filling(path) as folder:
        policy.save(folder)
        if program != "policy":
            from regimen.policies.export_program import write_program

            about["program"] = write_program(policy, folder, program).name
            text += "\n" + template(f"readme_{program}.md")
        if write_form is not None:
            about["form"], about["form_file"] = form, write_form(policy, folder).name
            text += f"\n`{about['form_file']}` is the policy as {form}: its first lines say how it is used.\n"
        write_json(folder / "metadata.json", about)
        write_atomic(folder / "README.md", text)
    return path


def form_of(form: str, policy: Policy) -> Callable[[Policy, Path], Path]:
    """The function that writes a policy in a form of its environment's field."""
    forms = {name: (d, entry) for d in domains().values() for name, entry in d.exports.items()}
    if form not in forms:
        raise ConfigError(f"--as: unknown form '{form}'{nearest(form, forms)}")
    domain, entry = forms[form]
    if not domain.owns(str(policy.meta.get("env"))):
        names = ", ".join(domain.environments)
        raise ConfigError(f"--as {form}: it is for policies of {names}; this one is of {policy.meta.get('env')}")
    return load(entry.target)


def template(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def described(run: Path, meta: Json, summary: Json, best: float | None) -> dict[str, str]:
    """The files beside a run's `policy/`, by name: `meta` is what its config.json says."""
    about = metadata(run, meta, summary, best)
    return {"metadata.json": json.dumps(plain(about), indent=2) + "\n", "README.md": readme(about)}


def metadata(run: Path, meta: Json, summary: Json, best: float | None, checkpoint: str = "best") -> Json:
    """What a policy is, how it was trained and how good it is, as far as its run says. `best` is the best evaluation in
    training."""
    status = read_status(run)
    out: Json = {
        "schema": SCHEMA,
        "algorithm": meta["algorithm"],
        "env": meta.get("env"),
        "env_args": meta.get("env_args", {}),
        "seed": meta.get("seed"),
        "agents": summary.get("agents", 1),
        "observation_space": spaces.describe(spaces.from_json(meta["observation_space"])),
        "action_space": spaces.describe(spaces.from_json(meta["action_space"])),
        "policy": checkpoint,
        "policy_env_steps": meta.get("env_steps"),
        "run": run.resolve().name,
        "best_return": best,
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
    """The metadata as a page for people."""
    env, algorithm, agents = about.get("env", "an environment"), str(about["algorithm"]).upper(), about["agents"]
    args = ", ".join(f"{k} {v}" for k, v in about.get("env_args", {}).items())
    end = about.get("evaluation", {})
    versions = about["versions"]
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
        "best evaluation in training": score(about["best_return"]) if "best_return" in about else None,
        "evaluation": evaluated(end) if end else None,
        **{name.replace("_", " "): about[name] for name in STREAKS if name in about},
        **metric_rows(end.get("metrics", {}), end.get("metrics_ci95", {})),
        "versions": ", ".join(f"{n} {versions[n]}" for n in ("regimen", "python", "jax", "numpy") if n in versions),
        "git revision": about.get("git_revision"),
    }
    return template("readme.md").format(
        algorithm=algorithm,
        env=env,
        table="\n".join(f"| {name} | {value} |" for name, value in rows.items() if value is not None),
        observation="{agent: observation}" if agents > 1 else "observation",
        action="actions" if agents > 1 else "action",
    )


def which(about: Json) -> str:
    names = {"best": "the best by evaluation", "final": "the last"}
    step = about.get("policy_env_steps")
    return names.get(about["policy"], "of a checkpoint") + ("" if step is None else f", of env step {step:,}")


def trained(about: Json) -> str | None:
    if "env_steps" not in about:
        return None
    names = ("env_steps", *(("agent_steps",) if about["agents"] > 1 else ()), "episodes", "updates")
    parts = [f"{about[name]:,} {name.replace('_', ' ')}" for name in names if name in about]
    where = f" on {about['device']}" if "device" in about else ""
    return ", ".join(parts) + f" in {clock(about.get('wall_seconds', 0.0))}{where}"


def evaluated(end: Json) -> str:
    text = f"return {score(end['return_mean'])} ± {score(end['return_std'])} over {end['episodes']} new episodes"
    return text + interval(end["return_ci95"], score)


def metric_rows(metrics: Mapping[str, float], intervals: Mapping[str, Sequence[float] | None]) -> dict[str, str]:
    """Each metric of an evaluation with its interval, by `evaluation: name`; the return has a row of its own."""
    return {
        f"evaluation: {name.replace('_', ' ')}": f"{value:.4g}{interval(intervals.get(name))}"
        for name, value in metrics.items()
        if name != "return_mean"
    }
