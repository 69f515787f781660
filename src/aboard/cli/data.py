"""`aboard data`."""

import sys
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any, cast

import click
from rich.console import Console

from aboard.cli.extra import need_train
from aboard.config.data import DataWords, load_data
from aboard.config.read import read_text
from aboard.diagnoses import InputError, Problem, Severity, configuration
from aboard.diagnoses import data as failures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aboard.data.gate.report import DataReport
    from aboard.data.tokens.encode import LossOn
    from aboard.flows.data import Question

DEFAULT_FILE = "aboard.yaml"
EXIT_WARNED, EXIT_BLOCKED = 1, 2
LOSS_ON = ("answers", "last", "all")
_YAML = (".yaml", ".yml")


@click.command()
@click.argument("files", nargs=-1)
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="The first N rows of each source, validation too, as the model sees them.",
)
@click.option("--stats", is_flag=True, help="A picture of the lengths.")
@click.option("--tokenizer", metavar="PATH", help="A directory with a tokenizer, or a name of the hub.")
@click.option("--template", metavar="FILE", help="A chat template in Jinja, instead of the tokenizer's own.")
@click.option("--format", "form", metavar="NAME", help="alpaca, sharegpt, messages, prompt-completion, text or tokens.")
@click.option("--text-column", metavar="NAME", help="The column that has the text, of plain text.")
@click.option(
    "--max-length", type=click.IntRange(min=2), metavar="N", help="Tokens of a sequence; what is longer is cut."
)
@click.option("--loss-on", type=click.Choice(LOSS_ON), help="Supervise all answers, the last one, or all tokens.")
@click.option("--validation", multiple=True, metavar="FILE", help="Not trained on; may be given again.")
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Sequences of a step, over all ranks.")
@click.option("--allow", multiple=True, metavar="CODE", help="Let this finding pass; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@click.option("-v", "--verbose", is_flag=True, help="Infos in full.")
def data(files: tuple[str, ...], as_json: bool, strict: bool, stats: bool, verbose: bool, **given: Any) -> None:
    """Look at training data as the model will see it: what is in there, how long it is, what is wrong with it.

    FILES are jsonl, json, parquet, directories of them, or names of the hub; with an aboard.yaml file, or without any
    and ./aboard.yaml, its section `data` is used, and options win over it.

    On a terminal, supervised tokens are green, masked ones grey, control tokens stand out. Into a pipe or a file go
    plain lines: rows on one line each, «supervised tokens» in such marks, findings as `aboard check` writes them.

    Exit code: 0 the gate is open, 1 warnings with --strict, 2 it is shut, 3 the command itself is wrong.
    """
    need_train("reading data")
    question = _question(files, **given)
    report = _looked(question, quiet=as_json)
    _print(report, as_json=as_json, stats=stats, verbose=verbose)
    sys.exit(_exit_code(report, strict=strict))


def _question(
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
) -> "Question":
    from aboard.flows.data import Question  # noqa: PLC0415 - the light install can't, and was told so above

    written, named = _written(files)
    again: dict[str, object] = {
        "tokenizer": tokenizer,
        "template": template,
        "format": form,
        "text-column": text_column,
    }
    again |= {"max-length": max_length, "loss-on": loss_on}
    template = template or written.template
    return Question(
        files=named or written.files,
        command=_command(files, again, validation, allow),
        format=form or written.format,
        text_column=text_column or written.text_column,
        tokenizer=tokenizer or written.tokenizer,
        template=None if template is None else read_text(template, fix=configuration.FILE.fix("template")),
        max_length=max_length or written.max_length,
        loss_on=cast("LossOn", loss_on or written.loss_on or "answers"),  # click and pydantic have looked
        validation=validation or written.validation,
        allow=(*written.allow, *allow),
        batch=batch,
        show=show,
    )


def _command(
    files: tuple[str, ...], options: "Mapping[str, object]", validation: tuple[str, ...], allow: tuple[str, ...]
) -> str:
    """What to type to have the same rows read in the same way; what only shows them is left out."""
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    words += [f"--validation={name}" for name in validation] + [f"--allow={code}" for code in allow]
    return join(["aboard", "data", *files, *words])


def _written(files: tuple[str, ...]) -> tuple[DataWords, tuple[str, ...]]:
    """What aboard.yaml says, and the files that were named beside it."""
    yamls = [name for name in files if name.endswith(_YAML)]
    named = tuple(name for name in files if not name.endswith(_YAML))
    if not files and Path(DEFAULT_FILE).exists():
        yamls = [DEFAULT_FILE]
    written = load_data(yamls) if yamls else DataWords()
    if not named and not written.files:
        seen = f"{yamls[0]} has no data.files" if yamls else "no file is named, and there is no ./aboard.yaml"
        raise InputError(failures.FILES, [Problem(where="aboard data", seen=seen, fix=failures.FILES.fix())])
    return written, named


def _looked(question: "Question", *, quiet: bool) -> "DataReport":
    """With a bar while it reads, where somebody looks on."""
    from aboard.flows.data import look  # noqa: PLC0415 - as above
    from aboard.ui.data_live import Reading  # noqa: PLC0415 - as above

    console = Console(stderr=True, highlight=False)
    if quiet or not console.is_terminal:
        return look(question)
    with Reading(console) as reading:
        return look(question, lambda far: reading.update(far.done, far.total, far.rows))


def _print(report: "DataReport", *, as_json: bool, stats: bool, verbose: bool) -> None:
    from aboard.ui.data import DataView  # noqa: PLC0415 - as above
    from aboard.ui.data_plain import data_json, data_lines  # noqa: PLC0415 - as above

    console = Console(highlight=False)
    if as_json:
        click.echo(data_json(report))
    elif console.is_terminal:
        console.print(DataView(report, stats=stats, verbose=verbose), crop=False)
    else:
        click.echo("\n".join(data_lines(report, stats=stats)))


def _exit_code(report: "DataReport", *, strict: bool) -> int:
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    if worst is Severity.BLOCK:
        return EXIT_BLOCKED
    return EXIT_WARNED if strict and worst is Severity.WARN else 0
