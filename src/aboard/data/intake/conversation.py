"""Conversations in the shapes people keep them, to the one shape that chat templates read."""

import json
from typing import Any

from aboard.data.intake.lines import json_type
from aboard.data.rows import Message
from aboard.diagnoses.untrusted import Untrusted

# ShareGPT's senders, those of its descendants (LLaMA-Factory, Axolotl) among them.
_SENDERS = {
    "system": "system",
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "chatgpt", "bing", "bard", "model", "bot"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "tool_response", "function_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
_ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")} | {"function": "tool"}
_WEIGHTS = {0: False, 1: True}
# Characters that are kept of what was seen in a row.
_MOST = 300


class Misshapen(Exception):
    """A row that doesn't fit its format; the code tells which way, the message says what was seen."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = Untrusted(why[:_MOST])


def openai_turns(turns: object, column: str) -> tuple[tuple[Message, ...], tuple[bool, ...] | None]:
    """Messages with role and content, and which of them their `weight` lets train; None where no weight says no."""
    messages: list[Message] = []
    weights: list[bool] = []
    for number, turn in enumerate(_turns(turns, column), start=1):
        where = f"message {number} of {column}"
        messages.append(_openai(turn, where))
        weights.append(_weight(turn.get("weight"), where))
    return tuple(messages), None if all(weights) else tuple(weights)


def sharegpt_turns(turns: object, column: str, system: object = None) -> tuple[Message, ...]:
    """Messages from turns with from and value; a call's value is JSON, as LLaMA-Factory has it."""
    messages: list[Message] = []
    if system is not None and system != "":
        messages.append({"role": "system", "content": text(system, "system")})
    for number, turn in enumerate(_turns(turns, column), start=1):
        where = f"turn {number} of {column}"
        sender = turn.get("from")
        role = _SENDERS.get(sender.lower()) if isinstance(sender, str) else None
        if role is None:
            raise Misshapen("row-role", f"{where} is from {_shown(sender)}, which is no known sender")
        value = text(turn.get("value"), f"value of {where}")
        if role == "call":
            messages.append({"role": "assistant", "content": "", "tool_calls": _calls(parsed(value, where), where)})
        else:
            messages.append({"role": role, "content": value})
    return tuple(messages)


def tools(value: object) -> tuple[dict[str, Any], ...] | None:
    """The tools of a row: a list of schemas, or such a list as JSON in a string; None where there are none."""
    found = parsed(value, "tools") if isinstance(value, str) and value.strip() else value
    if found is None or found in ("", []):
        return None
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise Misshapen("row-type", f"tools is {json_type(found)}, where a list of objects was expected")
    return tuple(found)


def text(value: object, name: str) -> str:
    """The value, which must be a string."""
    if not isinstance(value, str):
        raise Misshapen("row-type", f"{name} is {json_type(value)}, where a string was expected")
    return value


def parsed(value: str, name: str) -> Any:
    """JSON that stands in a string."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Misshapen("row-json", f"{name} should hold JSON: {error}") from None


def _turns(turns: object, column: str) -> list[dict[str, Any]]:
    if not isinstance(turns, list):
        raise Misshapen("row-type", f"{column} is {json_type(turns)}, where a list was expected")
    if not turns:
        raise Misshapen("row-empty", f"{column} is an empty list")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict):
            raise Misshapen("row-type", f"turn {number} of {column} is {json_type(turn)}, where an object was expected")
    return turns


def _openai(turn: dict[str, Any], where: str) -> Message:
    role = turn.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise Misshapen(
            "row-role", f"{where} has the role {_shown(role)}, where one of {' '.join(_ROLES)} was expected"
        )
    # What is null says nothing; a template would print it as None, or take the key for a promise.
    message = {key: value for key, value in turn.items() if value is not None and key != "weight"}
    message["role"] = _ROLES[role]
    calls = message.pop("tool_calls", None) or []
    if legacy := message.pop("function_call", None):
        calls = [legacy]
    if calls:
        message["tool_calls"] = _calls(calls, where)
    if "content" not in message and not calls:
        raise Misshapen("row-columns", f"{where} has no content")
    message["content"] = _content(message.get("content", ""), where)
    return message


def _content(value: object, where: str) -> str:
    if isinstance(value, list):
        return "".join(_part(part, where) for part in value)
    return text(value, f"content of {where}")


def _part(part: object, where: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text":
        return text(part.get("text"), f"text in {where}")
    kind = part.get("type") if isinstance(part, dict) else json_type(part)
    raise Misshapen("row-type", f"{where} has a part that is no text ({_shown(kind)}); only text is trained here")


def _calls(calls: object, where: str) -> list[dict[str, Any]]:
    """Tool calls as templates want them: a function with its arguments as an object, not as JSON in a string."""
    found = []
    for call in calls if isinstance(calls, list) else [calls]:
        whole = call if isinstance(call, dict) else {}
        function = whole.get("function", whole)
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise Misshapen("row-type", f"a tool call in {where} names no function")
        arguments = function.get("arguments", {})
        if isinstance(arguments, str) and arguments.strip().startswith("{"):
            arguments = parsed(arguments, f"the arguments of {function['name']} in {where}")
        around = whole if "function" in whole else {}
        found.append({"type": "function", **around, "function": {**function, "arguments": arguments}})
    return found


def _weight(value: object, where: str) -> bool:
    if value is None:
        return True
    if not isinstance(value, int | float) or value not in _WEIGHTS:
        raise Misshapen("row-type", f"the weight of {where} is {_shown(value)}; it can be 0 or 1")
    return _WEIGHTS[int(value)]


def _shown(value: object) -> str:
    return f"'{value}'"[:60] if isinstance(value, str) else json_type(value)
