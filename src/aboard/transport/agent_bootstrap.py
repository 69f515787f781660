"""Starts an agent on a node: one line of Python on the command line, the rest over stdin."""

import marshal
import re
import secrets
import zlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.machinery import SourceFileLoader
from importlib.resources.abc import Traversable
from importlib.util import MAGIC_NUMBER
from types import CodeType

from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.transport.transport import Bootstrap, StreamEnding

MARKER = b"\n<aboard %s>\n"

# Right in sh, csh and fish alike: no newline, no backslash, no single quote, no exclamation mark. It reads the
# agent from stdin, so that no secret and no source is on a command line: a length, that much of compressed source
# (the importer, which reads the modules behind it), and a last line that starts the agent. -I and -S keep the node's
# own PYTHONPATH, user site and .pth files out of an agent that needs none of them, and save 5 ms. A Python that is too
# old lists the others that are installed.
LINE = (
    'import sys;sys.version_info>=(3,9)or sys.exit("aboard: python "+" ".join([sys.version.split()[0]]'
    '+__import__("glob").glob("/usr/bin/python3.*[0-9]")));'
    'import zlib;f=open(0,"rb",closefd=False);exec(zlib.decompress(f.read(int(f.readline()))));exec(f.readline())'
)
# Behind the importer: a length and that much of its modules. marshal reads in 1 ms what parsing as source takes 12 ms.
_INSTALL_IMPORTER = "sys.meta_path.insert(0,BundleImporter(*marshal.loads(zlib.decompress(f.read(int(f.readline()))))))"
# A regular interpreter exit takes 5 ms more, needlessly: an agent has nothing buffered.
START_BRIDGE = b"import os;from aboard.agent.bridge import main;main(%r,%r);os._exit(0)\n"
START_TASK = b"import os;from aboard.agent.slurm_task import main;main(%r,%r,f);os._exit(0)\n"
TOO_OLD = "aboard: python "
_NO_PYTHON = re.compile(
    r"^.*(not found|unknown command|no such file or directory|permission denied|cannot execute).*$",
    re.IGNORECASE | re.MULTILINE,
)
_EXIT_NOT_FOUND = (126, 127)


def build_argv(python: str) -> tuple[str, ...]:
    return (python, "-ISc", LINE)


def build_bootstrap(silence: float, start: bytes = START_BRIDGE) -> Bootstrap:
    """The marker is random each time: nothing that a shell prints or echoes can look like it."""
    marker = MARKER % secrets.token_hex(16).encode()
    return Bootstrap(stdin=_build_bundle() + start % (marker, silence), marker=marker)


def classify_start_failure(ending: StreamEnding) -> tuple[UnreachableReason, str]:
    """Why the node's shell or Python ended before the agent started, and the line that shows it."""
    last_line = find_last_line(ending.stderr)
    old = ending.stderr.find(TOO_OLD)
    if old >= 0:
        version, *others = ending.stderr[old + len(TOO_OLD) :].splitlines()[0].split() or ["unknown"]
        return UnreachableReason.OLD_PYTHON, version[:20] + (f"; also installed: {' '.join(others)}" if others else "")
    # csh exits with 1; fish draws a picture below the line with the error.
    missing = _NO_PYTHON.search(ending.stderr)
    if ending.exit_code in _EXIT_NOT_FOUND or (ending.exit_code == 1 and missing):
        return UnreachableReason.NO_PYTHON, missing[0].strip() if missing else last_line
    if ending.exit_code is None:
        return UnreachableReason.LOST, last_line or "the connection was lost before the agent started"
    return UnreachableReason.GARBAGE, last_line or f"the shell exited with code {ending.exit_code}"


def find_last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def extract_line(text: str, start: int, end: int) -> str:
    """The line, or lines, around a part of a text."""
    after = text.find("\n", end)
    return text[text.rfind("\n", 0, start) + 1 : after if after >= 0 else None].strip()


@cache
def _build_bundle() -> bytes:
    """The importer, then the agent's sources and, for those that every launch needs, their bytecode.

    As with a .pyc file, a node uses bytecode only if its Python's version is the same; that saves 60 ms. It comes
    from our own .pyc files: compiling it would cost the head 70 ms at every start.
    """
    package = resources.files("aboard.agent")
    sources = {"aboard": "", **dict(_collect_sources(package, "aboard.agent"))}
    packages = {name for name in sources if any(other.startswith(f"{name}.") for other in sources)}
    importer = package.joinpath("bundle_importer.py").read_text("utf-8")
    modules = (sources, packages, {name: marshal.dumps(_load_code(name)) for name in _PRECOMPILED}, MAGIC_NUMBER)
    parts = (
        zlib.compress(part, _COMPRESSION_LEVEL)
        for part in (f"{importer}\n{_INSTALL_IMPORTER}\n".encode(), marshal.dumps(modules))
    )
    return b"".join(b"%d\n%s" % (len(part), part) for part in parts)


def _collect_sources(folder: Traversable, package: str) -> Iterator[tuple[str, str]]:
    """Every module below a package, by its name; a package's own docstring stays here."""
    yield package, ""
    for file in folder.iterdir():
        if file.is_dir() and file.name != "__pycache__":
            yield from _collect_sources(file, f"{package}.{file.name}")
        elif file.name.endswith(".py") and file.name not in ("__init__.py", "bundle_importer.py"):
            yield f"{package}.{file.name.removesuffix('.py')}", file.read_text("utf-8")


def _load_code(name: str) -> CodeType:
    path = resources.files("aboard").joinpath(*name.split(".")[1:-1], f"{name.rpartition('.')[2]}.py")
    code = SourceFileLoader(name, str(path)).get_code(name)
    assert code is not None  # noqa: S101 - only a loader without source has none
    return code


# What a launch imports on every node; a check imports the first half.
_PRECOMPILED = tuple(f"aboard.agent.{name}" for name in (
    "requests", "bridge", "channel", "procfs", "inspect.launch_environment", "frames", "inspect.leftover_runs",
    "event_loop", "network.peer_listener", "network.interface_addresses", "network.port_owners", "run_directory",
    "process_spawn", "private_folders", "forked_work", "process_tree", "beacon.report_receiver",
    "supervisor.rank_processes", "supervisor.nested_launchers", "supervisor.resource_usage", "supervisor.guard_process",
    "supervisor.supervisor", "supervisor.supervisor_watch", "supervisor.rank_group", "supervisor.rank_output",
    "supervisor.copier", "supervisor.port_reservation", "supervisor.output_spool", "secret_redaction",
    "inspect.rank_stacks", "supervisor.gpu_usage",
))  # fmt: skip
# A slow uplink sends this once for each node, 195 KB; the best level takes 90 ms more for a tenth less.
_COMPRESSION_LEVEL = 3
