"""What ranks read, brought to the nodes that lack it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from aboard.core.plan import Plan
from aboard.data.store.parcels import Parcel, parcel
from aboard.flows.spread import Progress, Spread, spread
from aboard.flows.train import told_path
from aboard.flows.train_model import CONFIG, FILES, WEIGHTS
from aboard.wires.fleet import Fleet

HASHES = "fingerprints.json"


async def bring(
    plan: Plan, fleet: Fleet, folders: Sequence[Path], *, cache: Path, on_progress: Callable[[Progress], None]
) -> Spread | None:
    """To every node but this machine; None where there is no other."""
    nodes = [part.node for part in plan.parts if not part.node.local]
    if not nodes:
        return None
    parcels = [await asyncio.to_thread(_parcel, folder, cache) for folder in folders]
    return await spread(nodes, parcels, fleet, on_progress=on_progress)


def _parcel(folder: Path, cache: Path) -> Parcel:
    found = parcel(folder, hashes=cache / HASHES, to=told_path(folder))
    if not (folder / CONFIG).is_file():
        return found
    # A model's directory may hold the same weights in other formats, and anything else.
    kept = tuple(file for file in found.files if any(fnmatch(file.name, form) for form in (*FILES, WEIGHTS)))
    return replace(found, files=kept)
