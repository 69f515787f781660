"""The structure holds: imports point down, `core` does no I/O, the agent runs alone on Python 3.9."""

import ast
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "aboard"
MEASURING = ("rank_measurement.py", "compute_speed.py")
PURE = ("core", "doctor")
# Of Python in a string.
MOST_LINES = 5
MOST_MODULES = 15
LONG = 400
# Each with the reason why it is not two.
LONG_FILES = {
    "agent/beacon/aboard_beacon_torch.py": "a rank loads it as one file, from the supervisor's directory",
    "agent/beacon/report_receiver.py": "one receiver with one state: each kind of report is a short method",
    "agent/capture/aboard_capture.py": "a launcher loads it as one file, from the supervisor's directory",
    "agent/supervisor/supervisor.py": "one process with one state: each method is short",
    "engine/conductor/conductor.py": "one loop over one run; judging, recovery and evidence are beside it",
    "core/plan/training_settings.py": "a table: a field and its sentence for each setting",
    "core/run/run_state.py": "one fold over all kinds of events, each a short method",
    "diagnoses/runs/death.py": "declarations only",
    "trainer/checks/training_rules.py": "one short function for each rule",
    "transport/node_session.py": "one session with one state: each request is a short method",
}
# What reaches outside without an import that a contract could see.
FORBIDDEN = {"open", "print", "input", "exec", "eval", "compile", "__import__", "breakpoint"}


def _sources(*rooms: str) -> list[Path]:
    return [path for room in rooms for path in sorted((PACKAGE / room).rglob("*.py"))]


def _calls(tree: ast.AST) -> set[str]:
    """The names of built-in functions that are called or passed on."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} & FORBIDDEN


def _lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the project's contracts over a copy of the package."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "src")}
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(PACKAGE, tmp_path / "src" / "aboard", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.ci
def test_what_decides_does_no_io() -> None:
    """No open, no print, no exec: such rooms get values and give values."""
    called = {path: _calls(ast.parse(path.read_text("utf-8"))) for path in _sources(*PURE)}
    assert {path: names for path, names in called.items() if names} == {}


@pytest.mark.parametrize(
    "line", ["open('x')", "print(1)", "list(map(open, names))", "f = eval", "x = __import__('os')"]
)
def test_io_in_a_pure_room_would_be_seen(line: str) -> None:
    """The look above has teeth: called, or handed on to be called."""
    assert _calls(ast.parse(line))


@pytest.mark.ci
def test_the_contracts_hold_and_break(copy: Path) -> None:
    """Kept as they stand; broken by an import that points up, and by I/O or a clock in a pure room."""
    kept = _lint_imports(copy)
    assert kept.returncode == 0, kept.stdout
    bad = {
        "core/bad_up.py": "from aboard.transport import node_dialer",
        "core/bad_clock.py": "import time",
        "doctor/bad_io.py": "from pathlib import Path",
        "agent/bad_core.py": "from aboard.core.cluster import node",
        "commands/bad_torch.py": "import torch",
        "trainer/data/store/bad_feed.py": "from aboard.trainer.data.sampling import packed_sequences",
        "commands/check/bad_command.py": "from aboard.commands.launch import run_options",
        "commands/runs/bad_dialer.py": "from aboard.transport import node_dialer",
        "engine/check/bad_engine.py": "from aboard.engine.conductor import conductor",
        "engine/check/bad_terminal.py": "import click",
        "doctor/host/bad_subject.py": "from aboard.doctor.death import rules",
        "agent/transfer/bad_copies.py": "from aboard.agent.copies import copy_record",
    }
    for name, source in bad.items():
        (copy / "src" / "aboard" / name).write_text(f"{source}\n")
    broken = _lint_imports(copy)
    assert broken.returncode == 1
    for name in bad:
        assert name.removesuffix(".py").replace("/", ".") in broken.stdout
    assert "Contracts: 0 kept, 11 broken" in broken.stdout


def test_commands_about_runs_start_no_task() -> None:
    """They show what the engine does: nothing of theirs runs beside it. `why` inspects jobs of others itself."""
    starting = {"create_task", "ensure_future", "TaskGroup", "gather", "to_thread"}
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in _sources("commands/launch", "commands/check", "commands/runs", "commands/why")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in starting
    }
    assert found == {"commands/why/external_jobs.py"}


@pytest.mark.ci
def test_what_is_shipped_imports_only_itself_and_the_standard_library() -> None:
    """Nothing else will be on the node, except for torch where its speed is measured."""
    missing = set()
    for path in _sources("agent", "node_scripts"):
        own = f"aboard.{path.relative_to(PACKAGE).parts[0]}"
        allowed = {*sys.stdlib_module_names, *(["torch"] if path.name in MEASURING else [])}
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            missing |= {
                (path.name, name)
                for name in names
                if not name.startswith(own) and name.partition(".")[0] not in allowed
            }
    assert not missing


def test_importing_a_script_does_nothing() -> None:
    """The head imports constants from scripts: what they do on a node is in functions, called if it is the program."""
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign)
    tests = {"__name__ == '__main__'", "TYPE_CHECKING"}
    for path in _sources("node_scripts"):
        for node in ast.parse(path.read_text("utf-8")).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            guarded = isinstance(node, ast.If) and ast.unparse(node.test) in tests
            assert docstring or guarded or isinstance(node, definitions), (path.name, ast.unparse(node))


def test_a_package_has_no_logic_of_its_own() -> None:
    """What a package does is in modules with a name; its __init__ explains it and may re-export."""
    # `sandbox` re-exports late, and `train` silences loggers before anything imports them.
    allowed = {PACKAGE / name / "__init__.py" for name in ("sandbox", "trainer")}
    for path in {path for path in _sources(".") if path.name == "__init__.py"} - allowed:
        for node in ast.parse(path.read_text("utf-8")).body:
            exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in {"__all__", "__version__"}
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or exported or isinstance(node, (ast.Import, ast.ImportFrom)), path


def test_a_package_is_read_at_a_glance() -> None:
    """At most 15 modules beside each other, and long files only for a reason."""
    packages = {path.parent for path in _sources(".")}
    modules = {package: len(list(package.glob("*.py"))) - 1 for package in packages}
    assert {str(package): count for package, count in modules.items() if count > MOST_MODULES} == {}
    lengths = {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text("utf-8").splitlines()) for path in _sources(".")
    }
    assert {name for name, length in lengths.items() if length > LONG} == set(LONG_FILES)


def test_a_test_is_found_by_the_path_of_what_it_tests() -> None:
    """tests/unit has the directories of the source; beside them is only what tests the repository as a whole."""
    unit = ROOT / "tests/unit"
    homes = {path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}
    assert [home for home in homes if not (PACKAGE / home).is_dir()] == []


def _list_embedded_programs(source: str) -> list[int]:
    """The lines of string literals that are Python programs: several lines with an import or a function."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        texts = [part.value if isinstance(part, ast.Constant) else "blank" for part in parts]
        text = "".join(text for text in texts if isinstance(text, str))
        if text.count("\n") > MOST_LINES:
            with suppress(SyntaxError, ValueError):
                inside = ast.walk(ast.parse(text))
                if any(isinstance(each, (ast.Import, ast.ImportFrom, ast.FunctionDef)) for each in inside):
                    found.append(getattr(node, "lineno", 0))
    return found


@pytest.mark.ci
def test_no_program_is_hidden_in_a_string() -> None:
    """Code for other interpreters is a module whose source is sent: linted, typed, and tested by importing it."""
    found = {str(path.relative_to(ROOT)): _list_embedded_programs(path.read_text("utf-8")) for path in _sources(".")}
    assert {path: lines for path, lines in found.items() if lines} == {}
    assert _list_embedded_programs(repr("import os\n" + "print(os)\n" * MOST_LINES)) == [1]


@pytest.mark.ci
def test_scripts_for_unknown_interpreters_run_on_python_3_6() -> None:
    """An image's Python is as old as the image, and so may be what is found on a node."""
    own = ("sitecustomize", "aboard_capture", "script_line")
    paths = [
        PACKAGE / "node_scripts/container_view.py",
        PACKAGE / "agent/packages/interpreter_description.py",
        PACKAGE / "agent/inspect/launch_command.py",
        *(PACKAGE / "agent/capture" / f"{name}.py" for name in own),
    ]
    argv = ["vermin", "--quiet", "--no-tips", "--violations", "-t=3.6-", *map(str, paths)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout


def test_no_test_asserts_how_fast_something_is() -> None:
    """Elapsed time is compared in tests/kit/deadlines.py, which scales with the machine; all else is a benchmark."""
    elapsed = re.compile(r"(monotonic|perf_counter|time)\(\) - \w+\)? *<")
    tests = [path for path in (ROOT / "tests").rglob("*.py") if path.name != "deadlines.py"]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tests
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if elapsed.search(line)
    ]
    assert len(tests) > 200
    assert found == []


def test_errors_that_end_a_rank_of_the_trainer_have_a_class_of_recovery() -> None:
    """They are TrainerErrors, whose type asks for the class; data and settings are read before there are ranks."""
    found = []
    for path in _sources("trainer"):
        if path.relative_to(PACKAGE / "trainer").parts[0] in ("checks", "data", "settings") or "export" in path.name:
            continue
        for call in ast.walk(ast.parse(path.read_text("utf-8"))):
            match call:
                case ast.Call(func=ast.Name(id="AboardError"), args=[ast.Attribute() as diagnosis, *_]):
                    name = ast.unparse(diagnosis)
                    # A rank raises the error of another one again, and exports use the model's builder.
                    if name not in ("first.diagnosis", "checkpoints.EXPORT_MODEL"):
                        found.append(f"{path.name}: {name}")
    assert not found
