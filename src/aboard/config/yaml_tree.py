"""Parses YAML into a tree that has the position of each value.

The rules are YAML 1.2's core schema, not PyYAML's 1.1: `2e-5` and `1e6` are numbers, `on`, `yes` and `12:30` are text.
Refused, within a second: duplicate keys, tags, more than MAX_CHARACTERS, MAX_WRITTEN values or MAX_DEPTH levels, and
documents that exceed MAX_VALUES when their aliases are expanded (the "billion laughs" attack).
"""

import re
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

# Scalars below these keys keep their text.
VERBATIM = frozenset({"env"})
MAX_DEPTH = 32
MAX_VALUES = 100_000
# PyYAML reads 20,000 values in a second.
MAX_WRITTEN = 20_000
MAX_CHARACTERS = 512 * 1024


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """A scalar: its value, its text, its position, and the directory that a relative path in it starts from."""

    value: Any
    text: str
    where: str
    base: str = "."


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list and its position."""

    values: "tuple[Tree, ...]"
    where: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A mapping, its position, and the position of each key."""

    values: "Mapping[str, Tree]"
    keys: "Mapping[str, str]"
    where: str


Tree: TypeAlias = Leaf | Items | Table


def parse_tree(text: str, *, file: str, base: str = ".") -> Table:
    """The file's mapping, empty for an empty file. Raises InputError with all problems."""
    if len(text) > MAX_CHARACTERS:
        raise _build_size_error(file, f"has {len(text):,} characters; the limit is {MAX_CHARACTERS:,}")
    try:
        top = yaml.compose(text, Loader=_Loader)
    except _TooManyValues:
        raise _build_size_error(file, f"has more than {MAX_WRITTEN:,} values") from None
    except _TooDeep as error:
        raise _build_depth_error(f"{file}:{error.args[0]}") from None
    except yaml.YAMLError as error:
        raise _build_syntax_error(error, text, file) from None
    except (ValueError, OverflowError) as error:  # PyYAML, for escapes such as "\\UFFFFFFFF" that are not a character
        seen = f"not valid YAML: {escape_text(str(error))}"
        raise InputError.of(configuration.YAML, file, seen, "escapes") from None
    if top is None:
        return Table(values={}, keys={}, where=file)
    reader = _Reader(file, base)
    tree = reader.tree(top, 0)
    if reader.problems:
        raise InputError(configuration.YAML, reader.problems)
    if not isinstance(tree, Table):
        seen = "the file is not a mapping of keys to values"
        raise InputError.of(configuration.YAML, tree.where, seen, "no-mapping")
    return tree


def parse_scalar(text: str, *, where: str) -> Leaf:
    """The text as a YAML scalar, for a value on the command line."""
    tag = _Loader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # stub gap
    return Leaf(value=_convert_scalar(tag, text), text=text, where=where)


def parse_list(text: str, *, where: str) -> "Items | Leaf":
    """The text as a YAML list, for a value on the command line; every problem and item has the option's position."""
    try:
        tree = parse_tree(f"list: {text}", file=where)
    except InputError as error:
        problems = [Problem(where=where, seen=each.seen, fix=each.fix) for each in error.problems]
        raise InputError(configuration.YAML, problems) from None
    moved: Items | Leaf = _move_tree(tree.values["list"], where)
    return moved


def _move_tree(tree: Tree, where: str) -> Any:
    if isinstance(tree, Leaf):
        return Leaf(value=tree.value, text=tree.text, where=where)
    if isinstance(tree, Items):
        return Items(values=tuple(_move_tree(each, where) for each in tree.values), where=where)
    values = {key: _move_tree(value, where) for key, value in tree.values.items()}
    return Table(values=values, keys=dict.fromkeys(values, where), where=where)


def convert_to_builtins(tree: Tree, *, verbatim: frozenset[str] = frozenset(), as_text: bool = False) -> Any:
    """Converts a tree to dicts, lists and scalars; scalars below the keys in `verbatim` keep their text.

    `010`, `1e-5` and `yes` in an environment variable are text, whatever they are in YAML.
    """
    if isinstance(tree, Table):
        return {
            key: convert_to_builtins(value, verbatim=verbatim, as_text=as_text or key in verbatim)
            for key, value in tree.values.items()
        }
    if isinstance(tree, Items):
        return [convert_to_builtins(value, verbatim=verbatim, as_text=as_text) for value in tree.values]
    return tree.text if as_text and tree.value is not None else tree.value


class _TooDeep(Exception):
    """Internal to this file; carries the line."""


class _TooManyValues(Exception):
    """Internal to this file."""


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars, which stops at MAX_WRITTEN and MAX_DEPTH, before Python's own stack ends."""

    yaml_implicit_resolvers: "dict[Any, Any]" = {}  # noqa: RUF012  PyYAML's own attribute

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth = getattr(self, "depth", -1) + 1
        self.values = getattr(self, "values", 0) + 1
        if self.values > MAX_WRITTEN:
            raise _TooManyValues
        if self.depth > MAX_DEPTH:
            raise _TooDeep(self.line + 1)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


_CORE_SCHEMA = {  # https://yaml.org/spec/1.2.2/#1032-tag-resolution
    "null": (r"null|Null|NULL|~|", [*"nN~", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", [*"-+0123456789"]),
    "float": (
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        [*"-+.0123456789"],
    ),
}
_TAG = "tag:yaml.org,2002:"
for _name, (_pattern, _first) in _CORE_SCHEMA.items():
    # `\Z`, because `$` would allow a newline; int comes before float, which would match it too.
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"(?:{_pattern})\Z"), _first)

_SCALARS = frozenset(f"{_TAG}{name}" for name in (*_CORE_SCHEMA, "str"))
_BOOLEANS = {"true": True, "false": False}
_MAX_INT_TEXT = 64


class _Reader:
    """Converts PyYAML's node graph to a tree; collects all problems in `problems`."""

    def __init__(self, file: str, base: str) -> None:
        self.file = file
        self.base = base
        self.problems: list[Problem] = []
        self._values = 0

    def tree(self, node: yaml.Node, depth: int) -> Tree:
        where = self._where(node)
        self._values += 1
        if self._values > MAX_VALUES:
            seen = f"the file has more than {MAX_VALUES:,} values once its aliases are expanded"
            raise InputError.of(configuration.YAML, self.file, seen, "aliases")
        if depth > MAX_DEPTH:  # an alias to one of its own parents
            raise _build_depth_error(where)
        if isinstance(node, yaml.MappingNode):
            return self._table(node, where, depth)
        if isinstance(node, yaml.SequenceNode):
            self._tag(node, "seq", where)
            return Items(values=tuple(self.tree(value, depth + 1) for value in node.value), where=where)
        return self._leaf(node, where)

    def _table(self, node: yaml.MappingNode, where: str, depth: int) -> Table:
        self._tag(node, "map", where)
        values: dict[str, Tree] = {}
        keys: dict[str, str] = {}
        for key, value in node.value:
            place = self._where(key)
            if not isinstance(key, yaml.ScalarNode):
                self._problem(place, "a key must be plain text, not a list or a mapping", "key")
            elif key.value in values:
                line = keys[key.value].rsplit(":", 2)[1]
                self._problem(place, f"the key '{escape_text(key.value)}' is already on line {line}", "twice")
            else:
                keys[key.value] = place
                values[key.value] = self.tree(value, depth + 1)
        return Table(values=values, keys=keys, where=where)

    def _leaf(self, node: yaml.Node, where: str) -> Leaf:
        if node.tag not in _SCALARS:
            self._tag(node, "str", where)
        try:
            value = _convert_scalar(node.tag, node.value)
        except ValueError:
            seen = f"'{escape_text(node.value, 20)}' is not a valid {node.tag.removeprefix(_TAG)}"
            self._problem(where, seen, "plain")
            value = None
        return Leaf(value=value, text=node.value, where=where, base=self.base)

    def _tag(self, node: yaml.Node, plain_tag: str, where: str) -> None:
        if node.tag != f"{_TAG}{plain_tag}":
            seen = f"the tag '{escape_text(node.tag.replace(_TAG, '!!'))}' is not allowed"
            self._problem(where, seen, "tag")

    def _problem(self, where: str, seen: str, fix: str) -> None:
        self.problems.append(Problem(where=where, seen=seen, fix=configuration.YAML.fix(fix)))

    def _where(self, node: yaml.Node) -> str:
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _convert_scalar(tag: str, text: str) -> Any:
    kind = tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if (kind == "bool" and text.lower() not in _BOOLEANS) or (kind == "int" and len(text) > _MAX_INT_TEXT):
        raise ValueError(text)
    if kind == "bool":
        return _BOOLEANS[text.lower()]
    if kind == "int":
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if kind == "float":
        return float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))
    return text


def _build_size_error(file: str, seen: str) -> InputError:
    return InputError.of(configuration.YAML, file, seen, "size")


def _build_depth_error(where: str) -> InputError:
    return InputError.of(configuration.YAML, where, f"the YAML has more than {MAX_DEPTH} levels of nesting", "deep")


def _build_syntax_error(error: yaml.YAMLError, text: str, file: str) -> InputError:
    mark = getattr(error, "problem_mark", None)
    where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
    if isinstance(error, yaml.reader.ReaderError):
        where = f"{file}:{text[: error.position].count(chr(10)) + 1}"
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    excerpt = mark.get_snippet(indent=4, max_length=100) if mark else None
    seen = f"not valid YAML: {escape_text(reason, 200)}" + (f"\n{excerpt}" if excerpt else "")
    is_node_set = "'['" in reason or "expected ',' or ']'" in reason
    fix = "tabs" if "\\t" in reason else "node-set" if is_node_set else "indentation"
    return InputError.of(configuration.YAML, where, seen, fix)
