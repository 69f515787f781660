"""The settings of a training as valid YAML, each with its source in a comment."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.trainer.settings.train_settings import ResolvedSetting

WIDEST = 48


class TrainConfigView:
    """Print it with `crop=False`, so that long paths are not cut."""

    def __init__(self, choices: Sequence[ResolvedSetting]) -> None:
        self._choices = choices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for entry, source in _build_lines(self._choices):
            unused = entry.lstrip().startswith("#")
            line = Text(entry, style="dim" if unused else "", no_wrap=True, overflow="ignore")
            yield line.append(source, style="dim" if source.endswith("# default") or unused else "green")


def format_config_lines(choices: Sequence[ResolvedSetting]) -> Iterator[str]:
    for entry, source in _build_lines(choices):
        yield f"{entry}{source}".rstrip()


def _build_lines(choices: Sequence[ResolvedSetting]) -> Iterator[tuple[str, str]]:
    """The entry of each line, padded, and the comment after it."""
    section = ""
    entries = [f"  {'# ' if each.value is None else ''}{_format_entry(each)}" for each in choices]
    room = min(WIDEST, max(map(len, entries), default=0))
    for each, entry in zip(choices, entries, strict=True):
        head = each.name.partition(".")[0]
        if head != section:
            section = head
            yield f"{section}:", ""
        yield f"{entry:<{room}}", f"  # {each.source}"
        if _is_mapping_list(each.value):
            yield from ((f"    - {_format_yaml(item)}", "") for item in each.value)


def _format_entry(setting: ResolvedSetting) -> str:
    key = setting.name.partition(".")[2]
    return (
        f"{key}:"
        if setting.value is None or _is_mapping_list(setting.value)
        else f"{key}: {_format_yaml(setting.value)}"
    )


def _is_mapping_list(value: Any) -> bool:
    """Whether it is a list of mappings, which get one line each."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Mapping)


def _format_yaml(value: Any) -> str:
    """JSON, which is valid YAML; a string that needs no quotes gets none."""
    if isinstance(value, str) and value.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
        plain = not value[0].isdigit() and value not in ("true", "false", "null")
        return value if plain and value[0] not in "-." else json.dumps(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_format_yaml(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
