"""Measures how long a save stalls training, asynchronous against synchronous: `stall()` for a bench.

A save costs in two ways: seconds in which training does nothing (the stall), and a slower step beside the copy and the
write, where cores are few. Both are measured.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic


@dataclass(frozen=True, kw_only=True)
class Stall:
    """Each list has one figure a round, in seconds; `step` without a save, `beside` with one behind it."""

    parameters: int
    bytes: int
    synchronous: list[float]
    stalled: list[float]
    step: list[float]
    beside: list[float]

    @property
    def share(self) -> float:
        """Of the synchronous save, the part that training waits for when it is asynchronous."""
        return median(a / b for a, b in zip(self.stalled, self.synchronous, strict=True))


def stall(*, rounds: int = 7, layers: int = 52, folder: str | None = None) -> Stall:
    """In a process of its own; a layer has 2²⁰ parameters, so 52 of them and their Adam are 654 MB."""
    command = [sys.executable, __file__, str(rounds), str(layers), *([folder] if folder else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ), timeout=900)
    return Stall(**json.loads(done.stdout))


def _measure(rounds: int, layers: int, folder: Path) -> Stall:
    import torch  # noqa: PLC0415 - the process that asks needs none of it
    from saving import Standing, checkpoints, progress  # noqa: PLC0415 - as above

    module = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    engine = Standing(module=module)

    def step() -> float:
        began = monotonic()
        module(torch.randn(256, 1024)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return monotonic() - began

    step()
    figures: dict[str, list[float]] = {"synchronous": [], "stalled": [], "step": [], "beside": []}
    store = checkpoints(folder, keep=1)
    store.save(engine, optimizer, progress(1), wait=True)  # the first makes the buffers
    for round_ in range(1, rounds + 1):
        figures["step"].append(step())
        figures["synchronous"].append(store.save(engine, optimizer, progress(2 * round_), wait=True))
        before = store.stalled
        store.save(engine, optimizer, progress(2 * round_ + 1))
        figures["beside"].append(step())
        figures["stalled"].append(store.stalled - before)
    store.close()
    size = sum(path.stat().st_size for path in folder.glob("step-*/rank-*"))
    return Stall(parameters=layers << 20, bytes=size, **figures)


if __name__ == "__main__":
    with TemporaryDirectory(prefix="aboard-stall-", dir=sys.argv[3] if len(sys.argv) > 3 else None) as place:
        print(json.dumps(asdict(_measure(int(sys.argv[1]), int(sys.argv[2]), Path(place)))))  # noqa: T201 - read by `stall`
