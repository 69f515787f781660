"""Other users of this machine: processes with their own user id, no group and no privilege of ours."""

import os
import subprocess
from typing import Any

import pytest

# They exist on no machine: the kernel only compares numbers.
VICTIM = 61_001
ATTACKER = 61_002
# The interpreter of the tests may be in root's home, which others can't enter.
PYTHON = "/usr/bin/python3"


def start_as(uid: int, code: str, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    """Starts Python code as this user, in /, with an environment of its own; skips where we can't."""
    if os.geteuid() != 0:
        pytest.skip("needs root to act as two other users")
    given: dict[str, Any] = {
        "cwd": "/",
        "env": {"PATH": os.defpath, "HOME": "/nonexistent"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
    return subprocess.Popen([PYTHON, "-c", code, *arguments], user=uid, group=uid, extra_groups=(), **given | options)


def run_as(uid: int, code: str, *arguments: str, seconds: float = 60) -> str:
    """What the code printed; fails if it failed."""
    with start_as(uid, code, *arguments) as process:
        said = process.communicate(timeout=seconds)[0]
    assert process.returncode == 0, said
    return said
