"""Which checkpoint a run continues from: the newest that verifies on every disk, agreed by all ranks."""

import os
from collections.abc import Callable
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from aboard.diagnoses import AboardError, checkpoint
from aboard.lazy import dataclass
from aboard.train import marker
from aboard.train.checkpoint_folder import Listed, listed
from aboard.train.checkpoint_party import Party
from aboard.train.checkpoint_write import write_marker
from aboard.train.differences import Difference, Present, differences, refuse
from aboard.train.marker import Marker, Part
from aboard.train.resume_load import Sources, load, sources, wanted
from aboard.train.saved import Saved

_THREADS = 4


@dataclass(kw_only=True)
class Resumed:
    """What came of it; `notes` say what was skipped and what is set otherwise, `broken` names what didn't verify."""

    marker: Marker | None = None
    notes: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _Offer:
    """A checkpoint by its name, and the ranks that lead a disk with its marker."""

    name: str
    serial: int
    ranks: tuple[int, ...]


def resume(
    party: Party, how: str, module: nn.Module, optimizer: torch.optim.Optimizer, now: Callable[[], Present]
) -> Resumed:
    """By `resume:` of the training: `auto`, `none`, or one checkpoint. All ranks ask together, and get the same."""
    found = Resumed()
    if how == "none":
        return found
    folder = party.folder if how == "auto" else Path(how).absolute().parent
    names = None if how == "auto" else [Path(how).name]
    offers = _offers(party, folder, names, found)
    for offer in offers:
        saved = Saved(folder=folder / offer.name, marker=_agreed_marker(party, folder, offer))
        changed = differences(saved.marker, now())
        refuse(changed, str(saved.folder))
        why = _unsound(party, saved, module)
        if why is None:
            party.together(partial(_load, saved, module, optimizer, len(party.disks.nodes)))
            found.marker = saved.marker
            found.notes += _said(saved, changed)
            return found
        found.broken.add(offer.name)
        found.notes.append(f"{offer.name} is skipped: {why}")
    if how != "auto" or found.broken:
        raise _nothing(party.folder if how == "auto" else Path(how), found.notes)
    return found


def _offers(party: Party, folder: Path, names: list[str] | None, found: Resumed) -> list[_Offer]:
    """The newest first; what one disk lacks another may have, since markers are written after all files are there."""

    def look() -> dict[str, Any]:
        seen = listed(folder, names) if party.leads else Listed(good={}, skipped={})
        torn = [name for name in seen.skipped if (folder / name / marker.NAME).exists()]
        return {"good": seen.good, "skipped": seen.skipped, "torn": torn}

    told = party.together(look)
    serials: dict[str, int] = {}
    for said in told:
        serials |= said["good"]
    skipped = {name: why for said in told for name, why in said["skipped"].items() if name not in serials}
    found.notes += [f"{name} is skipped: {why}" for name, why in skipped.items()]
    found.broken |= {name for said in told for name in said["torn"] if name not in serials}
    offers = [
        _Offer(name=name, serial=serial, ranks=tuple(rank for rank, said in enumerate(told) if name in said["good"]))
        for name, serial in serials.items()
    ]
    return sorted(offers, key=lambda offer: (offer.serial, offer.name), reverse=True)


def _agreed_marker(party: Party, folder: Path, offer: _Offer) -> Marker:
    """One disk's marker, for all ranks; a disk that lacks it though all its files are there gets it now."""
    source, path = offer.ranks[0], folder / offer.name
    own: list[bytes] = []

    def fetch() -> dict[str, Any]:
        if party.rank == source:
            own.append((path / marker.NAME).read_bytes())
        return {}

    party.together(fetch)
    text = party.exchange.tell(own[0] if own else None, source=source)
    found = marker.read(text)

    def mend() -> dict[str, Any]:
        if party.leads and party.rank not in offer.ranks and Saved(folder=path, marker=found).here:
            write_marker(path, marker.NAME, text.decode())
        return {}

    party.together(mend)
    return found


def _unsound(party: Party, saved: Saved, module: nn.Module) -> str | None:
    """Why it can't be used, the same on all ranks; every file that any rank of a disk needs is hashed once there."""
    need: list[Sources] = []

    def plan() -> dict[str, Any]:
        found = sources(saved, wanted(saved, module, len(party.disks.nodes)))
        need.append(found)
        elsewhere = [file for file in found.missing if _elsewhere(file, saved)]
        if elsewhere:
            raise _far(party, saved, elsewhere)
        return {"files": found.files, "missing": [file.name for file in found.missing]}

    told = party.together(plan)
    missing = sorted({name for said in told for name in said["missing"]})
    if missing:
        return f"{', '.join(missing[:3])}{' …' if len(missing) > 3 else ''} missing"  # noqa: PLR2004 - as many as fit
    mates = party.mates
    files = sorted({name for rank in mates for name in told[rank]["files"]})
    share = files[mates.index(party.rank) :: len(mates)]
    bad = party.together(lambda: {"bad": saved.verify(share, threads=_threads(len(mates)))})
    worst = [f"{why} (on {party.disks.nodes[rank]})" for rank, said in enumerate(bad) for why in said["bad"]]
    return worst[0] + (f", and {len(worst) - 1} files more" if len(worst) > 1 else "") if worst else None


def _elsewhere(file: Part, saved: Saved) -> bool:
    """Written onto a disk of which nothing is here: not lost, but on another node."""
    several = len({each.disk for each in saved.marker.files}) > 1
    return several and not any(here.disk == file.disk for here in saved.here.values())


def _far(party: Party, saved: Saved, files: list[Part]) -> AboardError:
    ranks = sorted({(file.node, file.rank) for file in files})
    said = ", ".join(f"{file.name} of rank {file.rank} on {file.node}" for file in files[:8])
    more = f", and {len(files) - 8} more" if len(files) > 8 else ""  # noqa: PLR2004 - as many as fit
    path = saved.folder
    nodes = sorted({node for node, _ in ranks})
    return AboardError(
        checkpoint.ELSEWHERE,
        f"{path} was saved onto several disks, and this layout needs files that aren't on this one: {said}{more}",
        "several" if len(nodes) > 1 else "one",
        nodes=nodes,
        folder=path,
        here=party.node,
    )


def _load(saved: Saved, module: nn.Module, optimizer: torch.optim.Optimizer, world: int) -> dict[str, Any]:
    load(saved, module, optimizer, world)
    return {}


def _said(saved: Saved, changed: list[Difference]) -> list[str]:
    return [f"continues from {saved.folder}, step {saved.marker.step}", *(f"set otherwise: {each}" for each in changed)]


def _nothing(path: Path, notes: list[str]) -> AboardError:
    reasons = "".join(f"\n  {note}" for note in notes)
    return AboardError(checkpoint.NONE_SOUND, f"no checkpoint in {path} can be used:{reasons}", folder=path)


def _threads(mates: int) -> int:
    return max(1, min(_THREADS, (os.cpu_count() or 1) // mates))
