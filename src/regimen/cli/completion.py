"""`regimen completion SHELL`: tab completion."""

from __future__ import annotations

from dataclasses import dataclass

from regimen.config.flags import parse, positional
from regimen.errors import UsageError, nearest


@dataclass(frozen=True)
class CompletionArgs:
    """Print a script that completes verbs, flags, environments, algorithms and presets.

    eval "$(regimen completion bash)"      in ~/.bashrc
    eval "$(regimen completion zsh)"       in ~/.zshrc, after compinit
    regimen completion fish > ~/.config/fish/completions/regimen.fish
    """

    shell: str = positional("SHELL")
    """`bash`, `zsh` or `fish`."""


def run(argv: list[str]) -> int:
    args = parse(CompletionArgs, argv, "completion")

    from regimen.cli.shells import SHELLS, script

    if args.shell not in SHELLS:
        raise UsageError(f"no completion for '{args.shell}'{nearest(args.shell, SHELLS)}")
    print(script(args.shell), end="")
    return 0
