"""Finds the line of its script that bash executes; also sent to a script's own Pythons: any from 3.6 on runs it."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

# bash reads its script through this descriptor, and leaves the offset behind the command that it runs.
SCRIPT_FD = 255
MOST_BYTES = 1024 * 1024
UNKNOWN = ("", 0)
# bash reads a loop and the like as a whole; these end one.
ENDS = (b"done", b"fi", b"esac", b"}", b")")


def find_script_line(pids: "Iterable[int]", program: str = "") -> "tuple[str, int]":
    """The script, as it was named, and the line of the first of these processes that is a bash with a script.

    In a loop it is the last line that names the program, if one does.
    """
    for pid in pids:
        try:
            found = _read_script_line(pid, program.encode("utf-8", "surrogateescape"))
        except (OSError, ValueError):
            continue
        if found != UNKNOWN:
            return found
    return UNKNOWN


def list_ancestors(pid: int) -> "list[int]":
    """This process, its parent, and so on."""
    found = []
    while pid > 1 and pid not in found:
        found.append(pid)
        try:
            with open("/proc/%d/stat" % pid, "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, IndexError):
            break
    return found


def _read_script_line(pid: int, program: bytes) -> "tuple[str, int]":
    path = "/proc/%d/fd/%d" % (pid, SCRIPT_FD)
    name = os.readlink(path)
    with open("/proc/%d/fdinfo/%d" % (pid, SCRIPT_FD), "rb") as info:
        position = int(info.read().split(b"pos:", 1)[1].split()[0])
    if not name.startswith("/") or not stat.S_ISREG(os.stat(path).st_mode) or position > MOST_BYTES:
        return UNKNOWN
    with open(path, "rb") as script:
        lines = script.read(position).splitlines()
    line = len(lines)
    if program and lines and lines[-1].strip().startswith(ENDS):
        line = max([at for at, text in enumerate(lines, 1) if program in text], default=line)
    # The first line of a command that continues behind backslashes.
    while line > 1 and lines[line - 2].endswith(b"\\"):
        line -= 1
    return _find_typed_name(pid, name), line


def _find_typed_name(pid: int, path: str) -> str:
    with open("/proc/%d/cmdline" % pid, "rb") as file:
        words = [word.decode("utf-8", "replace") for word in file.read(65536).split(b"\0")[1:]]
    name = os.path.basename(path)
    return next((word for word in words if os.path.basename(word) == name), name)
