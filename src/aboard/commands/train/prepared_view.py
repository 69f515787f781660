"""The lines about a training's model, data and steps, and the progress bar while they are prepared."""

from collections.abc import Sequence
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from aboard.commands.shared.number_format import format_count
from aboard.commands.shared.progress_bar import TransientView, render_bar
from aboard.core.plan.training_settings import Training
from aboard.core.text.byte_sizes import format_size
from aboard.diagnoses.untrusted import escape_lines

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
