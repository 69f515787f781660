"""Starts our helper programs, which change namespaces: their command, environment, input and errors."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aboard.diagnoses import SandboxError
from aboard.diagnoses.catalogue import unpack_error
from aboard.diagnoses.errors import pack_error
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host_setup.system_files import ROOT_PATH

SOURCE = Path(__file__).resolve().parents[3]


def start_helper(module: str, spec: dict[str, Any], **options: Any) -> subprocess.Popen[Any]:
    """Starts `main` of a module as a program with this input, in a session of its own; the options are Popen's."""
    handle = write_spec_file(spec)
    options = {"env": build_helper_environment(), "pass_fds": (handle,), "start_new_session": True, **options}
    try:
        return subprocess.Popen(build_helper_argv(module, handle), **options)
    finally:
        os.close(handle)


def build_helper_argv(module: str, spec: int) -> list[str]:
    """The command that runs `main(spec)` of a module, with no module of site-packages or of the working directory."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from {module} import main; main({spec})"
    return [sys.executable, "-I", "-S", "-c", code]


def build_helper_environment() -> dict[str, str]:
    """The environment of a helper: nothing of the caller's except what the interpreter may need to start."""
    wanted = ("LD_LIBRARY_PATH",)
    return {"PATH": ROOT_PATH, **{key: os.environ[key] for key in wanted if key in os.environ}}


def write_spec_file(spec: dict[str, Any]) -> int:
    """A file in memory with the helper's input: an environment may hold secrets, so it is not on a command line."""
    handle = os.memfd_create("spec")
    data = json.dumps(spec, default=os.fspath).encode()
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def read_spec(handle: int) -> dict[str, Any]:
    """Reads what `write_spec_file` wrote, in the started program."""
    with os.fdopen(handle, "rb") as file:
        spec: dict[str, Any] = json.load(file)
    return spec


def format_error_line(error: SandboxError) -> str:
    """An error as a line of JSON, to send it out of the namespaces."""
    return json.dumps({"error": pack_error(error)}) + "\n"


def raise_error(message: dict[str, Any]) -> None:
    """Raises the error in a helper's message, if there is one."""
    if "error" in message:
        error = unpack_error(message["error"])
        if error is None:
            raise SandboxError(sandbox.BUILD, "a step inside the namespaces failed without an error message")
        raise SandboxError(error.diagnosis, error.seen, fix=error.fix)
