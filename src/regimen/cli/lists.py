"""Verbs that say what there is: `envs`, `algorithms`, `presets`, `doctor`, `completion`, `check-env`."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from regimen.config import layers, presets
from regimen.config.catalogue import ENVS, FILES
from regimen.config.fields import Positive
from regimen.config.flags import Row, field_docs, positional, rows_of
from regimen.config.regimen import describe, describe_budget, resolve
from regimen.config.schema import ALGORITHMS
from regimen.errors import ConfigError, EnvError, UsageError, nearest
from regimen.style import painted

COLOURS = {"ok": "green", "missing": "dim", "warning": "yellow", "error": "red"}  # of what `regimen doctor` says


@dataclass(frozen=True)
class EnvsArgs:
    """List the environments, or show one: its spaces and what --env.KEY can set."""

    name: str | None = positional("[NAME]", default=None)
    """An environment: a name of the list, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, object] = field(default_factory=dict)

    def __call__(self) -> None:
        if self.name is None:
            return list_envs()
        layers.check_env_name(self.name)

        from regimen import spaces
        from regimen.envs import registry

        env = registry.resolve(self.name, self.env_args)
        print(self.name)
        print(f"  observation         {spaces.describe(env.observation_space)}")
        print(f"  action              {spaces.describe(env.action_space)}")
        print(f"  reward components   {', '.join(env.reward_components)}")
        print(f"  max episode steps   {env.max_episode_steps or 'no limit'}")
        if env.return_threshold is not None:
            print(f"  solved at return    {env.return_threshold:g}")
        print(f"  baseline policies   {', '.join(dict.fromkeys(('random', *env.baselines)))}")
        for name, texts in getattr(env.native, "curricula", {}).items():
            print(f"  --curriculum {name:<15} {'; '.join(f'{field}: {text}' for field, text in texts.items())}")
        if not hasattr(env.native, "settings"):
            print("  --env.KEY VALUE     an argument of the environment's constructor, or max_episode_steps")
            return None
        for line in env.native.notes():  # type: ignore[union-attr]
            print(f"  {line}")
        docs = field_docs(type(env.native))
        for name, value in env.native.settings().items():  # type: ignore[union-attr]
            print(f"  --env.{name:<22} {value!s:<10} {docs.get(name, '')}".rstrip())
        return None


def list_envs() -> None:
    rows = {name: entry.description for name, entry in ENVS.items()} | {
        "gym:ID": "any installed Gymnasium environment, for example gym:LunarLander-v3",
        "gymnax:ID": "any gymnax environment, for example gymnax:Breakout-MinAtar",
        "envpool:ID": "any task of EnvPool, stepped in C++ threads, for example envpool:Pong-v5",
        **{f"{prefix}:{kind.file}": kind.description for prefix, kind in FILES.items()},
        "module:factory": "your own: a function or class that makes a native or a Gymnasium environment",
    }
    for name, description in rows.items():
        print(f"{name:<26} {description}")


@dataclass(frozen=True)
class AlgorithmsArgs:
    """List the algorithms, or the hyper-parameters of one."""

    name: str | None = positional("[NAME]", default=None)
    """An algorithm, to see its hyper-parameters."""

    def __call__(self) -> None:
        if self.name is None:
            for name, entry in ALGORITHMS.items():
                print(f"{name:<14} {entry.description}\n{'':<14} {entry.when}")
            return
        name = layers.check_algorithm(self.name)
        entry = ALGORITHMS[name]
        print(f"{name}: {entry.description}\n{entry.when}\n")
        for row in settings_of(entry.config(), "algo."):
            print(f"  --{row.name:<27} {row.default!s:<10} {row.help}")


def settings_of(section: Any, prefix: str) -> Iterator[Row]:
    """The settings of a section and of the sections in it."""
    for row in rows_of(type(section), section, prefix):
        if dataclasses.is_dataclass(row.default):
            yield from settings_of(row.default, f"{row.name}.")
        else:
            yield row


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets, or show one: its YAML and what it means."""

    name: str | None = positional("[NAME]", default=None)
    """A preset, an environment with tuned settings, or a file."""

    def __call__(self) -> None:
        tuned, general = presets.list_tuned(), presets.list_presets()
        if self.name is None:
            print("For any environment (--preset NAME):")
            for name, preset in general.items():
                print(f"  {name:<16} {preset.description}\n  {'':<16} {in_words(preset)}")
            print("\nTuned, the default of these environments (--preset tuned):")
            for name, preset in tuned.items():
                print(f"  {name:<24} {preset.description}")
            return
        if self.name in tuned or ":" in self.name:
            preset = presets.load_preset(presets.TUNED, self.name)
        elif self.name in general or self.name.endswith((".yaml", ".yml")):
            preset = presets.load_preset(self.name)
        else:
            raise ConfigError(f"unknown preset '{self.name}'{nearest(self.name, [*general, *tuned])}")
        print(f"# {in_words(preset)}")
        print(preset.path.read_text(encoding="utf-8").rstrip())


def in_words(preset: presets.Preset) -> str:
    """What a preset's settings mean: when it updates, with what, and its budget."""
    config = layers.from_preset(preset)
    limit = config.env_args.get("max_episode_steps")
    regimen = resolve(config, native=True, max_episode_steps=limit)
    return f"{describe(config, regimen)}; {describe_budget(config, regimen)} in all"


@dataclass(frozen=True)
class DoctorArgs:
    """Look at this installation: versions, devices, extras, compilation cache, disk, memory, browser; what is missing,
    and the command that gets it. The exit code is 1 where training cannot work here.

      regimen doctor
      regimen doctor --json
    """

    json: bool = False
    """Print the checks as JSON, and nothing else, on standard output."""
    timeout: Positive = 120.0
    """Seconds that jax has to find its devices."""

    def __call__(self) -> int:
        from regimen.reports import doctor

        findings = doctor.examine(self.timeout)
        if self.json:
            print(json.dumps([dataclasses.asdict(check) for check in findings], indent=2))
            return doctor.exit_code(findings)
        for line in doctor.lines(findings):
            state = line.partition(" ")[0]
            print(painted(state, COLOURS[state]) + line[len(state) :] if state in COLOURS else line)
        return doctor.exit_code(findings)


@dataclass(frozen=True)
class CompletionArgs:
    """Print a script that completes verbs, flags, environments, algorithms and presets.

    eval "$(regimen completion bash)"      in ~/.bashrc
    eval "$(regimen completion zsh)"       in ~/.zshrc, after compinit
    regimen completion fish > ~/.config/fish/completions/regimen.fish
    """

    shell: str = positional("SHELL")
    """`bash`, `zsh` or `fish`."""

    def __call__(self) -> None:
        from regimen.cli.shells import SHELLS, script

        if self.shell not in SHELLS:
            raise UsageError(f"no completion for '{self.shell}'{nearest(self.shell, SHELLS)}")
        print(script(self.shell), end="")


@dataclass(frozen=True)
class CheckEnvArgs:
    """Reset and step an environment and say what breaks its contract. Exit code 4 when something does."""

    env: str = positional("ENV")
    """A name of `regimen envs`, `gym:ID`, `gymnax:ID` or `module:factory`."""
    env_args: dict[str, object] = field(default_factory=dict)

    def __call__(self) -> int:
        from regimen.envs.check import check_env

        problems = check_env(self.env, self.env_args)
        for problem in problems:
            print(f"{problem.level}: {problem.message}")
        errors = any(problem.level == "error" for problem in problems)
        if not errors:
            print(f"{self.env}: ok")
            if reader := reader_of(self.env, self.env_args):
                print(reader)
        return EnvError.exit_code if errors else 0


def reader_of(env: str, env_args: dict[str, object]) -> str:
    """The line that a run begins with about the encoder of its observations; empty where they are plain numbers."""
    from regimen.config.schema import NetworkConfig
    from regimen.envs.registry import resolve
    from regimen.networks.choice import choose

    return choose(NetworkConfig(), resolve(env, env_args).observation_space).words
