"""aboard.yaml files and `--set` overrides to one checked document, with every mistake at its place."""

import ast
import inspect
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aboard.config.data import source_name
from aboard.config.merge import merge, override
from aboard.config.problems import find, line_of, problems_of
from aboard.config.read import read_text
from aboard.config.section import Section
from aboard.config.sections import Document
from aboard.config.tree import VERBATIM, Items, Leaf, Table, Tree, plain, read_tree
from aboard.core.words import visible
from aboard.diagnoses import InputError, Problem, configuration
from aboard.lazy import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, kw_only=True)
class Written:
    """A checked document, and the tree it was read from, for the places of its values."""

    document: Document
    tree: Table

    def where(self, *path: int | str) -> str:
        """The place of a value, or of the nearest thing around it."""
        return find(self.tree, path)[0].where

    def base(self, *path: int | str) -> str:
        """The directory that a relative path in this value starts from."""
        found = find(self.tree, path)[0]
        return found.base if isinstance(found, Leaf) else "."


def load_document(files: "Sequence[str]", sets: "Sequence[str]" = ()) -> Written:
    """Reads, merges and overrides; raises InputError with all problems at once."""
    tables: list[Table] = []
    problems: list[Problem] = []
    for file in files:
        try:
            text = read_text(file, fix=configuration.FILE.fix("config"))
            tables.append(read_tree(text, file=file, base=str(Path(file).parent)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(configuration.CONFIG, problems)
    tree = override(merge(tables), sets)
    wrong = source_problems(tree)
    try:
        document = Document.model_validate(plain(tree, verbatim=VERBATIM))
    except ValidationError as error:
        wrong += problems_of(error, tree, Document)
    if wrong:
        raise InputError(configuration.CONFIG, sorted(wrong, key=lambda problem: line_of(problem.where)))
    return Written(document=document, tree=tree)


def schema() -> str:
    """The JSON schema of aboard.yaml, for editors."""
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}
    sections = {section.__name__: section for section in _sections(Section)}
    _describe(found, Document)
    for name, definition in found["$defs"].items():
        _describe(definition, sections[name])
    return json.dumps(found, indent=2) + "\n"


def _sections(section: type[Section]) -> "Iterator[type[Section]]":
    for each in section.__subclasses__():
        yield each
        yield from _sections(each)


def _describe(definition: dict[str, Any], section: type[Section]) -> None:
    """Puts the text behind each field of a section, or of one that it inherits from, into its description."""
    for each in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (tree,) = ast.parse(inspect.getsource(each)).body
        assert isinstance(tree, ast.ClassDef)  # noqa: S101 - the source of a class
        for field, text in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                name = ast.unparse(field.target)
                described = {**definition["properties"][name], "description": inspect.cleandoc(str(text.value.value))}
                definition["properties"][name] = dict(sorted(described.items()))


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
