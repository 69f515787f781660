"""An error on a terminal."""

import io

import pytest
from rich.console import Console

from aboard.commands.shared.error_message import show_error
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.diagnoses import AboardError, Fix, Severity
from aboard.diagnoses.untrusted import quote_word
from aboard.diagnoses.usage import run_records


def test_lines_to_type_stand_one_under_the_other() -> None:
    """All of a fix is seen to be one, and no line of it is wrapped."""
    out = io.StringIO()
    error = AboardError(run_records.RUN_NONE, "there is no run", fix=Fix("aboard one\naboard two"))
    show_error(Console(file=out, width=40), error)
    assert out.getvalue() == "error [run-none]\n  there is no run\n  fix  aboard one\n       aboard two\n"


@pytest.mark.parametrize("width", [20, 60, 80])
def test_no_line_of_a_wrapped_remark_runs_when_it_is_pasted(width: int) -> None:
    """Each has its own `#`, whatever the width, also where a file's name looks like the beginning of a remark."""
    remark = f"on n1; lets its peers in until {'the next reboot, ' * 8}in all"
    name = quote_word(f"a    # {'b ' * 40}; echo run")
    for lines, safe in ((f"true    # {remark}\ntrue", {"true"}), (f"true {name}    # {remark}", {f"true {name}"})):
        for show in (show_in_finding, show_in_error):
            shown = show(Fix(lines), width)
            commands = [line.strip() for line in shown.partition("fix")[2].splitlines() if line.strip()]
            assert {line for line in commands if not line.startswith("# ")} == safe
            assert " ".join(line.removeprefix("# ") for line in commands if line.startswith("# ")) == remark


def show_in_error(fix: Fix, width: int) -> str:
    out = io.StringIO()
    error = AboardError(run_records.RUN_NONE, "there is no run", fix=fix)
    show_error(Console(file=out, width=width, force_terminal=True, color_system=None), error)
    return out.getvalue()


def show_in_finding(fix: Fix, width: int) -> str:
    out = io.StringIO()
    finding = run_records.RUN_NONE.finding(nodes=(), severity=Severity.WARN, seen="there is no run", fix=fix)
    Console(file=out, width=width, force_terminal=True, color_system=None).print(
        FindingsView([finding], in_full=True), crop=False
    )
    return out.getvalue()
