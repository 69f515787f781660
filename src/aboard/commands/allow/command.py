"""`aboard allow`: the user's consent to settings of a file in the working directory."""

import os
from pathlib import Path

import click

from aboard.config.allowed_files import (
    FOUND_FILES,
    compute_digest,
    describe_owner,
    describe_settings,
    list_allowed,
    list_settings_to_allow,
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
    """Allow the settings of ./aboard.yaml (or FILE) that need your consent.

    A file that Aboard finds in the working directory may come with a cloned repository. Names of nodes, numbers and
    choices of a training run, paths in the directory and a few variables need no consent. Everything else does, such as
    a program, a user, an address or a path elsewhere: Aboard uses the file only after you have typed `aboard allow`
    there, and again when one of these settings changes. Files that you name on the command line need no consent.

    This command prints what it allows, and what each setting makes possible. The default for FILE is ./aboard.yaml
    and ./.deepspeed_env.
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
    settings = list_settings_to_allow(file, fix=configuration.FILE.fix("config"))
    shown = escape_text(file, 4096)
    if not settings:
        click.echo(f"{shown} has no setting that needs consent.")
        return
    record_allowed(file, compute_digest(settings), os.environ)
    click.echo(f"Allowed these settings of {shown}, until one of them changes:{describe_owner(file)}")
    for line in describe_settings(settings):
        click.echo(f"    {line}")


def _remove(file: str) -> None:
    path = resolve_path(file)
    records = [record for allowed, record in list_allowed(os.environ) if allowed == path]
    for record in records:
        record.unlink(missing_ok=True)
    click.echo(f"{escape_text(file, 4096)} is {'no longer' if records else 'not'} allowed.")
