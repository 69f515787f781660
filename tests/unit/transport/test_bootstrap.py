"""How an agent gets onto a node: one line that every shell reads alike, the rest over stdin."""

import ast
import json
import subprocess
import sys
import zlib
from pkgutil import walk_packages

import pytest

import aboard.agent
from aboard.core.text.shell_quoting import join_argv
from aboard.transport import agent_bootstrap


def test_the_line_has_nothing_that_shells_disagree_on() -> None:
    """No newline, backslash, single quote or exclamation mark, so that csh and fish read it as sh does."""
    assert not set(agent_bootstrap.LINE) & set("\n\\'!")
    assert agent_bootstrap.LINE.isascii()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_runs_it(shell: str) -> None:
    """The far end reads the source from stdin and runs it, with nothing of it on the command line."""
    source = zlib.compress(b"import sys; flags = sorted(set(sys.flags[:10]))")
    ran = subprocess.run(
        [shell, "-c", f"exec {join_argv(agent_bootstrap.build_argv(sys.executable))}"],
        input=b"%d\n%sprint(flags)\nrest" % (len(source), source),
        capture_output=True,
        check=True,
    )
    assert ran.stdout == b"[0, 1]\n"
    assert ran.stderr == b""


def test_the_marker_is_new_each_time() -> None:
    """Nothing that a shell echoes or has printed before can look like it."""
    first, second = agent_bootstrap.build_bootstrap(30.0), agent_bootstrap.build_bootstrap(30.0)
    assert first.marker != second.marker
    assert first.marker not in first.stdin


def run_bundle(bundle: bytes, line: str) -> bytes:
    """What a Python without our package prints that gets this bundle over stdin."""
    argv = [sys.executable, "-ISc", agent_bootstrap.LINE]
    return subprocess.run(argv, input=bundle + line.encode() + b"\n", capture_output=True, check=True).stdout


def test_the_bundle_brings_every_module_and_runs_alone() -> None:
    """In a Python without our package, each module of the agent imports from what came over stdin.

    All but the beacon's: a rank imports them from files of its own.
    """
    shipped = {each.name for each in walk_packages(aboard.agent.__path__, "aboard.agent.")} - {
        "aboard.agent.bundle_importer"
    }
    # Files of ranks and scripts, which act when they are imported.
    of_others = (".sitecustomize", ".aboard_beacon", ".aboard_beacon_flight", ".aboard_beacon_torch", ".aboard_capture")
    names = sorted(name for name in shipped if not name.endswith(of_others))
    assert len(names) > 40
    line = f"import importlib; print(*[importlib.import_module(name).__name__ for name in {names!r}])"
    assert run_bundle(agent_bootstrap._build_bundle(), line).decode().split() == names


def test_the_bundle_is_written_in_the_syntax_of_the_oldest_python() -> None:
    """A node with Python 3.9 can compile every module."""
    sources = json.loads(
        run_bundle(agent_bootstrap._build_bundle(), "import json; print(json.dumps(sys.meta_path[0]._sources))")
    )
    for source in sources.values():
        ast.parse(source, feature_version=(3, 9))


def test_another_bytecode_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose Python has another bytecode than the head's compiles the sources instead."""
    line = "import aboard.agent.bridge as bridge; print(bridge.main.__code__.co_filename)"
    # Ours comes from a file of the head's, which tells the two apart.
    assert run_bundle(agent_bootstrap._build_bundle(), line).endswith(b"agent/bridge.py\n")
    monkeypatch.setattr(agent_bootstrap, "MAGIC_NUMBER", b"other")
    assert run_bundle(agent_bootstrap._build_bundle.__wrapped__(), line) == b"<aboard.agent.bridge>\n"


def test_a_launch_compiles_nothing_on_a_node_with_the_same_python() -> None:
    """All that a supervisor imports before ranks start comes as bytecode."""
    line = (
        "import aboard.agent.supervisor.supervisor, aboard.agent.inspect.launch_environment,"
        " aboard.agent.network.peer_listener, aboard.agent.inspect.leftover_runs;"
    )
    line += "print([n for n, m in sys.modules.items() if n.startswith('aboard.agent.')"
    line += " and hasattr(m, 'TYPE_CHECKING') and n not in sys.meta_path[0]._compiled])"
    assert run_bundle(agent_bootstrap._build_bundle(), line) == b"[]\n"


def test_the_agent_reads_no_module_that_costs_much() -> None:
    """Every check pays on every node for what the bridge imports; asyncio alone would be 50 ms."""
    line = (
        "import aboard.agent.bridge, aboard.agent.inspect.launch_environment; print([n for n in ('asyncio',"
        " 'subprocess', 'typing',"
    )
    line += (
        " 'ctypes', 'pathlib', 'socket', 'shutil', 'glob', 'aboard.agent.supervisor.supervisor') if n in sys.modules])"
    )
    assert run_bundle(agent_bootstrap._build_bundle(), line) == b"[]\n"
