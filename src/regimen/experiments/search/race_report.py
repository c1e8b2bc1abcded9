"""What a race says of itself: who stayed in it and why, what was spent on whom, what is recommended and how surely."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from regimen.experiments.search.ranking import Ranking, rank
from regimen.experiments.search.recommendation import Recommendation, spent_words
from regimen.experiments.search.store import most_frames
from regimen.files import views
from regimen.files.storage import plain
from regimen.reports.figure import BLUE, GREEN, GREY, RED, picture
from regimen.reports.table import Table

if TYPE_CHECKING:
    from regimen.experiments.search.race import Race, RaceLook

MOST = 30  # candidates that can be told apart in a picture
SURE = 1.96  # deviations that hold 95% of a normal distribution


def level(race: Race, ranking: Ranking) -> float:
    """What a merit of 0 is worth now: the mean of what was measured last, less the merits of who took part."""
    look = race.confirmed or race.looks[-1]
    return float(np.mean(look.value) - ranking.values.mean[look.index].mean())


def write(race: Race) -> None:
    """The tables and the live page's picture, after every look."""
    rows: list[dict[str, object]] = []
    for number, look in enumerate(everything(race)):
        rows += [row(race, look, number, place) for place in range(len(look.index))]
    names = race.store.names.search
    cells = [{names.get(k, k): v for k, v in plain(one).items()} for one in rows]
    Table.of_records(cells).write_csv(race.store.path / "search.csv")
    spending(race).write_csv(race.store.path / "spending.csv")
    show(race)


def everything(race: Race) -> list[RaceLook]:
    return race.looks if race.confirmed is None else [*race.looks, race.confirmed]


def row(race: Race, look: RaceLook, number: int, place: int) -> dict[str, object]:
    """One candidate at one look, for search.csv."""
    c, value = look.index[place], np.array(look.value[place])
    k = len(value)
    out: dict[str, object] = {
        "look": "confirmation" if look is race.confirmed else number + 1,
        "candidate": race.space.keys[c],
        "order": race.space.text(c),
        "episodes": look.training,
        "eval_episodes": k * look.episodes,
        "total_episodes": look.spent,
        "value": float(value.mean()),
        "value_se": float(np.sqrt((np.array(look.error[place]) ** 2).sum())) / k,
        **{f"policy_{i + 1}": float(v) for i, v in enumerate(value)},
    }
    if look.rates is not None:
        rates = look.rates[place]
        out |= {"rate": float(np.mean([r.mean for r in rates])), "rate_bound": max(r.bound for r in rates)}
    return out


def status(race: Race, c: int) -> str:
    """Where a candidate stands, and why."""
    if race.confirmed is not None and c in race.confirmed.index:
        passed = race.passed().get(c)
        best = race.best
        if best is not None and best[0] == c:
            return "recommended"
        if passed is None:
            return "finalist that does not meet the gate"
        return f"finalist; meets the gate with {len(passed)} of {race.options.policies} policies"
    if c in race.dropped:
        return race.dropped[c]
    if c in race.active:
        return "in the race"
    return "waits: others have higher upper bounds"


def spending(race: Race) -> Table:
    """A row for every candidate, the dearest first: what was spent on it, where it stands and why, what is believed."""
    ranking = race.ranking()
    base, likely, best = level(race, ranking), ranking.likely(), ranking.probabilities(race.options.seed)
    rows = []
    for c, key in enumerate(race.space.keys):
        looks = sum(c in look.index for look in everything(race))
        training, played = round(race.share[c]), race.played[c]
        mean, std = base + ranking.values.mean[c], ranking.values.std[c]
        chance = None if race.options.gate is None else float(likely[c])
        rows.append([key, looks, training, 0, played, training + played, status(race, c), mean, std, chance, best[c]])
    rows.sort(key=lambda one: -one[5])
    head = ["candidate", "looks", "training", "checks", "evaluation", "episodes", "why"]
    return Table([*head, "mean", "std", "p_feasible", "p_best"], rows)


def recommended(race: Race) -> Recommendation | None:
    """What is recommended and how sure that is; None while nothing is. Orders known to be equal count as one."""
    best = race.best
    if best is None:
        return None
    ranking, members = race.ranking(), race.space.members
    equal = [c for c in range(len(race.space)) if members[c] == members[best[0]]]
    probability = float(ranking.probabilities(race.options.seed)[equal].sum())
    mean = ranking.values.mean
    others = [c for c in np.argsort(-mean, kind="stable") if c not in equal and ranking.likely()[c] >= 0.5]
    if not others:
        return Recommendation(best[0], probability)
    following = int(others[0])
    return Recommendation(best[0], probability, following, float(mean[best[0]] - mean[following]))


def progress_line(race: Race) -> list[str]:
    """The last look in a line."""
    look, names, keys = everything(race)[-1], race.store.names, race.space.keys
    if look is race.confirmed:
        return []
    ranking = race.ranking()
    base, best = level(race, ranking), ranking.leader(race.options.kappa)
    text = f"look {len(race.looks)}, {look.training:,} episodes of each policy: {len(look.index)} played"
    parts = [text]
    if race.options.method == "race":
        parts.append(f"{len(race.dropped)} dropped, {len(race.active)} go on")
        leader = (
            f"ahead {keys[best]} {base + ranking.values.mean[best]:.4g}" if best is not None else "none likely to pass"
        )
        parts.append(leader)
    if look.rates is not None:
        rates = [float(np.mean([r.mean for r in of_candidate])) for of_candidate in look.rates]
        parts.append(f"{names.rate} {min(rates):.3f} to {max(rates):.3f}")
    return [" · ".join([*parts, f"{race.spent:,} of {race.options.budget:,} episodes"])]


def summarise(race: Race, command: str = "", stopped: str | None = None) -> dict[str, object]:
    """summary.json."""
    o, best = race.options, race.best
    sure = recommended(race) if race.looks else None
    summary: dict[str, object] = {
        "space": race.space.name,
        **race.space.details,
        "candidates": len(race.space),
        "method": o.method,
        "acquisition": None,
        "seed": o.seed,
        "gate": None if o.gate is None else dataclasses.asdict(o.gate),
        "budget": o.budget,
        "episodes": race.spent,
        "training": race.trained,
        "looks": len(race.looks),
        "causes": dict(Counter(why.split(" after ")[0] for why in race.dropped.values())),
        "stop_reason": stopped or "budget spent",
        "best": None,
        "recommendation": None if sure is None else dataclasses.asdict(sure) | {"words": sure.words(race.space)},
        "wall_seconds": round(race.seconds, 2),
        "command": command,
    }
    if best is not None and race.confirmed is not None:
        place = race.confirmed.index.index(best[0])
        summary["best"] = row(race, race.confirmed, 0, place) | {"policy": best[1] + 1}
    if race.looks:
        ranking = race.ranking()
        summary["model"] = {
            "luck_of_training": ranking.luck if o.policies > 1 else None,
            "posterior": [
                {"candidate": key, "mean": float(m), "std": float(s), "p_feasible": float(p), "why": status(race, c)}
                for c, (key, m, s, p) in enumerate(
                    zip(race.space.keys, ranking.values.mean, ranking.values.std, ranking.likely())
                )
            ],
        }
    return summary


def ending(race: Race) -> list[str]:
    """What is recommended; where nothing can be, what came nearest and what to try."""
    best, names, keys = race.best, race.store.names, race.space.keys
    confirmed = race.confirmed
    if confirmed is None:
        return []
    if best is None or confirmed.index is None:
        assert race.options.gate is not None and confirmed.rates is not None
        rates = [max(of_candidate, key=lambda r: r.bound) for of_candidate in confirmed.rates]
        nearest = max(range(len(rates)), key=lambda i: rates[i].bound)
        rate, gate = rates[nearest], race.options.gate.threshold
        where = f"{names.rate} {rate.mean:.3f} with bound {rate.bound:.3f} where the gate is {gate:g}"
        more = ["a larger --budget on the same --out", "a lower --gate"]
        if rate.mean >= gate:
            more.insert(0, f"--eval-episodes {4 * race.options.eval_episodes} in a new one")
        return [
            f"no candidate met the gate in {len(race.looks)} looks and {race.spent:,} episodes",
            f"nearest: {keys[confirmed.index[nearest]]}, {where}",
            f"try {', or '.join(more)}",
        ]
    c, k = best
    place = confirmed.index.index(c)
    text = f"best: {keys[c]} ({race.space.text(c)}), {confirmed.value[place][k]:.4g} ± {confirmed.error[place][k]:.2g}"
    if confirmed.rates is not None:
        rate = confirmed.rates[place][k]
        text += f", {names.rate} {rate.mean:.3f} with bound {rate.bound:.3f}"
    rest = f"{len(race.looks)} looks, {race.spent:,} episodes"
    sure = recommended(race)
    words = [] if sure is None else [sure.words(race.space)]
    if race.options.policies > 1:
        words += lucky_words(race)
    return [f"{text}; {rest}", *words, spent_words(spending(race))]


def lucky_words(race: Race) -> list[str]:
    """What luck is worth, and what to do where it hides the best."""
    ranking, name, k = race.ranking(), race.store.names.value, race.options.policies
    words = [f"the luck of one training is worth {ranking.luck:.2g} of {name}, measured between its policies"]
    needed = ranking.policies_needed(k)
    if needed is not None:
        left = ranking.luck / k**0.5
        words.append(
            f"candidates differ by {ranking.spread:.2g}, and the luck left of {k} policies is {left:.2g}: "
            f"--policies {needed} in a new --out tells more of them than a larger --budget here"
        )
    return words


def show(race: Race) -> None:
    """The live page's picture: a frame for every look."""
    most = most_frames(race.space)
    last = len(race.looks) - 1
    if race.confirmed is not None and race.frames:
        return
    for n in range(last if race.frames else max(0, last + 1 - most), last + 1):
        look = race.looks[n]
        ranking = rank(race.space, race.options.gate, race.looks[: n + 1], look.training)
        base = float(np.mean(look.value) - ranking.values.mean[look.index].mean())
        mean, std = base + ranking.values.mean, ranking.values.std
        measured = {c: [float(v) for v in values] for c, values in zip(look.index, look.value)}
        best = ranking.leader(race.options.kappa)
        candidates = [
            {
                "name": key,
                "mean": round(float(m), 5),
                "low": round(float(m - 2 * s), 5),
                "high": round(float(m + 2 * s), 5),
                "observed": measured.get(c),
                "chosen": c == best,
            }
            for c, (key, m, s) in enumerate(zip(race.space.keys, mean, std))
        ]
        race.frames.append({"title": f"after {look.training:,} episodes of training", "candidates": candidates})
    race.frames = race.frames[-most:]
    view = views.posterior(
        "What each candidate is worth with the training it has had", race.frames, label=race.store.names.value
    )
    views.write(race.store.path, "posterior", view)


def pictures(folder: Path, race: Race) -> None:
    if race.looks:
        posterior(folder / "posterior.png", race)
        places(folder / "progress.png", race)


def posterior(path: Path, race: Race) -> None:
    """Candidates, best first: what each is expected to be worth, how sure that is, and why it left the race."""
    ranking = race.ranking()
    base, best = level(race, ranking), race.best
    p_best, likely = ranking.probabilities(race.options.seed), ranking.likely()
    order = np.argsort(-ranking.values.mean, kind="stable")[:MOST]
    gate = race.options.gate
    with picture(path, 9.5, 2.0 + 0.24 * len(order)) as figure:
        ax = figure.subplots()
        for y, c in enumerate(order):
            state = status(race, int(c))
            chosen = best is not None and best[0] == c
            color = GREEN if chosen else GREY if c in race.dropped else BLUE if likely[c] >= 0.5 else RED
            x, wide = base + ranking.values.mean[c], SURE * ranking.values.std[c]
            ax.plot([x - wide, x + wide], [y, y], color=color, linewidth=3, alpha=0.45, solid_capstyle="round")
            ax.plot(x, y, "o", color=color, markersize=7 if chosen else 4.5)
            note = f"{p_best[c]:.0%}" if p_best[c] >= 0.005 else ""
            note += (" · " if note else "") + short(state)
            ax.annotate(note, (1.01, y), xycoords=("axes fraction", "data"), fontsize=7.5, va="center", color=color)
        ax.set_yticks(range(len(order)), [race.space.keys[c] for c in order], fontsize=8)
        ax.invert_yaxis()
        ax.set_xlabel(
            f"expected {race.store.names.value} at the end of training (dot), and where it lies with 95% (bar)"
        )
        more = f" (best {MOST} of {len(race.space)})" if len(race.space) > MOST else ""
        ax.set_title(f"What each candidate is worth{more}; right: how likely it is the best, and what became of it")
        kinds = [(GREEN, "recommended"), (BLUE, "could be the best"), (GREY, "dropped: cannot be the best")]
        if gate is not None:
            kinds.append((RED, f"would probably miss the gate of {gate.threshold:g}"))
        for color, text in kinds:
            ax.plot([], [], "o", color=color, label=text)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=2)


def short(state: str) -> str:
    """A status in few words."""
    return state.split(":")[0].replace("finalist that does not meet the gate", "misses the gate").split(";")[0]


def places(path: Path, race: Race) -> None:
    """How the field thinned out: how far every candidate was behind the best of each look, and who left."""
    best = race.best
    tops = [max(float(np.mean(v)) for v in look.value) for look in race.looks]
    with picture(path, 7.5, 4.4) as figure:
        ax = figure.subplots()
        for c in range(len(race.space)):
            curve = [(look, top) for look, top in zip(race.looks, tops) if c in look.index]
            if not curve:
                continue
            points = [(look.training, float(np.mean(look.value[look.index.index(c)])) - top) for look, top in curve]
            chosen = best is not None and best[0] == c
            color = GREEN if chosen else GREY if c in race.dropped else BLUE
            style = {"color": color, "zorder": 3 if chosen else 1, "alpha": 1.0 if chosen else 0.5}
            ax.plot(*zip(*points), "-o", markersize=3, linewidth=2.2 if chosen else 0.8, **style)
            if c in race.dropped:
                ax.plot(*points[-1], "x", color=GREY, markersize=6)
        ax.plot([], [], color=GREEN, linewidth=2.2, label="recommended")
        ax.plot([], [], color=BLUE, label="in the race, or waiting where the line ends")
        ax.plot([], [], "x-", color=GREY, label="dropped")
        name = race.store.names.value
        ax.set(xlabel="training episodes of each policy", ylabel=f"{name} behind the best of the look")
        ax.set_title(f"{len(race.looks)} looks of a {race.options.method.replace('_', ' ')}: who stayed in it")
        figure.legend(*ax.get_legend_handles_labels(), loc="outside lower left", ncols=3)
