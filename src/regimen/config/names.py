"""Names that people know from other trainers, and ours. Two tables, `names.yaml` of settings and `answers.yaml` of all
else, and those of domains: they answer what is unknown here and make the tables of docs/coming_from. Jax-free."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regimen.config.catalogue import full_name
from regimen.config.domains import domains
from regimen.config.presets import load_yaml

ANSWERS = "answers.yaml"  # classes, methods, verbs, algorithms, environments, beside names.yaml
TRUE, FALSE = ("true", "yes", "on", "1", ""), ("false", "no", "off", "0")
SHORT = {("track.enabled", "false"): "--no-track", ("track.enabled", "true"): "--track.enabled"}


@dataclass(frozen=True)
class Name:
    """A name elsewhere, and what it is here."""

    other: str
    ours: Mapping[str, str] = field(default_factory=dict)  # setting -> what differs; the first that applies is meant
    trainers: tuple[str, ...] = ("other",)
    note: str = ""
    writes: Mapping[str, Any] = field(default_factory=dict)
    """How a value of theirs is written as one of a setting: a template, by yes and no a dict, or False where the number
    means something else."""
    command: str = ""
    """What to run instead of setting something."""

    def value(self, setting: str, original: Any) -> str | None:
        """A value of theirs as one of a setting; None where it cannot be told."""
        write = self.writes[setting]
        if isinstance(original, Mapping) and setting == "env_args":
            return plain(arguments(original))
        if not isinstance(original, (str, int, float, list, tuple)) and original is not None:
            return None
        if isinstance(write, Mapping):
            word = "" if original is None else str(original).lower()
            return None if word not in TRUE + FALSE else write[word in TRUE]
        if not write:
            return None
        template = str(write)
        if "{}" not in template:
            return template
        return None if original is None else template.format(plain(original))


def arguments(original: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of an environment under the names that they have here."""
    ours = {key: [s for s in name.ours if "." in s] if (name := name_of(key)) else [] for key in original}
    return {ours[key][0].removeprefix("env_args.") if ours[key] else key: value for key, value in original.items()}


def plain(value: Any) -> str:
    """A value as YAML and flags write it."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{k}: {plain(v)}' for k, v in value.items())}}}"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(plain, value))}]"
    return str(value)


@cache
def general_names() -> dict[str, Name]:
    """The names of `names.yaml`, by what they are elsewhere."""
    return read_names(Path(__file__).with_suffix(".yaml"))


@cache
def names() -> dict[str, Name]:
    """The names of `names.yaml` and those of domains, which may add settings to a general one."""
    table = dict(general_names())
    for file in [Path(domain.names) for domain in domains().values() if domain.names]:
        for other, new in read_names(file).items():
            old = table.get(other, new)
            table[other] = replace(old, ours={**old.ours, **new.ours}, writes={**old.writes, **new.writes})
    return table


def read_names(file: Path) -> dict[str, Name]:
    """The names of a file."""
    return {other: read_row(other, row) for other, row in load_yaml(file, "names of other trainers").items()}


def read_row(other: str, row: Mapping[str, Any]) -> Name:
    ours, note, trainers = row.get("ours", ()), row.get("note", ""), row.get("of", "other")
    settings = ours if isinstance(ours, Mapping) else dict.fromkeys([ours] if isinstance(ours, str) else ours, note)
    trainers = (trainers,) if isinstance(trainers, str) else tuple(trainers)
    writes = dict.fromkeys(settings, row.get("write", "{}"))
    return Name(other, settings, trainers, note, writes, row.get("command", ""))


def name_of(key: str) -> Name | None:
    """What a key of another trainer is here; with or without a section, dashes or underscores. `eval.frequency` is
    `eval_frequency`, and `no_cuda` the contrary of `cuda`."""
    parts = key.replace("-", "_").lower().split(".")
    for word in ("_".join(parts[-2:]), parts[-1]):
        if word in names():
            return names()[word]
        switch = names().get(word.removeprefix("no_"))
        if switch is not None and any(isinstance(write, Mapping) for write in switch.writes.values()):
            contrary = {s: {True: w[False], False: w[True]} for s, w in switch.writes.items() if isinstance(w, Mapping)}
            return replace(
                switch, other=word, ours=dict.fromkeys(switch.ours, ""), writes={**switch.writes, **contrary}
            )
    return None


def is_mapping(key: str) -> bool:
    """Whether a mapping is the value of another trainer's key, and no section: the arguments of an environment are."""
    name = name_of(key)
    return name is not None and "env_args" in name.ours


def setting_of(name: Name | None, settings: Iterable[str]) -> str | None:
    """The setting that a name means, among those there are; arguments of environments are always there."""
    has = set(settings)
    return None if name is None else next((s for s in name.ours if s in has or s.startswith("env_args")), None)


def answer(
    key: str, algorithm: str, leaves: Mapping[str, Iterable[str]], dash: str = "", original: Any = None
) -> str | None:
    """The end of an error about an unknown setting: `; here it is algo.clip_eps: 0.1`, with the value that was given
    where it means the same here. `leaves` are the settings by algorithm. None where nobody else calls anything so."""
    name = name_of(key)
    if name is None:
        return None
    if name.command:
        return f"; here it is {name.command}" + (f" ({name.note})" if name.note else "")
    setting = setting_of(name, leaves[algorithm])
    if setting is None:
        others = [a for a in leaves if setting_of(name, leaves[a])]
        setting_there = setting_of(name, leaves[others[0]]) or ""
        return f"; {algorithm} has none, only {', '.join(others)} ({setting_there})"
    if setting == key:  # it is called so here, in another algorithm
        return None
    note = name.ours[setting]
    return f"; here it is {written(setting, name.value(setting, original), dash)}" + (f" ({note})" if note else "")


def written(setting: str, value: str | None, dash: str = "") -> str:
    """A setting with its value as a flag, or as a line of YAML."""
    if setting == "env":
        name = environment(value)
        return f"`regimen train {name or 'ENV'}`" if dash else f"env: {name}" if name else "env"
    if setting == "algorithm":
        name = value.lower() if value is not None else None
        return (f"--algo {name or 'NAME'}") if dash else f"algo: {name}" if name else "algo"
    if setting == "env_args":
        return "--env.KEY VALUE" if dash else f"env_args: {value or '{KEY: VALUE}'}"
    if setting == "engine.workers" and value not in (None, "0"):
        return f"--engine ray --engine.workers {value}" if dash else f"engine: {{name: ray, workers: {value}}}"
    if not dash:
        return f"{setting}: {value}" if value is not None else setting
    flag = "--" + setting.replace("env_args.", "env.").replace("_", "-")
    return SHORT.get((setting, value or ""), flag if value is None else f"{flag} {shlex.quote(value)}")


def environment(value: str | None) -> str | None:
    """An environment's id as another trainer writes it, as it is here."""
    if value is None or ":" in value:
        return value
    elsewhere = load_answers().get("environment", {}).get(value.lower(), "")
    return full_name(value) or elsewhere.strip("`") or (f"gym:{value}" if re.search(r"-v\d+$", value) else value)


# --- classes, methods, verbs, algorithms and environments ------------------------------------------------------------


def equivalent(owner: str, name: str) -> str:
    """The end of an error: `; here it is policy.act(obs)` for what other trainers have; else nothing. The owner is a
    class, `regimen` for the package, `verb`, `regimen VERB` for its flags, `algorithm` or `environment`."""
    answer = load_answers().get(owner, {}).get(name)
    return f"; here it is {answer}" if answer else ""


@cache
def load_answers() -> dict[str, dict[str, str]]:
    """What `answers.yaml` and those of domains say, by owner and name."""
    files = [Path(__file__).with_name(ANSWERS), *(Path(d.answers) for d in domains().values() if d.answers)]
    table: dict[str, dict[str, str]] = {}
    for file in files:
        for owner, rows in load_yaml(file, "names of other trainers").items():
            table.setdefault(owner, {}).update(rows)
    return table


class Answering:
    """Objects that say, where they have not what another trainer's have, what it is here."""

    if not TYPE_CHECKING:  # which would take every attribute to be there

        def __getattr__(self, name: str) -> Any:
            owners = () if name.startswith("_") else type(self).__mro__
            hint = next(filter(None, (equivalent(owner.__name__, name) for owner in owners)), "")
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'{hint}")


class Absent:
    """An attribute that a class has not, nor its instances, and that others call it for: `PPO.load(path)`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.owner = owner.__name__
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        hint = equivalent(self.owner, self.name)
        raise AttributeError(f"type object '{owner.__name__}' has no attribute '{self.name}'{hint}")


# --- tables ----------------------------------------------------------------------------------------------------------


def table(trainer: str) -> list[str]:
    """The Markdown table of one trainer's names."""
    lines = ["| theirs | ours | |", "|---|---|---|"]
    for name in (names() | general_names()).values():
        if trainer in name.trainers:
            ours = " or ".join(f"`{n}`" for n in name.ours) or name.command
            notes = dict.fromkeys(filter(None, (name.note, *name.ours.values())))
            lines.append(f"| `{name.other}` | {ours} | {'; '.join(notes)} |")
    return lines


def page(text: str) -> str:
    """A page with its tables written anew: what stands between `<!-- names: TRAINER -->` and `<!-- end -->`."""
    out, skipping = [], False
    for line in text.splitlines():
        if line.startswith("<!-- end -->"):
            skipping = False
        if not skipping:
            out.append(line)
        if line.startswith("<!-- names: "):
            trainer = line.removeprefix("<!-- names: ").removesuffix(" -->")
            out += ["", *table(trainer), ""]
            skipping = True
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    import sys

    for argument in sys.argv[1:]:
        Path(argument).write_text(page(Path(argument).read_text(encoding="utf-8")), encoding="utf-8")
