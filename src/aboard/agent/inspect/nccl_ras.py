"""Asking NCCL's own watch over its ranks, RAS, what it knows: a plain-text service in each process from NCCL 2.24 on.

Only what a rank of ours itself listens on is asked, only over the loopback, and only what greets as RAS is told more
than a greeting. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

from aboard.agent.inspect.process_activity import STATE, read_kernel_file, read_stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PORT = 28028
# RAS waits for processes that don't answer in whole seconds, and 0 is for ever.
SECONDS = 1.4
MOST_BYTES = 256 * 1024
ENVIRON_LIMIT = 256 * 1024
# All ranks of a node listen on the same port, and the kernel chooses: one that is stopped never greets.
GREETINGS = 3
GREETING_SECONDS = 0.1
GREETING = b"SERVER PROTOCOL "
STATUS_REQUEST = b"TIMEOUT 1\nVERBOSE STATUS\n"
OK = b"OK\n"


def query_ras(roots: Mapping[str, int], sockets: Mapping[str, Sequence[Mapping[str, Any]]]) -> RasQuery | None:
    """Asks the first rank that listens where its RAS would; None where none does, and nothing is said of it then."""
    for name, root in roots.items():
        port = _read_ras_port(root)
        places = [str(each["local"]) for each in sockets.get(name, ()) if each["state"] == "LISTEN"] if port else []
        for place in places:
            host, _, number = place.rpartition(":")
            if number == str(port) and _is_same_network(root):
                return RasQuery(host.strip("[]"), int(number))
    return None


class RasQuery:
    """Asked at once, since RAS takes its time to hear all processes of a job; to be read when the rest is done."""

    def __init__(self, host: str, port: int) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._why = ""
        self._talk: socket.socket | None = None
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound
        if not near.startswith("127.") and near != "::1":
            self._why = "it listens on %s, which is no loopback address: it was not asked" % host
        else:
            self._greet(near, port)

    def answer(self, within: float) -> dict[str, str]:
        """`text`, or `why` there is none; {} where nobody is there any more."""
        if self._talk is None:
            return {"why": self._why} if self._why else {}
        deadline = min(self._deadline, time.monotonic() + within)
        reply = bytearray()
        try:
            while len(reply) <= MOST_BYTES:
                # What has come already is read, however late it is.
                self._talk.settimeout(max(0.0, deadline - time.monotonic()))
                part = self._talk.recv(65536)
                if not part:
                    return _parse_reply(bytes(reply))
                reply += part
        except (socket.timeout, BlockingIOError):
            pass
        except OSError as error:
            return {"why": "the connection to it was lost: %s" % error.strerror}
        finally:
            self._talk.close()
        if len(reply) > MOST_BYTES:
            return {"why": "its answer is longer than %d KiB" % (MOST_BYTES // 1024)}
        return {"why": "it had not collected everything within %.1f s" % SECONDS}

    def _greet(self, host: str, port: int) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for _ in range(GREETINGS):
            connection = socket.socket(family, socket.SOCK_STREAM)
            connection.settimeout(GREETING_SECONDS)
            try:
                connection.connect((host, port))
                connection.sendall(b"CLIENT PROTOCOL 2\n")
                greeting = _read_line(connection)
                if greeting.startswith(GREETING):
                    connection.sendall(STATUS_REQUEST)
                    self._talk, self._why = connection, ""
                    return
                self._why = "what listens on its port %d does not greet as RAS does" % port
            except socket.timeout:
                self._why = "nobody greets on its port %d" % port
                connection.close()
                continue
            except OSError:
                # It has just ended.
                self._why = ""
            connection.close()
            return


def _read_line(connection: socket.socket) -> bytes:
    """One line, byte by byte: what comes behind it is not ours yet. A greeting is short."""
    deadline = time.monotonic() + GREETING_SECONDS
    line = b""
    while not line.endswith(b"\n") and len(line) < 2 * len(GREETING):
        if time.monotonic() >= deadline:
            raise socket.timeout
        part = connection.recv(1)
        if not part:
            break
        line += part
    return line


def _parse_reply(reply: bytes) -> dict[str, str]:
    if not reply.startswith(OK):
        return {"why": "it does not answer as RAS does"}
    return {"text": reply[len(OK) :].decode("utf-8", "replace")}


def _read_ras_port(pid: int) -> int:
    """As its environment has it; 0 where RAS is off. Of a process deep in the kernel, not even that can be read."""
    env = {}
    if read_stat(pid)[STATE : STATE + 1] != [b"D"]:
        for entry in read_kernel_file("/proc/%d/environ" % pid, ENVIRON_LIMIT).split(b"\0"):
            name, _, value = entry.partition(b"=")
            if name in (b"NCCL_RAS_ADDR", b"NCCL_RAS_ENABLE"):
                env[name] = value
    if env.get(b"NCCL_RAS_ENABLE", b"1").strip() == b"0":
        return 0
    number = env.get(b"NCCL_RAS_ADDR", b"").rpartition(b":")[2]
    return int(number) if number.isdigit() and len(number) < 6 else PORT  # noqa: PLR2004 - digits of a port


def _is_same_network(pid: int) -> bool:
    """A rank in a container with a network of its own has another loopback than we."""
    with contextlib.suppress(OSError):
        return os.stat("/proc/%d/ns/net" % pid).st_ino == os.stat("/proc/self/ns/net").st_ino
    return False
