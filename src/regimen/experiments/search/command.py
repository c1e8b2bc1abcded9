"""`regimen search`: from its arguments to a search."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regimen.errors import ConfigError, UsageError
from regimen.experiments.search import api, report
from regimen.experiments.search.gate import LEVEL, Gate
from regimen.experiments.search.loop import Options, Search, flag
from regimen.experiments.search.space import Space, workflows
from regimen.experiments.search.trial import Trial

ENV = "network_defense"
ADAPTING = 0.25  # of the learning rate, where orders begin from a common policy that is good already
OF_WORKFLOWS = (
    "gate", "preset", "red", "compliance", "orders", "init_from", "episodes_per_update", "env_args",
)  # fmt: skip
Say = Callable[[str], None]


def start(args: Any, command: str, say: Say, progress: Say) -> tuple[dict[str, Any], int]:
    """(the summary, the exit code)."""
    space, trial, options, names = prepare(args)
    words = {"names": names, "command": command, "say": say, "progress": progress}
    path = Path(args.out) if args.out else api.default_path(space.name)
    say(f"{len(space)} candidates; {describe(options)}; writing to {path}")
    if args.compare:
        found = api.compare(space, trial, options, path, **words)
        code = next((f.code for f in found.values() if f.code), 0)
        summary = {m: f.summary for m, f in found.items()}
        if code == 0:
            for line in table(api.comparison(found)):
                say(line)
            summary = api.comparison(found) | {"summaries": summary}
        return summary, code
    found = api.run(space, trial, options, path, **words)
    for line in ending(found.search):
        say(line)
    return found.summary, found.code


def prepare(args: Any) -> tuple[Space, Trial, Options, api.Names]:
    """What is to be searched and how; everything that can be refused is, before anything is compiled."""
    given = {
        "budget": args.budget,
        "max_episodes": args.max_episodes_per_workflow,
        "check_every": args.check_every,
        "check_episodes": args.check_episodes,
        "eval_episodes": args.eval_episodes,
        "patience": args.patience,
        "unit": args.episodes_per_update,
        "warm_up": args.warm_up,
        "inherit": args.inherit,
        "method": args.method,
        "acquisition": args.acquisition,
        "kappa": args.kappa,
        "seed": args.seed,
    }
    if args.compare and args.method is not None:
        raise UsageError(f"--compare runs every method; leave out --method {args.method}")
    if ":" in args.env:
        for name in OF_WORKFLOWS:
            if getattr(args, name) not in (None, {}):
                said = f"env.{next(iter(args.env_args))}" if name == "env_args" else name.replace("_", "-")
                raise UsageError(
                    f"--{said} is for {ENV}; {args.env} says itself what it searches, and under which gate"
                )
        return of_factory(args.env, {k: v for k, v in given.items() if v is not None}, args.device)
    red, compliance = setting(args)
    source = None if args.init_from is None else Path(args.init_from)
    gate = Gate().threshold if args.gate is None else args.gate
    options, unit = api.defence_options(args.preset or "standard", gate, given, source is not None)
    if not options.max_episodes and source is None and not options.warm_up:
        raise ConfigError(
            "--max-episodes-per-workflow 0 only evaluates: name a policy with --init-from, or give a --warm-up"
        )
    space = workflows(red, compliance, args.orders or "classes")
    if options.method == "exhaustive" and args.budget is None:
        options = dataclasses.replace(options, budget=api.exhaustive_budget(space, options, unit))
    options.check(unit)

    from regimen.domains.network_defense.trials import DefenceTrial, make_config
    from regimen.engines import device

    config = make_config(red, compliance, unit, source, args.env_args, {}, args.device, options.seed)
    device.configure(config.device, True)
    trial = DefenceTrial(space, config, options.seed, source, adapting(options))
    trial.program(-1)  # an environment or a policy that does not fit is refused before a directory is made
    return space, trial, options, api.WORKFLOW_NAMES


def setting(args: Any) -> tuple[str, str]:
    """(red, compliance), where the environment has orders."""
    if args.env != ENV:
        raise UsageError(f"there is no search for '{args.env}'; search {ENV}, or file.py:make for a space of your own")
    return args.red or "meander", args.compliance or "published"


def adapting(options: Options) -> float:
    """The share of the learning rate with which an order is trained."""
    return ADAPTING if options.inherit == "start" else 1.0


def classes(args: Any) -> tuple[dict[str, Any], list[str]]:
    """Which orders are equal: as data, and in words."""
    told = report.classes(*setting(args))
    return told, report.lines(told)


def of_factory(target: str, given: dict[str, Any], device: str) -> tuple[Space, Trial, Options, api.Names]:
    """`file.py:make`: a function that returns (space, trial) or (space, trial, options); flags change the options."""
    from regimen.engines.device import configure
    from regimen.envs.registry import load

    configure(device, True)
    make = load(target)
    takes_seed = "seed" in given and "seed" in inspect.signature(make).parameters
    made = make(seed=given["seed"]) if takes_seed else make()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], Space):
        raise ConfigError(f"{target}: it must return (Space, Trial) or (Space, Trial, Options), not {made!r}")
    space, trial = made[:2]
    if len(made) == 3:
        return space, trial, dataclasses.replace(made[2], **given), api.Names()
    missing = [n for n in ("budget", "max_episodes", "check_every", "eval_episodes") if n not in given]
    if missing:
        raise ConfigError(f"{target}: it returns no options; give {flag(missing[0])}")
    return space, trial, Options(**{"check_episodes": given["eval_episodes"]} | given), api.Names()


def describe(o: Options) -> str:
    """The options in words."""
    gate = o.gate
    words = [f"budget {o.budget:,} episodes", o.method + (f" ({o.acquisition})" if o.method == "gp" else "")]
    if isinstance(gate, Gate):
        words.append(f"gate: {LEVEL:.0%} lower bound of {gate.threshold:g}")
    if o.warm_up:
        words.append(f"warm-up {o.warm_up:,}")
    train = (
        f"at most {o.max_episodes:,} to train, looked at every {o.check_every:,}" if o.max_episodes else "no training"
    )
    return ", ".join([*words, f"each: {train}, {o.eval_episodes:,} to evaluate"])


def ending(search: Search) -> list[str]:
    best, space = search.best, search.space
    if best is None:
        return [f"no candidate met the gate in {len(search.verdicts)} trials and {search.spent:,} episodes"]
    o, rate = best.outcome, best.outcome.rate
    text = f"best: {space.keys[best.candidate]} ({space.text(best.candidate)}), {o.value:.4g} ± {o.se:.2g}"
    if rate is not None:
        text += f", {search.words[1]} {rate.mean:.3f} with bound {rate.bound:.3f}"
    return [f"{text}; {len(search.verdicts)} trials, {search.spent:,} episodes"]


def table(comparison: dict[str, Any]) -> list[str]:
    rows = [f"{'method':<12} {'best':<18} {'value':>9} {'regret':>9} {'trials':>7} {'episodes':>9}"]
    for method, r in comparison["methods"].items():
        value, regret = ("-" if r[k] is None else f"{r[k]:.3f}" for k in ("value", "regret"))
        rows.append(f"{method:<12} {r['best'] or '-':<18} {value:>9} {regret:>9} {r['trials']:>7} {r['episodes']:>9,}")
    return rows
