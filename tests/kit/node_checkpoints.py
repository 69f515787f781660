"""Checkpoints without a shared disk, on nodes that are homes of their own, and the head that resumes from them."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from node_homes import HomeTransport

from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedCheckpoint, RecordedTraining
from aboard.commands.train.checkpoints.share_checkpoint import (
    ShareProgress,
    ShareRequest,
    ShareResult,
    share_checkpoint,
)
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import MasterAddress, NodePlan, Plan, Start
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.training_settings import Training
from aboard.diagnoses import Unreachable
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation
from aboard.trainer.checkpoint.commit_marker import CheckpointFile, TensorSpec, format_file_line, format_marker
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.transport import ByteStream, OnPhase

OUT = "job/out"
# Rank 0 has the first half of each tensor, rank 1 the second.
HALVES = {0: "n1", 1: "n2"}


class PartlyOff(HomeTransport):
    """As HomeTransport, but some nodes are off."""

    def __init__(self, homes: Path, off: Sequence[str]) -> None:
        super().__init__(homes)
        self._off = off

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        if node.name in self._off:
            raise Unreachable(UnreachableReason.NO_ROUTE, f"{node.name}: no route to host")
        return await super().open(node, on_phase)


def part_content(rank: int, step: int) -> bytes:
    return f"rank {rank}, step {step}".encode() * 1000


def part_file(rank: int, node: str, step: int, *, copies: bool) -> CheckpointFile:
    content = part_content(rank, step)
    box = ((0,), (8,)) if copies else ((4 * rank,), (4,))
    return CheckpointFile(
        name=f"rank-{rank:05d}-000.safetensors",
        rank=rank,
        node=f"host-{node}",
        disk=rank,
        bytes=len(content),
        sha256=sha256(content).hexdigest(),
        slices={"model/w": box, "optimizer/w/exp_avg": box},
    )


def save(
    homes: Path,
    step: int,
    serial: int,
    ranks: Mapping[int, str] = HALVES,
    *,
    copies: bool = False,
    best: int | None = None,
) -> dict[str, Path]:
    """Each rank's file and a marker in its node's home; with `copies`, each file has everything."""
    files = [part_file(rank, node, step, copies=copies) for rank, node in ranks.items()]
    about = {
        "serial": serial,
        "step": step,
        "progress": {"index": step},
        "training": {"sharding": "full", "load_best_model_at_end": best is not None},
        "step_size": 1,
        "world": len(ranks),
        "sharding": "none" if copies else "full",
        "versions": {},
        "data": "d",
        "config": None,
        "ties": {},
        "state": {} if best is None else BestEvaluation(step=best, loss=1.5, kept=True).content(),
    }
    tensors = {name: TensorSpec(dtype="F32", shape=(8,)) for name in ("model/w", "optimizer/w/exp_avg")}
    text = format_marker(about, tensors, [format_file_line(file) for file in files])
    folders = {}
    for file, node in zip(files, ranks.values(), strict=True):
        folder = folders[node] = homes / node / OUT / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file.name).write_bytes(part_content(file.rank, step))
        (folder / "manifest.json").write_text(text)
    return folders


def build_plan(ranks: Mapping[int, str] = HALVES, address: str | None = None) -> Plan:
    parts = tuple(
        NodePlan(
            node=Node(name=node, fabric_address=address), starts=(Start(child=str(rank), argv=("python",), rank=rank),)
        )
        for rank, node in ranks.items()
    )
    program = Program(kind=ProgramKind.SCRIPT, target="")
    return Plan(run="r", program=program, master=MasterAddress(node="n1", address=""), parts=parts)


def record(*saved: RecordedCheckpoint, ranks: Mapping[int, str] = HALVES) -> RecordedTraining:
    return RecordedTraining(plans=(build_plan(ranks),), checkpoints={each.name: each for each in saved})


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}


def both(step: int) -> dict[str, bytes]:
    return {f"rank-{rank:05d}-000.safetensors": part_content(rank, step) for rank in (0, 1)}


def share(
    tmp_path: Path,
    ranks: Mapping[int, str],
    *,
    off: Sequence[str] = (),
    recorded: RecordedTraining | None = None,
    address: str | None = None,
    head: PartlyOff | None = None,
    **settings: Any,
) -> ShareResult | None:
    training = Training(
        model="m", max_length=8, output_dir=f"~/{OUT}", data=(), **{"sharding": "full", "resume": "auto", **settings}
    )
    request = ShareRequest(
        plan=build_plan(ranks, address),
        training=training,
        recorded=recorded or RecordedTraining(plans=(), checkpoints={}),
        cache=tmp_path / "cache",
    )

    @contextmanager
    def listening() -> Iterator[Any]:
        yield lambda _progress: None

    async def main() -> ShareResult | None:
        dialer = NodeDialer(lambda _node: head or PartlyOff(tmp_path, off))
        try:
            return await share_checkpoint(request, dialer, ShareProgress(receiving=listening, sending=listening))
        finally:
            await dialer.close()

    return asyncio.run(main())
