"""The structure holds: imports point down, `core` does no I/O, the agent runs alone on Python 3.9."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "aboard"
PURE = ("core", "checks", "verdicts")
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
        "checks/bad_io.py": "from pathlib import Path",
        "agent/bad_core.py": "from aboard.core.cluster import node",
        "flows/bad_torch.py": "import torch",
        "data/store/bad_feed.py": "from aboard.data.sampling import packed_sequences",
    }
    for name, source in bad.items():
        (copy / "src" / "aboard" / name).write_text(f"{source}\n")
    broken = _lint_imports(copy)
    assert broken.returncode == 1
    for name in bad:
        assert name.removesuffix(".py").replace("/", ".") in broken.stdout
    assert "Contracts: 0 kept, 5 broken" in broken.stdout


def test_the_agent_imports_only_itself_and_the_standard_library() -> None:
    """It is shipped over the wire: nothing else will be there."""
    missing = set()
    for path in _sources("agent"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if not name.startswith("aboard.agent") and name.partition(".")[0] not in sys.stdlib_module_names:
                    missing.add((path, name))
    assert not missing


@pytest.mark.ci
def test_the_agent_runs_on_python_3_9() -> None:
    """What vermin finds in its sources is not newer than that."""
    ran = subprocess.run(
        ["vermin", "--quiet", "--no-tips", "--violations", "-t=3.9-", "--eval-annotations", "--backport", "typing",
         str(PACKAGE / "agent")],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
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
