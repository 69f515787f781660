"""How an agent gets onto a node: one line that every shell reads alike, the rest over stdin."""

import subprocess
import sys
import zlib
from importlib.util import MAGIC_NUMBER

import pytest

from aboard.core.shell import join
from aboard.wires import bootstrap


def test_the_line_has_nothing_that_shells_disagree_on() -> None:
    """No newline, backslash, single quote or exclamation mark, so that csh and fish read it as sh does."""
    assert not set(bootstrap.LINE) & set("\n\\'!")
    assert bootstrap.LINE.isascii()


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_shell_runs_it(shell: str) -> None:
    """The far end reads the source from stdin and runs it, with nothing of it on the command line."""
    source = zlib.compress(b"import sys; flags = sorted(set(sys.flags[:10]))")
    ran = subprocess.run(
        [shell, "-c", f"exec {join(bootstrap.argv(sys.executable))}"],
        input=b"%d\n%sprint(flags)\nrest" % (len(source), source),
        capture_output=True,
        check=True,
    )
    assert ran.stdout == b"[0, 1]\n"
    assert ran.stderr == b""


def test_the_marker_is_new_each_time() -> None:
    """Nothing that a shell echoes or has printed before can look like it."""
    first, second = bootstrap.bootstrap(30.0), bootstrap.bootstrap(30.0)
    assert first.marker != second.marker
    assert first.marker not in first.stdin


def test_the_bundle_brings_every_module_and_runs_alone() -> None:
    """In a Python without our package, each module of the agent imports from what came over stdin."""
    bundle = bootstrap._bundle().decode()
    names = "asks beacons bridge channel children frames gauges guard hello keeper lease loop marks outputs place "
    names += "redact spawn spool stacks tree"
    check = f"import importlib\nfor name in {names!r}.split(): importlib.import_module('aboard.agent.' + name)\n"
    ran = subprocess.run([sys.executable, "-ISc", "import sys; exec(sys.stdin.read())"],
                         input=(bundle + check).encode(), capture_output=True, check=False)  # fmt: skip
    assert ran.stderr == b""


def test_another_bytecode_is_left_alone() -> None:
    """A node whose Python has another bytecode than the head's compiles the sources instead."""
    bundle = bootstrap._bundle().replace(repr(MAGIC_NUMBER).encode(), b"b'other'")
    check = b"import aboard.agent.bridge as b\nprint(b.main.__doc__ is not None)\n"
    for source, kept in ((bundle, b"True\n"), (bootstrap._bundle(), b"False\n")):
        # Ours is compiled without docstrings, which tells the two apart.
        ran = subprocess.run([sys.executable, "-ISc", "import sys; exec(sys.stdin.buffer.read())"],
                             input=source + check, capture_output=True, check=True)  # fmt: skip
        assert ran.stdout == kept


def test_the_agent_reads_no_module_that_costs_much() -> None:
    """Every check pays on every node for what the bridge imports; asyncio alone would be 50 ms."""
    bundle = bootstrap._bundle().decode()
    check = "import aboard.agent.bridge\nprint([n for n in ('asyncio', 'subprocess', 'typing', 'ctypes', 'pathlib',"
    check += " 'socket', 'shutil', 'glob', 'aboard.agent.keeper') if n in sys.modules])"
    ran = subprocess.run([sys.executable, "-ISc", "import sys; exec(sys.stdin.read())"],
                         input=(bundle + check).encode(), capture_output=True, check=True)  # fmt: skip
    assert ran.stdout == b"[]\n"
