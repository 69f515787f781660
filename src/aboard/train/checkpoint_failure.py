"""A failure on one rank, told to all of them, so that none waits for it and each gives the same error."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aboard.diagnoses import AboardError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def failure(error: Exception, *, rank: int, node: str, folder: Path) -> dict[str, Any]:
    """What went wrong here, as plain data for the other ranks."""
    who = f"rank {rank} on {node}"
    if isinstance(error, AboardError):
        return {"code": error.code, "seen": f"{who}: {error.seen}", "fix": error.fix}
    if isinstance(error, OSError):
        path = error.filename or str(folder)
        seen = f"{who} can't write {path}: {error.strerror or error}"
        if error.errno in _FULL:
            fix = f"df -h {folder}  # on {node}; make room, or set save_total_limit; then start again: it resumes"
            return {"code": "checkpoint-disk-full", "seen": seen, "fix": fix}
        if error.errno in _CLOSED:
            fix = f"ls -ld {folder} {path}  # on {node}; the run's user must be able to write there"
            return {"code": "checkpoint-not-writable", "seen": seen, "fix": fix}
        return {"code": "checkpoint-write", "seen": seen, "fix": f"ls -l {folder}; dmesg | tail  # on {node}"}
    seen = f"{who} couldn't make a checkpoint: {type(error).__name__}: {error}"
    return {"code": "checkpoint-failed", "seen": seen, "fix": "aboard logs --rank " + str(rank)}


def raise_any(said: Sequence[Any]) -> None:
    """Raises the lowest rank's failure, if any rank told one under `failed`."""
    failed = [each["failed"] for each in said if each.get("failed")]
    if failed:
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise AboardError(failed[0]["code"], failed[0]["seen"] + others, fix=failed[0]["fix"])
