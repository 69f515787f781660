"""The story of a code in the terminal and in the docs: one source, compared whole."""

import io
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from rich.console import Console

from aboard.commands.command_line import cli
from aboard.commands.why.diagnosis_pages import build_pages
from aboard.commands.why.diagnosis_view import ALL_SUBJECTS, CodeListView, DiagnosisView
from aboard.core.probes.check_subject import Subject
from aboard.diagnoses import AboardError, Advice, Diagnosis, FixCommand, InputError, Severity
from aboard.diagnoses.fixes import FixTemplate
from aboard.engine.records.replay_run import find_default_run
from aboard.record.runs import Runs

GOLDEN = Path(__file__).parents[1] / "golden" / "ui"

CLOCK = Diagnosis(
    code="host-clock",
    title="a node's clock is off",
    severity=Severity.BLOCK,
    symptoms=("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "munge: Expired credential"),
    explanation="Nobody sets it, or what sets it can't reach its server. torchrun takes a peer whose clock is 15 s off"
    " for dead, and goes on without it.",
    remedy="Let chrony set it: `sudo apt-get install --yes chrony && sudo systemctl enable --now chrony.service` there,"
    " then look at `chronyc tracking`.",
    leads_to=("reach-noisy-shell",),
)
SHELL = Diagnosis(
    code="reach-noisy-shell",
    title="the login shell prints before any command, which breaks scp, rsync and git over ssh",
    severity=Severity.INFO,
    symptoms=("protocol error: unexpected <newline>",),
    explanation="A line in ~/.bashrc prints.",
    remedy="Put it behind `[[ $- == *i* ]] || return`.",
)
HOST = Subject(name="host", title="every host is known", probes=(), rules=(), diagnoses=(CLOCK,))
REACH = Subject(name="reach", title="every node answers", probes=(), rules=(), diagnoses=(SHELL,))
PAGES = build_pages((REACH, HOST))


def told(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(DiagnosisView(HOST, CLOCK), crop=False)
    return out.getvalue()


def listed(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(CodeListView((REACH, HOST)), crop=False)
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 120])
def test_a_story(width: int) -> None:
    """Title, how it shows, why, how to mend it; what stands between backticks is never broken."""
    assert told(width) == (GOLDEN / f"story-{width}.txt").read_text("utf-8")


def test_a_story_without_a_remedy() -> None:
    """Its fixes say what to do: commands between backticks, remarks and advice as they are, and no guess at a word."""
    fixes: dict[str, FixTemplate] = {
        "near": Advice("did you mean '{near}'?"),
        "look": FixCommand("df -h {folder}  # on {node}\naboard check"),
        "write": Advice("slots: 8"),
    }
    story = Diagnosis(code="x", title="x", explanation="x", symptoms=("x",), fixes=fixes)
    out = io.StringIO()
    Console(file=out, width=80, color_system=None, highlight=False).print(DiagnosisView(HOST, story), crop=False)
    assert (
        "  fix       `df -h FOLDER`  # on NODE\n            `aboard check`\n            slots: 8\n\n" in out.getvalue()
    )


def test_the_list() -> None:
    """All codes by subject, each with its title."""
    assert listed(80) == (GOLDEN / "codes-80.txt").read_text("utf-8")


def test_a_page_and_the_index() -> None:
    """The same story as Markdown."""
    assert PAGES["host-clock.md"] == (GOLDEN / "page.md").read_text("utf-8")
    assert PAGES["index.md"] == (GOLDEN / "index.md").read_text("utf-8")
    assert set(PAGES) == {"index.md", "host-clock.md", "reach-noisy-shell.md"}


def test_every_code_has_one_story() -> None:
    """Two stories of one code would make one page."""
    codes = [story.code for subject in ALL_SUBJECTS for story in subject.diagnoses]
    assert sorted(set(codes)) == sorted(codes)


def test_why_tells_and_lists() -> None:
    """`aboard why CODE` has the story of a real code, `aboard why --codes` has them all."""
    some = ALL_SUBJECTS[0].diagnoses[0]
    assert some.title in CliRunner().invoke(cli, ["why", some.code]).output
    every = CliRunner().invoke(cli, ["why", "--codes"]).output
    assert all(story.code in every for subject in ALL_SUBJECTS for story in subject.diagnoses)


def test_why_without_a_word_means_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that lives, or else the newest; where there is none yet, what else may be asked is told."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    none = CliRunner().invoke(cli, ["why"]).exception
    assert isinstance(none, AboardError)
    assert none.code == "run-none"
    assert "aboard why --nodes" in none.fix
    runs = Runs.of({"XDG_STATE_HOME": str(tmp_path)})
    drawn = Random(1)  # noqa: S311 - draws names, no secret
    older, newer = (runs.create(datetime(2026, 1, day, tzinfo=UTC), drawn) for day in (1, 2))
    assert find_default_run(runs).id == newer.id != older.id


@pytest.mark.parametrize(
    ("typed", "fix"), [("reach-refusd", "aboard why reach-refused"), ("\x1b[2Jx", "lists all"), ("yaml", "lists all")]
)
def test_why_of_no_code(typed: str, fix: str) -> None:
    """A code that isn't one is answered with the nearest, or with where they all are."""
    error = CliRunner().invoke(cli, ["why", typed]).exception
    assert isinstance(error, InputError)
    assert fix in error.fix
    assert error.seen.isprintable()


def test_the_page_of_a_code_says_what_its_severity_means_where_it_is_found() -> None:
    """Only a check before a launch refuses one; a run that hangs was launched, and an error stops its command."""
    pages = build_pages(ALL_SUBJECTS)
    assert "so a launch is refused" in pages["host-clock.md"]
    assert "the run has failed, or makes no progress. Found by `aboard why RUN`" in pages["hang-absent.md"]
    assert "the command stops, and nothing is started" in pages["file.md"]
    checks = {s.code for subject in ALL_SUBJECTS if subject.is_check for s in subject.diagnoses}
    wrong = [name for name, page in pages.items() if "launch is refused" in page and name[:-3] not in checks]
    assert wrong == []
