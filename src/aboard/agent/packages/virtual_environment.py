"""Requests about a virtual environment on this node: survey it, create it, install and remove packages, finish it."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

from aboard.agent import frames
from aboard.agent.packages import interpreter_description
from aboard.agent.packages.installed_packages import describe_packages
from aboard.agent.packages.wheel_install import install_wheel, remove_package
from aboard.agent.requests import RequestRunner
from aboard.agent.transfer.file_names import describe_failure

WHEELS = ".aboard-wheels"
# The interpreters of an environment that is not complete yet wait here, so that nobody takes it for a complete one.
INCOMPLETE = ".aboard-incomplete"
# Marks an environment that was created by a sync, and may be created anew by one.
OURS = ".aboard-environment"
DESCRIBE_SECONDS = 20.0
_SHOWN = 400
_USUAL_PLACES = (
    "/usr/bin", "/usr/local/bin", "/opt/python*/bin", "/opt/python/*/bin", "~/.pyenv/versions/*/bin", "~/.local/bin",
    "~/.local/share/uv/python/*/bin", "/opt/conda/bin", "~/miniconda3/bin",
)  # fmt: skip


def answer_venv_request(
    runner: RequestRunner, message: frames.Message, reply: Callable[[frames.Message], None]
) -> None:
    """Works in a child with a timeout, since the disk may hang."""

    def complete(outcome: frames.Message) -> None:
        if outcome["code"] == 0:
            reply(json.loads(outcome["stdout"]))
        else:
            reply({"failed": {"errno": "EIO", "why": "timed out", "path": str(message.get("folder"))}})

    runner.fork(message, lambda: json.dumps(_answer(message)).encode(), complete)


def _answer(message: frames.Message) -> frames.Message:
    os.umask(0o022)
    prefix = os.path.expanduser(str(message["folder"]))
    answers: dict[str, Callable[[str, frames.Message], frames.Message]] = {
        "survey": survey_environment,
        "create": create_environment,
        "change": change_packages,
        "finish": finish_environment,
    }
    try:
        return answers[message["do"]](prefix, message)
    except OSError as error:
        return describe_failure(error, prefix)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
        return {"error": "%s: %s" % (type(error).__name__, error)}


def survey_environment(prefix: str, message: frames.Message) -> frames.Message:
    """What is at the path, which packages it has, and the interpreters that could be its base."""
    settings = _read_settings(prefix)
    kind = "none" if not os.path.lexists(prefix) or _is_empty(prefix) else "other" if settings is None else "venv"
    settings = settings or {}
    survey: frames.Message = {
        "prefix": prefix,
        "kind": kind,
        "ours": os.path.exists(os.path.join(prefix, OURS)),
        "complete": not os.path.exists(os.path.join(prefix, INCOMPLETE)),
        "runs": _has_interpreter(prefix),
        "version": settings.get("version") or settings.get("version_info", ""),
        "system_packages": settings.get("include-system-site-packages", "") == "true",
        "stamp": read_stamp(prefix),
        "packages": {},
        "interpreters": [],
    }
    if message.get("site"):
        survey["packages"] = describe_packages(os.path.join(prefix, str(message["site"])))
    minor = str(message.get("minor") or "")
    if minor:
        candidates = [str(message.get("executable") or "")]
        if settings.get("home"):
            candidates.insert(0, os.path.join(settings["home"], "python" + minor))
        survey["interpreters"] = list(_find_interpreters(candidates, minor))
    return survey


def create_environment(prefix: str, message: frames.Message) -> frames.Message:
    """Creates the environment without pip; its interpreters are hidden until it is finished."""
    base = str(message["executable"])
    argv = [base, "-I", "-m", "venv", "--without-pip"]
    argv += ["--system-site-packages"] if message.get("system_packages") else []
    argv += ["--clear"] if message.get("clear") else []
    made = subprocess.run(
        [*argv, prefix], env=_build_env(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if made.returncode:
        return {"broke": made.stdout.decode("utf-8", "replace").strip()[-_SHOWN:]}
    with open(os.path.join(prefix, OURS), "w"):
        pass
    hidden = os.path.join(prefix, INCOMPLETE)
    os.makedirs(hidden, exist_ok=True)
    _move_interpreters(os.path.join(prefix, "bin"), hidden)
    return {}


def change_packages(prefix: str, message: frames.Message) -> frames.Message:
    """Removes packages, then installs wheels that were sent; each wheel is deleted once it is installed.

    A wheel that is missing was installed by an earlier request, whose reply was lost.
    """
    site = str(message["site"])
    with open(os.path.join(prefix, "pyvenv.cfg")) as lock:
        # Two commands must not write the same package at once; a file server that can't lock is no error.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        for package in message.get("remove", ()):
            remove_package(prefix, site, str(package))
        for name in message.get("install", ()):
            wheel = os.path.join(prefix, WHEELS, os.path.basename(str(name)))
            if os.path.exists(wheel):
                install_wheel(prefix, site, wheel)
                os.unlink(wheel)
    return {}


def finish_environment(prefix: str, _message: frames.Message) -> frames.Message:
    """Removes what only an incomplete environment has, and puts its interpreters in place."""
    shutil.rmtree(os.path.join(prefix, WHEELS), ignore_errors=True)
    hidden = os.path.join(prefix, INCOMPLETE)
    _move_interpreters(hidden, os.path.join(prefix, "bin"))
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(hidden)
    return {}


def ask_interpreter(path: str) -> frames.Message | None:
    """What an interpreter says about itself; None if it doesn't run."""
    loader: Any = interpreter_description.__loader__
    try:
        ran = subprocess.run(
            [path, "-c", loader.get_source(interpreter_description.__name__)],
            env=_build_env(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=DESCRIBE_SECONDS,
            check=True,
        )
        description = frames.unpack(ran.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None
    return description


def read_stamp(prefix: str) -> str:
    """Identifies the environment's file on its disk: equal where two machines see the same disk."""
    try:
        about = os.stat(os.path.join(prefix, "pyvenv.cfg"))
    except OSError:
        return ""
    return "%d %d %d" % (about.st_ino, about.st_ctime_ns, about.st_size)


def _find_interpreters(candidates: list[str], minor: str) -> Iterator[frames.Message]:
    """Those of this minor version; without one, every other version that is installed."""
    search = os.environ.get("PATH", os.defpath).split(os.pathsep)
    folders = [*search, *(found for place in _USUAL_PLACES for found in sorted(glob.glob(os.path.expanduser(place))))]
    candidates += [os.path.join(folder, "python" + minor) for folder in folders if os.path.isabs(folder)]
    found = []
    for path in _list_programs(candidates):
        description = ask_interpreter(path)
        if description is not None and description["minor"] == minor:
            found.append(description)
    if not found:
        others = [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "python3*")))]
        plain = [path for path in others if os.path.basename(path)[len("python3") :].strip(".0123456789") == ""]
        found = [each for each in map(ask_interpreter, _list_programs(plain)) if each is not None]
    yield from found


def _list_programs(paths: list[str]) -> Iterator[str]:
    """The programs among these, each once."""
    known = set()
    for path in paths:
        real = os.path.realpath(path)
        if real not in known and os.path.isfile(path) and os.access(path, os.X_OK):
            known.add(real)
            yield path


def _read_settings(prefix: str) -> dict[str, str] | None:
    try:
        with open(os.path.join(prefix, "pyvenv.cfg"), encoding="utf-8", errors="replace") as file:
            pairs = (line.partition("=") for line in file.read(65536).splitlines())
    except OSError:
        return None
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _is_empty(path: str) -> bool:
    """Whether it is a directory without files, apart from wheels that we sent."""
    try:
        return not [name for name in os.listdir(path) if name != WHEELS]
    except OSError:
        return False


def _has_interpreter(prefix: str) -> bool:
    return any(os.access(os.path.join(prefix, folder, "python"), os.X_OK) for folder in ("bin", INCOMPLETE))


def _move_interpreters(source: str, target: str) -> None:
    try:
        names = os.listdir(source)
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith("python") and os.path.islink(os.path.join(source, name)):
            os.rename(os.path.join(source, name), os.path.join(target, name))


def _build_env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
