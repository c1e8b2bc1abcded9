"""Which stopping rules cannot fire within a run's budget, and the setting that would let them."""

from regimen.config.fields import Count
from regimen.config.regimen import Regimen
from regimen.config.schema import TrainConfig
from regimen.runs.stopping import Rules
from regimen.words import plural

SETTINGS = {  # that rules come from, where they have other names
    "convergence": "target_return",
    "perfect": "perfect_streak",
    "zero_conflict": "zero_conflict_streak",
    "bands": "band_steps",
}


def unreachable(config: TrainConfig, regimen: Regimen, rules: Rules) -> list[str]:
    """A line for every rule that cannot fire: what it needs at least, what there is, what to set."""
    return [
        text
        for name, rule in rules.by_name.items()
        for unit, needed in rule.least().items()
        if (text := shortage(config, regimen, f"stop.{SETTINGS.get(name, name)}", unit, needed))
    ]


def shortage(config: TrainConfig, regimen: Regimen, setting: str, unit: str, needed: int) -> str | None:
    """Why a rule that needs so many evaluations, steps or episodes cannot fire; None where it can, or nobody knows."""
    every = Count.parse(config.eval.every, "eval.every")
    if unit == "evaluations" and every is None:
        return f"{setting} is checked at evaluations, and eval.every is 'never'"
    budget = spent(config, regimen)
    if budget is None:
        return None
    if unit != "evaluations":
        within = budget.n if unit == budget.unit or unit == "episodes" else None  # an episode has a step at least
        if within is None or within >= needed:
            return None
        return f"{setting} cannot fire: it needs {needed:,} {unit}, and the budget is {budget}; train for longer"
    assert every is not None
    updates = -(-budget.n // regimen.n)
    there = evaluations(updates, every, regimen)
    if there is None or there >= needed:
        return None
    have = f"it needs {plural(needed, 'evaluation')}, and eval.every {config.eval.every} makes {there} within {budget}"
    if updates >= needed:
        often = Count(updates // needed, "updates")
        return f"{setting} cannot fire: {have}; write --eval.every '{often}'"
    return f"{setting} cannot fire: {have}; write --eval.every 1 --total-{budget.unit} {needed * regimen.n}"


def spent(config: TrainConfig, regimen: Regimen) -> Count | None:
    """The budget in the unit of the regimen; None where it is only known in the other, or in seconds."""
    n = getattr(config, f"total_{regimen.kind}")
    return None if n is None else Count(n, regimen.kind)


def evaluations(updates: int, every: Count, regimen: Regimen) -> int | None:
    """How many there are in so many updates, at most one after each; None where that depends on lengths of episodes."""
    if every.unit == "updates":
        return updates // every.n
    return min(updates, updates * regimen.n // every.n) if every.unit == regimen.kind else None
