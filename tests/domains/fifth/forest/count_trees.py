"""`regimen count-trees NUMBER`."""

from dataclasses import dataclass

from regimen.config.flags import parse, positional


@dataclass(frozen=True)
class CountTreesArgs:
    """Say how many trees there are."""

    number: int = positional("NUMBER")
    """How many."""


def count(number: int) -> str:
    return f"{number} trees"


def run(argv: list[str]) -> int:
    print(count(parse(CountTreesArgs, argv, "count-trees").number))
    return 0
