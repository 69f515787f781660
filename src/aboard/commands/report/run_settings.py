"""How a run was started: its command, its training settings and its public variables; and what differs between runs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aboard.commands.report.page_data import SettingRow
from aboard.core.secrets.secret_names import HIDDEN
from aboard.diagnoses.untrusted import escape_text
from aboard.engine.records.bundle import REDACTED, redact_plan_value
from aboard.record.json_documents import read_training

_MOST_SETTINGS = 400
# Chosen for each run anew, so that they say nothing about it.
_OWN = (
    "output_dir",
    "$ABOARD_",
    "$CROSS_",
    "$GROUP_",
    "$LOCAL_",
    "$MASTER_",
    "$RANK",
    "$ROLE_",
    "$TORCHELASTIC_",
    "$WORLD",
)


def read_settings(plan: Mapping[str, Any]) -> dict[str, str]:
    """By name, in the order of a page: program, training settings, variables with public values."""
    program = plan.get("program")
    program = program if isinstance(program, dict) else {}
    training = read_training(plan) or {}
    redacted = redact_plan_value({"env": plan.get("env"), "command": plan.get("command")})
    variables = redacted["env"] if isinstance(redacted["env"], dict) else {}
    found: dict[str, Any] = {
        "program": program.get("target"),
        "arguments": " ".join(map(str, program.get("args") or ())) or None,
        "directory": plan.get("cwd"),
        "ranks": plan.get("world"),
        **training,
        **{f"${name}": value for name, value in variables.items() if value not in (REDACTED, HIDDEN)},
    }
    known = [(name, value) for name, value in found.items() if value is not None and not name.startswith(_OWN)]
    return {escape_text(name): _format(value) for name, value in known[:_MOST_SETTINGS]}


def compare_settings(settings: Sequence[Mapping[str, str]]) -> list[SettingRow]:
    """One row for each setting that differs between runs whose program has it; null where a run doesn't have it."""
    rows: list[SettingRow] = []
    for name in dict.fromkeys(name for each in settings for name in each):
        programs = {each.get("program") for each in settings if name in each}
        if len({each.get(name) for each in settings if each.get("program") in programs}) > 1:
            rows.append({"name": name, "values": [each.get(name) for each in settings]})
    return rows


def _format(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escape_text(text, len(text))
