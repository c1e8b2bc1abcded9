"""`regimen search`: from its arguments to a search."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regimen.errors import ConfigError, UsageError
from regimen.search import api
from regimen.search.gate import Gate
from regimen.search.loop import Options, Search
from regimen.search.space import Space, workflows
from regimen.search.trial import Trial

ENV = "network_defense"
ADAPTING = 0.25  # of the learning rate, for orders that begin from a common policy that is trained already
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
    if ":" in args.env:
        return of_factory(args.env, {k: v for k, v in given.items() if v is not None and k != "unit"})
    if args.env != ENV:
        raise UsageError(f"there is no search for '{args.env}'; search {ENV}, or file.py:make for a space of your own")
    source = None if args.init_from is None else Path(args.init_from)
    options, unit = api.defence_options(args.preset, args.gate, given, source is not None)
    if not options.max_episodes and source is None and not options.warm_up:
        raise ConfigError(
            "--max-episodes-per-workflow 0 only evaluates: name a policy with --init-from, or give a --warm-up"
        )
    space = workflows(args.red, args.compliance, args.orders)
    if options.method == "exhaustive" and args.budget is None:
        options = dataclasses.replace(options, budget=api.exhaustive_budget(space, options))
    options.check(unit)

    from regimen.search.defence import DefenceTrial, make_config
    from regimen.training import device

    config = make_config(args.red, args.compliance, unit, source, args.env_args, {}, args.device, args.seed)
    device.configure(config.device, True)
    adapting = ADAPTING if options.inherit == "start" else 1.0
    return space, DefenceTrial(space, config, args.seed, source, adapting), options, api.WORKFLOW_NAMES


def of_factory(target: str, given: dict[str, Any]) -> tuple[Space, Trial, Options, api.Names]:
    """`file.py:make`: a function that returns (space, trial) or (space, trial, options); flags change the options."""
    from regimen.envs.registry import load

    made = load(target)
    made = made(seed=given["seed"]) if "seed" in inspect.signature(made).parameters else made()
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], Space):
        raise ConfigError(f"{target}: it must return (Space, Trial) or (Space, Trial, Options), not {made!r}")
    space, trial = made[:2]
    if len(made) == 3:
        return space, trial, dataclasses.replace(made[2], **given), api.Names()
    missing = [n for n in ("budget", "max_episodes", "check_every", "eval_episodes") if n not in given]
    if missing:
        raise ConfigError(f"{target}: it returns no options; give --{missing[0].replace('_', '-')}")
    return space, trial, Options(**{"check_episodes": given["eval_episodes"]} | given), api.Names()


def describe(o: Options) -> str:
    """The options in words."""
    gate = o.gate
    words = [f"budget {o.budget:,} episodes", o.method + (f" ({o.acquisition})" if o.method == "gp" else "")]
    if isinstance(gate, Gate):
        words.append(f"gate: {gate.level:.0%} lower bound of {gate.threshold:g}")
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
