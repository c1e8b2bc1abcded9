"""`regimen algorithms [NAME]`: the algorithms, or one's hyper-parameters."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from regimen.config.flags import field_docs, parse, positional
from regimen.config.layers import check_algorithm
from regimen.config.schema import ALGORITHMS


@dataclass(frozen=True)
class AlgorithmsArgs:
    """List the algorithms, or the hyper-parameters of one."""

    name: str | None = positional("[NAME]", default=None)
    """An algorithm, to see its hyper-parameters."""


def run(argv: list[str]) -> int:
    args = parse(AlgorithmsArgs, argv, "algorithms")
    if args.name is None:
        for name, entry in ALGORITHMS.items():
            print(f"{name:<14} {entry.description}")
            print(f"{'':<14} {entry.when}")
        return 0
    entry = ALGORITHMS[check_algorithm(args.name)]
    print(f"{args.name}: {entry.description}\n{entry.when}\n")
    docs = field_docs(entry.config)
    for f in dataclasses.fields(entry.config):
        print(f"  --algo.{f.name.replace('_', '-'):<22} {f.default!s:<10} {docs.get(f.name, '')}")
    return 0
