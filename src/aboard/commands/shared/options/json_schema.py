"""`aboard --json-schema COMMAND`: the JSON Schema of what a command prints with --json, from the types that it has."""

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum, IntEnum
from importlib import import_module
from inspect import cleandoc
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from aboard.commands.shared.json_output import SCHEMA
from aboard.diagnoses import Diagnosis
from aboard.diagnoses.diagnosis import Declared_co
from aboard.diagnoses.untrusted import Untrusted

# The type of each document; several for a command whose options choose one.
DOCUMENTS = {
    "init": ("commands.init.command:InitDocument",),
    "export": ("commands.export.export_checkpoint:ExportResult",),
    "status": ("engine.records.status:StatusDocument",),
    "logs": ("commands.shared.log_lines:LogEntry",),
    "why": (
        "engine.records.run_explanation:RunExplanation",
        "commands.why.external_jobs_command:JobExplanation",
        "commands.why.log_files:LogExplanation",
    ),
    "report": ("commands.report.page_data:PageData",),
}
_PLAIN = {bool: "boolean", int: "integer", NoneType: "null"}


def format_schema(command: str) -> str:
    return json.dumps(build_command_schema(command), indent=2)


def build_command_schema(command: str) -> dict[str, Any]:
    """The schema of a document of this command; of `logs`, which prints one document per line, of a line."""
    definitions: dict[str, Any] = {}
    documents = []
    for place in DOCUMENTS[command]:
        module, name = place.split(":")
        document = _describe_object(getattr(import_module(f"aboard.{module}"), name), definitions)
        document["properties"]["schema"] = {"const": SCHEMA}
        document["required"] = sorted({"schema", *document["required"]})
        documents.append(document)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"aboard {command} {'--data' if command == 'report' else '--json'}",
        **(documents[0] if len(documents) == 1 else {"anyOf": documents}),
        "$defs": dict(sorted(definitions.items())),
    }


def _describe(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a value of this type, as `to_plain_value` converts it; classes with keys go to the definitions."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        each = [_describe(arg, definitions) for arg in args]
        plain = [one["type"] for one in each if one.keys() == {"type"} and isinstance(one["type"], str)]
        return {"type": plain} if len(plain) == len(each) else {"anyOf": each}
    if origin is Literal:
        return {"enum": list(args)}
    if origin is tuple and args[-1] is not ...:
        return {"type": "array", "prefixItems": [_describe(each, definitions) for each in args], "minItems": len(args)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _describe(args[1], definitions)}
    if origin in (tuple, list, set, frozenset):
        return {"type": "array", "items": _describe(args[0], definitions)}
    return _describe_class(hint, definitions)


def _describe_class(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is float:
        # A figure that is not finite becomes null.
        return {"type": ["number", "null"]}
    if issubclass(kind, Enum):
        return {"enum": [each.name.lower() if issubclass(kind, IntEnum) else each.value for each in kind]}
    if is_dataclass(kind) or is_typeddict(kind):
        name = kind.__name__.lstrip("_")
        if name not in definitions:
            definitions[name] = {}  # a class may contain itself
            definitions[name] = _describe_object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(kind, (str, Untrusted, PurePath)):
        return {"type": "string"}
    raise TypeError(f"no JSON schema for {kind}")


def _describe_object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        required = [name for name in hints if name in kind.__required_keys__]
    else:
        members = [(field.name, hints[field.name]) for field in fields(kind)]
        # A finding is generic in its diagnosis, of which documents have the code.
        hints = dict(("code", str) if hint in (Diagnosis, Declared_co) else (name, hint) for name, hint in members)
        required = list(hints)
    return {
        "type": "object",
        "description": " ".join(cleandoc(kind.__doc__ or "").split()),
        "properties": {name: _describe(hint, definitions) for name, hint in hints.items()},
        "required": required,
    }
