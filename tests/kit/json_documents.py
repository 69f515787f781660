"""Whether JSON that a command has printed is as its schema says, and nothing more."""

import json
from typing import Any

from aboard.commands.shared.options.json_schema import build_command_schema

_TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def read_document(command: str, text: str) -> dict[str, Any]:
    """The parsed document, whose texts a terminal can print; raises with the place of each difference."""
    assert text.isascii()
    document: dict[str, Any] = json.loads(text)
    assert [each for each in list_texts(document) if not each.replace("\n", "").isprintable()] == []
    schema = build_command_schema(command)
    wrong = list_differences(document, schema, schema["$defs"])
    assert wrong == [], "\n".join(wrong)
    return document


def list_texts(value: Any) -> list[str]:
    """All texts and keys of a document."""
    if isinstance(value, dict):
        return [*value, *list_texts([*value.values()])]
    return [text for each in value for text in list_texts(each)] if isinstance(value, list) else [str(value)]


def list_differences(value: Any, schema: dict[str, Any], definitions: dict[str, Any], at: str = "$") -> list[str]:  # noqa: PLR0911
    """The subset of JSON Schema that we print; but a key that the schema does not have is a difference, too."""
    if "$ref" in schema:
        return list_differences(value, definitions[schema["$ref"].removeprefix("#/$defs/")], definitions, at)
    if "anyOf" in schema:
        each = [list_differences(value, one, definitions, at) for one in schema["anyOf"]]
        return [] if [] in each else min(each, key=len)
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if allowed is not None:
        return [] if value in allowed else [f"{at}: {value!r} is none of {allowed}"]
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_has_type(value, kind) for kind in kinds):
        return [f"{at}: {value!r} is no {kinds}"]
    if isinstance(value, list):
        rows = schema.get("prefixItems", [schema.get("items", {})] * len(value))
        short = [f"{at}: {len(value)} items instead of {len(rows)}"] if len(rows) != len(value) else []
        return short + [
            wrong
            for place, (one, row) in enumerate(zip(value, rows, strict=False))
            for wrong in list_differences(one, row, definitions, f"{at}[{place}]")
        ]
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        missing = [f"{at}: no {name}" for name in schema.get("required", ()) if name not in value]
        unknown = [f"{at}: {name} is not in the schema" for name in value if name not in known and others is None]
        return (missing + unknown if known else []) + [
            wrong
            for name, one in value.items()
            for wrong in list_differences(one, known.get(name, others or {}), definitions, f"{at}.{name}")
        ]
    return []


def _has_type(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        return isinstance(value, int if kind == "integer" else (int, float)) and not isinstance(value, bool)
    return isinstance(value, _TYPES[kind])
