"""Reading a file that the user named, with a problem that says what to do when it can't be read."""

from pathlib import Path

from aboard.core.size import size
from aboard.core.words import nearest, visible
from aboard.diagnoses import NO_FIX, Fix, InputError, Problem, configuration

MAX_BYTES = 8 * 1024 * 1024


def read_text(path: str, *, fix: Fix) -> str:
    """The file's text; `fix` is what to type when there is no such file."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _unread(path, "there is no such file", near_file(path) or fix) from None
    except IsADirectoryError:
        raise _unread(path, "this is a directory", configuration.FILE.fix("directory")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unread(path, f"can't be read: {getattr(error, 'strerror', None) or error}", fix) from None
    if len(data) > MAX_BYTES:
        raise _unread(path, f"has more than {size(MAX_BYTES)}", configuration.FILE.fix("long"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _unread(f"{path}:{line}", "is no UTF-8 text", configuration.FILE.fix("encoding")) from None


def near_file(path: str) -> Fix:
    """Asks whether the file was meant whose name, in the same directory, is most like this one; empty if none is."""
    wanted = Path(path)
    try:
        near = nearest(wanted.name, sorted(other.name for other in wanted.parent.iterdir()))
    except (OSError, ValueError):
        return NO_FIX
    return configuration.FILE.fix("near", near=wanted.with_name(near)) if near else NO_FIX


def _unread(path: str, seen: str, fix: Fix) -> InputError:
    return InputError(configuration.FILE, [Problem(where=visible(path, 200), seen=seen, fix=fix)])
