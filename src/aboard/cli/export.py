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
@click.option("--to", required=True, metavar="DIR", type=click.Path(path_type=Path), help="A directory to be made.")
@click.option("--dtype", type=click.Choice(DTYPES), help="Of the weights; else that of the model it began with.")
def export(what: str, to: Path, dtype: str | None) -> None:
    """Write a checkpoint as a model that transformers loads: safetensors, config, tokenizer, generation config.

    RUN is a run's name or the beginning of it, and its newest checkpoint is meant; CHECKPOINT is a directory step-…,
    or one with several of them. The checkpoint is verified first.
    """
    require_train_extra("exporting")
    from aboard.core.text.byte_sizes import format_size  # noqa: PLC0415 - as above
    from aboard.flows.export import export_checkpoint as exported  # noqa: PLC0415 - what it needs was looked for above
    from aboard.record.runs import Runs  # noqa: PLC0415 - as above

    console = Console(highlight=False)
    with console.status(f"exporting {what}") if console.is_terminal else nullcontext():
        done = asyncio.run(exported(what, to, Runs.of(os.environ), dtype=dtype))
    size_note = f", {format_size(done.told['bytes'])}" if isinstance(done.told.get("bytes"), int) else ""
    click.echo(f"{done.checkpoint} is now {done.to}{size_note}")
    click.echo(f"    AutoModelForCausalLM.from_pretrained({str(done.to)!r})")
