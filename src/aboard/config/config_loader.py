"""Loads aboard.yaml files and `--set` overrides into one validated document; each problem has its position."""

import ast
import inspect
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from aboard.config.allowed_files import read_config_tree
from aboard.config.schema.aboard_yaml import AboardConfig, derive_source_name
from aboard.config.schema.base_section import Section
from aboard.config.validation_problems import find_subtree, list_problems, parse_position
from aboard.config.yaml_tree import VERBATIM, Items, Leaf, Table, Tree, convert_to_builtins
from aboard.core.monitoring.notify_settings import EVENTS, NotifySettings
from aboard.core.run.recovery.recovery_request import RecoveryRequest
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration
from aboard.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

from functools import reduce
from typing import TYPE_CHECKING

from aboard.config.yaml_tree import parse_list, parse_scalar

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


@dataclass(frozen=True, kw_only=True)
class LoadedConfig:
    """A validated document, and its tree, which has the positions of its values."""

    document: AboardConfig
    tree: Table

    def where(self, *path: int | str) -> str:
        """The position of a value, or of its nearest parent."""
        return find_subtree(self.tree, path)[0].where

    def base(self, *path: int | str) -> str:
        """The directory that a relative path in this value starts from."""
        subtree = find_subtree(self.tree, path)[0]
        return subtree.base if isinstance(subtree, Leaf) else "."


def load_config_files(files: "Sequence[str]", sets: "Sequence[str]" = ()) -> LoadedConfig:
    """Reads and merges files and applies overrides; raises InputError with all problems at once."""
    tables: list[Table] = []
    problems: list[Problem] = []
    for file in files:
        try:
            tables.append(read_config_tree(file, fix=configuration.FILE.fix("config"), base=str(Path(file).parent)))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(configuration.CONFIG, problems)
    tree = apply_overrides(merge_tables(tables), sets)
    mistakes = find_source_problems(tree)
    try:
        document = AboardConfig.model_validate(convert_to_builtins(tree, verbatim=VERBATIM))
    except ValidationError as error:
        mistakes += list_problems(error, tree, AboardConfig)
    if mistakes:
        raise InputError(configuration.CONFIG, sorted(mistakes, key=lambda problem: parse_position(problem.where)))
    return LoadedConfig(document=document, tree=tree)


def build_recovery_request(config: LoadedConfig) -> RecoveryRequest:
    """What the section `recover` asks for."""
    section = config.document.recover
    if section is None:
        return RecoveryRequest()
    said = section.model_dump(exclude_none=True)
    spares = tuple(section.spares) if isinstance(section.spares, list) else section.spares
    places = {name: f"recover.{name} ({config.where('recover', name)})" for name in said}
    return RecoveryRequest(**{**said, "spares": spares}, places=places)


def build_notify_settings(config: LoadedConfig) -> NotifySettings:
    """What the section `notify` asks for, with whole paths."""
    section = config.document.notify
    if section is None:
        return NotifySettings()
    webhook, command = section.webhook, list(section.command or ())
    if command and "/" in command[0]:
        command[0] = _build_path(config, command[0], "notify", "command", 0)
    file = None if webhook is None else webhook.file
    return NotifySettings(
        env="" if webhook is None or webhook.env is None else webhook.env,
        file="" if file is None else _build_path(config, file, "notify", "webhook", "file"),
        format=section.format or "json",
        command=tuple(command),
        on=tuple(section.on or EVENTS),
    )


def _build_path(config: LoadedConfig, text: str, *key: int | str) -> str:
    """The path of a file on this machine, which starts at the file that names it."""
    return os.path.abspath(Path(config.base(*key)) / Path(text).expanduser())  # noqa: PTH100 - links stay


def build_json_schema() -> str:
    """The JSON schema of aboard.yaml, for editors."""
    json_schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **AboardConfig.model_json_schema()}
    sections = {section.__name__: section for section in _list_sections(Section)}
    _add_descriptions(json_schema, AboardConfig)
    for name, definition in json_schema["$defs"].items():
        _add_descriptions(definition, sections[name])
    return json.dumps(json_schema, indent=2) + "\n"


def _list_sections(section: type[Section]) -> "Iterator[type[Section]]":
    for each in section.__subclasses__():
        yield each
        yield from _list_sections(each)


def _add_descriptions(definition: dict[str, Any], section: type[Section]) -> None:
    """Sets the description of each field, inherited ones too, to the string after it in the source."""
    if all(field.description for field in section.model_fields.values()):  # built from declarations
        return
    for each in reversed(section.__mro__[: section.__mro__.index(Section)]):
        (tree,) = ast.parse(inspect.getsource(each)).body
        assert isinstance(tree, ast.ClassDef)  # noqa: S101 - the source of a class
        for field, text in pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                name = ast.unparse(field.target)
                described = {**definition["properties"][name], "description": inspect.cleandoc(str(text.value.value))}
                definition["properties"][name] = dict(sorted(described.items()))


def find_source_problems(tree: Table) -> list[Problem]:
    """Problems between entries: some have a weight and some don't, or two have the same name."""
    files, _ = find_subtree(tree, ("data", "files"))
    if not isinstance(files, Items) or not any(isinstance(entry, Table) for entry in files.values):
        return []
    if not any(isinstance(entry, Table) and "weight" in entry.values for entry in files.values):
        return list(_find_unused_names(files))
    return [*_find_missing_weights(files), *_find_duplicate_names(files)]


def _find_unused_names(files: Items) -> Iterator[Problem]:
    """HF's `name` is the configuration of a data set; here it is the name in a mix."""
    for at, entry in enumerate(files.values):
        if isinstance(entry, Table) and (name := _read_text_value(entry.values.get("name"))) is not None:
            seen = f"data.files[{at}].name is a source's name in a mix, but no entry has a weight"
            yield Problem(where=name[1], seen=seen, fix=configuration.CONFIG.fix("subset", name=name[0]))


def _find_missing_weights(files: Items) -> Iterator[Problem]:
    for at, entry in enumerate(files.values):
        if isinstance(entry, Table) and "weight" not in entry.values:
            seen = f"data.files[{at}] has no 'weight'"
            yield Problem(where=entry.where, seen=seen, fix=configuration.CONFIG.fix("missing", key="weight"))
        if isinstance(entry, Leaf) and isinstance(entry.value, str):
            seen = f"data.files: {escape_text(entry.text)} has no weight, but other files do"
            yield Problem(where=entry.where, seen=seen, fix=configuration.CONFIG.fix("weight", path=entry.text))


def _find_duplicate_names(files: Items) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for entry in files.values:
        if isinstance(entry, Table) and (name_and_place := _read_source_name(entry)) is not None:
            name, where = name_and_place
            if name in first:
                seen = f"data.files: '{escape_text(name)}' is also the name of the source at {first[name]}"
                yield Problem(where=where, seen=seen, fix=configuration.CONFIG.fix("source-name", name=name))
            first.setdefault(name, where)


def _read_source_name(entry: Table) -> tuple[str, str] | None:
    """The source's name, from its key `name` or its first path; None if it has neither, which validation reports."""
    if (name := _read_text_value(entry.values.get("name"))) is not None:
        return name
    path = entry.values.get("path")
    if isinstance(path, Items):
        path = path.values[0] if path.values else None
    first_path = _read_text_value(path)
    return None if first_path is None else (derive_source_name(first_path[0]), first_path[1])


def _read_text_value(tree: Tree | None) -> tuple[str, str] | None:
    return (tree.value, tree.where) if isinstance(tree, Leaf) and isinstance(tree.value, str) else None
