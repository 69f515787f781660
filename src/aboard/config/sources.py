"""Sources of `data.files` that are mixed by weight: what can't be of several of them together."""

from collections.abc import Iterator

from aboard.config.data import source_name
from aboard.config.problems import find
from aboard.config.tree import Items, Leaf, Table, Tree
from aboard.core.words import visible
from aboard.diagnoses import Problem, configuration


def source_problems(tree: Table) -> list[Problem]:
    """What no entry shows by itself: one without a weight beside those that have one, and a name that comes twice."""
    files, _ = find(tree, ("data", "files"))
    if not isinstance(files, Items) or not any(isinstance(entry, Table) for entry in files.values):
        return []
    return [*_without_weight(files), *_twice(files)]


def _without_weight(files: Items) -> Iterator[Problem]:
    for entry in files.values:
        if isinstance(entry, Leaf) and isinstance(entry.value, str):
            seen = f"data.files: {visible(entry.text)} has no weight, and others have one"
            yield Problem(where=entry.where, seen=seen, fix=configuration.CONFIG.fix("weight", path=entry.text))


def _twice(files: Items) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for entry in files.values:
        if isinstance(entry, Table) and (found := _named(entry)) is not None:
            name, where = found
            if name in first:
                seen = f"data.files: '{visible(name)}' is also the name of the source at {first[name]}"
                yield Problem(where=where, seen=seen, fix=configuration.CONFIG.fix("source-name", name=name))
            first.setdefault(name, where)


def _named(entry: Table) -> tuple[str, str] | None:
    """By its key `name`, or by its first path; None where there is neither, which is told elsewhere."""
    if (name := _text(entry.values.get("name"))) is not None:
        return name
    path = entry.values.get("path")
    if isinstance(path, Items):
        path = path.values[0] if path.values else None
    found = _text(path)
    return None if found is None else (source_name(found[0]), found[1])


def _text(tree: Tree | None) -> tuple[str, str] | None:
    return (tree.value, tree.where) if isinstance(tree, Leaf) and isinstance(tree.value, str) else None
