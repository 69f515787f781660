"""`aboard export`."""

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from aboard.commands.shared.json_output import dump_json
from aboard.commands.shared.options.completion import complete_runs
from aboard.commands.shared.options.train_extra import require_train_extra
from aboard.commands.shared.printed_output import build_console
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_list

if TYPE_CHECKING:
    from aboard.commands.export.export_checkpoint import ExportResult

DTYPES = ("bfloat16", "float16", "float32")


@click.command()
@click.argument("what", metavar="RUN|CHECKPOINT", shell_complete=complete_runs)
@click.option("--to", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The directory to create.")
@click.option("--checkpoint", metavar="NAME", help="Which checkpoint: step-000400; default: the newest or best.")
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="Data type of the weights; default: the base model's, float32 for an adapter.",
)
@click.option("--merge", is_flag=True, help="Merge a LoRA adapter into its base model, which then needs no PEFT.")
@click.option(
    "--trust-remote-code", is_flag=True, help="Run Python code that comes with the model; default: the run's setting."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON.")
def export(
    what: str,
    to: Path,
    checkpoint: str | None,
    dtype: str | None,
    *,
    merge: bool,
    trust_remote_code: bool,
    as_json: bool,
) -> None:
    """Export a checkpoint as a transformers model: safetensors, config, tokenizer, generation config.

    Of a run with `train.adapter`, the LoRA adapter is exported as PEFT loads it; with --merge, the base model with the
    adapter merged in, one layer at a time. The base must be the one that the adapter was trained on.

    RUN is a run's name or a prefix of it; its newest checkpoint is exported, or with load_best_model_at_end its best.
    If it was saved without a shared disk, Aboard gathers the parts from the nodes of the run.
    CHECKPOINT is a step-… directory, or a directory that contains some. Aboard verifies the checkpoint first.
    """
    require_train_extra("exporting")
    from aboard.commands.export.export_checkpoint import ExportRequest, export_checkpoint  # noqa: PLC0415 - as above
    from aboard.commands.train.checkpoints.checkpoint_survey import add_progress  # noqa: PLC0415 - as above
    from aboard.config.this_machine import get_cache_folder  # noqa: PLC0415 - its dependencies were checked above
    from aboard.record.runs import Runs  # noqa: PLC0415 - as above

    cache = get_cache_folder(os.environ).with_name("checkpoints")
    request = ExportRequest(
        what=what, to=to, cache=cache, dtype=dtype, name=checkpoint, merge=merge, trust_remote_code=trust_remote_code
    )
    console = build_console()
    shown = console.is_terminal and not as_json
    with console.status(f"exporting {what}") if shown else nullcontext() as status:

        def show_progress(done: int, total: int) -> None:
            if status is not None:
                status.update(f"fetching {format_size(done)} of {format_size(total)} from the nodes")

        done = asyncio.run(
            export_checkpoint(
                request,
                Runs.of(os.environ),
                on_progress=add_progress(show_progress),
                on_gathered=lambda: None if status is None else status.update(f"exporting {what}"),
            )
        )
    if as_json:
        click.echo(dump_json(done))
        return
    if done.nodes:
        click.echo(f"gathered the weights from {format_list(done.nodes)}")
    for line in format_export(done):
        click.echo(line)


def format_export(result: "ExportResult") -> list[str]:
    """What was written, and the Python that loads it."""
    report, folder = result.report, repr(str(result.to))
    size_note = f", {format_size(report['bytes'])}" if report.get("bytes") is not None else ""
    notes = list(report.get("notes") or ())
    if result.active:
        chosen = "best" if result.best is not None else "newest"
        notes.append(f"the run is still training: this is its {chosen} checkpoint so far; export again when it is over")
    why = "" if result.best is None else f", the best checkpoint ({result.best}),"
    wrote = f"exported {result.checkpoint}{why} to {result.to}{size_note}"
    base = report.get("base")
    if base is None:
        return [*notes, wrote, f"    AutoModelForCausalLM.from_pretrained({folder})"]
    return [
        *notes,
        wrote,
        f"    PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), {folder})",
        "this is the adapter alone; `aboard export … --merge` writes a model that needs no PEFT",
    ]
