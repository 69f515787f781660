"""What ranks will find on this node: the interpreter, the working directory, and the program to run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aboard.agent import frames
    from aboard.agent.requests import RequestRunner

# A script is text; a program that is larger than this is compared by its size alone.
HASHED_BYTES = 64 * 1024 * 1024
# Debian's group of /usr/local, and those whose members may become root anyway.
ADMINISTRATORS = {"staff", "sudo", "wheel"}
TRUSTED_OWNERS_FILE = "/etc/aboard/trusted-owners"


def answer_environment_request(
    runner: RequestRunner, message: frames.Message, reply: Callable[[frames.Message], None]
) -> None:
    """Works in a child with a timeout, since any of these paths may be on a dead mount."""

    def complete(outcome: frames.Message) -> None:
        failed = {"error": "timed out: a mount may be dead, or the disk very slow"}
        reply(json.loads(outcome["stdout"]) if outcome["code"] == 0 else failed)

    runner.fork(message, lambda: json.dumps(describe_environment(message)).encode(), complete)


def describe_environment(message: frames.Message) -> frames.Message:
    """Inspects only what was requested. A relative path is relative to where ranks start."""
    python, workdir = message.get("python"), message.get("workdir")
    search = os.environ.get("PATH", os.defpath)
    description: frames.Message = {"search_path": search}
    if python:
        there = [path for path in map(os.path.expanduser, message.get("places", ())) if os.access(path, os.X_OK)]
        path = there[0] if there else str(python)
        description["python"] = interpreter = inspect_interpreter(path)
        if path != python and interpreter["exists"]:
            interpreter["path"] = path
        if interpreter.get("prefix") and not interpreter["unsafe"]:
            search = os.path.dirname(path) + os.pathsep + search
    if workdir:
        below = message.get("below_home")
        own = os.path.join(os.path.expanduser("~"), str(below)) if below else ""
        # As for `aboard sync`: what is below the home there is below the home here, wherever that is.
        if own and own != workdir and os.path.isdir(own):
            description["folder"] = workdir = own
        description["workdir"] = os.path.isdir(str(workdir))
    if message.get("paths"):
        description["paths"] = [
            os.path.exists(os.path.join(str(workdir or ""), str(path))) for path in message["paths"]
        ]
    if message.get("script"):
        description["program"] = describe_file(os.path.join(str(workdir or ""), str(message["script"])))
    elif message.get("program"):
        description["program"] = describe_program(
            str(message["program"]), str(workdir or ""), str(message.get("search_path") or search)
        )
    return description


def inspect_interpreter(path: str) -> frames.Message:
    """Whether it can be run, the environment that it belongs to, and who else could change what it runs."""
    if not (os.path.isabs(path) and os.path.isfile(path) and os.access(path, os.X_OK)):
        return {"exists": False}
    prefix = os.path.dirname(os.path.dirname(path))
    description: frames.Message = {"exists": True, "unsafe": ""}
    if os.path.isfile(os.path.join(prefix, "pyvenv.cfg")):
        description.update(prefix=prefix, variable="VIRTUAL_ENV")
    elif os.path.isdir(os.path.join(prefix, "conda-meta")):
        description.update(prefix=prefix, variable="CONDA_PREFIX")
    for each in _list_loaded_paths(path, prefix):
        description["unsafe"] = description["unsafe"] or find_unsafe_writer(each)
    return description


def find_unsafe_writer(path: str) -> str:
    """Which other user could put code of their own at this path; root could anyway."""
    try:
        about = os.lstat(path)
    except OSError:
        return ""
    if about.st_uid not in (0, os.getuid()) and about.st_uid not in read_trusted_owners():
        return "%s belongs to %s" % (path, _resolve_user(about.st_uid))
    if stat.S_ISLNK(about.st_mode) or (stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX):
        return ""
    if about.st_mode & stat.S_IWOTH:
        return "%s is writable for everybody" % path
    if about.st_mode & stat.S_IWGRP and not _is_private_group(about.st_gid):
        return "%s is writable by the group %s" % (path, _resolve_group(about.st_gid))
    return ""


def read_trusted_owners(path: str = TRUSTED_OWNERS_FILE) -> set[int]:
    """Further users whose environments may be used here: the administrator's list, one id per line."""
    try:
        with open(path) as file:
            about = os.fstat(file.fileno())
            lines = file.read(4096).split() if about.st_uid == 0 and not about.st_mode & 0o022 else []
    except (OSError, UnicodeDecodeError):
        return set()
    return {int(line) for line in lines if line.isdigit()}


def describe_program(program: str, workdir: str, search: str) -> frames.Message:
    """Finds a program as the kernel does: by its path, or on PATH if it is a bare name."""
    # Not shutil.which: importing shutil costs each node 5 ms.
    along = [workdir] if "/" in program else search.split(os.pathsep)
    paths = [os.path.join(folder or workdir, program) for folder in along]
    runs = [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]
    description = describe_file(runs[0] if runs else paths[0] if "/" in program else program)
    if description["exists"] and not runs:
        description["problem"] = "is not executable"
    return description


def describe_file(path: str) -> frames.Message:
    """A digest of the file's content, for comparison."""
    if not os.path.isfile(path):
        return {"exists": False, "path": path}
    description: frames.Message = {"exists": True, "path": path}
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            description["digest"] = (
                hashlib.sha256(file.read()).hexdigest() if size <= HASHED_BYTES else "%d bytes" % size
            )
    except OSError as error:
        description["problem"] = "can't be read: %s" % error.strerror
    return description


def _list_loaded_paths(path: str, prefix: str) -> Iterator[str]:
    """Every directory on the way to the interpreter and to what it loads first, as written and where links lead."""
    visited = set()
    waiting = [path, os.path.join(prefix, "pyvenv.cfg"), *_list_site_packages(prefix)]
    while waiting:
        each = waiting.pop()
        while each not in visited:
            visited.add(each)
            yield each
            if os.path.islink(each):
                waiting.append(os.path.normpath(os.path.join(os.path.dirname(each), os.readlink(each))))
            each = os.path.dirname(each)


def _list_site_packages(prefix: str) -> Iterator[str]:
    library = os.path.join(prefix, "lib")
    try:
        names = os.listdir(library)
    except OSError:
        return
    for name in names:
        if name.startswith("python"):
            yield os.path.join(library, name, "site-packages")


def _is_private_group(group: int) -> bool:
    """The own group of a user who may write anyway, or one with administrators only."""
    import grp  # noqa: PLC0415 - only for what a group may write
    import pwd  # noqa: PLC0415 - as above

    owners = set()
    for number in {os.getuid()} | read_trusted_owners():
        with contextlib.suppress(KeyError):
            owners.add(pwd.getpwuid(number).pw_name)
    try:
        about = grp.getgrgid(group)
    except KeyError:
        return group == 0
    return group == 0 or (set(about.gr_mem) <= {"root", *owners} and about.gr_name in ADMINISTRATORS | owners)


def _resolve_user(number: int) -> str:
    import pwd  # noqa: PLC0415 - only for what is refused

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return "user %d" % number


def _resolve_group(number: int) -> str:
    import grp  # noqa: PLC0415 - only for what is refused

    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
