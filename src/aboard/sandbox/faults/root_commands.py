"""Runs commands as root in a host, for faults."""

import shutil
import subprocess

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import ROOT_PATH

#: On the host's disk, readable by root only: what a fault removed, until it is healed.
FAULT_STORE = "/var/lib/aboard-sandbox"
#: Like FAULT_STORE, for faults that end with a power cycle: it is emptied then, too.
TEMPORARY_STORE = "/run/aboard-sandbox"


def run_as_root(host: Host, *argv: str, text: str | None = None, timeout: float = 60) -> str:
    """Runs a program as root in a host and returns its stdout; raises if it fails."""
    try:
        result = host.run(argv, root=True, input=text, timeout=timeout)
    except subprocess.TimeoutExpired:
        seen = f"{host.name}: {argv[0]} is still running after {timeout:.0f} s"
        raise SandboxError(sandbox.FAULT, seen) from None
    if result.returncode != 0:
        seen = result.stderr.strip() or f"exit code {result.returncode}"
        raise SandboxError(sandbox.FAULT, f"{host.name}: {argv[0]}: {seen}")
    return result.stdout


def run_script(host: Host, text: str, *arguments: str, timeout: float = 60) -> str:
    """Like `run_as_root`, for a few lines of shell; the arguments are $1, $2 and so on."""
    return run_as_root(host, "sh", "-euc", text, "sh", *arguments, timeout=timeout)


def require_program(program: str, package: str) -> str:
    """The path of a program that only some faults need; raises with its package if it is missing."""
    path = shutil.which(program, path=ROOT_PATH)
    if path is None:
        raise SandboxError(sandbox.PROGRAM, f"not installed here: {program}", packages=[package])
    return path
