"""How a small Python of ours is started that changes namespaces: apart, light, told in private."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from aboard.diagnoses import SandboxError
from aboard.diagnoses.catalogue import unpack_error
from aboard.diagnoses.errors import pack_error
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host_setup.system_files import ROOT_PATH

SOURCE = Path(__file__).resolve().parents[3]


def build_helper_argv(module: str, spec: int) -> list[str]:
    """The command that runs `main(spec)` of a module, without site-packages."""
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from {module} import main; main({spec})"
    return [sys.executable, "-E", "-s", "-S", "-c", code]


def build_helper_environment() -> dict[str, str]:
    """What such a program inherits: nothing of the caller's but what its interpreter may need to start."""
    wanted = ("LD_LIBRARY_PATH",)
    return {"PATH": ROOT_PATH, **{key: os.environ[key] for key in wanted if key in os.environ}}


def write_spec_file(spec: dict[str, Any]) -> int:
    """A file in memory with what the program shall do: an env may hold secrets, so no command line has it."""
    handle = os.memfd_create("spec")
    data = json.dumps(spec).encode()
    while data:
        data = data[os.write(handle, data) :]
    os.lseek(handle, 0, os.SEEK_SET)
    return handle


def read_spec(handle: int) -> dict[str, Any]:
    """What `spec_file` wrote, in the started program."""
    with os.fdopen(handle, "rb") as file:
        spec: dict[str, Any] = json.load(file)
    return spec


def format_error_line(error: SandboxError) -> str:
    """An error on its way out of the namespaces."""
    return json.dumps({"error": pack_error(error)}) + "\n"


def raise_error(message: dict[str, Any]) -> None:
    """Raise the error that came out, if one did."""
    if "error" in message:
        error = unpack_error(message["error"])
        if error is None:
            raise SandboxError(sandbox.BUILD, "what was to be made in the namespaces failed, and did not say why")
        raise SandboxError(error.diagnosis, error.seen, fix=error.fix)
