"""Root's hands in a host: how faults touch things."""

import shutil
import subprocess

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup.system_files import ROOT_PATH

#: On the host's disk, closed to everyone but root: what a fault took away, until it is healed.
FAULT_STORE = "/var/lib/aboard-sandbox"
#: As STORE, for faults that a power cycle ends: it goes with the power, too.
TEMPORARY_STORE = "/run/aboard-sandbox"


def run_as_root(host: Host, *argv: str, text: str | None = None, timeout: float = 60) -> str:
    """Run a program as root in a host and return what it says; that it fails is an error."""
    try:
        result = host.run(argv, root=True, input=text, timeout=timeout)
    except subprocess.TimeoutExpired:
        seen = f"{host.name}: {argv[0]} isn't done after {timeout:.0f} s"
        raise SandboxError(sandbox.FAULT, seen) from None
    if result.returncode != 0:
        seen = result.stderr.strip() or f"ended with {result.returncode}"
        raise SandboxError(sandbox.FAULT, f"{host.name}: {argv[0]}: {seen}")
    return result.stdout


def run_script(host: Host, text: str, *arguments: str, timeout: float = 60) -> str:
    """As `do`, for a few lines of shell; its arguments are $1, $2 and so on."""
    return run_as_root(host, "sh", "-euc", text, "sh", *arguments, timeout=timeout)


def require_program(program: str, package: str) -> str:
    """Where a program is that only some faults need; its package is named when it isn't there."""
    path = shutil.which(program, path=ROOT_PATH)
    if path is None:
        raise SandboxError(sandbox.PROGRAM, f"not installed here: {program}", packages=[package])
    return path
