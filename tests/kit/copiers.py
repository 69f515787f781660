"""Copiers as real processes on this machine, each with an output directory of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from deadlines import slowness, wait_until

from aboard.agent import frames

KEY = bytes(range(32))
SOON = 30.0
SERVE = "import sys; from aboard.agent.copies.copier_process import serve_copies; serve_copies(int(sys.argv[1]))"


class CopierProcess:
    """One copier and the socket of its parent."""

    def __init__(self, root: Path, number: int, rate: float = 0) -> None:
        self.root, self.number, self.rate = root, number, rate
        self.reports: list[dict[str, Any]] = []
        self.start()

    def start(self) -> None:
        self._link, theirs = socket.socketpair()
        self._link.settimeout(SOON * slowness())
        self._splitter = frames.FrameSplitter()
        self._waiting: list[dict[str, Any]] = []
        self._count = 0
        with theirs:
            words = [sys.executable, "-I", "-c", SERVE, str(theirs.fileno())]
            self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()])
        opened = self.ask(
            "open", key=KEY.hex(), me=self.number, folder=str(self.root), address="127.0.0.1", rate=self.rate
        )
        self.port = int(opened["port"])

    def send(self, do: str, **fields: Any) -> int:
        self._count += 1
        self._link.sendall(frames.pack({"op": "copies", "do": do, "id": self._count, **fields}))
        return self._count

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        number = self.send(do, **fields)
        while True:
            message = self.read()
            if message.get("re") == number:
                assert "error" not in message, message
                return message
            self.reports.append(message)

    def wait_report(self, kind: str) -> dict[str, Any]:
        """The first report of this kind."""
        while not (found := [each[kind] for each in self.reports if kind in each]):
            self.reports.append(self.read())
        return dict(found[0])

    def read(self) -> dict[str, Any]:
        while not self._waiting:
            self._waiting += map(frames.unpack, self._splitter.feed(self._link.recv(65536)))
        return self._waiting.pop(0)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.close()

    def close(self) -> None:
        self._link.close()
        self.process.wait()


def introduce(copiers: Sequence[CopierProcess]) -> None:
    """Each copier is rank N's, with its number as N."""
    peers = [[each.number, "127.0.0.1", each.port, [each.number]] for each in copiers]
    for each in copiers:
        each.ask("peers", peers=peers)


@contextmanager
def run_copiers(*roots: Path, rate: float = 0) -> Iterator[list[CopierProcess]]:
    copiers = [CopierProcess(root, number, rate) for number, root in enumerate(roots)]
    try:
        introduce(copiers)
        yield copiers
    finally:
        for each in copiers:
            each.close()


def save_parts(roots: Sequence[Path], step: int, sizes: Sequence[int]) -> list[tuple[str, bytes]]:
    """Makes a checkpoint of one file on each disk, whose copy belongs to the next disk, as the trainer does."""
    name = f"step-{step:06d}"
    parts = [(f"rank-{rank:05d}-000.safetensors", os.urandom(size)) for rank, size in enumerate(sizes)]
    for rank, root in enumerate(roots):
        folder = root / name
        folder.mkdir(parents=True)
        (folder / parts[rank][0]).write_bytes(parts[rank][1])
        source = (rank - 1) % len(roots)
        file, content = parts[source]
        files = [[file, len(content), sha256(content).hexdigest()]]
        record = {"serial": step, "leader": rank, "source": source, "state": "waiting", "files": files}
        (folder / "copies.json").write_text(json.dumps(record))
        (folder / "manifest.json").write_text("{}")
    return parts


def read_state(root: Path, step: int) -> str:
    return str(json.loads((root / f"step-{step:06d}" / "copies.json").read_text())["state"])


def wait_for_state(root: Path, step: int, state: str) -> None:
    wait_until(lambda: read_state(root, step) == state, SOON, lambda: read_state(root, step))
