"""`aboard allow`: the user's consent to what a file in the working directory names."""

import os
from pathlib import Path

import click

from aboard.config.allowed_files import (
    FOUND_FILES,
    compute_digest,
    describe_owner,
    describe_settings,
    list_allowed,
    list_named_code,
    record_allowed,
    resolve_path,
)
from aboard.config.input_files import DEFAULT_FILE
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration


@click.command()
@click.argument("files", nargs=-1, metavar="[FILE]…")
@click.option("--list", "wants_list", is_flag=True, help="List the files that you have allowed.")
@click.option("--remove", is_flag=True, help="Take back what you have allowed for FILE.")
def allow(files: tuple[str, ...], wants_list: bool, remove: bool) -> None:
    """Allow what ./aboard.yaml (or FILE) names to run with your rights.

    A file that Aboard finds in the working directory may come with a cloned repository. Where it names code (an
    interpreter, setup lines, variables that load code, a container, options for Slurm, trust_remote_code), Aboard
    uses it only after you have typed `aboard allow` there, and again when one of these lines changes. Files that you
    name on the command line need no consent, and neither do node names and other settings.

    This command prints the lines that it allows. The default for FILE is ./aboard.yaml and ./.deepspeed_env.
    """
    if wants_list:
        for path in dict.fromkeys(path for path, _record in list_allowed(os.environ)):
            click.echo(escape_text(path, 4096))
        return
    found = [file for file in FOUND_FILES if Path(file).exists()]
    for file in files or found or (DEFAULT_FILE,):
        if remove:
            _remove(file)
        else:
            _allow(file)


def _allow(file: str) -> None:
    settings = list_named_code(file, fix=configuration.FILE.fix("config"))
    shown = escape_text(file, 4096)
    if not settings:
        click.echo(f"{shown} names nothing that runs; it needs no consent.")
        return
    record_allowed(file, compute_digest(settings), os.environ)
    click.echo(f"Allowed what {shown} names, until one of these lines changes:{describe_owner(file)}")
    for line in describe_settings(settings):
        click.echo(f"    {line}")


def _remove(file: str) -> None:
    path = resolve_path(file)
    records = [record for allowed, record in list_allowed(os.environ) if allowed == path]
    for record in records:
        record.unlink(missing_ok=True)
    click.echo(f"{escape_text(file, 4096)} is {'no longer' if records else 'not'} allowed.")
