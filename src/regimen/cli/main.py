"""The `regimen` command: find the verb, run it, and turn errors into one line and an exit code."""

import gc
import importlib
import io
import os
import sys

from regimen.config.domains import Verb, domains, load
from regimen.errors import OutOfMemoryError, RegimenError, UsageError, nearest
from regimen.style import painted

GENERAL: dict[str, dict[str, tuple[str, ...]]] = {  # group -> verb -> arguments, one line, target, what completes it
    "Train": {
        "train": ("ENV|DATASET", "train a policy", "train", "envs"),
        "resume": ("RUN", "continue a run exactly where it stopped, or with a larger budget", "resume"),
        "evaluate": ("RUN|ENV", "play episodes with a trained or a baseline policy", "play:EvaluateArgs", "envs"),
        "collect": ("RUN|ENV", "write episodes as a Minari dataset, to learn from offline", "play:CollectArgs", "envs"),
        "sweep": ("ENV", "train many settings and say which do better", "sweep", "envs"),
        "study": ("STUDY [ENV]", "measure what a way of training buys", "study", "envs"),
    },
    "Look at runs": {
        "dashboard": ("[RUNS]", "a live page about all runs, in the browser", "look:DashboardArgs"),
        "compare": ("RUN...", "rank settings by their runs: tables and a plot", "look:CompareArgs"),
        "runs": ("[ACTION] [RUN...]", "list, show or remove run directories", "look:RunsArgs", "actions"),
        "diagnose": ("RUN...", "what is wrong with a run, and what to change", "look:DiagnoseArgs"),
        "plot": ("RUN", "draw the curves of a run", "look:PlotArgs"),
        "report": ("RUN", "write a run's report.html", "look:ReportArgs"),
        "replay": ("RUN", "write episodes of the policy as tables and animations", "play:ReplayArgs"),
        "track": ("RUN...", "send MLflow what it does not have of a run", "look:TrackArgs"),
        "export": ("RUN", "write the policy to a folder of its own", "play:ExportArgs"),
    },
    "What there is": {
        "envs": ("[NAME]", "environments, their spaces and the fields --env.KEY sets", "lists:EnvsArgs", "envs"),
        "algorithms": ("[NAME]", "algorithms and their hyper-parameters", "lists:AlgorithmsArgs", "algorithms"),
        "presets": ("[NAME]", "named starting points for a run", "lists:PresetsArgs", "presets"),
        "doctor": ("", "what is installed here, what is missing and how to get it", "lists:DoctorArgs"),
        "completion": ("SHELL", "tab completion for bash, zsh or fish", "lists:CompletionArgs", "shells"),
        "new": ("KIND NAME", "write an environment or an algorithm to start from, with a test", "new:NewArgs", "kinds"),
        "check-env": ("ENV", "find what is wrong with an environment before training", "lists:CheckEnvArgs", "envs"),
    },
}


def verbs_of(group: str) -> dict[str, Verb]:
    """The verbs under a heading of `regimen --help`: Regimen's own, then those of domains."""
    verbs = {
        name: Verb(arguments, text, f"regimen.cli.{target}", group, "".join(words))
        for name, (arguments, text, target, *words) in GENERAL[group].items()
    }
    for domain in domains().values():
        verbs |= {name: verb for name, verb in domain.verbs.items() if verb.group == group}
    return verbs


VERBS: dict[str, Verb] = {name: verb for group in GENERAL for name, verb in verbs_of(group).items()}

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
    code = run(argv)
    background = sys.modules.get("regimen.files.background")  # numpy comes with it: not for a page of help
    if argv is None and is_command() and background is not None and background.begun:
        background.leave(code)  # the prompt does not wait for jax to be taken down
    return code


def is_command() -> bool:
    """Whether this process is the `regimen` command, and not a program of the user's that calls `main`: that one goes
    on afterwards, and knows environments and algorithms that no other process does."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    program, _ = os.path.splitext(os.path.basename(sys.argv[0]))
    return program == "regimen" or (spec is not None and spec.name.split(".")[0] == "regimen")


def run(argv: list[str] | None) -> int:
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files may be no text; they are printed as they are
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    trust = "--trust" in argv
    argv = [token for token in argv if token not in ("--debug", "--trust")]
    try:
        code = answer(argv)
        if code is None:
            code = execute(argv, trust)
        sys.stdout.flush()
        return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except KeyboardInterrupt as error:
        from regimen.engines.signals import code_of

        print("regimen: interrupted", file=sys.stderr)
        return code_of(error)
    except BrokenPipeError:  # `regimen envs | head -1`: the reader has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if debug:
            import traceback

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


def answer(argv: list[str]) -> int | None:
    """Print the page of help or the version, if that is all that is asked: nothing is imported for it that a verb
    needs. None where a verb is named."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(top_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"regimen {version('regimen')}")
        return 0
    return None


def execute(argv: list[str], trust: bool) -> int:
    """Run the verb that is named first."""
    if is_command():
        gc.set_threshold(200_000, 50, 100)  # by default a fifth of importing and tracing goes into looking for garbage
    from regimen.config.trust import trusting
    from regimen.engines.signals import Leaving

    with Leaving(), trusting(trust):
        name = argv[0].replace("_", "-")
        if name not in VERBS:
            raise UsageError(unknown(argv[0], name))
        target = VERBS[name].target
        if ":" not in target:
            return importlib.import_module(target).run(argv[1:])
        from regimen.config.flags import parse

        return parse(load(target), argv[1:], name)() or 0


def unknown(word: str, name: str) -> str:
    """What is wrong with a first word that is no verb."""
    if name.startswith("-"):
        return f"unknown flag '{word}'; a verb comes first: {', '.join(VERBS)}"
    from regimen.config.names import equivalent

    return f"unknown verb '{word}'{equivalent('verb', name.lower()) or nearest(name.lower(), VERBS)}"


def top_help() -> str:
    lines = [
        "usage: regimen VERB [ARGUMENTS]",
        "",
        "Reinforcement-learning training in JAX: one command line, one loop.",
    ]
    for group in GENERAL:
        lines += ["", painted(f"{group}:", "bold")]
        verbs = {name: verb for name, verb in VERBS.items() if verb.group == group}
        lines += [f"  {f'{name} {verb.arguments}':<22} {verb.help}" for name, verb in verbs.items()]
    lines += [
        "",
        painted("Options:", "bold"),
        "  --help                 this page; `regimen VERB --help` explains every flag of a verb",
        "  --version              the installed version",
        "  --debug                show the traceback of an error",
        "  --trust                run the code that a file names (of a run, a dataset) even if it is not installed",
        "",
        painted("Examples:", "bold"),
        EXAMPLES,
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
