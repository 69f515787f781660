"""Reads a file that the user named, or that was found in the working directory; an error has a fix."""

import errno
import os
from pathlib import Path
from select import select

from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import NO_FIX, Fix, InputError, Problem
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration
from aboard.foreign_files import ForeignFileError, read_foreign_file

DEFAULT_FILE = "aboard.yaml"
YAML_SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 1024 * 1024
# How long a pipe that the user named may be silent: `--hostfile <(…)`.
PIPE_SECONDS = 30.0


class FoundFile(str):
    """The path of a file that nobody named: what it names must be allowed."""

    __slots__ = ()


def find_default_files(*, allow_file: bool = False) -> list[str]:
    """./aboard.yaml, if it exists; with `allow_file`, as if the user had named it."""
    if not Path(DEFAULT_FILE).exists():
        return []
    return [DEFAULT_FILE if allow_file else FoundFile(DEFAULT_FILE)]


def read_text(path: str, *, fix: Fix) -> str:
    """The file's text; `fix` applies if the file does not exist. One that was found must be a regular file."""
    try:
        data = read_foreign_file(path, MAX_BYTES) if isinstance(path, FoundFile) else _read_named_file(path)
    except FileNotFoundError:
        raise _build_read_error(path, "the file does not exist", suggest_similar_file(path) or fix) from None
    except IsADirectoryError:
        raise _build_read_error(path, "this is a directory", configuration.FILE.fix("directory")) from None
    except ForeignFileError as error:
        name = "long" if error.errno == errno.EFBIG else "foreign"
        raise _build_read_error(path, f"can't be read: {error.strerror}", configuration.FILE.fix(name)) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _build_read_error(path, f"can't be read: {getattr(error, 'strerror', None) or error}", fix) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _build_read_error(f"{path}:{line}", "is not UTF-8 text", configuration.FILE.fix("encoding")) from None


def _read_named_file(path: str) -> bytes:
    """A file that the user named may be a link, a pipe or a terminal, but nobody waits for a silent pipe forever."""
    data = b""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        while len(data) <= MAX_BYTES:
            if not select([file], [], [], None if file.isatty() else PIPE_SECONDS)[0]:
                raise ForeignFileError(errno.ETIMEDOUT, f"nobody wrote to this pipe for {PIPE_SECONDS:.0f} s")
            part = file.read(MAX_BYTES + 1 - len(data))
            if part == b"":
                return data
            data += part or b""
    raise ForeignFileError(errno.EFBIG, f"it is larger than {format_size(MAX_BYTES)}")


def suggest_similar_file(path: str) -> Fix:
    """Suggests the file in the same directory with the most similar name; empty if there is none."""
    near = find_similar_file(path)
    return configuration.FILE.fix("near", near=near) if near else NO_FIX


def find_similar_file(path: str) -> str:
    """The file in the same directory with the most similar name; "" if there is none."""
    requested = Path(path)
    try:
        near = find_nearest(requested.name, sorted(other.name for other in requested.parent.iterdir()))
    except (OSError, ValueError):
        return ""
    return str(requested.with_name(near)) if near else ""


def _build_read_error(path: str, seen: str, fix: Fix) -> InputError:
    return InputError(configuration.FILE, [Problem(where=escape_text(path, 200), seen=seen, fix=fix)])
