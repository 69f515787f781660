"""Queries NCCL RAS, a plain-text status service in each process from NCCL 2.24 on.

It queries only ports on which one of our ranks listens, only over loopback, and sends nothing after the greeting unless
the peer replies as RAS. https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html
"""

from __future__ import annotations

import os
import socket
import time

from aboard.agent.procfs import STATE, parse_environ, read_environ, read_namespace, read_stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

PORT = 28028
# RAS waits for unresponsive processes in whole seconds, and 0 means for ever.
SECONDS = 1.4
MOST_BYTES = 256 * 1024
# All ranks of a node listen on the same port, and the kernel chooses: a stopped one never responds.
GREETINGS = 3
GREETING_SECONDS = 0.1
GREETING = b"SERVER PROTOCOL "
STATUS_REQUEST = b"TIMEOUT 1\nVERBOSE STATUS\n"
OK = b"OK\n"


def query_ras(roots: Mapping[str, int], sockets: Mapping[str, Sequence[Mapping[str, Any]]]) -> RasQuery | None:
    """Queries the first rank that listens on its RAS port; None if none does."""
    for name, root in roots.items():
        port = _read_ras_port(root)
        places = [str(each["local"]) for each in sockets.get(name, ()) if each["state"] == "LISTEN"] if port else []
        for place in places:
            host, _, number = place.rpartition(":")
            if number == str(port) and read_namespace(root, "net") == read_namespace(os.getpid(), "net"):
                return RasQuery(host.strip("[]"), int(number))
    return None


class RasQuery:
    """A query sent at once, since RAS takes time to collect all processes of a job; read it when the rest is done."""

    def __init__(self, host: str, port: int) -> None:
        self._deadline = time.monotonic() + SECONDS
        self._why = ""
        self._talk: socket.socket | None = None
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - nothing is bound
        if not near.startswith("127.") and near != "::1":
            self._why = "it listens on %s, which is not a loopback address: not queried" % host
        else:
            self._greet(near, port)

    def answer(self, within: float) -> dict[str, str]:
        """`text`, or `why` there is none; {} if nothing listens any more."""
        if self._talk is None:
            return {"why": self._why} if self._why else {}
        deadline = min(self._deadline, time.monotonic() + within)
        reply = bytearray()
        try:
            while len(reply) <= MOST_BYTES:
                # Data that has already arrived is read, however late it is.
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
            return {"why": "its reply is longer than %d KiB" % (MOST_BYTES // 1024)}
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
                self._why = "the service on its port %d does not respond like RAS" % port
            except socket.timeout:
                self._why = "nothing responds on its port %d" % port
                connection.close()
                continue
            except OSError:
                # It has just exited.
                self._why = ""
            connection.close()
            return


def _read_line(connection: socket.socket) -> bytes:
    """Reads one short line byte by byte, so that nothing after it is consumed."""
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
        return {"why": "it does not respond like RAS"}
    return {"text": reply[len(OK) :].decode("utf-8", "replace")}


def _read_ras_port(pid: int) -> int:
    """The RAS port from its environment, else the default; 0 where RAS is off. Skips a process stuck in the kernel."""
    env = parse_environ(read_environ(pid)) if read_stat(pid)[STATE : STATE + 1] != [b"D"] else {}
    if env.get(b"NCCL_RAS_ENABLE", b"1").strip() == b"0":
        return 0
    number = env.get(b"NCCL_RAS_ADDR", b"").rpartition(b":")[2]
    return int(number) if number.isdigit() and len(number) < 6 else PORT  # noqa: PLR2004 - digits of a port
