"""What `aboard sync --env` shows while it works and when it is done."""

import json
from io import StringIO

from rich.console import Console

from aboard.commands.sync.environment.environment_view import (
    describe_environment,
    format_environment_json,
)
from aboard.commands.sync.sync_view import NodeProgressView
from aboard.core.environment.sync_report import EnvironmentProgress, EnvironmentSyncResult, NodeEnvironmentResult
from aboard.diagnoses import AboardError
from aboard.diagnoses.usage import environment_sync

DONE = EnvironmentSyncResult(
    prefix="/home/me/venv",
    packages=3,
    projects=("/home/me/project",),
    loose=("mine.pth",),
    nodes={
        "n1": NodeEnvironmentResult(action="created", installed=("a", "b", "c"), sent=1000, seconds=2.0),
        "n2": NodeEnvironmentResult(action="created", installed=("a", "b", "c"), sent=1000, seconds=2.5),
        "n3": NodeEnvironmentResult(action="updated", installed=("a",), removed=("d",)),
        "n4": NodeEnvironmentResult(action="unchanged"),
        "n5": NodeEnvironmentResult(action="shared", same_disk_as="n1"),
        "n6": NodeEnvironmentResult(action="shared", same_disk_as=""),
    },
    failures={
        "n7": AboardError(
            environment_sync.NO_PYTHON, "n7 has no Python 3.11; it has 3.9.2", "copy", base="/home/me/py 3.11"
        )
    },
    seconds=3.0,
)


def test_the_result_has_a_line_for_each_outcome() -> None:
    """Nodes with the same outcome share one; what failed comes first, with its command."""
    assert list(describe_environment(DONE).format_lines()) == [
        "block env-no-python n7 seen: n7 has no Python 3.11; it has 3.9.2",
        f"block env-no-python n7 why: {environment_sync.NO_PYTHON.explanation}",
        f"block env-no-python n7 fix: {DONE.failures['n7'].fix}",
        "fine n[1-2]: created, 3 packages installed",
        "fine n3: updated, 1 package installed, 1 package removed",
        "fine n4: unchanged",
        "fine n5: on the disk of n1",
        "fine n6: on the disk of this machine",
        "note /home/me/project is installed as editable here; nodes get a copy of its current files",
        "note not copied, since no package lists them: mine.pth",
        "done: 6 of 7 nodes have /home/me/venv with 3 packages; 3.0 s",
    ]
    assert DONE.failures["n7"].fix.startswith("aboard sync '/home/me/py 3.11'    # ")
    shown = Console(file=StringIO(), width=80)
    shown.print(describe_environment(DONE), crop=False)
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "✓ n[1-2]: created, 3 packages installed\n" in text
    assert "✗ env-no-python  n7\n" in text
    told = json.loads(format_environment_json(DONE))
    assert told["nodes"]["n3"]["removed"] == ["d"]
    assert [each["code"] for each in told["findings"]] == ["env-no-python"]


def test_progress_shows_bytes_with_their_rate_and_packages_without() -> None:
    """A node that is done has no line, and a pipe gets one line in a while."""
    view = NodeProgressView(Console(file=StringIO(), width=80))
    for node, phase, done, total in (("", "packing", 3, 3), ("n1", "sending", 5, 10), ("n2", "installing", 1, 4)):
        view.update(EnvironmentProgress(node=node, phase=phase, done=done, total=total))  # type: ignore[arg-type]
    shown = Console(file=StringIO(), width=80)
    shown.print(view)
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.partition(" ")[0] for line in lines] == ["n1", "n2"]
    assert "sending: 5 B of 10 B" in lines[0]
    assert "installing packages: 1 of 4" in lines[1]
    now, pipe = [0.0], StringIO()
    plain = NodeProgressView(Console(file=pipe, width=80), lambda: now[0])
    for second, done in ((0, 0), (1, 1000), (10, 10_000), (11, 11_000)):
        now[0] = float(second)
        plain.update(EnvironmentProgress(node="n1", phase="sending", done=done, total=20_000))
    (written,) = pipe.getvalue().splitlines()
    assert written.startswith("n1  sending: ")
    assert written.endswith("/s, 10 s left")
