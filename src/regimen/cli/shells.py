"""Completion scripts. Everything a shell offers is written into the script, so that pressing tab starts no Python."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping

from regimen.cli.main import VERBS, module_of
from regimen.config import layers, presets
from regimen.config.catalogue import ENVS
from regimen.config.domains import load
from regimen.config.schema import ALGORITHMS, TrainConfig
from regimen.config.validation import field_types, optional

SHELLS = ("bash", "zsh", "fish")


def verbs() -> dict[str, str]:
    """Verb -> one line."""
    return {name: verb.help for group in VERBS.values() for name, verb in group.items()}


def flags_of(verb: str) -> list[str]:
    """The flags of a verb; those of `train` and `sweep` include every setting of every algorithm."""
    module = module_of(verb)
    classes = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    classes += [load(study.args) for study in getattr(module, "STUDIES", {}).values()]
    names: dict[str, None] = {}
    for cls in classes:
        if dataclasses.is_dataclass(cls) and cls.__name__.endswith(("Args", "Flags")):
            for f in dataclasses.fields(cls):
                if "positional" not in f.metadata and f.name != "env_args":
                    names[f.name] = None
    if verb in ("train", "sweep"):
        for algorithm in ALGORITHMS:
            names |= dict.fromkeys(layers.leaf_types(algorithm))
        for name in ("env", "env_args", "curriculum", "algorithm"):
            names.pop(name, None)
    return sorted("--" + name.replace("_", "-") for name in (*names, "help"))


def values_of() -> dict[str, list[str]]:
    """Flag -> what it takes, where that is a short list."""
    out = {"--algo": sorted(ALGORITHMS), "--preset": sorted(presets.list_presets()), "--engine": ["local", "ray"]}
    for algorithm in ALGORITHMS:
        for name, hint in layers.leaf_types(algorithm).items():
            inner = optional(hint)[0]
            if typing.get_origin(inner) is typing.Literal:
                out["--" + name.replace("_", "-")] = [str(v) for v in typing.get_args(inner)]
    assert "device" in field_types(TrainConfig)
    return out


def words() -> dict[str, list[str]]:
    from regimen.cli.runs import ACTIONS

    return {
        "envs": sorted(ENVS),
        "presets": sorted(presets.list_presets()),
        "algorithms": sorted(ALGORITHMS),
        "shells": list(SHELLS),
        "actions": list(ACTIONS),
    }


def script(shell: str) -> str:
    flags = {verb: flags_of(verb) for verb in verbs()}
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](flags)


def kind_of(verb: str) -> str:
    """Which list of words completes the arguments of a verb."""
    return next(group[verb].words for group in VERBS.values() if verb in group)


def bash(flags: Mapping[str, list[str]]) -> str:
    lists = words()
    cases = [
        f'    {verb}) flags="{" ".join(names)}"; words="{" ".join(lists.get(kind_of(verb), ()))}" ;;'
        for verb, names in flags.items()
    ]
    values = [
        f'    {flag}) COMPREPLY=( $(compgen -W "{" ".join(options)}" -- "$cur") ); return ;;'
        for flag, options in values_of().items()
    ]
    return "\n".join(
        [
            '# bash completion of regimen; in ~/.bashrc:  eval "$(regimen completion bash)"',
            "_regimen() {",
            '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" flags="" words=""',
            '  if [ "$COMP_CWORD" -eq 1 ]; then',
            f'    COMPREPLY=( $(compgen -W "{" ".join([*flags, "--help", "--version"])}" -- "$cur") ); return',
            "  fi",
            '  case "$prev" in',
            *values,
            "  esac",
            '  case "${COMP_WORDS[1]}" in',
            *cases,
            "  esac",
            '  if [[ "$cur" == -* ]]; then COMPREPLY=( $(compgen -W "$flags" -- "$cur") )',
            '  else COMPREPLY=( $(compgen -W "$words" -- "$cur") $(compgen -d -- "$cur") ); fi',
            "}",
            "complete -o default -F _regimen regimen",
            "",
        ]
    )


def zsh(flags: Mapping[str, list[str]]) -> str:
    lists = words()
    about = [f"    {quoted(f'{verb}:{text}')}" for verb, text in verbs().items()]
    cases = [
        f"    {verb}) flags=({' '.join(names)}); words_=({' '.join(lists.get(kind_of(verb), ()))}) ;;"
        for verb, names in flags.items()
    ]
    values = [f"    {flag}) compadd -- {' '.join(options)}; return ;;" for flag, options in values_of().items()]
    return "\n".join(
        [
            "#compdef regimen",
            '# zsh completion of regimen; in ~/.zshrc, after compinit:  eval "$(regimen completion zsh)"',
            "_regimen() {",
            "  local -a flags words_ verbs_",
            "  verbs_=(",
            *about,
            "  )",
            "  if (( CURRENT == 2 )); then _describe 'verb' verbs_; return; fi",
            '  case "$words[CURRENT-1]" in',
            *values,
            "  esac",
            '  case "$words[2]" in',
            *cases,
            "  esac",
            '  if [[ "$words[CURRENT]" == -* ]]; then compadd -- $flags',
            "  else compadd -- $words_; _files -/; fi",
            "}",
            "compdef _regimen regimen",
            "",
        ]
    )


def fish(flags: Mapping[str, list[str]]) -> str:
    lists, values = words(), values_of()
    out = [
        "# fish completion of regimen:  regimen completion fish > ~/.config/fish/completions/regimen.fish",
        "complete -c regimen -e",
    ]
    for verb, text in verbs().items():
        out.append(f"complete -c regimen -n __fish_use_subcommand -f -a {verb} -d {quoted(text)}")
    for verb, names in flags.items():
        here = f"-n '__fish_seen_subcommand_from {verb}'"
        choices = lists.get(kind_of(verb), ())
        if choices:
            out.append(f"complete -c regimen {here} -a {quoted(' '.join(choices))}")
        for name in names:
            takes = f" -x -a {quoted(' '.join(values[name]))}" if name in values else ""
            out.append(f"complete -c regimen {here} -l {name.removeprefix('--')}{takes}")
    return "\n".join([*out, ""])


def quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
