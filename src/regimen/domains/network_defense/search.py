"""Searching the workflows of `network_defense`: the space of orders, its presets, and `regimen search` in Python."""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from regimen.domains.network_defense.verbs import SearchArgs
from regimen.domains.network_defense.workflow import ALWAYS, ATTACKED, TYPES, all_workflows, classes_for
from regimen.errors import ConfigError, UsageError, nearest
from regimen.experiments.search import api
from regimen.experiments.search.api import Prepared, of_factory
from regimen.experiments.search.gate import Gate
from regimen.experiments.search.loop import Options
from regimen.experiments.search.race import RaceOptions
from regimen.experiments.search.space import Space, kendall_matrix
from regimen.words import aligned

ENV = "network_defense"
ADAPTING = 0.25  # of the learning rate, where orders begin from a common policy that is good already
OF_WORKFLOWS = (
    "gate", "preset", "red", "compliance", "orders", "init_from", "episodes_per_update", "env_args",
)  # fmt: skip
OPTIONS = (
    "budget", "check_every", "check_episodes", "eval_episodes", "patience", "warm_up", "inherit", "method",
    "acquisition", "kappa", "seed", "policies",
)  # fmt: skip
ONE_BY_ONE = (
    "max_episodes_per_workflow",
    "patience",
    "acquisition",
)  # flags of searches that train one order at a time
RACE = {  # of the standard and of the quick preset
    "budget": (60_000, 1000),
    "warm_up": (8000, 100),
    "check_every": (1500, 50),
    "check_episodes": (30, 5),
    "eval_episodes": (400, 100),
    "finalists": (3, 1),
    "unit": (100, 25),
}
LABELS = {"candidate": "workflow", "rate": "compliance"}
TRAINING_LABELS = LABELS | {"value": "env_return"}
SEARCH_LABELS = LABELS | {"value": "reward", "value_se": "reward_se"}
SEARCH_LABELS |= {"rate_se": "compliance_se", "rate_bound": "compliance_bound"}
WORKFLOW_NAMES = api.Names("return", "compliance", TRAINING_LABELS, SEARCH_LABELS)

PRESETS = ("standard", "quick")
NUMBERS = {  # of the standard and of the quick preset
    "budget": (60_000, 1000),
    "max_episodes": (3000, 50),
    "check_every": (500, 25),
    "patience": (4, 2),
    "eval_episodes": (400, 100),
    "unit": (100, 25),
    "warm_up": (20_000, 0),
}


def prepare(args: SearchArgs) -> Prepared:
    """What is to be searched and how; everything that can be refused is, before anything is compiled."""
    choices = {name: getattr(args, name) for name in OPTIONS}
    choices |= {"max_episodes": args.max_episodes_per_workflow, "unit": args.episodes_per_update}
    if args.compare and args.method is not None:
        raise UsageError(f"--compare runs every method; leave out --method {args.method}")
    if ":" in args.env:
        for name in OF_WORKFLOWS:
            if getattr(args, name) not in (None, {}):
                option = f"env.{next(iter(args.env_args))}" if name == "env_args" else name.replace("_", "-")
                raise UsageError(
                    f"--{option} is for {ENV}; {args.env} says itself what it searches, and under which gate"
                )
        return of_factory(args.env, {k: v for k, v in choices.items() if v is not None}, args.device)
    red, compliance = setting(args)
    source = None if args.init_from is None else Path(args.init_from)
    gate = Gate().threshold if args.gate is None else args.gate
    if shares(args):
        return prepare_race(args, choices, source)
    if args.policies is not None:
        raise UsageError("--policies is for orders that share their training; leave it out, or add --inherit shared")
    options, unit = defence_options(args.preset or "standard", gate, choices, source is not None)
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
    return space, trial, options, WORKFLOW_NAMES


def shares(args: SearchArgs) -> bool:
    """Whether orders share their training: unless something is asked for that only single trainings have."""
    asked = [f"--{name.replace('_', '-')}" for name in ONE_BY_ONE if getattr(args, name) is not None]
    asked += ["--compare"] * args.compare
    asked += [f"--method {args.method}"] if args.method in ("gp", "exhaustive") else []
    if asked and (args.inherit == "shared" or args.method == "race"):
        raise UsageError(
            f"{asked[0]} is for orders that are trained one by one; add --inherit start or nearest, or leave it out"
        )
    if args.method == "race" and args.inherit in ("nearest", "start"):
        raise UsageError(f"--method race is for orders that share their training; leave out --inherit {args.inherit}")
    return not asked and args.inherit in (None, "shared")


def prepare_race(args: SearchArgs, choices: Mapping[str, Any], source: Path | None) -> Prepared:
    red, compliance = setting(args)
    options, unit = race_options(args.preset or "standard", args.gate, choices)
    space = workflows(red, compliance, args.orders or "classes", equal=True)
    options.check(unit, len(space))

    from regimen.domains.network_defense.trials import DefenceTrial, make_config
    from regimen.engines import device

    config = make_config(red, compliance, unit, source, args.env_args, {}, args.device, options.seed)
    device.configure(config.device, True)
    trial = DefenceTrial(space, config, options.seed, source)
    trial.program(-1)
    return space, trial, options, WORKFLOW_NAMES


def race_options(preset: str, gate: float | None, choices: Mapping[str, Any]) -> tuple[RaceOptions, int]:
    """The options of a race over workflows, and the episodes of one update."""
    if preset not in PRESETS:
        raise ConfigError(f"--preset: unknown '{preset}'{nearest(preset, PRESETS)}")
    threshold = Gate() if gate is None else Gate(gate)
    values: dict[str, Any] = {name: pair[PRESETS.index(preset)] for name, pair in RACE.items()}
    values["eval_episodes"] = max(values["eval_episodes"], math.ceil(1.2 * threshold.episodes_needed()))
    given = {name: value for name, value in choices.items() if value is not None}
    values |= {name: value for name, value in given.items() if name not in ("inherit", "max_episodes")}
    return RaceOptions(gate=threshold, **{k: v for k, v in values.items() if k != "unit"}), int(values["unit"])


def setting(args: SearchArgs) -> tuple[str, str]:
    """(red, compliance), where the environment has orders."""
    if args.env != ENV:
        raise UsageError(f"there is no search for '{args.env}'; search {ENV}, or file.py:make for a space of your own")
    return args.red or "meander", args.compliance or "published"


def adapting(options: Options) -> float:
    """The share of the learning rate with which an order is trained."""
    return ADAPTING if options.inherit == "start" else 1.0


def defence_options(preset: str, gate: float, choices: Mapping[str, Any], based: bool) -> tuple[Options, int]:
    """The options of a search over workflows, and the episodes of one update. `based`: there is a policy to start
    from, so no warm-up is needed."""
    if preset not in PRESETS:
        raise ConfigError(f"--preset: unknown '{preset}'{nearest(preset, PRESETS)}")
    threshold = Gate(gate)
    needed = threshold.episodes_needed()
    values: dict[str, Any] = {name: pair[PRESETS.index(preset)] for name, pair in NUMBERS.items()}
    values["warm_up"] *= not based
    values["eval_episodes"] = max(values["eval_episodes"], math.ceil(1.2 * needed))
    values["check_episodes"] = math.ceil((2.5 if preset == "standard" else 1.2) * needed)
    values |= {name: value for name, value in choices.items() if value is not None}
    unit = int(values.pop("unit"))
    if values["max_episodes"]:
        values["check_every"] = min(values["check_every"], values["max_episodes"])
    if values.get("inherit") is None:
        values["inherit"] = "start" if based or values["warm_up"] else "nearest"
    return Options(gate=threshold, **values), unit


def workflows(
    red: str = "meander", compliance: str = "published", orders: str = "classes", equal: bool = False
) -> Space:
    """Workflows of `network_defense`: one order for each class of equal ones, or all 120. Values are Workflows. With
    `equal` the model is told which of the 120 ask for the same repairs; a policy may still differ between them."""
    classes, every = classes_for(red, compliance), all_workflows()
    if orders not in ("classes", "all"):
        raise ConfigError(f"orders: unknown '{orders}'{nearest(orders, ('classes', 'all'))}")
    if orders == "all":
        of_class = {w.index: tuple(m.index for m in c.members) for c in classes for w in c.members}
        values, members = every, tuple(of_class[w.index] for w in every) if equal else ()
    else:  # a candidate for each class: its representative, with the class's mean kernel
        values = tuple(c.representative for c in classes)
        members = tuple(tuple(w.index for w in c.members) for c in classes)
    ranks = np.array([w.ranks() for w in every])
    distances = kendall_matrix(ranks, ranks)[None]
    details = {"red": red, "compliance": compliance, "orders": orders}
    return Space("workflows", tuple(w.name for w in values), distances, values, ("kendall",), members, details)


def equal_orders(args: SearchArgs) -> dict[str, Any]:
    """The equivalence classes and why there are so few."""
    red, compliance = setting(args)
    classes = classes_for(red, compliance)
    return {
        "red": red,
        "compliance": compliance,
        "orders": len(all_workflows()),
        "classes": len(classes),
        "never_compromised": [unit for unit in TYPES if unit not in ATTACKED[red]],
        "always_compromised": list(ALWAYS[compliance]),
        "members": [
            {
                "priority": list(c.priority),
                "representative": c.representative.name,
                "size": len(c.members),
                "orders": [w.name for w in c.members],
            }
            for c in classes
        ],
    }


def lines(report: dict[str, Any]) -> list[str]:
    """The equivalence classes in words."""
    never, always = report["never_compromised"], report["always_compromised"]
    out = [
        f"network_defense, red {report['red']}, compliance {report['compliance']}: "
        f"{report['orders']} orders, {report['classes']} that can be told apart"
    ]
    if never:
        out.append(f"never compromised, so their place does not matter: {', '.join(never)}")
    if always:
        out.append(f"always compromised, so nothing behind it matters: {', '.join(always)}")
    rows = []
    for m in sorted(report["members"], key=lambda m: (len(m["priority"]), m["priority"])):
        names = [m["representative"], *(name for name in m["orders"] if name != m["representative"])]
        examples = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        rows.append([" > ".join(m["priority"]), f"{m['size']:>6}", examples])
    return [*out, "", *aligned(["what matters of the order", "orders", "for example"], rows)]
