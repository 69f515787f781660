"""Takes the launchers of a script from their processes: each waits at a socket until the head releases it."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time

from aboard.agent import forked_work, frames, process_tree
from aboard.agent.capture.escaped_launchers import CONTAINED, EscapedLaunchers, is_contained
from aboard.agent.capture.resource_limits import read_limits
from aboard.agent.capture.script_activity import describe_activity
from aboard.agent.channel import Channel, read_peer
from aboard.agent.event_loop import EventLoop
from aboard.agent.inspect.launch_command import STARTERS
from aboard.agent.inspect.node_snapshot import POLL_SECONDS, CollectorChild
from aboard.agent.private_folders import replace_file

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from aboard.agent.supervisor_events import Emit

FOLDER, SOCKET = "capture", "capture.sock"
VARIABLE = "ABOARD_CAPTURE"
# What the directory has, by its name there.
FILES = {
    "sitecustomize": "aboard.agent.capture.sitecustomize",
    "aboard_capture": "aboard.agent.capture.aboard_capture",
    "aboard_launch_command": "aboard.agent.inspect.launch_command",
    "aboard_resource_limits": "aboard.agent.capture.resource_limits",
    "aboard_script_line": "aboard.agent.capture.script_line",
}
PROGRAMS = (
    "torchrun", "deepspeed", "accelerate", "accelerate-launch", "srun", "apptainer", "singularity", "docker", "podman",
    *STARTERS,
)  # fmt: skip
# For the shell, and for `python $(which torchrun)`, to which the first two lines are a string.
PROGRAM = """#!/bin/sh
'''exec' %s -ES %s %s "$@"
' '''
import sys; sys.modules["aboard_capture"].run_program(%r, sys.argv[1:])
"""
# What a launcher's process sends.
DOCUMENT = {
    "launcher": str, "argv": [str], "cwd": str, "env": {str: str}, "limits": {str: frames.Signed}, "python": str,
    "files": {str: str}, "script": str, "line": int, "streams": [str],
}  # fmt: skip
MOST_BYTES = 1024 * 1024
MOST_CAPTURES = 64
LAUNCHER_CHARS = 100
# What differs between any two processes, or is ours.
OWN, SHELLS_OWN = "ABOARD_", ("SHLVL", "_", "PWD", "OLDPWD")
MOST_CODE = 255
# Instead of a code: the command is none for Aboard, and runs as it is.
RUN_ITSELF = -1
ACTIVITY_SECONDS = 2.0
# Of lines that a launcher's reader has not read.
MOST_UNREAD = 256 * 1024


class LauncherCaptures:
    """The scripts of a supervisor and their launchers; `list_roots` names the first processes of all its children."""

    # The variable with the inodes of the pipes that a script's output goes to.
    PIPES = "ABOARD_CAPTURE_PIPES"

    def __init__(
        self, loop: EventLoop, directory: str, emit: Emit, list_roots: Callable[[], Mapping[str, int]]
    ) -> None:
        self._loop = loop
        self._directory = directory
        self._emit = emit
        self._list_roots = list_roots
        self._listener: socket.socket | None = None
        # By child, what it was started with, without our own additions, and its secrets.
        self._scripts: dict[str, tuple[dict[str, str], list[str]]] = {}
        # By pid.
        self._connections: dict[int, _Connection] = {}
        self._count = 0
        # How many of them ran as they were.
        self._passed = 0
        self._ending = False
        self._escaped = EscapedLaunchers(loop, os.path.join(directory, FOLDER), self._list_members, self._report_escape)

    def prepare(self, child: str, env: dict[str, str], secrets: list[str]) -> None:
        """Adds to a script's environment what makes its launchers connect to us."""
        if self._listener is None:
            self._listener = self._open()
            self._escaped.watch(lambda pid: pid in self._connections)
        self._scripts[child] = (dict(env), secrets)
        folder = os.path.join(self._directory, FOLDER)
        env["PATH"] = os.pathsep.join((os.path.join(folder, "bin"), env.get("PATH", os.defpath)))
        # An empty entry in the path would mean the current directory.
        env["PYTHONPATH"] = os.pathsep.join(part for part in (folder, env.get("PYTHONPATH", "")) if part)
        env[VARIABLE] = os.path.join(self._directory, SOCKET)

    def handle(self, message: frames.Message, answer: Callable[[frames.Message], None]) -> None:
        """Answers the head: a launcher's document, its release, lines for it to print, or what the script does now."""
        if message["op"] == "activity":
            self._describe_activity(answer)
        elif message["op"] == "capture":
            answer({"capture": self._get_document(int(message["number"]))})
        elif message["op"] == "print":
            answer({"taken": self._print(int(message["number"]), message)})
        else:
            self._release(int(message["number"]), int(message["code"]))
            answer({})

    def refuse_others(self) -> None:
        """Captures no more: the run ends."""
        self._ending = True

    def close(self) -> None:
        if self._listener is not None:
            self._loop.remove_fd(self._listener.fileno())
            self._listener.close()
        for connection in self._connections.values():
            connection.channel.close()

    def _open(self) -> socket.socket:
        folder = os.path.join(self._directory, FOLDER)
        programs = os.path.join(folder, "bin")
        os.mkdir(folder, 0o700)
        os.mkdir(programs, 0o700)
        loader: Any = __spec__.loader
        for name, module in FILES.items():
            replace_file(os.path.join(folder, name + ".py"), loader.get_source(module).encode())
        client = os.path.join(folder, "aboard_capture.py")
        for name in PROGRAMS:
            path = os.path.join(programs, name)
            python = sys.executable or "/usr/bin/python3"
            replace_file(path, (PROGRAM % (shlex.quote(python), shlex.quote(client), name, name)).encode())
            os.chmod(path, 0o700)
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(os.path.join(self._directory, SOCKET))
        listener.listen(MOST_CAPTURES)
        self._loop.on_readable(listener.fileno(), self._accept)
        return listener

    def _accept(self) -> None:
        if self._listener is None:
            return
        with contextlib.suppress(OSError):
            connection, _address = self._listener.accept()
            pid, uid = read_peer(connection)
            child = self._find_child(pid) if uid == os.getuid() else ""
            if not child or pid in self._connections or len(self._connections) >= MOST_CAPTURES:
                connection.close()
                return
            fd = connection.detach()
            self._connections[pid] = _Connection(
                child,
                Channel(
                    self._loop,
                    (fd, fd),
                    lambda body: self._take(pid, body),
                    lambda: self._drop(pid),
                    frames.FrameSplitter(MOST_BYTES),
                ),
            )

    def _take(self, pid: int, body: bytes) -> None:
        connection = self._connections[pid]
        try:
            self._check_room(connection)
            document = build_document(
                frames.unpack(body), self._scripts[connection.child][0], os.path.join(self._directory, FOLDER)
            )
        except ValueError as error:
            connection.channel.send({"refused": "%s: %s" % (type(error).__name__, error)})
            return
        if is_contained(pid):
            connection.channel.send({"refused": CONTAINED})
            self._report_escape(connection.child, document["argv"], CONTAINED)
            return
        self._count += 1
        connection.document, connection.number = document, self._count
        launcher = document["launcher"][:LAUNCHER_CHARS]
        self._emit(
            {"kind": "captured", "child": connection.child, "number": self._count, "launcher": launcher, "pid": pid}
        )

    def _check_room(self, connection: _Connection) -> None:
        if connection.document:
            raise ValueError("it was captured before")
        if self._ending:
            raise ValueError("the run is being terminated")
        if self._count - self._passed >= MOST_CAPTURES:
            raise ValueError("its script has started %d launchers before" % MOST_CAPTURES)

    def _drop(self, pid: int) -> None:
        connection = self._connections.pop(pid)
        if connection.document and not connection.released and not self._ending:
            self._emit({"kind": "withdrawn", "child": connection.child, "number": connection.number})

    def _report_escape(self, child: str, words: list[str], why: str) -> None:
        # Late: it is used once.
        from aboard.agent.supervisor.nested_launchers import mask_command  # noqa: PLC0415 - the reason is above

        command = mask_command(words, self._scripts[child][1])
        self._emit({"kind": "escaped", "child": child, "command": command, "why": why})

    def _get_document(self, number: int) -> dict[str, Any]:
        """The document of a launcher that waits."""
        for connection in self._connections.values():
            if connection.number == number and connection.document:
                return connection.document
        raise ValueError("no launcher waits as number %d" % number)

    def _release(self, number: int, code: int) -> None:
        """Lets a launcher exit with this code, or run; repeating it is harmless, and so is one that is gone."""
        if not (0 < number <= self._count and RUN_ITSELF <= code <= MOST_CODE):
            raise ValueError("no launcher %d that could exit with %d" % (number, code))
        for connection in self._connections.values():
            if connection.number == number and not connection.released:
                connection.released = True
                self._passed += code == RUN_ITSELF
                connection.channel.send({"run": True} if code == RUN_ITSELF else {"code": code})

    def _print(self, number: int, message: frames.Message) -> bool:
        """Lets a launcher that waits print lines; False if it has not printed what came before yet."""
        for connection in self._connections.values():
            if connection.number == number and not connection.released:
                if connection.channel.unsent > MOST_UNREAD and not message.get("last"):
                    return False
                connection.channel.send({str(message["stream"]): str(message["lines"])})
        return True

    def _describe_activity(self, answer: Callable[[frames.Message], None]) -> None:
        """Replies with what the first script that runs does now; read in a child, since a mount may be dead."""
        roots = self._list_roots()
        found = next(
            ((roots[child], secrets) for child, (_env, secrets) in self._scripts.items() if child in roots), None
        )
        if found is None:
            answer({"error": "no script runs"})
            return
        child = CollectorChild(self._loop)
        child.begin(forked_work.wrap_json_lines(lambda report: report(describe_activity(*found))))
        deadline = time.monotonic() + ACTIVITY_SECONDS

        def wait() -> None:
            if not child.over and time.monotonic() < deadline:
                self._loop.later(POLL_SECONDS, wait)
                return
            child.end()
            activity = next(forked_work.parse_json_lines(bytes(child.output)), {})
            answer({"activity": activity} if "line" in activity else {"error": "the script's file can't be read"})

        wait()

    def _find_child(self, pid: int) -> str:
        """The script that this process descends from; "" for a stranger."""
        return next((child for child, pids in self._list_members().items() if pid in pids), "")

    def _list_members(self) -> dict[str, set[int]]:
        """The processes of each script; orphans, which the kernel gives to us, count as those of the first."""
        roots, own = self._list_roots(), os.getpid()
        families = process_tree.list_families([own, *roots.values()], process_tree.read_parents())
        members = {child: set(families[roots[child]]) if child in roots else set() for child in self._scripts}
        first = next(iter(self._scripts))
        members[first] |= set(families[own]).difference([own], *(families[root] for root in roots.values()))
        return members


class _Connection:
    """A process that has connected; its number and document once it has sent one."""

    def __init__(self, child: str, channel: Channel) -> None:
        self.child = child
        self.channel = channel
        self.number = 0
        self.document: dict[str, Any] = {}
        self.released = False


def build_document(message: frames.Message, started_with: Mapping[str, str], folder: str) -> dict[str, Any]:
    """What the head gets of a launcher: its variables only as far as the script has changed them."""
    document = frames.decode_fields(message, DOCUMENT)
    env = document["env"]
    before = {name: value for name, value in started_with.items() if _is_scripts_own(name)}
    limits = read_limits()
    for name, own in (("PATH", os.path.join(folder, "bin")), ("PYTHONPATH", folder)):
        _remove_entry(env, name, own, before)
    return {
        **document,
        "env": {name: value for name, value in env.items() if _is_scripts_own(name) and before.get(name) != value},
        "removed": sorted(before.keys() - env.keys()),
        # Ours are those that the script was started with.
        "limits": {name: soft for name, soft in document["limits"].items() if soft != limits.get(name)},
        "host": os.uname().nodename,
    }


def _is_scripts_own(name: str) -> bool:
    return not name.startswith(OWN) and name not in SHELLS_OWN


def _remove_entry(env: dict[str, str], name: str, own: str, before: Mapping[str, str]) -> None:
    """Makes a search path what it would be without our entry."""
    if name not in env:
        return
    # Without us, `export PYTHONPATH=$PYTHONPATH:src` makes an empty entry of an empty path: the current directory.
    # Lmod's `prepend_path` makes none.
    instead = [] if before.get(name) or "__LMOD_REF_COUNT_" + name in env else [""]
    parts = (instead if part == own else [part] for part in env[name].split(os.pathsep))
    env[name] = os.pathsep.join(entry for entries in parts for entry in entries)
    if not env[name] and name not in before:
        del env[name]
