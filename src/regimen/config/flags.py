"""Reading a verb's arguments, and its `--help`. The flags are a dataclass; the docstring under a field is its help.

Values are read by the same `coerce` as YAML and Python settings, so `1e6` is a whole number everywhere. Tyro draws the
help page and is imported only for it.
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, TypeVar

from regimen.config.lookup import normalize_key
from regimen.config.names import equivalent
from regimen.config.validation import FALSE, TRUE, field_types, optional, read_field
from regimen.errors import UsageError, nearest
from regimen.style import painted

Args = TypeVar("Args")
NUMBER = re.compile(r"[-+]?[0-9.][0-9._eE+-]*")
ENV_HELP = "Set a field of a native environment or an argument of gym.make; `regimen envs NAME` lists the fields."


def positional(metavar: str, **kwargs: Any) -> Any:
    """A dataclass field that is given by its place instead of a flag."""
    return dataclasses.field(metadata={"positional": metavar}, **kwargs)


def renamed(flag: str, **kwargs: Any) -> Any:
    """A dataclass field whose flag has a name that is a word of Python: `--in`, `--as`. Of a dict, a flag for each key
    (`--in.KEY VALUE`)."""
    return dataclasses.field(metadata={"flag": flag}, **kwargs)


def flag_of(f: dataclasses.Field) -> str:
    """The name of a field's flag, as a key."""
    return f.metadata.get("flag", f.name)


def parse_scalar(text: str) -> Any:
    """The value of `--env.KEY`: a YAML scalar or list, with `1e6` a number.

    >>> [parse_scalar(t) for t in ("1e3", "0.5", "true", "none", "human", "[1, 1e-2]")]
    [1000, 0.5, True, None, 'human', [1, 0.01]]
    """
    import yaml

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(v) for v in value]
        if isinstance(value, dict):
            return {k: number(v) for k, v in value.items()}
        if not isinstance(value, str):
            return value
        if value.lower() in ("none", "null", "~"):
            return None
        if re.fullmatch(r"[-+]?[0-9][0-9_]*([eE]\+?[0-9]+)?", value):
            return int(float(value)) if "e" in value.lower() else int(value)
        if re.fullmatch(r"[-+]?([0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9]+)?", value):
            return float(value)
        return value

    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not text.startswith(("[", "{")):  # not YAML's idea of 1:30, no and 2001-01-01
        return number(text)
    try:
        return number(yaml.safe_load(text))
    except yaml.YAMLError:
        return text


@dataclass(frozen=True)
class Tokens:
    """What a command line said, values still as text."""

    positionals: list[str]
    values: dict[str, Any]
    sections: dict[str, dict[str, Any]]
    unknown: list[tuple[str, str | None]]  # flags that there are not, as written, with what follows them

    @property
    def env_args(self) -> dict[str, Any]:
        return self.sections["env_args"]


def read_tokens(argv: list[str], find: Callable[[str], tuple[str, Any] | None], sections: Sequence[str] = ()) -> Tokens:
    """Sort `argv` into places, flags and `--env.KEY` pairs, or those of other `sections`.

    `find` gives the (key, type) that a flag's name stands for.
    """
    tokens = Tokens([], {}, {name: {} for name in ("env_args", *sections)}, [])
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if token == "--":
            tokens.positionals.extend(rest)
            break
        if not token.startswith("-") or token == "-":
            tokens.positionals.append(token)
            continue
        name, equals, value = token.lstrip("-").partition("=")
        key = normalize_key(name)
        section, dot, inner = key.partition(".")
        if dot and section in tokens.sections and token.startswith("--"):
            text = value if equals else _value(rest, token)
            tokens.sections[section][inner] = parse_scalar(text)
            continue
        setting, negated = find(key) if token.startswith("--") else None, False
        if setting is None and (head := key.rpartition(".")) and head[2].startswith("no_"):
            setting = find(f"{head[0]}{head[1]}{head[2].removeprefix('no_')}")
            negated = True
            if setting is not None and optional(setting[1])[0] is not bool:
                setting = None
        if setting is None:
            tokens.unknown.append((token.partition("=")[0], value if equals else _following(rest)))
            continue
        key, hint = setting
        kind = optional(hint)[0]
        if negated:
            if equals:
                raise UsageError(f"--{name} takes no value")
            tokens.values[key] = False
        elif equals:
            tokens.values[key] = value
        elif kind is bool:
            tokens.values[key] = rest.pop(0) if rest and rest[0].lower() in TRUE + FALSE else True
        elif typing.get_origin(kind) in (tuple, list):
            items = [_value(rest, token)]
            while rest and NUMBER.fullmatch(rest[0]):
                items.append(rest.pop(0))
            tokens.values[key] = " ".join(items)
        else:
            tokens.values[key] = _value(rest, token)
    return tokens


def _following(rest: list[str]) -> str | None:
    """What follows a flag that there is not, taken from `rest`: a word, or all of a list of numbers."""
    if not rest or (rest[0].startswith("-") and not NUMBER.fullmatch(rest[0])):
        return None
    items = [rest.pop(0)]
    while rest and NUMBER.fullmatch(items[0]) and NUMBER.fullmatch(rest[0]):
        items.append(rest.pop(0))
    return " ".join(items)


def unknown_flags(hints: list[tuple[str, str]]) -> UsageError:
    """The error about flags that do not exist: their names, and what is to be said of each."""
    if len(hints) == 1:
        return UsageError(f"unknown flag '{hints[0][0]}'{hints[0][1]}")
    answers = [f"{name}{hint.replace(';', ':', 1)}" for name, hint in hints]
    return UsageError(f"unknown flags; {'; '.join(answers)}")


def _value(rest: list[str], token: str) -> str:
    if not rest or rest[0].startswith("--"):
        raise UsageError(f"{token} needs a value{equivalent('without a value', normalize_key(token.lstrip('-')))}")
    return rest.pop(0)


def wants_help(argv: list[str]) -> bool:
    return any(token in ("-h", "--help") for token in argv)


def parse(cls: type[Args], argv: list[str], verb: str) -> Args:
    """The verb's arguments as its dataclass; `--help` prints and ends the process."""
    if wants_help(argv):
        print_help(f"regimen {verb}", inspect.getdoc(cls) or "", rows_of(cls))
        raise SystemExit(0)
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = field_types(cls)
    places = [f for f in fields.values() if "positional" in f.metadata]
    sections = {flag_of(f): n for n, f in fields.items() if typing.get_origin(hints[n]) is dict}
    flags = {flag_of(f): (n, hints[n]) for n, f in fields.items() if f not in places and n not in sections.values()}

    tokens = read_tokens(argv, flags.get, tuple(sections))
    if tokens.unknown:
        raise unknown_flags([(flag, hint_of(flag, verb, list(flags))) for flag, _ in tokens.unknown])
    if tokens.env_args and "env_args" not in fields:
        raise UsageError(f"regimen {verb} takes no --env.{next(iter(tokens.env_args))}")
    values = dict(tokens.values)
    arguments = tokens.positionals
    if places and typing.get_origin(hints[places[-1].name]) is tuple and len(arguments) >= len(places):
        values[places[-1].name] = tuple(arguments[len(places) - 1 :])  # the last place takes the rest
        arguments = arguments[: len(places) - 1]
    for f, text in zip(places, arguments):
        values[f.name] = text
    if len(arguments) > len(places):
        raise UsageError(f"unexpected argument '{tokens.positionals[len(places)]}'; see `regimen {verb} --help`")
    for f in places:
        if f.name not in values and f.default is dataclasses.MISSING:
            what = f.metadata["positional"]
            raise UsageError(f"regimen {verb} needs {what}; see `regimen {verb} --help`")
    for name, value in values.items():
        flag = name if fields[name] in places else "--" + flag_of(fields[name]).replace("_", "-")
        values[name] = read_field(cls, name, value, flag)
    return cls(**values, **{name: tokens.sections[key] for key, name in sections.items()})


def hint_of(flag: str, verb: str, names: list[str]) -> str:
    """The end of an error about a flag that a verb has not: what it is here, or the nearest of its flags."""
    key = flag.lstrip("-").replace("-", "_")
    near = nearest(key.replace("_", "-"), [name.replace("_", "-") for name in names]).replace("mean '", "mean '--")
    return equivalent(f"regimen {verb}", key) or near


@dataclass(frozen=True)
class Row:
    """A line of help."""

    name: str  # with dashes and dots, or the place's name
    hint: Any
    help: str
    default: Any = None
    metavar: str | None = None
    place: bool = False

    def note(self) -> str:
        """What the flag is when it is not given."""
        if self.place or self.name.endswith(".KEY"):
            return ""
        if optional(self.hint)[0] is bool:
            return "(on)" if self.default else "(off)"
        if self.default is None:
            return "(not set)"
        if isinstance(self.default, (tuple, list)):
            return f"(default: {' '.join(str(v) for v in self.default)})"
        return f"(default: {self.default:g})" if isinstance(self.default, float) else f"(default: {self.default})"


def field_docs(cls: type) -> dict[str, str]:
    """Field name -> the docstring under it, on one line."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base))) if dataclasses.is_dataclass(base) else None
        except (OSError, TypeError, SyntaxError):  # defined in a shell
            continue
        body = tree.body[0].body if tree and isinstance(tree.body[0], ast.ClassDef) else []
        for line, following in pairwise(body):
            if (
                isinstance(line, ast.AnnAssign)
                and isinstance(line.target, ast.Name)
                and isinstance(following, ast.Expr)
                and isinstance(following.value, ast.Constant)
            ):
                docs[line.target.id] = " ".join(str(following.value.value).split())
    return docs


def rows_of(cls: type, default: Any = None, prefix: str = "") -> list[Row]:
    """Help lines of a dataclass; the defaults come from the object `default` where given."""
    docs, hints, rows = field_docs(cls), field_types(cls), []
    for f in dataclasses.fields(cls):  # type: ignore[arg-type]
        if f.name == "env_args":
            rows.append(Row("env.KEY", str, ENV_HELP, metavar="VALUE"))
            continue
        start = f.default if f.default is not dataclasses.MISSING else None
        value = start if default is None else getattr(default, f.name)
        place = f.metadata.get("positional")
        name = place or prefix + flag_of(f).replace("_", "-")
        if typing.get_origin(hints[f.name]) is dict:
            rows.append(Row(f"{name}.KEY", str, docs.get(f.name, ""), metavar="VALUE"))
            continue
        rows.append(Row(name, hints[f.name], docs.get(f.name, ""), value, place, bool(place)))
    return rows


def print_help(prog: str, description: str, rows: list[Row], sections: dict[str, tuple[str, list[Row]]] | None = None):
    """Draw a help page: the rows, then one box per section (name -> description, rows), then examples: the indented
    commands of the description, and those of `examples.py`."""
    import tyro

    from regimen.config.examples import EXAMPLES

    examples = [line for line in description.splitlines() if re.match(r"\s*(regimen|eval) ", line)]
    description = "\n".join(line for line in description.splitlines() if line not in examples).strip()
    examples = [line.strip() for line in examples] + list(EXAMPLES.get(prog.removeprefix("regimen "), ()))

    def view(name: str, lines: list[Row], doc: str = "", pairs: bool = False) -> type:
        fields: list[Any] = []
        for i, row in enumerate(lines):
            kind, _ = optional(row.hint)
            names = {int: "INT", float: "NUMBER", str: "TEXT"}
            metavar = row.metavar or names.get(kind)
            if typing.get_origin(kind) is tuple:
                metavar = row.metavar or "INT ..."
            marks: list[Any] = [
                tyro.conf.arg(name=row.name, help=row.help or None, metavar=metavar, help_behavior_hint=row.note())
            ]
            if row.place:
                marks.append(tyro.conf.Positional)
            elif kind is bool and not pairs:
                marks.append(tyro.conf.FlagCreatePairsOff)
            hint = Annotated[(kind, *marks)] if row.default is not None else Annotated[(kind | None, *marks)]
            default = row.default if not isinstance(row.default, list) else tuple(row.default)
            fields.append((f"field_{i}", hint, dataclasses.field(default=default)))
        page_part = dataclasses.make_dataclass(name, fields)
        page_part.__doc__ = doc
        return page_part

    debug = Row("debug", bool, "Show the traceback of an error.", default=False)
    trust = Row("trust", bool, "Run the code that a file names, even if it is not installed.", default=False)
    top = view("Options", [*rows, debug, trust])
    fields: list[Any] = []
    for section, (doc, lines) in (sections or {}).items():
        short = [dataclasses.replace(r, name=r.name.removeprefix(section + ".")) for r in lines]
        page_part = view(section, short, doc, pairs=True)
        fields.append((section, page_part, dataclasses.field(default_factory=page_part)))
    page = dataclasses.make_dataclass("Page", fields, bases=(top,)) if fields else top
    page.__doc__ = description
    try:
        tyro.cli(page, prog=prog, description=description, args=["--help"])
    except SystemExit:
        if examples:
            print("\n".join([painted("examples:", "bold"), *(f"  {line}" for line in examples)]))
        sys.stdout.flush()
