"""A search from the command line: what is to be searched, its progress and its end in words."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from regimen.errors import ConfigError
from regimen.experiments.search import api
from regimen.experiments.search.gate import LEVEL
from regimen.experiments.search.loop import Options, Search, flag
from regimen.experiments.search.space import Space
from regimen.experiments.search.trial import Trial

Say = Callable[[str], None]
Prepared = tuple[Space, Trial, Options, api.Names]


def start(
    prepared: Prepared, out: str | None, compare: bool, command: str, say: Say, progress: Say
) -> tuple[Mapping[str, object], int]:
    """Search what was prepared, or `compare` all methods on it; returns (the summary, the exit code)."""
    space, trial, options, names = prepared
    path = Path(out) if out else api.default_path(space.name)
    say(f"{len(space)} candidates; {describe(options)}; writing to {path}")
    report = {"names": names, "say": say, "command": command, "progress": progress}
    if compare:
        methods = api.compare(space, trial, options, path, **report)
        code = next((m.code for m in methods.values() if m.code), 0)
        summaries = {name: m.summary for name, m in methods.items()}
        if code:
            return summaries, code
        comparison = api.comparison(methods)
        for line in table(comparison):
            say(line)
        return {**comparison, "summaries": summaries}, code
    result = api.run(space, trial, options, path, **report)
    for line in ending(result.search):
        say(line)
    return result.summary, result.code


def of_factory(target: str, changes: dict[str, Any], device: str) -> Prepared:
    """`file.py:make`: a function that returns (space, trial) or (space, trial, options); flags change the options."""
    from regimen.engines.device import configure
    from regimen.envs.imports import load

    configure(device, True)
    make = load(target)
    takes_seed = "seed" in changes and "seed" in inspect.signature(make).parameters
    parts = make(seed=changes["seed"]) if takes_seed else make()
    if not isinstance(parts, tuple) or len(parts) not in (2, 3) or not isinstance(parts[0], Space):
        raise ConfigError(f"{target}: it must return (Space, Trial) or (Space, Trial, Options), not {parts!r}")
    space, trial, *options = parts
    if options:
        return space, trial, dataclasses.replace(options[0], **changes), api.Names()
    missing = [n for n in ("budget", "max_episodes", "check_every", "eval_episodes") if n not in changes]
    if missing:
        raise ConfigError(f"{target}: it returns no options; give {flag(missing[0])}")
    return space, trial, Options(**{"check_episodes": changes["eval_episodes"]} | changes), api.Names()


def describe(o: Options) -> str:
    """The options in words."""
    words = [f"budget {o.budget:,} episodes", o.method + (f" ({o.acquisition})" if o.method == "gp" else "")]
    if o.gate is not None:
        words.append(f"gate: {LEVEL:.0%} lower bound of {o.gate.threshold:g}")
    if o.warm_up:
        words.append(f"warm-up {o.warm_up:,}")
    looks = f"at most {o.max_episodes:,} to train, looked at every {o.check_every:,}"
    words += ["each: " + (looks if o.max_episodes else "no training"), f"{o.eval_episodes:,} to evaluate"]
    return ", ".join(words)


def ending(search: Search) -> list[str]:
    best, space = search.best, search.space
    if best is None:
        return [f"no candidate met the gate in {len(search.verdicts)} trials and {search.spent:,} episodes"]
    o, rate = best.outcome, best.outcome.rate
    text = f"best: {space.keys[best.candidate]} ({space.text(best.candidate)}), {o.value:.4g} ± {o.se:.2g}"
    if rate is not None:
        text += f", {search.words[1]} {rate.mean:.3f} with bound {rate.bound:.3f}"
    return [f"{text}; {len(search.verdicts)} trials, {search.spent:,} episodes"]


def table(comparison: api.MethodComparison) -> list[str]:
    rows = [f"{'method':<12} {'best':<18} {'value':>9} {'regret':>9} {'trials':>7} {'episodes':>9}"]
    for method, r in comparison["methods"].items():
        value, regret = ("-" if r[k] is None else f"{r[k]:.3f}" for k in ("value", "regret"))
        rows.append(f"{method:<12} {r['best'] or '-':<18} {value:>9} {regret:>9} {r['trials']:>7} {r['episodes']:>9,}")
    return rows
