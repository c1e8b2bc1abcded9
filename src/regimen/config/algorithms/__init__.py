"""One file for each algorithm: its hyper-parameters, and the `ENTRY` that makes it one of `regimen algorithms`."""

import importlib
import pkgutil

from regimen.config.domains import AlgorithmEntry


def entries(first: str) -> dict[str, AlgorithmEntry]:
    """The algorithms of this folder by name: `first`, then those that others build on, then the others."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    every = {name: importlib.import_module(f"{__name__}.{name}").ENTRY for name in sorted(names)}
    return dict(sorted(every.items(), key=lambda item: (item[0] != first, len(item[1].config.__mro__))))
