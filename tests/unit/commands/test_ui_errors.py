"""An error on a terminal."""

import io

from rich.console import Console

from aboard.commands.shared.error_message import show_error
from aboard.diagnoses import AboardError, Fix
from aboard.diagnoses.usage import run_records


def test_lines_to_type_stand_one_under_the_other() -> None:
    """All of a fix is seen to be one, and no line of it is wrapped."""
    out = io.StringIO()
    error = AboardError(run_records.RUN_NONE, "there is no run", fix=Fix("aboard one\naboard two"))
    show_error(Console(file=out, width=40), error)
    assert out.getvalue() == "error [run-none]\n  there is no run\n  fix  aboard one\n       aboard two\n"
