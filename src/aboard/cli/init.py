"""`aboard init`: a small commented aboard.yaml for these nodes, or its JSON schema."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from aboard.config.cluster_loader import DEFAULT_FILE
from aboard.config.input_files import read_text
from aboard.config.node_entries import parse_hostfile_entries, parse_node_names
from aboard.config.starter_file import format_starter_file
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import commands, configuration

if TYPE_CHECKING:
    from aboard.config.node_entries import NodeEntry


@click.command()
@click.argument("hosts", nargs=-1)
@click.option("--hostfile", metavar="FILE", help="Take the nodes from a DeepSpeed hostfile.")
@click.option("-o", "--output", metavar="FILE", default=DEFAULT_FILE, show_default=True, help="The file to write.")
@click.option("--schema", "wants_schema", is_flag=True, help="Print the JSON schema of aboard.yaml for your editor.")
def init(hosts: tuple[str, ...], hostfile: str | None, output: str, wants_schema: bool) -> None:
    """Write an aboard.yaml for HOSTS, such as gpu[01-16] or alice@gpu01."""
    if wants_schema:
        from aboard.config.config_loader import build_json_schema  # noqa: PLC0415 - the reason is above

        click.echo(build_json_schema(), nl=False)
        return
    text = format_starter_file(_read_entries(hosts, hostfile))
    _write_new_file(output, text)
    click.echo(f"Wrote {output}. Next: aboard check" + ("" if output == DEFAULT_FILE else f" {output}"))


def _read_entries(hosts: tuple[str, ...], hostfile: str | None) -> "list[NodeEntry]":
    if bool(hosts) == (hostfile is not None):
        seen = "no node was given" if not hosts else "the nodes were given both as arguments and by --hostfile"
        raise InputError(commands.INIT, [Problem(where="aboard init", seen=seen, fix=commands.INIT.fix())])
    if hostfile is not None:
        return parse_hostfile_entries(read_text(hostfile, fix=configuration.FILE.fix("own-hostfile")), hostfile)
    return parse_node_names(hosts)


def _write_new_file(output: str, text: str) -> None:
    try:
        with Path(output).open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        fix = commands.INIT_EXISTS.fix(other=f"{Path(output).stem}-2.yaml")
        problem = Problem(where=output, seen="the file already exists", fix=fix)
        raise InputError(commands.INIT_EXISTS, [problem]) from None
    except OSError as error:
        seen = f"cannot write the file: {error.strerror}"
        problem = Problem(where=output, seen=seen, fix=commands.INIT_WRITE.fix())
        raise InputError(commands.INIT_WRITE, [problem]) from None
