"""Whether all ranks have the same model before them: one that has another would spoil it for all, unseen."""

import hashlib
import os
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

from aboard.diagnoses import AboardError, model
from aboard.train.world import World

# Of each file: how many places are looked at, and how much at each. It is a look, not a proof, and takes no time.
PLACES = 16
BLOCK = 4096
DIGEST = 16


def same(folder: Path, world: World) -> None:
    """Refuses ranks whose files differ from those of most others, by name."""
    if not world.distributed:
        return
    mine = torch.frombuffer(bytearray(_look(folder)), dtype=torch.uint8).to(world.device)
    all_of = [torch.empty_like(mine) for _ in range(world.size)]
    dist.all_gather(all_of, mine)
    looks = [bytes(each.tolist()) for each in all_of]
    usual = Counter(looks).most_common(1)[0][0]
    others = [str(rank) for rank, look in enumerate(looks) if look != usual]
    if others:
        raise AboardError(
            model.DIFFERS,
            f"{folder} isn't the same everywhere: rank {', '.join(others)} has other files than most",
            folder=folder,
        )


def _look(folder: Path) -> bytes:
    found = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors"), *folder.glob("*.bin")]):
        size = path.stat().st_size
        found.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(PLACES):
                found.update(os.pread(file.fileno(), BLOCK, size * place // PLACES))
    return found.digest()[:DIGEST]
