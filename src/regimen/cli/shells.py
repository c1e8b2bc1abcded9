"""Completion scripts. Everything a shell offers is written into the script, so that pressing tab starts no Python."""

import dataclasses
import importlib
import typing
from pathlib import Path

from regimen.cli.look import ACTIONS
from regimen.cli.main import VERBS
from regimen.cli.new import KINDS
from regimen.config import lookup, presets
from regimen.config.catalogue import ENVS
from regimen.config.domains import load
from regimen.config.flags import flag_of
from regimen.config.schema import ALGORITHMS
from regimen.config.validation import optional

SHELLS = ("bash", "zsh", "fish")
WORDS = {
    "envs": sorted(ENVS),
    "presets": sorted(presets.list_presets()),
    "algorithms": sorted(ALGORITHMS),
    "shells": SHELLS,
    "actions": ACTIONS,
    "kinds": sorted(KINDS),
}
"""What completes the arguments of a verb, by its `Verb.words`."""


def classes_of(verb: str) -> list[type]:
    """The dataclasses that hold the flags of a verb."""
    target = VERBS[verb].target
    if ":" in target:
        return [load(target)]
    module = importlib.import_module(target)
    here = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == target]
    studies = [load(study.args) for study in getattr(module, "STUDIES", {}).values()]
    return [c for c in here if c.__name__.endswith(("Args", "Flags"))] + studies


def flags_of(verb: str) -> list[str]:
    """The flags of a verb; those of `train` and `sweep` include every setting of every algorithm."""
    flags = [f for cls in classes_of(verb) for f in dataclasses.fields(cls) if "positional" not in f.metadata]
    names = {flag_of(f) for f in flags if not f.name.endswith("_args")}
    if verb in ("train", "sweep"):
        names = names.union(*map(lookup.leaf_types, ALGORITHMS)) - {"env", "env_args", "curriculum", "algorithm"}
    names |= {"help", *(("help-all",) if verb == "train" else ())}
    return sorted("--" + name.replace("_", "-") for name in names)


def values_of() -> dict[str, list[str]]:
    """Flag -> what it takes, where that is a short list."""
    out = {"--algo": sorted(ALGORITHMS), "--preset": sorted(presets.list_presets()), "--engine": ["local", "ray"]}
    for algorithm in ALGORITHMS:
        for name, hint in lookup.leaf_types(algorithm).items():
            inner = optional(hint)[0]
            if typing.get_origin(inner) is typing.Literal:
                out["--" + name.replace("_", "-")] = [str(v) for v in typing.get_args(inner)]
    return out


def script(shell: str) -> str:
    """The completion script of a shell: `completion/SHELL.sh` filled in, or the lines of fish."""
    flags = {verb: " ".join(flags_of(verb)) for verb in VERBS}
    words = {verb: " ".join(WORDS.get(entry.words, ())) for verb, entry in VERBS.items()}
    values = {flag: " ".join(options) for flag, options in values_of().items()}
    match shell:
        case "fish":
            return fish(flags, words, values)
        case "bash":
            verbs = " ".join([*VERBS, "--help", "--version"])
            reply = 'COMPREPLY=( $(compgen -W "{}" -- "$cur") ); return ;;'
            answers = [f"    {flag}) {reply.format(options)}" for flag, options in values.items()]
            cases = [f'    {verb}) flags="{flags[verb]}"; words="{words[verb]}" ;;' for verb in VERBS]
        case _:
            verbs = "\n".join(f"    {quoted(f'{verb}:{entry.help}')}" for verb, entry in VERBS.items())
            answers = [f"    {flag}) compadd -- {options}; return ;;" for flag, options in values.items()]
            cases = [f"    {verb}) flags=({flags[verb]}); words_=({words[verb]}) ;;" for verb in VERBS]
    text = (Path(__file__).parent / "completion" / f"{shell}.sh").read_text(encoding="utf-8")
    text = text.replace("@VERBS@", verbs).replace("@VALUES@", "\n".join(answers))
    return text.replace("@CASES@", "\n".join(cases))


def fish(flags: dict[str, str], words: dict[str, str], values: dict[str, str]) -> str:
    """The completion script of fish, a command for each thing that it may offer."""
    out = [
        "# fish completion of regimen:  regimen completion fish > ~/.config/fish/completions/regimen.fish",
        "complete -c regimen -e",
    ]
    for verb, entry in VERBS.items():
        out.append(f"complete -c regimen -n __fish_use_subcommand -f -a {verb} -d {quoted(entry.help)}")
    for verb, names in flags.items():
        here = f"-n '__fish_seen_subcommand_from {verb}'"
        if words[verb]:
            out.append(f"complete -c regimen {here} -a {quoted(words[verb])}")
        for name in names.split():
            takes = f" -x -a {quoted(values[name])}" if name in values else ""
            out.append(f"complete -c regimen {here} -l {name.removeprefix('--')}{takes}")
    return "\n".join([*out, ""])


def quoted(text: str) -> str:
    """A text in single quotes, as all three shells read it."""
    return "'" + text.replace("'", "'\\''") + "'"
