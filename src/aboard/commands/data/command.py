"""`aboard data`."""

import sys
from shlex import join
from typing import TYPE_CHECKING, Any, cast

import click

from aboard.commands.shared.options.train_extra import require_train_extra
from aboard.commands.shared.printed_output import build_console, print_report
from aboard.config.input_files import YAML_SUFFIXES, FoundFile, find_default_files, read_text
from aboard.config.schema.data_settings import DataSettings, load_data_settings
from aboard.core.exit_codes import choose_exit_code
from aboard.core.text.data_reference import parse_share
from aboard.diagnoses import InputError
from aboard.diagnoses.usage import configuration
from aboard.trainer.diagnoses import data as failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aboard.commands.data.prepare_data import DataCheckRequest
    from aboard.trainer.data.quality.data_report import DataReport
    from aboard.trainer.data.tokens.encoder import LossOn

LOSS_ON = ("answers", "last", "all")


@click.command()
@click.argument("files", nargs=-1)
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Show the first N rows of each source and validation set as the model sees them.",
)
@click.option("--stats", is_flag=True, help="Show a histogram of the row lengths.")
@click.option("--tokenizer", metavar="PATH", help="A tokenizer directory, or a name on the Hugging Face Hub.")
@click.option("--template", metavar="FILE", help="A Jinja chat template to use instead of the tokenizer's.")
@click.option(
    "--format",
    "form",
    metavar="NAME",
    help="Format of the rows: alpaca, sharegpt, messages, prompt-completion, text or tokens.",
)
@click.option("--text-column", metavar="NAME", help="The column that contains the text, for plain text data.")
@click.option("--max-length", type=click.IntRange(min=2), metavar="N", help="Tokens per sequence; longer rows are cut.")
@click.option("--loss-on", type=click.Choice(LOSS_ON), help="Supervise all answers, the last one, or all tokens.")
@click.option("--validation", multiple=True, metavar="FILE", help="Validation set, or 2% of the rows; repeatable.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Sequences per step, across all ranks.")
@click.option("--allow", multiple=True, metavar="CODE", help="Accept this finding; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings.")
@click.option("-v", "--verbose", is_flag=True, help="Show info findings in full.")
def data(files: tuple[str, ...], as_json: bool, strict: bool, stats: bool, verbose: bool, **options: Any) -> None:
    """Inspect training data as the model will see it: contents, lengths, and what is wrong with it.

    FILES are jsonl, json or parquet files, directories of them, or names on the Hugging Face Hub. An
    aboard.yaml (default: ./aboard.yaml) supplies its `data` section; options override it.

    On a terminal, supervised tokens are green, masked ones grey, and control tokens stand out. A pipe or file gets
    plain lines: one per row, with «supervised tokens» marked like this, and findings as `aboard check` prints them.

    Exit code: 0 data check passed; 1 warnings, with --strict; 2 data check failed; 3 the command is wrong.
    """
    require_train_extra("reading data")
    question = _build_question(files, **options)
    report = _inspect_data(question, quiet=as_json)
    _print_report(report, as_json=as_json, stats=stats, verbose=verbose)
    sys.exit(choose_exit_code(report.findings, strict=strict))


def _build_question(
    files: tuple[str, ...],
    *,
    form: str | None,
    text_column: str | None,
    tokenizer: str | None,
    template: str | None,
    max_length: int | None,
    loss_on: str | None,
    validation: tuple[str, ...],
    allow: tuple[str, ...],
    batch: int | None,
    show: int,
) -> "DataCheckRequest":
    from aboard.commands.data.prepare_data import DataCheckRequest  # noqa: PLC0415 - needs the train extra, checked above

    settings, named_files = _load_settings(files)
    command_options = {"tokenizer": tokenizer, "template": template, "format": form, "text-column": text_column}
    more_options = {"max-length": max_length, "loss-on": loss_on}
    if template is None and settings.template is not None:
        template = FoundFile(settings.template)
    share = parse_share(validation)
    if share is not None and not 0 < share < 1:
        raise InputError.of(configuration.CONFIG, "--validation", "a share is between 0% and 100%", "share")
    return DataCheckRequest(
        files=named_files or settings.files,
        command=_format_command(files, {**command_options, **more_options}, validation, allow),
        format=form or settings.format,
        text_column=text_column or settings.text_column,
        tokenizer=tokenizer or settings.tokenizer,
        trust_remote_code=settings.trust_remote_code,
        template=None if template is None else read_text(template, fix=configuration.FILE.fix("template")),
        max_length=max_length or settings.max_length,
        loss_on=cast("LossOn", loss_on or settings.loss_on or "answers"),  # click and pydantic validated it
        validation=() if share is not None else validation or settings.validation,
        validation_share=share if validation else settings.validation_share,
        allow=(*settings.allow, *allow),
        batch=batch,
        show=show,
    )


def _format_command(
    files: tuple[str, ...], options: "Mapping[str, object]", validation: tuple[str, ...], allow: tuple[str, ...]
) -> str:
    """The command that reads the same rows in the same way, without options that only affect the output."""
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    arguments += [f"--validation={name}" for name in validation] + [f"--allow={code}" for code in allow]
    return join(["aboard", "data", *files, *arguments])


def _load_settings(files: tuple[str, ...]) -> tuple[DataSettings, tuple[str, ...]]:
    """The settings of aboard.yaml, and the data files named beside it."""
    yamls = [name for name in files if name.endswith(YAML_SUFFIXES)]
    named_files = tuple(name for name in files if not name.endswith(YAML_SUFFIXES))
    if not files:
        yamls = find_default_files()
    settings = load_data_settings(yamls) if yamls else DataSettings()
    if not named_files and not settings.files:
        seen = f"{yamls[0]} has no data.files" if yamls else "no file was given, and there is no ./aboard.yaml"
        raise InputError.of(failures.FILES, "aboard data", seen)
    return settings, named_files


def _inspect_data(request: "DataCheckRequest", *, quiet: bool) -> "DataReport":
    """Runs the inspection, with a progress bar on a terminal."""
    from aboard.commands.data.prepare_data import inspect_data  # noqa: PLC0415 - as above
    from aboard.commands.shared.progress_bar import ReadingView  # noqa: PLC0415 - as above

    console = build_console(stderr=True)
    if quiet or not console.is_terminal:
        return inspect_data(request)
    with ReadingView(console, opening="opening the files and the tokenizer …") as reading:
        return inspect_data(request, lambda far: reading.update(far.done, far.total, far.rows))


def _print_report(report: "DataReport", *, as_json: bool, stats: bool, verbose: bool) -> None:
    from aboard.commands.data.plain_report import format_data_json, format_data_lines  # noqa: PLC0415 - as above
    from aboard.commands.data.report_view import DataReportView  # noqa: PLC0415 - as above

    if as_json:
        click.echo(format_data_json(report))
    else:
        view = DataReportView(report, stats=stats, verbose=verbose)
        print_report(build_console(), view, format_data_lines(report, stats=stats))
