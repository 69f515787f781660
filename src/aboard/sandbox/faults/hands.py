"""Root's hands in a host: how faults touch things."""

import shutil
import subprocess

from aboard.diagnoses import SandboxError, sandbox
from aboard.sandbox.files import ROOT_PATH
from aboard.sandbox.host import Host

#: On the host's disk, closed to everyone but root: what a fault took away, until it is healed.
STORE = "/var/lib/aboard-sandbox"
#: As STORE, for faults that a power cycle ends: it goes with the power, too.
BRIEF_STORE = "/run/aboard-sandbox"


def do(host: Host, *argv: str, text: str | None = None, timeout: float = 60) -> str:
    """Run a program as root in a host and return what it says; that it fails is an error."""
    try:
        done = host.run(argv, root=True, input=text, timeout=timeout)
    except subprocess.TimeoutExpired:
        seen = f"{host.name}: {argv[0]} isn't done after {timeout:.0f} s"
        raise SandboxError(sandbox.FAULT, seen) from None
    if done.returncode != 0:
        seen = done.stderr.strip() or f"ended with {done.returncode}"
        raise SandboxError(sandbox.FAULT, f"{host.name}: {argv[0]}: {seen}")
    return done.stdout


def script(host: Host, text: str, *arguments: str, timeout: float = 60) -> str:
    """As `do`, for a few lines of shell; its arguments are $1, $2 and so on."""
    return do(host, "sh", "-euc", text, "sh", *arguments, timeout=timeout)


def need(program: str, package: str) -> str:
    """Where a program is that only some faults need; its package is named when it isn't there."""
    path = shutil.which(program, path=ROOT_PATH)
    if path is None:
        raise SandboxError(sandbox.PROGRAM, f"not installed here: {program}", packages=[package])
    return path
