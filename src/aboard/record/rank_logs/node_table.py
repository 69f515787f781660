"""The node names that indexes refer to by number: a text file, one name per line, in the order first seen."""

import os
from contextlib import suppress
from pathlib import Path

from aboard.record.run_directory import PRIVATE_FILE

MOST_NODES = 65_535


class NodeTable:
    """Writes names as they appear; retries a name that didn't fit on the disk."""

    def __init__(self, folder: Path) -> None:
        self._path = _get_path(folder)
        self._numbers = {name: number for number, name in enumerate(read_node_names(folder))}
        self._written = len(self._numbers)

    def number(self, node: str) -> int:
        """The node's number. Nodes past the last number share it: only `--node` can't distinguish their lines."""
        number = self._numbers.get(node)
        if number is None:
            number = self._numbers[node] = min(len(self._numbers), MOST_NODES)
        return number

    def write(self) -> None:
        if self._written == len(self._numbers):
            return
        text = "".join(f"{name}\n" for name in self._numbers)
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
            with os.fdopen(fd, "wb") as file:
                file.write(text.encode("utf-8", "backslashreplace"))
            self._written = len(self._numbers)


def read_node_names(folder: Path) -> list[str]:
    """The names in the order of their numbers; ignores an incomplete last line."""
    try:
        text = _get_path(folder).read_text("utf-8", "replace")
    except OSError:
        return []
    return text.split("\n")[:-1]


def _get_path(folder: Path) -> Path:
    return folder / "nodes"
