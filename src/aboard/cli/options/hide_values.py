"""Hides the values of --env and --set from the command line that other users of this machine can read."""

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path

from aboard.core.secrets.secret_names import is_secret

# proc(5): arg_start and arg_end are the fields 48 and 49; the third is the first one after the name.
_ARGUMENTS = slice(48 - 3, 50 - 3)


def hide_values() -> None:
    """Overwrites them in this process's memory, which ps reads; a process that it forks inherits that.

    sys.argv keeps them. Until here, a few milliseconds after the start, they can be read.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b") ")[2].split()
    start, end = map(int, fields[_ARGUMENTS])
    words = ctypes.string_at(start, end - start).split(b"\0")
    for position, length in find_values([word.decode("utf-8", "surrogateescape") for word in words]):
        ctypes.memset(start + position, ord("x"), length)


def find_values(words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The position and length in bytes of each value of a variable, or of a setting that may be a secret."""
    position, option = 0, ""
    for word in words:
        if word == "--":
            return
        given, _, setting = word.partition("=")
        if given not in ("--env", "--set"):
            given, setting = option, word
        name, _, value = setting.partition("=")
        size = len(word.encode("utf-8", "surrogateescape"))
        if value and (given == "--env" or (given == "--set" and (".env." in name or is_secret(name)))):
            length = len(value.encode("utf-8", "surrogateescape"))
            yield position + size - length, length
        option = word if word in ("--env", "--set") else ""
        position += size + 1
