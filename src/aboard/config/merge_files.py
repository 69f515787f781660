"""Merges several files and applies `--set`, which overrides all; a key in two files is an error, as in gpt-neox."""

from functools import reduce
from typing import TYPE_CHECKING

from aboard.config.yaml_tree import VERBATIM, Items, Leaf, Table, Tree, parse_list, parse_scalar
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

EMPTY_TABLE = Table(values={}, keys={}, where="")


def merge_tables(tables: "Sequence[Table]") -> Table:
    """The union of the files; a value in two of them is an error that names both positions."""
    problems: list[Problem] = []
    merged = reduce(lambda one, two: _merge_two(one, two, (), problems), tables, EMPTY_TABLE)
    if problems:
        raise InputError(configuration.CONFIG_TWICE, problems)
    return merged


def apply_overrides(table: Table, sets: "Sequence[str]") -> Table:
    """The tree with each `a.b=c` applied; later ones override earlier ones."""
    problems = [_build_malformed_problem(text) for text in sets if not _parse_path(text)]
    if problems:
        raise InputError(configuration.CONFIG_SET, problems)
    for text in sets:
        name, _, value = text.partition("=")
        # The position must not contain the value: messages show it, and it may be a secret.
        where, path = f"--set {escape_text(name)}", _parse_path(text)
        is_list = value.startswith("[") and value.endswith("]") and not VERBATIM.intersection(path)
        tree = parse_list(value, where=where) if is_list else parse_scalar(value, where=where)
        table = _put_value(table, path, tree)
    return table


def _merge_two(one: Table, two: Table, path: tuple[str, ...], problems: list[Problem]) -> Table:
    values = dict(one.values)
    for key, value in two.values.items():
        mine = values.get(key)
        if mine is None or (isinstance(value, Table) and _is_empty(mine)):
            values[key] = value
        elif isinstance(mine, Table) and _is_empty(value):
            continue
        elif isinstance(mine, Table) and isinstance(value, Table):
            values[key] = _merge_two(mine, value, (*path, key), problems)
        else:
            seen = f"{escape_text('.'.join((*path, key)))} is also set at {one.keys[key]}"
            problems.append(Problem(where=two.keys[key], seen=seen, fix=configuration.CONFIG_TWICE.fix()))
    return Table(values=values, keys={**two.keys, **one.keys}, where=one.where or two.where)


def _is_empty(tree: Tree) -> bool:
    """Whether it is a key without a value, which does not conflict with another file."""
    return isinstance(tree, Leaf) and tree.value is None


def _parse_path(text: str) -> tuple[str, ...]:
    name, equals, _ = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    return path if equals and all(path) else ()


def _build_malformed_problem(text: str) -> Problem:
    key = text.partition("=")[0]
    return Problem(
        where="--set",
        seen=f"'{escape_text(key)}' is not KEY=VALUE",
        fix=configuration.CONFIG_SET.fix("form", key=key if all(key.split(".")) else "cluster.slots"),
    )


def _put_value(table: Table, path: tuple[str, ...], leaf: Leaf | Items) -> Table:
    key, *rest = path
    value: Tree = leaf
    if rest:
        below = table.values.get(key, EMPTY_TABLE)
        if not isinstance(below, Table) and not _is_empty(below):
            where = table.keys[key]
            seen = f"'{escape_text(key)}' at {where} is a value, not a section"
            raise InputError.of(configuration.CONFIG_SET, leaf.where, seen, "section", file=where.rsplit(":", 2)[0])
        value = _put_value(below if isinstance(below, Table) else EMPTY_TABLE, tuple(rest), leaf)
    return Table(
        values={**table.values, key: value}, keys={**table.keys, key: leaf.where}, where=table.where or leaf.where
    )
