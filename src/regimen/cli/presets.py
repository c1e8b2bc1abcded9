"""`regimen presets [NAME]`: the presets, or one's file and its meaning in words."""

from __future__ import annotations

from dataclasses import dataclass

from regimen.config import layers, presets
from regimen.config.flags import parse, positional
from regimen.config.regimen import describe, describe_budget, resolve
from regimen.errors import ConfigError, nearest


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets, or show one: its YAML and what it means."""

    name: str | None = positional("[NAME]", default=None)
    """A preset, an environment with tuned settings, or a file."""


def in_words(preset: presets.Preset) -> str:
    config = layers.from_preset(preset)
    limit = config.env_args.get("max_episode_steps")
    words = describe(config, resolve(config, native=True, max_episode_steps=limit))
    return f"{words}; {describe_budget(config)} in all"


def run(argv: list[str]) -> int:
    args = parse(PresetsArgs, argv, "presets")
    tuned = presets.list_tuned()
    if args.name is None:
        print("For any environment (--preset NAME):")
        for name, preset in presets.list_presets().items():
            print(f"  {name:<16} {preset.description}\n  {'':<16} {in_words(preset)}")
        print("\nTuned, the default of these environments (--preset tuned):")
        for name, preset in tuned.items():
            print(f"  {name:<24} {preset.description}")
        return 0
    if args.name in tuned or ":" in args.name:
        preset = presets.load_preset(presets.TUNED, args.name)
    elif args.name in presets.list_presets() or args.name.endswith((".yaml", ".yml")):
        preset = presets.load_preset(args.name)
    else:
        raise ConfigError(f"unknown preset '{args.name}'{nearest(args.name, [*presets.list_presets(), *tuned])}")
    print(f"# {in_words(preset)}")
    print(preset.path.read_text(encoding="utf-8").rstrip())
    return 0
