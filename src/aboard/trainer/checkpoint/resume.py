"""Chooses the checkpoint to resume from: the newest that verifies on every disk, agreed by all ranks."""

import os
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from aboard.core.decoding import DecodeError
from aboard.core.run.saved_markers import SavedMarker, describe_unknown
from aboard.diagnoses import AboardError, TrainerError
from aboard.durable_files import write_atomically
from aboard.foreign_files import MOST_MARKER, read_foreign_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint import commit_marker
from aboard.trainer.checkpoint.checkpoint_copies import NAME as COPIES, write_copy_record
from aboard.trainer.checkpoint.checkpoint_folder import CheckpointListing, is_step_name, list_checkpoints
from aboard.trainer.checkpoint.commit_marker import CheckpointFile, CommitMarker, RunSettings
from aboard.trainer.checkpoint.restore_state import find_files, restore_state
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint, check_references
from aboard.trainer.checkpoint.setting_differences import find_differences, refuse_differences
from aboard.trainer.diagnoses import checkpoint
from aboard.trainer.distributed.rank_group import CheckpointRanks
from aboard.trainer.metrics.head_beacon import send_saved
from aboard.trainer.optimizer.sharded_optimizer import ShardedOptimizer
from aboard.trainer.progress import TrainingProgress

_THREADS = 4


@dataclass(kw_only=True)
class ResumeResult:
    """The result; `notes` say what was skipped and what changed since, `broken` names what didn't verify."""

    marker: CommitMarker | None = None
    notes: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """A checkpoint by name, and the disk leaders that have its marker."""

    name: str
    serial: int
    # The hash in the first line of its marker.
    sha256: str
    ranks: tuple[int, ...]


def resume_checkpoint(
    group: CheckpointRanks,
    how: str,
    module: nn.Module,
    optimizer: ShardedOptimizer,
    now: Callable[[], RunSettings],
    *,
    copies: bool = False,
    markers: Sequence[SavedMarker] | None = None,
) -> ResumeResult:
    """Resumes according to `resume:`: `auto`, `none`, or one checkpoint. All ranks call it, with the same result.

    `auto` prefers the checkpoints with these `markers`, which a record vouches for, whatever others say of themselves.
    """
    result = ResumeResult()
    if how == "none":
        return result
    folder = group.folder if how == "auto" else Path(how).absolute().parent
    names = None if how == "auto" else [Path(how).name]
    offers = _list_offers(group, folder, names, result, (markers or ()) if how == "auto" else ())
    elsewhere: AboardError | None = None
    for offer in offers:
        try:
            saved = SavedCheckpoint(folder=folder / offer.name, marker=_share_marker(group, folder, offer))
        except commit_marker.MarkerError as error:
            # On all ranks: they have the same text.
            result.broken.add(offer.name)
            result.notes.append(f"skipped {offer.name}: {error}")
            continue
        changed = find_differences(saved.marker, now())
        refuse_differences(changed, str(saved.folder))
        try:
            why = _find_damage(group, saved, module, optimizer)
        except AboardError as error:
            # An older checkpoint may be complete here: the head copies the newest that is complete on the nodes.
            if error.diagnosis is not checkpoint.ELSEWHERE:
                raise
            elsewhere, why = elsewhere or error, error.seen
        if why is None:
            group.run_collectively(partial(restore_state, saved, module, optimizer, len(group.disks.nodes)))
            result.marker = saved.marker
            if copies:
                group.run_collectively(partial(_renew_copies, group, saved, offer))
            if group.leads:
                send_saved(offer.name, offer.serial, saved.here, marker=offer.sha256 if group.rank == 0 else "")
            result.notes.append(f"resumed from {saved.folder}, step {saved.marker.step}")
            result.notes += _list_doubts(offer, markers if how == "auto" else None)
            result.notes += [f"changed since the checkpoint: {each}" for each in changed]
            return result
        result.broken.add(offer.name)
        result.notes.append(f"skipped {offer.name}: {why}")
    if elsewhere is not None:
        raise elsewhere
    return _require_none_broken(result, None if how == "auto" else Path(how), group.folder)


def _require_none_broken(result: ResumeResult, named: Path | None, folder: Path) -> ResumeResult:
    if named is not None or result.broken:
        raise _build_unsound_error(named or folder, result.notes)
    return result


def _build_unsound_error(path: Path, notes: Sequence[str]) -> AboardError:
    reasons = "".join(f"\n  {note}" for note in notes)
    return TrainerError(checkpoint.NONE_SOUND, f"no checkpoint in {path} can be used:{reasons}", folder=path)


def _list_doubts(offer: _Offer, markers: Sequence[SavedMarker] | None) -> list[str]:
    if markers is None or any((each.name, each.sha256) == (offer.name, offer.sha256) for each in markers):
        return []
    return [f"no record of a run vouches for {offer.name}: it is the newest by what its own marker says"]


def _renew_copies(group: CheckpointRanks, saved: SavedCheckpoint, offer: _Offer) -> None:
    """A node that has taken the place of another gets the copies that were there, too."""
    same = {file.disk for file in saved.marker.files} == set(group.disks.leaders)
    if group.leads and same and not (saved.folder / COPIES).exists():
        write_copy_record(saved.folder, offer.serial, group.rank, saved.marker.files)


def _list_offers(
    group: CheckpointRanks, folder: Path, names: list[str] | None, result: ResumeResult, markers: Sequence[SavedMarker]
) -> list[_Offer]:
    """The newest first; one disk may have what another lacks, since markers are written after all files.

    If a record vouches for one of them, the others are left out: one node can offer whatever it likes, and on a shared
    disk to all ranks.
    """

    def list_local() -> dict[str, Any]:
        listing = list_checkpoints(folder, names) if group.leads else CheckpointListing(good={}, skipped={})
        torn = [name for name in listing.skipped if (folder / name / commit_marker.NAME).exists()]
        good = {name: [serial, listing.hashes[name]] for name, serial in listing.good.items()}
        return {"good": good, "skipped": listing.skipped, "torn": torn}

    reports = group.run_collectively(list_local)
    found: dict[tuple[str, str], int] = {}
    for report in reports:
        # Another node may report any name, which leads out of the folder.
        good = {name: each for name, each in report["good"].items() if name in (names or ()) or is_step_name(name)}
        found |= {(name, sha256): serial for name, (serial, sha256) in good.items()}
    serials = {name for name, _sha256 in found}
    skipped = {name: why for report in reports for name, why in report["skipped"].items() if name not in serials}
    result.notes += [f"skipped {name}: {why}" for name, why in skipped.items()]
    result.broken |= {name for report in reports for name in report["torn"] if name not in serials}
    known = {key: each.serial for each in markers if (key := (each.name, each.sha256)) in found}
    unknown = sorted({name for name, _sha256 in found.keys() - known.keys()})
    if known and unknown:
        result.notes.append(describe_unknown(unknown, folder))
    elif unknown and (altered := {each.name for each in markers} & {*serials, *result.broken}):
        # Somebody changed what a record knows: nothing else may take its place.
        notes = [*result.notes, *(f"{name} is not as a record of a run knows it" for name in sorted(altered))]
        raise _build_unsound_error(folder, [*notes, describe_unknown(unknown, folder)])
    offers = [
        _Offer(
            name=name,
            serial=serial,
            sha256=sha256,
            ranks=tuple(rank for rank, report in enumerate(reports) if report["good"].get(name, (0, ""))[1] == sha256),
        )
        for (name, sha256), serial in (known or found).items()
    ]
    return sorted(offers, key=lambda offer: (offer.serial, offer.name), reverse=True)


def _share_marker(group: CheckpointRanks, folder: Path, offer: _Offer) -> CommitMarker:
    """Shares one disk's marker with all ranks; a disk that has all files but no marker gets it now."""
    source, path = offer.ranks[0], folder / offer.name
    own: list[bytes] = []

    def fetch() -> None:
        if group.rank == source:
            own.append(read_foreign_file(path / commit_marker.NAME, MOST_MARKER))

    group.run_collectively(fetch)
    text = group.exchange.broadcast(own[0] if own else None, source=source)
    found = commit_marker.parse_marker(text)
    check_references(found)
    try:
        TrainingProgress.of(found.progress)
    except DecodeError as error:
        raise commit_marker.MarkerError(f"its progress is none ({error})") from error
    if commit_marker.read_marker_hash(text) != offer.sha256:
        raise commit_marker.MarkerError(f"{path / commit_marker.NAME} was changed while it was read")

    def complete_marker() -> None:
        if group.leads and group.rank not in offer.ranks and SavedCheckpoint(folder=path, marker=found).here:
            write_atomically(path / commit_marker.NAME, text, sync=True)

    group.run_collectively(complete_marker)
    return found


def _find_damage(
    group: CheckpointRanks, saved: SavedCheckpoint, module: nn.Module, optimizer: ShardedOptimizer
) -> str | None:
    """Why it can't be used, the same on all ranks; every file that a rank needs is hashed once per disk."""

    def plan() -> dict[str, Any]:
        files, missing = find_files(saved, module, optimizer, len(group.disks.nodes))
        elsewhere = [file for file in missing if _is_elsewhere(file, saved)]
        if elsewhere:
            raise _build_elsewhere_error(group, saved, elsewhere)
        return {"files": files, "missing": [file.name for file in missing]}

    reports = group.run_collectively(plan)
    missing = sorted({name for report in reports for name in report["missing"]})
    if missing:
        return f"{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''} missing"  # noqa: PLR2004 - as many as fit
    mates = group.mates
    files = sorted({name for rank in mates for name in reports[rank]["files"]})
    share = files[mates.index(group.rank) :: len(mates)]
    bad = group.run_collectively(lambda: {"bad": saved.verify(share, threads=_choose_thread_count(len(mates)))})
    worst = [f"{why} (on {group.disks.nodes[rank]})" for rank, report in enumerate(bad) for why in report["bad"]]
    return worst[0] + (f", and {len(worst) - 1} more files" if len(worst) > 1 else "") if worst else None


def _is_elsewhere(file: CheckpointFile, saved: SavedCheckpoint) -> bool:
    """Whether the file is on a disk of another node, rather than lost: none of that disk's files are here."""
    several = len({each.disk for each in saved.marker.files}) > 1
    return several and not any(here.disk == file.disk for here in saved.here.values())


def _build_elsewhere_error(group: CheckpointRanks, saved: SavedCheckpoint, files: list[CheckpointFile]) -> AboardError:
    files_text = ", ".join(f"{file.name} of rank {file.rank} on {file.node}" for file in files[:8])
    more = f", and {len(files) - 8} more" if len(files) > 8 else ""  # noqa: PLR2004 - as many as fit
    nodes = sorted({file.node for file in files})
    return TrainerError(
        checkpoint.ELSEWHERE,
        f"{saved.folder} was saved to several disks, and resuming with this layout needs files that are not on this"
        f" disk: {files_text}{more}",
        "several" if len(nodes) > 1 else "one",
        nodes=nodes,
        folder=saved.folder,
        here=group.node,
    )


def _choose_thread_count(mates: int) -> int:
    return max(1, min(_THREADS, (os.cpu_count() or 1) // mates))
