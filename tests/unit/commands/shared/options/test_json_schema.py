"""What commands print with --json is as their schemas say, and these are as recorded, since scripts rely on them."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import within
from json_documents import list_differences, read_document
from typed_commands import aboard

from aboard.commands.command_line import cli
from aboard.commands.shared.options.json_schema import DOCUMENTS, build_command_schema

GOLDEN = Path(__file__).parents[3] / "golden" / "json_schemas"
HOSTILE = r"print('\x1b]0;x\x07 \u202e red\x1b[31m ü \ud83d\ude80'.encode('utf-16', 'surrogatepass').decode('utf-16'))"
Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize("command", DOCUMENTS)
def test_a_schema(command: str) -> None:
    """`aboard --json-schema logs > tests/unit/golden/json_schemas/logs.json` records a change.

    A new key needs no more; if a key goes or means something else, raise SCHEMA in json_output.py.
    """
    assert aboard("--json-schema", command).stdout == (GOLDEN / f"{command}.json").read_text("utf-8")


def test_every_schema_can_be_chosen() -> None:
    """The option names them by itself: a command that prints none need not import them."""
    (option,) = (each for each in cli.params if each.name == "json_schema")
    assert [*option.type.choices] == [*DOCUMENTS]  # type: ignore[attr-defined]  # of a choice


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.pop("text"),
        lambda entry: entry.update(extra=1),
        lambda entry: entry.update(at="1"),
        lambda entry: entry.update(ranks=[True]),
        lambda entry: entry.update(schema=2),
    ],
)
def test_a_document_that_differs_is_noticed(change: Change) -> None:
    """A missing or unknown key, another type, another version: the tests below would fail."""
    schema = build_command_schema("logs")
    entry = {"schema": 1, "at": 1.5, "ranks": [0], "node": "n1", "stream": "stdout", "attempt": None}
    entry |= {"alike": False, "text": "", "missing": 0, "why": ""}
    assert list_differences(entry, schema, {}) == []
    change(entry)
    assert len(list_differences(entry, schema, {})) == 1


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.ci
def test_a_run_that_failed(state: Path) -> None:
    """Every command about a record; ranks and a script's text can't put control characters into any of it."""
    (state / "bad.py").write_text(f"import os\n{HOSTILE}\nif os.environ['RANK'] == '1': raise KeyError('\\x1b[2J')\n")
    assert aboard("launch", "--check", "none", "--ranks", "2", "--", "bad.py").code == 1
    listed = read_document("status", aboard("status", "--json").stdout)
    (run,) = listed["runs"]
    named = read_document("status", aboard("status", run["id"], "--json").stdout)
    assert named == listed
    assert (run["state"], run["world"], run["findings"][0]["code"]) == ("failed", 2, "run-raised")
    followed = aboard("status", run["id"], "--json", "--follow").stdout
    assert [read_document("status", line) for line in followed.splitlines()] == [named]
    why = read_document("why", aboard("why", "--json").stdout)
    assert (why["run"], why["state"]) == (run["id"], "failed")
    assert [each["code"] for each in why["findings"]][:1] == [each["code"] for each in run["findings"]][:1]
    entries = [read_document("logs", line) for line in aboard("logs", "--json").stdout.splitlines()]
    (said,) = (entry for entry in entries if "ü" in entry["text"])
    assert (sorted(said["ranks"]), said["stream"]) == ([0, 1], "stdout")
    assert said["text"].endswith("red ü \N{ROCKET}")
    report = read_document("report", aboard("report", "--data").stdout)
    assert report["runs"][0]["verdicts"][0]["code"] == "run-raised"
    assert aboard("bundle", run["id"], "--yes", "-o", "packed.tar.gz").code == 0
    packed = read_document("why", aboard("why", "--json", "--bundle", "packed.tar.gz").stdout)
    assert packed["findings"][0]["code"] == "run-raised"


@pytest.mark.ci
def test_an_active_run(state: Path) -> None:
    """Followed, it has a line for each change, the last one when it has ended; why asks its conductor."""
    (state / "waits.py").write_text("import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.05)\n")
    launch = [sys.executable, "-m", "aboard", "launch", "--detach", "--check", "none", "--", "waits.py"]
    subprocess.run(launch, cwd=state, check=True, capture_output=True, timeout=60)
    follow = [sys.executable, "-m", "aboard", "status", "--json", "--follow"]
    with within(60), subprocess.Popen(follow, cwd=state, stdout=subprocess.PIPE, text=True) as followed:
        assert followed.stdout is not None
        first = read_document("status", followed.stdout.readline())["runs"][0]
        assert (first["state"], first["progress"]["world"]) == ("running", 1)
        why = read_document("why", aboard("why", first["id"], "--json").stdout)
        assert (why["state"], why["findings"]) == ("running", [])
        once = read_document("status", aboard("status", first["id"], "--json").stdout)["runs"][0]
        assert once["progress"]["rows"][0]["node"] == "localhost"
        (state / "go").touch()
        lines = [first, *(read_document("status", line)["runs"][0] for line in followed.stdout)]
    assert [lines[-1]["state"], lines[-1]["progress"]] == ["finished", None]
    assert {each["state"] for each in lines[:-1]} == {"running"}
    assert followed.returncode == 0


@pytest.mark.ci
def test_a_log_and_the_nodes_of_a_new_file(state: Path) -> None:
    """`why --log` and `init` on this machine; notes are on stderr."""
    (state / "train.log").write_text("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.\n")
    assert read_document("why", aboard("why", "--json", "--log", "train.log").stdout)["files"] == ["train.log"]
    made = aboard("init", "localhost", "--json")
    found = read_document("init", made.stdout)
    assert (found["output"], found["action"]) == ("aboard.yaml", "create")
    assert [node["name"] for node in found["cluster"]["nodes"]] == ["localhost"]
    assert found["next"].startswith("aboard ")
    assert "Nodes from the command line" in made.stderr
