"""Files of a foreign directory are read in one way, and every program that Aboard starts is in docs/security.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "aboard"
# Where files come from directories that somebody else may have written.
READING_ROOMS = (
    "commands",
    "engine",
    "config",
    "trainer/data/intake",
    "trainer/data/tokens",
    "trainer/model",
    "trainer/weights",
    "trainer/checkpoint",
    "trainer/settings",
)
READING_CALLS = {"open", "read_text", "read_bytes", "copyfile", "copytree", "copy2"}
# All others use aboard.foreign_files, or read_text of config/input_files.py, which does.
OTHER_READERS = {
    "config/input_files.py": "reads what the user named, with a limit of size and time",
    "config/allowed_files.py": "the user's own records, in the state directory",
    "config/this_machine.py": "/proc, and Aboard's own record in the state directory",
    "config/slurm_allocation.py": "/proc",
    "engine/request/typed_words.py": "/proc",
    "commands/shared/printed_output.py": "/dev/null",
    "trainer/data/intake/": "rows in bounded pieces, after source_chunks.py has refused what is no regular file",
    "engine/records/bundle.py": "writes",
    "commands/shared/page/render_page.py": "Aboard's own sources",
    "engine/check/inspect_slurm.py": "slurm.conf of the system, or of SLURM_CONF",
    "commands/sync/environment/": "the Python environment of the user, which Aboard itself runs from",
    "commands/init/write_config.py": "adds to a file that choose_output_action has read",
    "engine/conductor_client.py": "the run's own directory, in the state directory",
    "engine/monitoring/receivers.py": "posts to an address",
    "engine/background_run.py": "the run's own log, in the state directory",
    "engine/launch_session.py": "the run's own record, which it writes",
    "engine/trial.py": "the run's own record, which it writes",
    "engine/sessions/run_sessions.py": "opens sessions, not files",
    "engine/slurm/continue_job.py": "the script of the user's own job",
    "engine/slurm/watch_job.py": "the output of the user's own job",
    "commands/sync/": "sends what the user named, and receives into it: docs/security.md, A repository and A node",
    "commands/train/input_directory.py": "the manifest of what will be sent; as commands/sync",
    "commands/train/training_payload.py": "Aboard's own sources",
    "commands/trust/": "opens logins, not files",
    "engine/records/bundle_replay.py": "what the user named, with limits",
    "commands/why/log_files.py": "what the user named, in bounded pieces",
    "engine/records/decision_log.py": "writes",
    "engine/records/record_parts.py": "the run's own files, in the state directory, with limits",
    "trainer/model/export.py": "SavedCheckpoint, which is no file",
    "trainer/weights/model_files.py": "samples of weights, after list_weight_files has refused what is no regular file",
    "trainer/weights/safetensors_writer.py": "writes",
    "trainer/weights/weight_files.py": "as model_files.py",
}
STARTING_CALLS = {
    *("create_subprocess_exec", "create_subprocess_shell", "Popen", "posix_spawn", "posix_spawnp", "fork_exec"),
    *("execve", "execv", "execvp", "execvpe", "execl", "execlp", "spawnv", "spawnvp", "system", "popen"),
    *("spawn_process", "start_program", "get_context", "ProcessPoolExecutor"),
}
HINT = r"subprocess|\.(exec|system|popen)|spawn|start_program|get_context|Pool"
SUBPROCESS_CALLS = {"run", "call", "check_call", "check_output", "getoutput"}


def list_calls(path: Path, hint: str) -> Iterator[str]:
    """The dotted names of what a file calls, also in the texts of scripts for nodes."""
    text = path.read_text("utf-8")
    if not re.search(hint, text):  # parsing every file would take seconds
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"\b(subprocess\.\w+|os\.exec\w+)\(", node.value)


def reads_by_itself(call: str) -> bool:
    """Whether the call opens a file; `read_text` alone is that of config/input_files.py."""
    return call.rpartition(".")[2] in READING_CALLS and call != "read_text"


def starts_program(call: str) -> bool:
    before, _, last = call.rpartition(".")
    return last in STARTING_CALLS or (before == "subprocess" and last in SUBPROCESS_CALLS)


@pytest.mark.ci
def test_foreign_files_are_read_in_one_way() -> None:
    """A new `open`, `read_text` or `read_bytes` needs a reason in the list above, and the list has no others."""
    paths = [path for room in READING_ROOMS for path in sorted((PACKAGE / room).rglob("*.py"))]
    found = {
        str(path.relative_to(PACKAGE))
        for path in paths
        if any(map(reads_by_itself, list_calls(path, "open|read_|copy")))
    }
    unlisted = [name for name in sorted(found) if not name.startswith(tuple(OTHER_READERS))]
    assert len(paths) > 100
    assert [name for name in OTHER_READERS if not any(each.startswith(name) for each in found)] == []
    assert unlisted == [], "use read_foreign_file of aboard.foreign_files"


@pytest.mark.ci
def test_every_program_that_aboard_starts_is_listed() -> None:
    """docs/security.md says of each module that starts programs why the working directory can't change what they do."""
    text = (ROOT / "docs/security.md").read_text("utf-8").partition("## Programs that Aboard starts")[2]
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|", text.partition("\n## ")[0], re.MULTILINE)
    listed = set(re.findall(r"`([\w/]+(?:\.py|/))`", "\n".join(rows)))
    paths = sorted(PACKAGE.rglob("*.py"))
    found = {str(path.relative_to(PACKAGE)) for path in paths if any(map(starts_program, list_calls(path, HINT)))}
    assert [name for name in sorted(found) if not name.startswith(tuple(listed))] == []
    assert [name for name in sorted(listed) if not any(each.startswith(name) for each in found)] == []


@pytest.mark.parametrize("call", ["open(x)", "Path(x).read_text()", "path.open()", "os.open(x, 0)", "gzip.open(x)"])
def test_another_way_to_read_would_be_seen(call: str, tmp_path: Path) -> None:
    """The look above has teeth."""
    (tmp_path / "a.py").write_text(f"def read():\n    return json.loads({call})\n")
    assert any(map(reads_by_itself, list_calls(tmp_path / "a.py", "")))


@pytest.mark.parametrize("call", ["subprocess.run(x)", "os.execve(x)", "asyncio.create_subprocess_exec(x)"])
def test_another_program_would_be_seen(call: str, tmp_path: Path) -> None:
    """The look above has teeth."""
    (tmp_path / "a.py").write_text(f"{call}\n")
    assert any(map(starts_program, list_calls(tmp_path / "a.py", HINT)))
