"""`aboard export`."""

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console

from aboard.cli.options.train_extra import require_train_extra

DTYPES = ("bfloat16", "float16", "float32")


@click.command()
@click.argument("what", metavar="RUN|CHECKPOINT")
@click.option("--to", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The directory to create.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Data type of the weights; default: the base model's.")
def export(what: str, to: Path, dtype: str | None) -> None:
    """Export a checkpoint as a transformers model: safetensors, config, tokenizer, generation config.

    RUN is a run's name or a prefix of it; its newest checkpoint is exported. CHECKPOINT is a step-… directory, or a
    directory that contains some. Aboard verifies the checkpoint first.
    """
    require_train_extra("exporting")
    from aboard.core.text.byte_sizes import format_size  # noqa: PLC0415 - as above
    from aboard.flows.export import export_checkpoint  # noqa: PLC0415 - its dependencies were checked above
    from aboard.record.runs import Runs  # noqa: PLC0415 - as above

    console = Console(highlight=False)
    with console.status(f"exporting {what}") if console.is_terminal else nullcontext():
        done = asyncio.run(export_checkpoint(what, to, Runs.of(os.environ), dtype=dtype))
    size_note = f", {format_size(done.report['bytes'])}" if isinstance(done.report.get("bytes"), int) else ""
    click.echo(f"exported {done.checkpoint} to {done.to}{size_note}")
    click.echo(f"    AutoModelForCausalLM.from_pretrained({str(done.to)!r})")
