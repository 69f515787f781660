"""Turns pydantic's errors into problems with the position in the file and a fix."""

import json
import re
from typing import TYPE_CHECKING, Any

from aboard.config.schema.aboard_yaml import NODE_MAPPING, SOURCE_MAPPING
from aboard.config.schema.huggingface_names import explain_foreign_key
from aboard.config.yaml_tree import Items, Table, Tree
from aboard.core.text.input_text import find_nearest, suggest_fix
from aboard.diagnoses import Fix, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

KeyPath = tuple[int | str, ...]

_PLACE = re.compile(r"(.*):([0-9]+):([0-9]+)", re.DOTALL)
_EXPECTED_TYPES = {
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
# A number and a word, but not one of the units that stand for a factor.
_TYPED_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?(?:e[+-]?[0-9]{1,2})?) ?(?![kmgt])[a-z]*", re.IGNORECASE)
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


def list_problems(error: "ValidationError", tree: Table, model: "type[BaseModel]") -> list[Problem]:
    """One problem per pydantic error, in the order of the lines."""
    details = error.errors(include_url=False, include_input=False)
    # A value that may be true, false or a word has one problem, not one for each type.
    words = {find_subtree(tree, each["loc"])[1] for each in details if each["type"] == "literal_error"}
    switches = {find_subtree(tree, each["loc"])[1] for each in details if each["type"] == "bool_type"} & words
    for each in details:
        if each["type"] == "literal_error" and find_subtree(tree, each["loc"])[1] in switches:
            each["ctx"]["expected"] = f"true, false, {each['ctx']['expected']}"
    problems = [
        _build_problem(detail, tree, model)
        for detail in details
        if detail["type"] != "bool_type" or find_subtree(tree, detail["loc"])[1] not in switches
    ]
    return sorted(problems, key=lambda problem: parse_position(problem.where))


def find_subtree(tree: Tree, path: KeyPath) -> tuple[Tree, KeyPath]:
    """The tree at a path, and the path in the file; skips steps that only exist in pydantic."""
    named: list[int | str] = []
    for step in path:
        if isinstance(tree, Table) and step in tree.values:
            tree = tree.values[str(step)]
            named.append(step)
        elif isinstance(tree, Items) and isinstance(step, int) and step < len(tree.values):
            tree = tree.values[step]
            named.append(step)
    return tree, tuple(named)


def _build_problem(detail: "ErrorDetails", tree: Table, model: "type[BaseModel]") -> Problem:
    kind, path = detail["type"], detail["loc"]
    around, named = find_subtree(tree, path)
    name = _format_path(named)
    if kind == "extra_forbidden":
        key = str(path[-1])
        owner, above = find_subtree(tree, path[:-1])
        where = owner.keys.get(key, owner.where) if isinstance(owner, Table) else owner.where
        inside = f" in {_format_path(above)}" if above else ""
        if above in (("train",), ("train", "adapter")) and (foreign_key := explain_foreign_key(key)):
            return Problem(where=where, seen=f"{_format_path(above)}: {foreign_key[0]}", fix=foreign_key[1])
        seen = f"unknown key '{escape_text(key)}'{inside}"
        return Problem(where=where, seen=seen, fix=_suggest_key(key, above, path[:-1], model))
    if kind == "missing":
        key = str(path[-1])
        return Problem(
            where=around.where, seen=f"{name} has no '{key}'", fix=configuration.CONFIG.fix("missing", key=key)
        )
    if path and path[-1] == "[key]":
        owner, _ = find_subtree(tree, path[:-2])
        # Pydantic changes a key that contains half of a surrogate pair.
        where = owner.keys.get(str(path[-2]), owner.where) if isinstance(owner, Table) else owner.where
        return Problem(
            where=where, seen=f"{_format_path(named[:-1])}: {detail['ctx']['seen']}", fix=detail["ctx"]["fix"]
        )
    seen, fix = _describe_error(detail, name, _format_value(around, named))
    return Problem(where=around.where, seen=seen, fix=fix)


def _suggest_key(key: str, above: KeyPath, path: KeyPath, model: "type[BaseModel]") -> Fix:
    """The nearest key of this section, else the same key of another one, else all keys of this section."""
    known = list_known_keys(model, path)
    if find_nearest(key, known) is None:
        sections = [name for name in list_known_keys(model, ()) if name not in above]
        if section := next((name for name in sections if key in list_known_keys(model, (name,))), None):
            return configuration.CONFIG.fix("near", near=f"{section}.{key}")
        foreign_key = None if above else explain_foreign_key(key)
        if foreign_key is not None and "line" in foreign_key[1].values:
            return configuration.CONFIG.fix("train-section", line=foreign_key[1].values["line"])
    return suggest_fix(configuration.CONFIG, key, known)


def _describe_error(detail: "ErrorDetails", name: str, value_text: str) -> tuple[str, Fix]:
    kind, context = detail["type"], detail.get("ctx", {})
    key = name.rpartition(".")[2]
    if kind == "aboard":
        return f"{name}: {context['seen']}", context["fix"]
    if kind in _EXPECTED_TYPES:
        expected = _BRANCH.get(str(detail["loc"][-1]), _EXPECTED_TYPES[kind])
        value = {_EMPTY: "", _A_LIST: "value", _A_MAPPING: "value"}.get(value_text, value_text.strip('"'))
        typed, variant = _TYPED_NUMBER.fullmatch(value), _FIX[expected]
        if "number" in variant and typed and (variant == "number" or typed[1].isdecimal()):
            value, variant = typed[1], "typed-number"
        return f"{name} must be {expected}, not {value_text}", configuration.CONFIG.fix(variant, key=key, shown=value)
    if kind in {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}:
        bounds = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
        bound = next(f"{word} {context[key]:g}" for key, word in bounds.items() if key in context)
        return f"{name} is {value_text}", configuration.CONFIG.fix("bound", bound=bound)
    if kind == "literal_error":
        choices = [word.strip("' ") for word in context["expected"].replace(" or ", ", ").split(",")]
        fix = suggest_fix(configuration.CONFIG, value_text.strip('"'), choices)
        return f"{name} can't be {value_text}; use one of {', '.join(choices)}", fix
    if kind == "too_short":
        return (
            f"{name} is empty",
            configuration.CONFIG.fix("no-nodes") if key == "nodes" else configuration.CONFIG.fix("empty", key=key),
        )
    return f"{name}: {detail['msg']}", configuration.CONFIG.fix("schema", key=key)


def parse_position(where: str) -> tuple[str, int, int]:
    match = _PLACE.fullmatch(where)
    return (match[1], int(match[2]), int(match[3])) if match else (where, 0, 0)


def _format_path(path: KeyPath) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{escape_text(step)}" for step in path)
    return text.removeprefix(".") or "the file"


def _format_value(tree: Tree, path: KeyPath) -> str:
    if isinstance(tree, Table):
        return _A_MAPPING
    if isinstance(tree, Items):
        return _A_LIST
    if tree.value is None:
        return _EMPTY
    if "env" in path:  # it may be a secret
        return "this value"
    return (
        json.dumps(escape_text(tree.text), ensure_ascii=False)
        if isinstance(tree.value, str)
        else escape_text(tree.text)
    )


def list_known_keys(model: "type[BaseModel]", path: KeyPath) -> list[str]:
    """The keys that the model's JSON schema has at a path."""
    top = model.model_json_schema()
    level = list(_flatten_schema(top, top))
    for step in path:
        below = [sub for schema in level for sub in _list_subschemas(schema, step)]
        # A step that is not in the schema is pydantic's name for a branch of a union.
        level = [flat for sub in below for flat in _flatten_schema(sub, top)] or level
    return list(dict.fromkeys(key for schema in level for key in schema.get("properties", {})))


def _flatten_schema(schema: dict[str, Any], top: dict[str, Any]) -> "Iterator[dict[str, Any]]":
    if "$ref" in schema:
        yield from _flatten_schema(top["$defs"][schema["$ref"].rpartition("/")[2]], top)
        return
    yield schema
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _flatten_schema(branch, top)


def _list_subschemas(schema: dict[str, Any], step: int | str) -> "Iterator[dict[str, Any]]":
    if isinstance(step, int):
        if "items" in schema:
            yield schema["items"]
    elif step in schema.get("properties", {}):
        yield schema["properties"][step]
