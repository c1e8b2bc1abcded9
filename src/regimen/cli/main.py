"""The `regimen` command: find the verb, run it, and turn errors into one line and an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from types import ModuleType

from regimen.config.domains import Verb, domains
from regimen.engines.signals import Leaving, code_of
from regimen.errors import OutOfMemoryError, RegimenError, UsageError, nearest
from regimen.style import painted


def general(name: str, arguments: str, help: str, words: str = "") -> Verb:
    """A verb of this package."""
    return Verb(arguments, help, f"regimen.cli.{name.replace('-', '_')}", words=words)


GENERAL: dict[str, dict[str, tuple[str, ...]]] = {  # group -> verb -> (arguments, one line, what completes them)
    "Train": {
        "train": ("ENV|DATASET", "train a policy", "envs"),
        "resume": ("RUN", "continue a run exactly where it stopped, or with a larger budget"),
        "evaluate": ("RUN|ENV", "play episodes with a trained or a baseline policy", "envs"),
        "collect": ("RUN|ENV", "write episodes as a Minari dataset, to learn from offline", "envs"),
        "sweep": ("ENV", "train many settings and say which do better", "envs"),
        "study": ("STUDY [ENV]", "measure what a way of training buys", "envs"),
    },
    "Look at runs": {
        "dashboard": ("[RUNS]", "a live page about all runs, in the browser"),
        "compare": ("RUN...", "rank settings by their runs: tables and a plot"),
        "runs": ("[ACTION] [RUN...]", "list, show or remove run directories", "actions"),
        "diagnose": ("RUN...", "what is wrong with a run, and what to change"),
        "plot": ("RUN", "draw the curves of a run"),
        "report": ("RUN", "write a run's report.html"),
        "replay": ("RUN", "write episodes of the policy as tables and animations"),
        "export": ("RUN", "write the policy to a folder of its own"),
    },
    "What there is": {
        "envs": ("[NAME]", "environments, their spaces and the fields --env.KEY sets", "envs"),
        "algorithms": ("[NAME]", "algorithms and their hyper-parameters", "algorithms"),
        "presets": ("[NAME]", "named starting points for a run", "presets"),
        "doctor": ("", "what is installed here, what is missing and how to get it"),
        "completion": ("SHELL", "tab completion for bash, zsh or fish", "shells"),
        "check-env": ("ENV", "find what is wrong with an environment before training", "envs"),
    },
}


def verbs_of(group: str) -> dict[str, Verb]:
    """The verbs under a heading of `regimen --help`: Regimen's own, then those of domains."""
    verbs = {name: general(name, *texts) for name, texts in GENERAL[group].items()}
    for domain in domains().values():
        verbs |= {name: verb for name, verb in domain.verbs.items() if verb.group == group}
    return verbs


VERBS: dict[str, dict[str, Verb]] = {group: verbs_of(group) for group in GENERAL}

EXAMPLES = """\
  regimen train cartpole
  regimen train pendulum --seeds 5 --total-steps 3e5
  regimen train gym:Acrobot-v1 --rollout.episodes 10 --algo.lr 1e-3
  regimen train mypackage.envs:make_env --preset fast --out runs/first
  regimen resume runs/first --total-episodes 500
  regimen evaluate runs/first --episodes 100
  regimen sweep cartpole --grid algo.lr=1e-4,3e-4,1e-3 --seeds 3
  regimen diagnose runs/first"""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    argv = [token for token in argv if token != "--debug"]
    try:
        with Leaving():
            code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt as error:
        print("regimen: interrupted", file=sys.stderr)
        return code_of(error)
    except BrokenPipeError:  # `regimen envs | head -1`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            traceback.print_exc()
        message, code = explain(error)
        print(f"{painted('regimen: error:', 'red', sys.stderr)} {message}", file=sys.stderr)
        return code


def explain(error: Exception) -> tuple[str, int]:
    """(one line, exit code) for an error."""
    if _out_of_memory(error):
        reason = " ".join(str(error).split())[:160]
        error = OutOfMemoryError(
            f"out of memory{f' ({reason})' if reason else ''}; reduce rollout.num_envs, rollout.steps or "
            "rollout.episodes, algo.minibatch_size, or set algo.micro_batch_size"
        )
    if isinstance(error, RegimenError):
        return " ".join(str(error).split()), error.exit_code
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' if text else ''}{text} (run with --debug to see where)", 1


def _out_of_memory(error: Exception) -> bool:
    jax_error = type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError")
    return isinstance(error, MemoryError) or (jax_error and "RESOURCE_EXHAUSTED" in str(error))


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(top_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"regimen {version('regimen')}")
        return 0
    verbs = [verb for group in VERBS.values() for verb in group]
    verb = argv[0].replace("_", "-")
    if verb not in verbs:
        if verb.startswith("-"):
            raise UsageError(f"unknown flag '{argv[0]}'; a verb comes first: {', '.join(verbs)}")
        raise UsageError(f"unknown verb '{argv[0]}'{nearest(verb, verbs)}")
    return module_of(verb).run(argv[1:])


def module_of(verb: str) -> ModuleType:
    """The module of a verb, imported now."""
    return importlib.import_module(next(group[verb] for group in VERBS.values() if verb in group).target)


def top_help() -> str:
    lines = [
        "usage: regimen VERB [ARGUMENTS]",
        "",
        "Reinforcement-learning training in JAX: one command line, one loop.",
    ]
    for group, verbs in VERBS.items():
        lines += ["", painted(f"{group}:", "bold")]
        lines += [f"  {f'{name} {verb.arguments}':<22} {verb.help}" for name, verb in verbs.items()]
    lines += [
        "",
        painted("Options:", "bold"),
        "  --help                 this page; `regimen VERB --help` explains every flag of a verb",
    ]
    lines += [
        "  --version              the installed version",
        "  --debug                show the traceback of an error",
    ]
    return "\n".join([*lines, "", painted("Examples:", "bold"), EXAMPLES])


if __name__ == "__main__":
    raise SystemExit(main())
