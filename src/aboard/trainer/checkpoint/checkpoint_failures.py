"""Reports a failure on one rank to all, so that none waits for it and all raise the same error."""

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aboard.diagnoses import AboardError, TrainerError
from aboard.diagnoses.catalogue import unpack_error
from aboard.diagnoses.errors import pack_error
from aboard.trainer.diagnoses import checkpoint

_FULL = {errno.ENOSPC, errno.EDQUOT}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}


def pack_failure(error: Exception, *, rank: int, node: str, folder: Path) -> dict[str, Any]:
    """The error as plain data for the other ranks."""
    who = f"rank {rank} on {node}"
    if isinstance(error, AboardError):
        return pack_error(error) | {"seen": f"{who}: {error.seen}"}
    return pack_error(_classify_error(error, who, rank=rank, node=node, folder=folder))


def _classify_error(error: Exception, who: str, *, rank: int, node: str, folder: Path) -> AboardError:
    if not isinstance(error, OSError):
        seen = f"{who} could not save a checkpoint: {type(error).__name__}: {error}"
        return TrainerError(checkpoint.FAILED, seen, rank=rank)
    path = error.filename or str(folder)
    seen = f"{who} can't write {path}: {error.strerror or error}"
    if error.errno in _FULL:
        return TrainerError(checkpoint.DISK_FULL, seen, folder=folder, node=node)
    if error.errno in _CLOSED:
        return TrainerError(checkpoint.NOT_WRITABLE, seen, folder=folder, path=path, node=node)
    return TrainerError(checkpoint.WRITE, seen, folder=folder, node=node)


def raise_first_failure(reports: Sequence[Any]) -> None:
    """Raises the lowest rank's failure, if any rank reported one under `failed`."""
    failed = [each["failed"] for each in reports if each.get("failed")]
    if failed:
        first = unpack_error(failed[0])
        if first is None:
            raise TrainerError(checkpoint.FAILED, "a rank could not save a checkpoint and gave no reason", rank=0)
        others = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        raise AboardError(first.diagnosis, first.seen + others, fix=first.fix)
