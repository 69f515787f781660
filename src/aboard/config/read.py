"""Reading a file that the user named, with a problem that says what to do when it can't be read."""

from pathlib import Path

from aboard.core.size import size
from aboard.core.words import nearest, visible
from aboard.diagnoses import InputError, Problem

MAX_BYTES = 8 * 1024 * 1024


def read_text(path: str, *, fix: str) -> str:
    """The file's text; `fix` is what to type when there is no such file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unread(path, "there is no such file", near_file(path) or fix) from None
    except IsADirectoryError:
        raise _unread(path, "this is a directory", "name a file in it") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unread(path, f"can't be read: {getattr(error, 'strerror', None) or error}", fix) from None
    if len(data) > MAX_BYTES:
        raise _unread(path, f"has more than {size(MAX_BYTES)}", "name the right file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _unread(f"{path}:{line}", "is no UTF-8 text", "save it as UTF-8, or name the right file") from None


def near_file(path: str) -> str:
    """Asks whether the file was meant whose name, in the same directory, is most like this one; "" if none is."""
    wanted = Path(path)
    try:
        near = nearest(wanted.name, sorted(other.name for other in wanted.parent.iterdir()))
    except (OSError, ValueError):
        return ""
    return f"did you mean '{visible(str(wanted.with_name(near)), 200)}'?" if near else ""


def _unread(path: str, seen: str, fix: str) -> InputError:
    return InputError("file", [Problem(where=visible(path, 200), seen=seen, fix=fix)])
