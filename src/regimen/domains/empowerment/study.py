"""`regimen study empowerment [WORLD]`: each documented choice of learning empowerment, scored against the exact values.

Every choice is trained alone, all else as in the base, with the same seeds, from collected experience. Scores are those
of `regimen validate`: the error of V_r at the start, the total variation of the policy, the error of log Q ratios.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

from regimen.config.layers import build_config
from regimen.config.schema import TrainConfig
from regimen.domains.empowerment import reach, validate
from regimen.domains.empowerment.hyperparameters import NETS, EmpowermentConfig
from regimen.engines import device
from regimen.envs import registry
from regimen.errors import UsageError, nearest
from regimen.experiments.studies.frame import Frame, Job, Lines, Tick
from regimen.files.run_dir import versions
from regimen.files.storage import write_json
from regimen.policies.evaluate import interval
from regimen.reports.figure import picture
from regimen.reports.table import Table
from regimen.runs.build import make_engine
from regimen.runs.loop import Loop, LoopGoal
from regimen.statistics import mean_interval

Settings = Mapping[str, object]
Row = dict[str, Any]  # of one seed, as in scores.csv, or of one choice, as in results.json
ENV_STEPS = 4  # for each training step, as in the preset of worlds
LEARNED = tuple(name for name in NETS if EmpowermentConfig().uses(name))  # in the base
SAMPLED = {"use_model_based_targets": False}
IMAGINED = {"table_limit": 1, "batch_size": 16}  # targets that are made inside the program take their time
TABLES = {"use_lookup_tables": True} | {f"lr_{name}": 1.0 for name in LEARNED}
CHOICES: dict[str, dict[str, Settings]] = {
    "policy": {"power law": {}, "Boltzmann": {"robot_policy": "boltzmann"}},
    "ramp": {"sigmoid": {}, "linear": {"beta_r_ramp": "linear"}, "none": {"beta_r_rampup_steps": 0}},
    "decay": {name: {"lr_decay": name} for name in ("constant", "seed_sqrt", "sqrt", "inverse", "cosine")},
    "loss": {"MSE": SAMPLED, "Huber": SAMPLED | {"loss": "huber"}},
    "targets": {"on": {}, "off": {f"{name}_target_update_interval": 1 for name in LEARNED}},
    "dropout": {"0": {}, "0.5": {f"{name}_dropout": 0.5 for name in LEARNED}},
    "model": {"model-based": {}, "sampled": SAMPLED},
    "source": {"experience": {}, "sweep": {"source": "sweep"}},
    "networks": {
        "X_h": {},
        "none": {"x_h_use_network": False},
        "X_h, U_r, V_r": {"u_r_use_network": True, "v_r_use_network": True},
    },
    "output": {name: {"q_r_output": name} for name in ("log", "softplus", "z")},
    "encoder": {"own": {}, "shared": {"use_encoders": True}},
    "weight_decay": {"0": {}, "1e-4": {f"{name}_weight_decay": 1e-4 for name in LEARNED}},
    "time": {"one-hot": {}, "scaled": {"time_features": "scaled"}},
    "epsilon": {"0.3": {}, **{str(e): {"epsilon_r_end": e, "epsilon_h_end": e} for e in (0.05, 1.0)}},
    "goals": {"0.01": {}, **{str(p): {"goal_resample_prob": p} for p in (0.2, 1.0)}},
    "space": {"log": {}, "value": {"loss_space": "value"}},
    "clip": {"10": {}, **{str(c): {f"{name}_grad_clip": c for name in LEARNED} for c in (1.0, 0.0)}},
    "batch": {"64": {}, **{str(n): {"batch_size": n} for n in (16, 256)}},
    "buffer": {"all": {}, "64": {"buffer_size": 64}},
    "humans": {
        "all": IMAGINED,
        "drawn": IMAGINED | {"exact_limit": 1, "human_samples": 1},
        "transitions": IMAGINED | {"exact_limit": 1, "draws": "transitions"},
    },
    "tables": {"networks": {}, "tables": TABLES, "means": {"use_lookup_tables": True, "lookup_use_adaptive_lr": True}},
}
COLUMNS = {  # heading -> a number of `validate.measure`, and how it is written
    "V_r(s0) error": ("v_r_start_error", ".3%"),
    "TV of pi_r": ("tv_mean", ".4f"),
    "by visits": ("tv_visits", ".4f"),
    "log ratios": ("log_ratio_rmse", ".4f"),
    "V_h^e error": ("v_h_e_error_mean", ".2g"),
}
SCORES = tuple(score for score, _ in COLUMNS.values())
QUICK = {"budget": 8192, "seeds": 2}


@dataclass
class EmpowermentStudy(Frame):
    """Choices of learning empowerment on one world, scored."""

    kind = "empowerment"
    budget: int
    seeds: range
    parts: Sequence[str] = tuple(CHOICES)
    env_args: Settings | None = None
    scores: list[Row] = field(default_factory=list)  # one for each choice and seed
    scored: dict[str, list[Row]] = field(default_factory=dict)  # settings -> rows: each is trained once

    def jobs(self) -> dict[str, list[Job]]:
        return {part: [self.job(part, name, s) for name, s in CHOICES[part].items()] for part in self.parts}

    def job(self, part: str, choice: str, settings: Settings) -> Job:
        def work(tick: Tick) -> str:
            key = str(sorted(settings.items()))
            if key not in self.scored:
                config = configured(self.env, self.env_args, settings, self.budget)
                self.scored[key] = train(config, self.seeds, tick)
            self.scores += [{"part": part, "choice": choice} | row for row in self.scored[key]]
            return f"total variation {np.mean([r['tv_mean'] for r in self.scored[key]]):.4f}"

        return Job(choice, self.budget, work)

    def summary(self) -> dict[str, object]:
        return {
            "env": self.env,
            "budget": self.budget,
            "seeds": len(self.seeds),
            "out": str(self.out),
            "command": self.command,
            "versions": versions(),
            "scores": self.table(),
        }

    def table(self) -> list[Row]:
        """One row for each choice: means over seeds and their 95 % intervals. Seeds that diverged are counted, and left
        out of the means where others are left."""
        out = []
        for part, choice in dict.fromkeys((r["part"], r["choice"]) for r in self.scores):
            rows = self.rows_of(part, choice)
            divergent = sum(r["diverged"] for r in rows)
            line: Row = {"part": part, "choice": choice, "seeds": len(rows), "diverged": divergent}
            whole = [r for r in rows if not r["diverged"]] or rows
            for score in SCORES:
                values = np.array([r[score] for r in whole])
                line[score] = float(values.mean())
                line[f"{score}_ci95"] = interval(mean_interval(values))
            out.append(line | {"seconds": float(np.mean([r["seconds"] for r in rows]))})
        return out

    def rows_of(self, part: str, choice: str) -> list[Row]:
        return [r for r in self.scores if (r["part"], r["choice"]) == (part, choice)]

    def apart(self, part: str, one: str, other: str) -> bool:
        """Whether the 95 % interval of the differences of two choices' total variations, seed by seed, excludes 0."""
        scores = [{r["seed"]: r["tv_mean"] for r in self.rows_of(part, choice)} for choice in (one, other)]
        ends = interval(mean_interval(np.array([scores[0][k] - scores[1][k] for k in scores[0]])))
        return ends is not None and not ends[0] <= 0 <= ends[1]

    def conclusions(self) -> list[str]:
        return readable(self.table()).lines()

    def write(self) -> None:
        """Raw scores, the table and the summary in words."""
        names = ["part", "choice", "seed", *SCORES, "seconds", "diverged", "updates"]
        Table(names, [[row[name] for name in names] for row in self.scores]).write_csv(self.out / "scores.csv")
        write_json(self.out / "results.json", self.summary())
        (self.out / "summary.md").write_text(self.words())

    def draw(self, parts: Sequence[str]) -> None:
        draw(self.out / "scores.png", self.table(), self.env)

    def words(self) -> str:
        """The table in Markdown, and which choice came out best in each part."""
        table = self.table()
        lines = [f"# Choices of learning empowerment on {self.env}", ""]
        lines += [f"{self.budget:,} training steps, {len(self.seeds)} seeds; means over seeds. Lower is better.", ""]
        lines.append(readable(table).markdown())
        best = []
        for part in dict.fromkeys(r["part"] for r in table):
            ranking = sorted((r for r in table if r["part"] == part), key=lambda r: (r["diverged"] > 0, r["tv_mean"]))
            first, *others = (r["choice"] for r in ranking)
            clear = all(self.apart(part, first, other) for other in others)
            best.append(f"- {part}: {first}" + ("" if clear else " (not to be told from another)"))
        command = ["```bash", self.command, "```", ""] if self.command else []
        return "\n".join([*lines, "", "Least total variation:", "", *best, "", *command])


def readable(table: list[Row]) -> Table:
    """The table as people read it, with what is to be said of seeds that diverged."""
    rows = []
    for r in table:
        note = f"  ({r['diverged']} of {r['seeds']} seeds diverged)" if r["diverged"] else ""
        scores = [format(r[score], form) for score, form in COLUMNS.values()]
        rows.append([r["part"], r["choice"] + note, *scores])
    return Table(["part", "choice", *COLUMNS], rows)


def run(
    env: str = "world/asym1x7",
    out: str | Path | None = None,
    parts: str | None = None,
    quick: bool = False,
    seeds: int | None = None,
    seed: int = 0,
    budget: int | None = None,
    env_args: Settings | None = None,
    console: Lines | None = None,
    command: str = "",
) -> EmpowermentStudy:
    """Train every choice and write what came of it; after each part, so that an interrupt keeps what is measured."""
    names = chosen_parts(parts)
    path = EmpowermentStudy.folder(env, out)
    device.configure("cpu", native=True)
    study = EmpowermentStudy(
        budget or (QUICK["budget"] if quick else 32_768),
        range(seed, seed + (seeds or (QUICK["seeds"] if quick else 5))),
        names,
        env_args,
        env=env,
        out=path,
        command=command,
    )
    study.measure(console or Lines())
    return study


def chosen_parts(parts: str | None) -> list[str]:
    names = list(CHOICES) if parts is None else [p.strip() for p in parts.split(",") if p.strip()]
    for part in names:
        if part not in CHOICES:
            raise UsageError(f"--parts: unknown part '{part}'{nearest(part, CHOICES)}")
    return names


def of_length(budget: int, settings: Settings) -> dict[str, object]:
    """Settings of `algo` for so many training steps: stages are shares of them."""
    used = [name for name in NETS if settings.get(f"{name}_use_network", EmpowermentConfig().uses(name))]
    stages: dict[str, object] = {f"warmup_{name}_steps": budget // 16 for name in used}
    horizon = {"horizon": f"{ENV_STEPS * budget} steps", "training_steps_per_env_step": 1 / ENV_STEPS}
    return stages | {"beta_r_rampup_steps": budget // 8} | horizon | dict(settings)


def configured(env: str, env_args: Settings | None, settings: Settings, budget: int) -> TrainConfig:
    """The configuration of a training: the base with one choice."""
    overrides: dict[str, object] = {"total_steps": ENV_STEPS * budget}
    overrides |= {f"algo.{name}": value for name, value in of_length(budget, settings).items()}
    if env_args:
        overrides["env_args"] = dict(env_args)
    return build_config(env, algo="empowerment", overrides=overrides)


def train(config: TrainConfig, seeds: Sequence[int], tick: Tick) -> list[Row]:
    """Scores of every seed, trained in one program. One that diverges stops there, with its last good state; its row
    says so."""
    handle, seeds, start = registry.resolve(config.env, config.env_args), list(seeds), time.monotonic()
    engine: Any = make_engine(config, handle, seeds, lambda: False)
    assert config.rollout.steps is not None and config.total_steps is not None
    updates, loop = max(1, config.total_steps // config.rollout.steps), Loop(handle, engine, seeds)
    loop.reach(lambda k: LoopGoal(updates), lambda progress: tick(max(t.updates for t in loop.tallies) / updates))
    c = config.algo
    assert isinstance(c, EmpowermentConfig)
    solution = validate.solution_of(handle.native, c, reach.LIMIT)
    seconds, rows = (time.monotonic() - start) / len(seeds), []
    for k, seed in enumerate(seeds):
        params = {name: m.params for name, m in engine.at(engine.state, k).models.items()}
        errors = validate.measure(validate.compare(engine.algo, jax.device_get(params), solution), c.beta_r)
        tally = loop.tallies[k]
        about = {"seconds": seconds, "diverged": tally.diverged, "updates": tally.updates}
        rows.append({"seed": seed} | {score: errors[score] for score in SCORES} | about)
    return rows


def draw(path: Path, table: list[Row], env: str) -> None:
    """Total variation of every choice, by part, with intervals over seeds."""
    with picture(path, 8, 0.6 + 0.32 * len(table)) as figure:
        axis = figure.subplots()
        labels = [f"{r['part']}: {r['choice']}" for r in table]
        values = np.array([r["tv_mean"] for r in table])
        ends = np.array([r["tv_mean_ci95"] or [r["tv_mean"]] * 2 for r in table])
        spread = np.abs(np.maximum(ends.T, 0.0) - values)  # a total variation is never below 0
        shades = {part: f"C{i % 10}" for i, part in enumerate(dict.fromkeys(r["part"] for r in table))}
        axis.barh(labels, values, xerr=spread, color=[shades[r["part"]] for r in table], height=0.7, capsize=2)
        axis.invert_yaxis()
        axis.set(xlabel="total variation of the policy to the exact one", title=env)
