"""Writes a page where its user can open it, readable only by them."""

import getpass
from pathlib import Path

from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import run_records
from aboard.durable_files import write_atomically
from aboard.foreign_files import open_foreign_file
from aboard.record.run_directory import PRIVATE_FILE

# In every page, so that only a page is ever replaced.
MARK = b'<meta name="generator" content="aboard report">'
_MARK_WITHIN = 1_000


def write_page(path: Path, content: bytes, *, run: str) -> None:
    """Writes the page with mode 0600; replaces an older page, and no other file."""
    try:
        if path.exists() and not _is_page(path):
            seen = f"{path} exists and was not written by `aboard report`"
            raise AboardError(run_records.REPORT_THERE, seen, run=run, name=f"{run}-report.html")
        write_atomically(path, content, sync=False, mode=PRIVATE_FILE)
    except OSError as error:
        seen = f"{path} can't be written: {error.strerror}"
        raise AboardError(run_records.REPORT_WRITE, seen, run=run, name=path.name) from None


def _is_page(path: Path) -> bool:
    with open_foreign_file(path) as file:
        return MARK in file.read(_MARK_WITHIN)


def list_users() -> tuple[str, ...]:
    """Whose name is removed from a page: the user's own."""
    try:
        return (getpass.getuser(),)
    except (KeyError, OSError):  # a container whose user has no name
        return ()
