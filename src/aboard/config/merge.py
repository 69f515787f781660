"""Several files as one, and overrides on top: a key in two files is an error, as in gpt-neox; `--set` wins over all."""

from functools import reduce
from typing import TYPE_CHECKING

from aboard.config.tree import Leaf, Table, Tree, read_scalar
from aboard.core.words import visible
from aboard.diagnoses import InputError, Problem, configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

NOTHING = Table(values={}, keys={}, where="")


def merge(tables: "Sequence[Table]") -> Table:
    """The union of the files; a value that two of them give is an error that names both places."""
    problems: list[Problem] = []
    merged = reduce(lambda one, two: _union(one, two, (), problems), tables, NOTHING)
    if problems:
        raise InputError(configuration.CONFIG_TWICE, problems)
    return merged


def override(table: Table, sets: "Sequence[str]") -> Table:
    """The tree with each `a.b=c` put in its place; a later one wins over an earlier one."""
    problems = [_malformed(text) for text in sets if not _path(text)]
    if problems:
        raise InputError(configuration.CONFIG_SET, problems)
    for text in sets:
        name, _, value = text.partition("=")
        # The value stays out of the place, which messages show: it may be a token.
        table = _put(table, _path(text), read_scalar(value, where=f"--set {visible(name)}"))
    return table


def _union(one: Table, two: Table, path: tuple[str, ...], problems: list[Problem]) -> Table:
    values = dict(one.values)
    for key, value in two.values.items():
        mine = values.get(key)
        if mine is None or (isinstance(value, Table) and _empty(mine)):
            values[key] = value
        elif isinstance(mine, Table) and _empty(value):
            continue
        elif isinstance(mine, Table) and isinstance(value, Table):
            values[key] = _union(mine, value, (*path, key), problems)
        else:
            problems.append(_both((*path, key), one.keys[key], two.keys[key]))
    return Table(values=values, keys={**two.keys, **one.keys}, where=one.where or two.where)


def _empty(tree: Tree) -> bool:
    """Whether it is a heading with nothing below, which says nothing about what another file has there."""
    return isinstance(tree, Leaf) and tree.value is None


def _both(path: tuple[str, ...], first: str, second: str) -> Problem:
    return Problem(
        where=second, seen=f"{visible('.'.join(path))} is also given at {first}", fix=configuration.CONFIG_TWICE.fix()
    )


def _path(text: str) -> tuple[str, ...]:
    name, equals, _ = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    return path if equals and all(path) else ()


def _malformed(text: str) -> Problem:
    return Problem(
        where="--set", seen=f"can't read '{visible(text.partition('=')[0])}'", fix=configuration.CONFIG_SET.fix("form")
    )


def _put(table: Table, path: tuple[str, ...], leaf: Leaf) -> Table:
    key, *rest = path
    value: Tree = leaf
    if rest:
        below = table.values.get(key, NOTHING)
        if not isinstance(below, Table) and not _empty(below):
            raise InputError(configuration.CONFIG_SET, [_no_section(leaf, key, table.keys[key])])
        value = _put(below if isinstance(below, Table) else NOTHING, tuple(rest), leaf)
    return Table(
        values={**table.values, key: value}, keys={**table.keys, key: leaf.where}, where=table.where or leaf.where
    )


def _no_section(leaf: Leaf, key: str, where: str) -> Problem:
    seen = f"'{visible(key)}' at {where} is a value, and has no keys below it"
    fix = configuration.CONFIG_SET.fix("section", file=where.rsplit(":", 2)[0])
    return Problem(where=leaf.where, seen=seen, fix=fix)
