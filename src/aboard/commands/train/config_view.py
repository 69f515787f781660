"""A training run before it starts: its settings as valid YAML with their sources, and what was prepared."""

import json
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.progress_bar import TransientView, render_bar
from aboard.core.plan.training_settings import Training
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.untrusted import escape_lines
from aboard.trainer.settings.train_settings import ResolvedSetting

_WIDE, _WORDS = 40, 56
LABEL = len("validation set  ")


class PreparationView(TransientView):
    """A transient line: the current task and its progress."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._what, self._done, self._total, self._more = "", 0, 0, ""

    def update(self, what: str, done: int = 0, total: int = 0, more: str = "") -> None:
        self._what, self._done, self._total, self._more = what, done, total, more

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(
            f"{escape_lines(self._what)}  ", no_wrap=True, overflow="ellipsis", style="" if self._total else "dim"
        )
        if self._total:
            line.append(render_bar(self._done / self._total, min(_WIDE, max(1, options.max_width - _WORDS))))
            line.append(f"  {format_size(self._done)} of {format_size(self._total)}{self._more}", style="dim")
        yield line


def render_label(label: str, text: str, width: int) -> Text:
    """The text beside its label, wrapped between words; a word longer than a line is not broken."""
    folded = wrap(text, max(1, width - LABEL), break_long_words=False, break_on_hyphens=False)
    return Text.assemble((f"{label:<{LABEL}}", "dim"), f"\n{' ' * LABEL}".join(folded))


def describe_data(*, documents: int, tokens: int, supervised: int, sequences: int, length: int, full: float) -> str:
    """A prepared data set in one line."""
    share = f"{supervised / tokens:.0%}" if tokens else "none"
    return (
        f"{format_count(documents, 'document')}, {format_count(tokens, 'token')}, {share} supervised;"
        f" {format_count(sequences, 'packed sequence')} of {length:,} tokens, {full:.0%} full"
    )


def describe_steps(training: Training, *, ranks: int, nodes: int, sequences: int) -> str:
    """Ranks, micro-batch, the size of a step, and the number of steps."""
    step = training.step_size(ranks)
    total = -(-training.total_sequences(ranks, sequences) // step)
    micro, each = training.micro_batches(ranks), training.per_device_train_batch_size
    times = f" × {micro} accumulation steps" if micro > 1 else ""
    who = f"{format_count(ranks, 'rank')} on {format_count(nodes, 'node')}"
    return (
        f"{who}, micro-batch {each}{times}: {format_count(step, 'sequence')} per step, {format_count(total, 'step')};"
        f" {training.precision}"
    )


def describe_mix(training: Training, *, ranks: int, parts: Sequence[tuple[str, float, int]]) -> str:
    """For each source (name, share, sequences): its share of the training, and how often it is repeated."""
    total = training.total_sequences(ranks, sum(sequences for _, _, sequences in parts))
    descriptions = [f"{name} {share:.1%}, {total * share / sequences:.2g} epochs" for name, share, sequences in parts]
    return "; ".join(descriptions)


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
