"""What a training will use, as YAML that can be kept: each value with the place that it comes from."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

WIDEST = 48


class DisplayedSetting(Protocol):
    """A setting, by its whole name; `value` None is one that isn't used."""

    @property
    def name(self) -> str: ...

    @property
    def value(self) -> Any: ...

    @property
    def source(self) -> str: ...


class TrainConfigView:
    """Print it with `crop=False`: paths are as long as they are."""

    def __init__(self, choices: Sequence[DisplayedSetting]) -> None:
        self._choices = choices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for words, source in _build_lines(self._choices):
            unused = words.lstrip().startswith("#")
            line = Text(words, style="dim" if unused else "", no_wrap=True, overflow="ignore")
            yield line.append(source, style="dim" if source.endswith("# default") or unused else "green")


def format_config_lines(choices: Sequence[DisplayedSetting]) -> Iterator[str]:
    for words, source in _build_lines(choices):
        yield f"{words}{source}".rstrip()


def _build_lines(choices: Sequence[DisplayedSetting]) -> Iterator[tuple[str, str]]:
    """The words of each line, padded, and the remark behind them."""
    section = ""
    written = [f"  {'# ' if each.value is None else ''}{_format_entry(each)}" for each in choices]
    room = min(WIDEST, max(map(len, written), default=0))
    for each, words in zip(choices, written, strict=True):
        head = each.name.partition(".")[0]
        if head != section:
            section = head
            yield f"{section}:", ""
        yield f"{words:<{room}}", f"  # {each.source}"
        if _is_mapping_list(each.value):
            yield from ((f"    - {_format_yaml(item)}", "") for item in each.value)


def _format_entry(choice: DisplayedSetting) -> str:
    key = choice.name.partition(".")[2]
    return (
        f"{key}:" if choice.value is None or _is_mapping_list(choice.value) else f"{key}: {_format_yaml(choice.value)}"
    )


def _is_mapping_list(value: Any) -> bool:
    """Whether it is a list of mappings: each has a line of its own."""
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], Mapping)


def _format_yaml(value: Any) -> str:
    """JSON is YAML; a text that needs no quotes goes without."""
    if isinstance(value, str) and value.replace("/", "").replace("-", "").replace("_", "").replace(".", "").isalnum():
        plain = not value[0].isdigit() and value not in ("true", "false", "null")
        return value if plain and value[0] not in "-." else json.dumps(value)
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_format_yaml(item)}' for key, item in value.items())}}}"
    return json.dumps(value)
