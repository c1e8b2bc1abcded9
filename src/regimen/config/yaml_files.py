"""YAML that may come from a stranger: plain data, and no aliases that make gigabytes of a few lines. Jax-free."""

from typing import Any

import yaml

from regimen.config.trust import Named

yaml.SafeDumper.add_representer(Named, yaml.SafeDumper.represent_str)  # written, it is text like any other
LONGEST = 1_000_000  # characters
MOST = 100_000  # values in a file, counted as often as aliases repeat them


def load(text: str) -> Any:
    """The data in a YAML text; a `yaml.YAMLError` where it is none, or stands for too much."""
    if len(text) > LONGEST:
        raise yaml.YAMLError(f"it has more than {LONGEST:,} characters")
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if values_in(node, {}) > MOST:
            raise yaml.YAMLError(f"its aliases stand for more than {MOST:,} values")
        return loader.construct_document(node)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error
    except (ValueError, TypeError, OverflowError) as error:  # 2026-99-99 is no date, and a list no key
        raise yaml.YAMLError(f"{type(error).__name__}: {error}") from error
    finally:
        loader.dispose()


def values_in(node: yaml.Node, counts: dict[int, int]) -> int:
    """How many values a node stands for, aliases written out; `counts` are those of nodes met before."""
    if id(node) not in counts:
        counts[id(node)] = MOST + 1  # met again below itself: it would never end
        children: list[Any] = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
        counts[id(node)] = min(MOST + 1, 1 + sum(values_in(part, counts) for part in parts))
    return counts[id(node)]
