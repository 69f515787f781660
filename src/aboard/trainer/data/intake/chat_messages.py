"""Conversations in the common layouts, converted to the messages that chat templates read."""

import json
from typing import Any

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.jsonl_and_text import describe_json_type
from aboard.trainer.data.rows import ChatMessage

# ShareGPT's senders, including those of its derivatives (LLaMA-Factory, Axolotl).
_SENDERS = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "function_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")} | {"function": "tool"}
_WEIGHTS = {0: False, 1: True}
# Characters kept of the reason why a row is invalid.
_MAX_REASON = 300


class InvalidRowError(Exception):
    """A row that doesn't fit its format: the code says in which way, the message what was found."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = Untrusted(why[:_MAX_REASON])


def parse_openai_turns(turns: object, column: str) -> tuple[tuple[ChatMessage, ...], tuple[bool, ...] | None]:
    """Messages with role and content, and which of them `weight` allows to train; None if no weight excludes any."""
    messages: list[ChatMessage] = []
    weights: list[bool] = []
    for number, turn in enumerate(_check_turns(turns, column), start=1):
        where = f"message {number} of {column}"
        messages.append(_parse_openai_message(turn, where))
        weights.append(_parse_weight(turn.get("weight"), where))
    return tuple(messages), None if all(weights) else tuple(weights)


def parse_sharegpt_turns(turns: object, column: str, system: object = None) -> tuple[ChatMessage, ...]:
    """Messages from turns with from and value; a call's value is JSON, as in LLaMA-Factory."""
    messages: list[ChatMessage] = []
    if system is not None and system != "":
        messages.append({"role": "system", "content": require_text(system, "system")})
    for number, turn in enumerate(_check_turns(turns, column), start=1):
        where = f"turn {number} of {column}"
        sender = turn.get("from")
        role = _SENDERS.get(sender.lower()) if isinstance(sender, str) else None
        if role is None:
            raise InvalidRowError("row-role", f"{where} is from {_format_value(sender)}, which is not a known sender")
        value = require_text(turn.get("value"), f"value of {where}")
        if role == "call":
            messages.append(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": _normalize_calls(parse_json_field(value, where), where),
                }
            )
        else:
            messages.append({"role": role, "content": value})
    return tuple(messages)


def parse_tools(value: object) -> tuple[dict[str, Any], ...] | None:
    """The tools of a row: a list of schemas, or such a list as JSON in a string; None if there are none."""
    found = parse_json_field(value, "tools") if isinstance(value, str) and value.strip() else value
    if found is None or found in ("", []):
        return None
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise InvalidRowError("row-type", f"tools is {describe_json_type(found)}, where a list of objects was expected")
    return tuple(found)


def require_text(value: object, name: str) -> str:
    """Returns the value, which must be a string."""
    if not isinstance(value, str):
        raise InvalidRowError("row-type", f"{name} is {describe_json_type(value)}, where a string was expected")
    return value


def parse_json_field(value: str, name: str) -> Any:
    """Parses JSON that is stored in a string."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise InvalidRowError("row-json", f"{name} should contain JSON: {error}") from None


def _check_turns(turns: object, column: str) -> list[dict[str, Any]]:
    if not isinstance(turns, list):
        raise InvalidRowError("row-type", f"{column} is {describe_json_type(turns)}, where a list was expected")
    if not turns:
        raise InvalidRowError("row-empty", f"{column} is an empty list")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise InvalidRowError(
                "row-type", f"turn {number} of {column} is {describe_json_type(turn)}, where an object was expected"
            )
    return turns


def _parse_openai_message(turn: dict[str, Any], where: str) -> ChatMessage:
    role = turn.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise InvalidRowError(
            "row-role", f"{where} has the role {_format_value(role)}, where one of {' '.join(_ROLES)} was expected"
        )
    # A template would print null as None, or treat the key as present.
    message = {key: value for key, value in turn.items() if value is not None and key != "weight"}
    message["role"] = _ROLES[role]
    calls = message.pop("tool_calls", None) or []
    if legacy := message.pop("function_call", None):
        calls = [legacy]
    if calls:
        message["tool_calls"] = _normalize_calls(calls, where)
    if "content" not in message and not calls:
        raise InvalidRowError("row-columns", f"{where} has no content")
    message["content"] = _join_content(message.get("content", ""), where)
    return message


def _join_content(value: object, where: str) -> str:
    if isinstance(value, list):
        return "".join(_read_text_part(part, where) for part in value)
    return require_text(value, f"content of {where}")


def _read_text_part(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        return require_text(part.get("text"), f"text in {where}")
    kind = part.get("type") if isinstance(part, dict) else describe_json_type(part)
    raise InvalidRowError(
        "row-type", f"{where} has a part that is not text ({_format_value(kind)}); only text is supported"
    )


def _normalize_calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Tool calls as templates expect them: a function with its arguments as an object, not as JSON in a string."""
    normalized = []
    for call in calls if isinstance(calls, list) else [calls]:
        whole = call if isinstance(call, dict) else {}
        function = whole.get("function", whole)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRowError("row-type", f"a tool call in {where} has no function name")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str) and arguments.strip().startswith("{"):
            arguments = parse_json_field(arguments, f"the arguments of {function['name']} in {where}")
        call_fields = whole if "function" in whole else {}
        normalized.append({"type": "function", **call_fields, "function": {**function, "arguments": arguments}})
    return normalized


def _parse_weight(value: object, where: str) -> bool:
    if value is None:
        return True
    if not isinstance(value, int | float) or value not in _WEIGHTS:
        raise InvalidRowError("row-type", f"the weight of {where} is {_format_value(value)}; it can be 0 or 1")
    return _WEIGHTS[int(value)]


def _format_value(value: object) -> str:
    return f"'{value}'"[:60] if isinstance(value, str) else describe_json_type(value)
