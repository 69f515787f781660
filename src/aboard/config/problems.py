"""Pydantic's errors in our words: the place in the file, what was seen, and what to write."""

import json
import re
from typing import TYPE_CHECKING, Any

from aboard.config.sections import NODE_MAPPING, SOURCE_MAPPING
from aboard.config.train_names import foreign
from aboard.config.tree import Items, Table, Tree
from aboard.core.words import meant, visible
from aboard.diagnoses import Fix, Problem, configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Path = tuple[int | str, ...]

_PLACE = re.compile(r"(.*):([0-9]+):([0-9]+)", re.DOTALL)
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "finite_number": "a number",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
}
_EMPTY, _A_LIST, _A_MAPPING = "empty", "a list", "a mapping"
_A_NODE = "a node set or a mapping"
_A_SOURCE = "a path or a mapping"
_BRANCH = {NODE_MAPPING: _A_NODE, SOURCE_MAPPING: _A_SOURCE}
_FIX = {
    _A_NODE: "node-or-mapping",
    _A_SOURCE: "source-or-mapping",
    "a whole number": "whole-number",
    "a number": "number",
    "true or false": "truth",
    "text": "text",
    "a list": "list",
    "a mapping of keys to values": "mapping",
}


def problems_of(error: "ValidationError", tree: Table, model: "type[BaseModel]") -> list[Problem]:
    """One problem for each thing that pydantic found, in the order of the lines."""
    problems = [_problem(detail, tree, model) for detail in error.errors(include_url=False, include_input=False)]
    return sorted(problems, key=lambda problem: line_of(problem.where))


def find(tree: Tree, path: Path) -> tuple[Tree, Path]:
    """The tree at a path, and the path as the user wrote it; steps that only pydantic knows are skipped."""
    named: list[int | str] = []
    for step in path:
        if isinstance(tree, Table) and step in tree.values:
            tree = tree.values[str(step)]
            named.append(step)
        elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.values):
            tree = tree.values[step]
            named.append(step)
    return tree, tuple(named)


def _problem(detail: "ErrorDetails", tree: Table, model: "type[BaseModel]") -> Problem:
    kind, path = detail["type"], detail["loc"]
    around, named = find(tree, path)
    name = _spelled(named)
    if kind == "extra_forbidden":
        key = str(path[-1])
        owner, above = find(tree, path[:-1])
        where = owner.keys.get(key, owner.where) if isinstance(owner, Table) else owner.where
        inside = f" in {_spelled(above)}" if above else ""
        if above == ("train",) and (told := foreign(key)):
            return Problem(where=where, seen=f"train: {told[0]}", fix=told[1])
        seen = f"unknown key '{visible(key)}'{inside}"
        return Problem(where=where, seen=seen, fix=meant(configuration.CONFIG, key, _keys(model, path[:-1])))
    if kind == "missing":
        key = str(path[-1])
        return Problem(
            where=around.where, seen=f"{name} has no '{key}'", fix=configuration.CONFIG.fix("missing", key=key)
        )
    if path and path[-1] == "[key]":
        owner, _ = find(tree, path[:-2])
        # Half of a surrogate pair comes out of pydantic as another key than went in.
        where = owner.keys.get(str(path[-2]), owner.where) if isinstance(owner, Table) else owner.where
        return Problem(where=where, seen=f"{_spelled(named[:-1])}: {detail['ctx']['seen']}", fix=detail["ctx"]["fix"])
    seen, fix = _said(detail, name, _shown(around, named))
    return Problem(where=around.where, seen=seen, fix=fix)


def _said(detail: "ErrorDetails", name: str, shown: str) -> tuple[str, Fix]:
    kind, context = detail["type"], detail.get("ctx", {})
    key = name.rpartition(".")[2]
    if kind == "aboard":
        return f"{name}: {context['seen']}", context["fix"]
    if kind in _WANTED:
        wanted = _BRANCH.get(str(detail["loc"][-1]), _WANTED[kind])
        value = {_EMPTY: "", _A_LIST: "value", _A_MAPPING: "value"}.get(shown, shown.strip('"'))
        return f"{name} must be {wanted}, not {shown}", configuration.CONFIG.fix(_FIX[wanted], key=key, shown=value)
    if kind in {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}:
        bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        bound = next(f"{word} {context[key]:g}" for key, word in bounds.items() if key in context)
        return f"{name} is {shown}", configuration.CONFIG.fix("bound", bound=bound)
    if kind == "literal_error":
        known = [word.strip("' ") for word in context["expected"].replace(" or ", ", ").split(",")]
        fix = meant(configuration.CONFIG, shown.strip('"'), known)
        return f"{name} can't be {shown}; it is one of {', '.join(known)}", fix
    if kind == "too_short":
        return (
            f"{name} is empty",
            configuration.CONFIG.fix("no-nodes") if key == "nodes" else configuration.CONFIG.fix("empty", key=key),
        )
    return f"{name}: {detail['msg']}", configuration.CONFIG.fix("schema", key=key)


def line_of(where: str) -> tuple[str, int, int]:
    match = _PLACE.fullmatch(where)
    return (match[1], int(match[2]), int(match[3])) if match else (where, 0, 0)


def _spelled(path: Path) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{visible(step)}" for step in path)
    return text.removeprefix(".") or "the file"


def _shown(tree: Tree, path: Path) -> str:
    if isinstance(tree, Table):
        return _A_MAPPING
    if isinstance(tree, Items):
        return _A_LIST
    if tree.value is None:
        return _EMPTY
    if "env" in path:  # it may be a secret
        return "this value"
    return json.dumps(visible(tree.text), ensure_ascii=False) if isinstance(tree.value, str) else visible(tree.text)


def _keys(model: "type[BaseModel]", path: Path) -> list[str]:
    """The keys that the model knows at a path, read off its JSON schema."""
    top = model.model_json_schema()
    level = list(_flat(top, top))
    for step in path:
        below = [sub for schema in level for sub in _below(schema, step)]
        # A step that the schema doesn't have is pydantic's name for a branch of a union.
        level = [flat for sub in below for flat in _flat(sub, top)] or level
    return list(dict.fromkeys(key for schema in level for key in schema.get("properties", {})))


def _flat(schema: dict[str, Any], top: dict[str, Any]) -> "Iterator[dict[str, Any]]":
    if "$ref" in schema:
        yield from _flat(top["$defs"][schema["$ref"].rpartition("/")[2]], top)
        return
    yield schema
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _flat(branch, top)


def _below(schema: dict[str, Any], step: int | str) -> "Iterator[dict[str, Any]]":
    if isinstance(step, int):
        if "items" in schema:
            yield schema["items"]
    elif step in schema.get("properties", {}):
        yield schema["properties"][step]
