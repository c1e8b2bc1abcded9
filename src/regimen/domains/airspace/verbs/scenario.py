"""`regimen scenario new|show|list`: airspace scenarios as files."""

from dataclasses import dataclass
from pathlib import Path

from regimen.config.flags import parse, parse_scalar, positional
from regimen.errors import UsageError, nearest

ACTIONS = ("new", "show", "list")


@dataclass(frozen=True)
class ScenarioArgs:
    """Write, look at or list airspace scenarios.

      regimen scenario list
      regimen scenario new cross_4all --param radius_nm=20 --param speed_kt=240 --out X.json
      regimen scenario show X.json
      regimen train airspace:X.json

    `show` prints what happens without any command and writes a picture.
    """

    action: str = positional("new|show|list")
    """What to do."""
    name: str | None = positional("[NAME]", default=None)
    """new: a family; show: a name of the list or a JSON file; list: a family whose parameters to show."""
    param: str | None = None
    """new: KEY=VALUE; may be given several times."""
    out: str | None = None
    """new: the JSON file (NAME.json); show: the picture (NAME.png)."""


def run(argv: list[str]) -> int:
    args = parse(ScenarioArgs, argv, "scenario")
    if args.action not in ACTIONS:
        raise UsageError(f"unknown action '{args.action}'{nearest(args.action, ACTIONS)}")

    from regimen.domains.airspace import library

    if args.action == "list":
        for line in library.listing(args.name):
            print(line)
        return 0
    if args.name is None:
        what = "a family" if args.action == "new" else "a name or a JSON file"
        raise UsageError(f"regimen scenario {args.action} needs {what}; see `regimen scenario list`")
    if args.action == "new":
        scenario = library.make(args.name, **parameters(argv))
        print(scenario.save(args.out or f"{args.name}.json"))
        return 0

    from regimen.domains.airspace import show
    from regimen.domains.airspace.env import Airspace
    from regimen.domains.airspace.files import load

    file = load(args.name)
    env = Airspace(scenario=args.name, reward="compat")
    state, rows = show.no_op(env)
    print("\n".join(show.report(file, state, rows)))
    print(show.picture(env, state, rows, Path(args.out or f"{Path(args.name).stem}.png")))
    return 0


def parameters(argv: list[str]) -> dict[str, float | str]:
    """All `--param KEY=VALUE` of a command line."""
    pairs = [argv[i + 1] for i, token in enumerate(argv[:-1]) if token == "--param"]
    pairs += [token.removeprefix("--param=") for token in argv if token.startswith("--param=")]
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--param {pair}: write KEY=VALUE")
        values[key.replace("-", "_")] = parse_scalar(value)
    return values
