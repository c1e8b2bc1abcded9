"""What the command line and Python call: `run` a search of any space, `compare` methods, `start` either in words."""

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from regimen.engines.signals import Signals
from regimen.errors import ConfigError, RegimenError, UsageError
from regimen.experiments.search import race_report
from regimen.experiments.search.gate import LEVEL
from regimen.experiments.search.loop import Options, Search, Verdict, flag
from regimen.experiments.search.methods import METHODS, Belief
from regimen.experiments.search.plots import all_of, regret
from regimen.experiments.search.race import Race, RaceOptions
from regimen.experiments.search.recommendation import Recommendation, recommendation, spending, spent_words
from regimen.experiments.search.space import Space
from regimen.experiments.search.store import Names, Store, log_row
from regimen.experiments.search.trial import SharedTrial, Trial
from regimen.files.storage import Json, write_json
from regimen.reports.table import Table

Say = Callable[[str], None]
AnyOptions = Options | RaceOptions
Prepared = tuple[Space, Trial | SharedTrial, AnyOptions, Names]


@dataclass(frozen=True)
class SearchResult:
    """A search as it stands, and its summary."""

    search: Search | Race
    path: Path
    summary: dict[str, object]
    code: int = 0  # 130 or 143 when it was interrupted

    @property
    def single(self) -> Search:
        """The search, where candidates are trained one by one."""
        assert isinstance(self.search, Search)
        return self.search

    @property
    def best(self) -> str | None:
        """The name of the candidate to use; None when none passed."""
        best = self.search.best
        if best is None:
            return None
        return self.search.space.keys[best[0] if isinstance(best, tuple) else best.candidate]


def run(
    space: Space,
    trial: Trial | SharedTrial,
    options: AnyOptions,
    out: str | Path | None = None,
    *,
    names: Names | None = None,
    command: str = "",
    plots: bool = True,
    say: Say = lambda text: None,
    progress: Say = lambda text: None,
) -> SearchResult:
    """Search until the budget is spent. Run it again on its directory to continue it."""
    path = Path(out) if out else default_path(space.name)
    store = Store(path, names)
    with Signals() as signals:
        signals.busy = lambda: trial.compiling  # nothing is lost: the state is on disk after every stretch
        search = begin(space, trial, options, store, say, progress, signals.is_requested)
        whole = search.run()
        stopped = None if whole else "interrupted"
        code = 0 if whole else 128 + signals.requested
        if isinstance(search, Race):
            summary = race_report.summarise(search, command, stopped)
        else:
            summary = summarise(search, command, stopped)
            if search.verdicts:
                spent_on(search).write_csv(path / "spending.csv")
        write_json(path / "summary.json", summary)
        keep_best(search, path)
        if whole and plots:
            draw(lambda: paint(path / "plots", search), say)
    if not whole:
        say(f"interrupted and saved; run the same command with --out {path} to continue")
    return SearchResult(search, path, summary, code)


def begin(space: Space, trial: Any, options: AnyOptions, *more: Any) -> Search | Race:
    """The search that the options are of: a race where candidates share their training."""
    if isinstance(options, RaceOptions):
        return Race(space, trial, options, *more)
    return Search(space, trial, options, *more)


def compare(
    space: Space,
    trial: Trial,
    options: Options,
    out: str | Path | None = None,
    *,
    say: Say = lambda text: None,
    **more: Any,
) -> dict[str, SearchResult]:
    """Search by every method, each in a directory of its own; `more` is what else `run` takes. The exhaustive one gets
    the budget it needs: it is the reference that the others' regret is measured against."""
    path = Path(out) if out else default_path(space.name)
    searches: dict[str, SearchResult] = {}
    for method in ("exhaustive", *(m for m in METHODS if m != "exhaustive")):
        budget = exhaustive_budget(space, options, trial.unit) if method == "exhaustive" else options.budget
        say(f"{method}: {budget:,} episodes")
        of_method = dataclasses.replace(options, method=method, budget=budget)
        searches[method] = run(space, trial, of_method, path / method, say=say, **more)
        if searches[method].code:
            return searches
    write_json(path / "comparison.json", comparison(searches))
    best = reference(searches)
    runs = {method: result.single for method, result in searches.items()}
    draw(lambda: regret(path / "plots" / "regret.png", runs, best), say)
    return searches


def exhaustive_budget(space: Space, o: Options, unit: int) -> int:
    """At most what one trial of every candidate takes, trained in whole updates of `unit` episodes."""
    stretches = math.ceil(o.max_episodes / max(o.check_every // unit * unit, unit))
    checks = 0 if o.gate is None else stretches * o.check_episodes
    return o.warm_up + len(space) * (o.max_episodes + checks + o.eval_episodes)


def reference(searches: Mapping[str, SearchResult]) -> dict[int, float]:
    """The value of each feasible candidate as the exhaustive search measured it."""
    return {v.candidate: v.outcome.value for v in searches["exhaustive"].single.verdicts if v.feasible}


def comparison(searches: Mapping[str, SearchResult]) -> Json:
    """What each method recommends and how much worse that is than the best of the exhaustive search (comparison.json).
    A value is that of the reference, where that has one."""
    truth = reference(searches)
    top = max(truth.values(), default=None)
    rows: Json = {}
    for method, result in searches.items():
        best = result.single.best
        value = None if best is None else truth.get(best.candidate, best.outcome.value)
        rows[method] = {
            "best": result.best,
            "value": value,
            "regret": None if value is None or top is None else top - value,
            "episodes": result.search.spent,
            "trials": len(result.single.verdicts),
        }
    return {"reference": top, "methods": rows}


def summarise(search: Search, command: str = "", stopped: str | None = None) -> dict[str, object]:
    """summary.json: the best, how it was found, and what is believed of every candidate."""
    space, o, best = search.space, search.options, search.best
    belief = Belief.of(space, o.gate, search.evidence)
    posterior = belief.values.posterior()
    likely = belief.likely()
    sure = recommended(search)
    if stopped is None:
        through = o.method == "exhaustive" and len(search.verdicts) >= len(space)
        stopped = "every candidate tried" if through else "budget spent"
    hyper = belief.values.hyper
    return {
        "space": space.name,
        **space.details,
        "candidates": len(space),
        "method": o.method,
        "acquisition": o.acquisition if o.method == "gp" else None,
        "seed": o.seed,
        "gate": None if o.gate is None else dataclasses.asdict(o.gate),
        "budget": o.budget,
        "episodes": search.spent,
        "trials": len(search.verdicts),
        "feasible_trials": sum(v.feasible for v in search.verdicts),
        "causes": dict(Counter(v.cause for v in search.verdicts)),
        "stop_reason": stopped,
        "best": None if best is None else log_row(space, best),
        "recommendation": None if sure is None else dataclasses.asdict(sure) | {"words": sure.words(space)},
        "model": {
            "theta": dict(zip(space.factors, hyper.theta.tolist())),
            "signal": hyper.signal,
            "noise": hyper.noise,
            "scale": belief.values.scale,
            "posterior": [
                {
                    "candidate": key,
                    "mean": posterior.mean[i],
                    "std": posterior.std[i],
                    "p_feasible": None if likely is None else likely[i],
                }
                for i, key in enumerate(space.keys)
            ],
        },
        "wall_seconds": round(search.seconds, 2),
        "command": command,
    }


def recommended(search: Search) -> Recommendation | None:
    """How sure the model is of what is recommended; None without a candidate, or where no model chose."""
    if search.best is None or search.options.method != "gp":
        return None
    belief = Belief.of(search.space, search.options.gate, search.evidence)
    return recommendation(belief, search.best.candidate, search.options.seed)


def spent_on(search: Search) -> Table:
    """What was spent on each candidate, and why."""
    belief = Belief.of(search.space, search.options.gate, search.evidence)
    return spending(search.space, search.verdicts, belief, search.options.seed)


def keep_best(search: Search | Race, path: Path) -> None:
    """The best policy as a folder for `regimen.load_policy`, where the trial can write one; that which all begin with
    if the best was only evaluated."""
    best, save = search.best, getattr(search.trial, "save", None)
    if best is None or save is None:
        return
    if isinstance(search, Race):
        candidate, k = search.best or (0, 0)
        save(path / "policy", candidate, search.store.policy(f"policy-{k}"))
    elif isinstance(best, Verdict):
        name = next((name for name in (str(best.candidate), "start") if name in search.store.files), None)
        save(path / "policy", best.candidate, None if name is None else search.store.policy(name))


def paint(folder: Path, search: Search | Race) -> None:
    if isinstance(search, Race):
        race_report.pictures(folder, search)
    else:
        all_of(folder, search)


def draw(pictures: Callable[[], object], say: Say) -> None:
    """Draw, or say why there are no pictures."""
    try:
        pictures()
    except RegimenError as e:  # no matplotlib
        say(f"no plots: {e}")


def default_path(name: str) -> Path:
    return Path("searches") / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%S')}"


def start(
    prepared: Prepared, out: str | None, all_methods: bool, command: str, say: Say, progress: Say
) -> tuple[Mapping[str, object], int]:
    """Search what was prepared, or compare all methods on it; returns (the summary, the exit code)."""
    space, trial, options, names = prepared
    path = Path(out) if out else default_path(space.name)
    say(f"{len(space)} candidates; {describe(options)}; writing to {path}")
    report = {"names": names, "say": say, "command": command, "progress": progress}
    if not all_methods:
        result = run(space, trial, options, path, **report)
        search = result.search
        for line in race_report.ending(search) if isinstance(search, Race) else ending(search):
            say(line)
        return result.summary, result.code or int(search.best is None)
    if isinstance(options, RaceOptions):
        raise UsageError("--compare is for candidates that are trained one by one; add --inherit start")
    methods = compare(space, cast(Trial, trial), options, path, **report)
    code = next((m.code for m in methods.values() if m.code), 0)
    summaries = {name: m.summary for name, m in methods.items()}
    if code:
        return summaries, code
    by_method = comparison(methods)
    for line in table(by_method):
        say(line)
    return {**by_method, "summaries": summaries}, code


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
        return space, trial, dataclasses.replace(options[0], **changes), Names()
    missing = [n for n in ("budget", "max_episodes", "check_every", "eval_episodes") if n not in changes]
    if missing:
        raise ConfigError(f"{target}: it returns no options; give {flag(missing[0])}")
    return space, trial, Options(**{"check_episodes": changes["eval_episodes"]} | changes), Names()


def describe(o: AnyOptions) -> str:
    """The options of a search in words."""
    if isinstance(o, RaceOptions):
        words = [
            f"budget {o.budget:,} episodes",
            f"{o.method.replace('_', ' ')} of candidates that share {o.policies} policies",
        ]
        if o.gate is not None:
            words.append(f"gate: {LEVEL:.0%} lower bound of {o.gate.threshold:g}")
        words.append(f"first look after {o.warm_up:,} episodes of training, then every {o.check_every:,}")
        return ", ".join([*words, f"the best {o.finalists} confirmed on {o.eval_episodes:,} each"])
    words = [f"budget {o.budget:,} episodes", o.method + (f" ({o.acquisition})" if o.method == "gp" else "")]
    if o.gate is not None:
        words.append(f"gate: {LEVEL:.0%} lower bound of {o.gate.threshold:g}")
    if o.warm_up:
        words.append(f"warm-up {o.warm_up:,}")
    looks = f"at most {o.max_episodes:,} to train, looked at every {o.check_every:,}"
    words += ["each: " + (looks if o.max_episodes else "no training"), f"{o.eval_episodes:,} to evaluate"]
    return ", ".join(words)


def ending(search: Search) -> list[str]:
    """What is recommended; where nothing can be, what came nearest and what to try."""
    best, space = search.best, search.space
    if best is None:
        return [
            f"no candidate met the gate in {len(search.verdicts)} trials and {search.spent:,} episodes",
            *advice(search),
        ]
    o, rate = best.outcome, best.outcome.rate
    text = f"best: {space.keys[best.candidate]} ({space.text(best.candidate)}), {o.value:.4g} ± {o.se:.2g}"
    if rate is not None:
        text += f", {search.store.names.rate} {rate.mean:.3f} with bound {rate.bound:.3f}"
    sure = recommended(search)
    words = [] if sure is None else [sure.words(space)]
    rest = f"{len(search.verdicts)} trials, {search.spent:,} episodes"
    return [f"{text}; {rest}", *words, spent_words(spent_on(search))]


def advice(search: Search) -> list[str]:
    """Which candidate came nearest to the gate, and the flags that would let one pass."""
    o, space, gate = search.options, search.space, search.options.gate
    rates = [(v.outcome.rate, v) for v in search.verdicts if v.outcome.rate is not None]
    if gate is None or not rates:
        return []
    rate, nearest = max(rates, key=lambda pair: pair[0].bound)
    words = f"{search.store.names.rate} {rate.mean:.3f} with bound {rate.bound:.3f}"
    text = f"nearest: {space.keys[nearest.candidate]}, {words} where the gate is {gate.threshold:g}"
    more = [f"a larger {flag('budget')} on the same --out"]
    if rate.mean >= gate.threshold:  # more episodes would show it
        more.insert(0, f"{flag('eval_episodes')} {4 * o.eval_episodes} in a new one")
    elif o.max_episodes:
        more.insert(0, f"{flag('max_episodes')} {10 * o.max_episodes} in a new one")
    return [text, f"try {', '.join(more)}, or a lower {flag('gate')}"]


def table(comparison: Json) -> list[str]:
    rows = [f"{'method':<12} {'best':<18} {'value':>9} {'regret':>9} {'trials':>7} {'episodes':>9}"]
    for method, r in comparison["methods"].items():
        value, regret = ("-" if r[k] is None else f"{r[k]:.3f}" for k in ("value", "regret"))
        rows.append(f"{method:<12} {r['best'] or '-':<18} {value:>9} {regret:>9} {r['trials']:>7} {r['episodes']:>9,}")
    return rows
