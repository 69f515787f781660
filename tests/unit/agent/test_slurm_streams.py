"""What srun does to a step's streams, and how frames survive it: copies of stdin, merged and cut lines of stdout."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from aboard.agent import frames
from aboard.agent.slurm_task import (
    CLOSE,
    DATA,
    EVERY_TASK,
    LINE_BYTES,
    PACKET,
    STEP_VARIABLES,
    STORE,
    STORE_LIMIT,
    USE,
    LineDecoder,
    PacketSplitter,
    StoredBytes,
    encode_lines,
)


def pack(kind: int, task: int, payload: bytes) -> bytes:
    return PACKET.pack(kind, task, len(payload)) + payload


def test_any_bytes_survive_lines_that_are_cut_anywhere() -> None:
    """A line may be cut at any byte, with a newline added there; joining the pieces gives what was sent."""
    dice = random.Random(1)  # noqa: S311 - the same bytes every time
    data = bytes(dice.choice(b"\n\x1dne\\a") for _ in range(20_000))
    decoder, received = LineDecoder(), b""
    for line in encode_lines(data).splitlines():
        cut = dice.randrange(len(line) + 1)
        received += decoder.feed(line[:cut]) + decoder.feed(line[cut:])
    assert received == data


def test_no_line_is_longer_than_what_slurm_passes_on_whole() -> None:
    """A line with its newline fits into one of slurmstepd's messages of 1024 bytes."""
    lines = encode_lines(b"\n" * 5000).split(b"\n")
    assert max(map(len, lines)) <= LINE_BYTES < 1024


def test_a_task_gets_its_own_packets_and_those_for_all() -> None:
    """Of the same broadcast, each task sees its frames alone, however the bytes arrive."""
    broadcast = b"".join(
        (
            pack(DATA, 0, frames.pack({"op": "a"})),
            pack(DATA, 1, frames.pack({"op": "b"})),
            pack(DATA, EVERY_TASK, frames.pack({"op": "c"})),
        )
    )
    for task, wanted in ((0, ["a", "c"]), (1, ["b", "c"]), (2, ["c"])):
        splitter = PacketSplitter(task, broadcast[:5])
        bodies = [body for byte in broadcast[5:] for body in splitter.feed(bytes([byte]))]
        assert [frames.unpack(body)["op"] for body in bodies] == wanted


def test_stored_bytes_are_sent_once_for_many_tasks() -> None:
    """A frame may have a middle that all tasks stored before; a number that is not kept ends the stream."""
    frame = frames.pack_tailed({"op": "code"}, b"code" * 10_000)
    splitter = PacketSplitter(3, b"")
    assert splitter.feed(pack(DATA, 3, frame[:40]) + pack(STORE, EVERY_TASK, frame[40:])) == []
    bodies = splitter.feed(pack(USE, 3, (0).to_bytes(4, "big")))
    assert bytes(frames.unpack_tailed(bodies[0])[1]) == b"code" * 10_000
    with pytest.raises(frames.FrameError, match="not kept"):
        splitter.feed(pack(USE, 3, (7).to_bytes(4, "big")))


def test_both_ends_keep_the_same_stored_bytes() -> None:
    """The newest are kept, up to a limit; one that is larger than the limit is kept alone."""
    stored = StoredBytes()
    numbers = [stored.add(bytes(STORE_LIMIT // 3)) for _ in range(4)]
    assert [number in stored for number in numbers] == [False, True, True, True]
    big = stored.add(bytes(STORE_LIMIT + 1))
    assert [number in stored for number in (*numbers, big)] == [False] * 4 + [True]


def test_the_head_can_close_one_stream_of_a_step() -> None:
    """Only the addressed task ends; a packet of absurd size ends any."""
    other = PacketSplitter(1, b"")
    assert other.feed(pack(CLOSE, 0, b"")) == []
    with pytest.raises(frames.FrameError, match="closed"):
        PacketSplitter(0, b"").feed(pack(CLOSE, 0, b""))
    with pytest.raises(frames.FrameError, match="packet"):
        other.feed(PACKET.pack(DATA, 1, 2**31))


@pytest.mark.parametrize(
    "name",
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID", "SLURM_STEPID", "SLURM_CPU_BIND_TYPE",
     "SLURM_GPUS_PER_TASK", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_LOCALID", "SLURM_NODEID",
     "SLURM_TASKS_PER_NODE", "SLURM_NPROCS", "PMI_RANK", "PMIX_RANK", "SLURM_EXPORT_ENV", "SLURM_NO_KILL"],
)  # fmt: skip
def test_variables_of_a_step_are_removed(name: str) -> None:
    """They would change what our srun starts, and mislead programs that look for their rank."""
    assert STEP_VARIABLES.fullmatch(name)


@pytest.mark.parametrize(
    "name",
    ["SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_CPUS_PER_NODE", "SLURM_SUBMIT_DIR", "SLURM_ARRAY_TASK_ID",
     "SLURM_JOB_GPUS", "SLURM_CONF", "SLURMD_NODENAME", "SLURM_JOB_END_TIME", "SLURM_RESTART_COUNT", "PATH"],
)  # fmt: skip
def test_variables_of_a_job_stay(name: str) -> None:
    """Scripts use them for names and directories."""
    assert not STEP_VARIABLES.fullmatch(name)


FAILING_COMMAND = """
import asyncio
from aboard.core.cluster.node import Node
from aboard.transport.slurm import slurm_transport

slurm_transport.GATHER_SECONDS = 0

async def fail_after(turns):
    opening = asyncio.create_task(slurm_transport.SlurmTransport().open(Node(name="n1"), lambda phase: None))
    for _ in range(turns):
        await asyncio.sleep(0)
    raise RuntimeError("the command fails")

for turns in range(12):
    try:
        asyncio.run(fail_after(turns))
    except RuntimeError:
        print(turns, flush=True)
"""


@pytest.mark.ci
def test_a_command_that_fails_while_srun_starts_ends(tmp_path: Path) -> None:
    """In whichever turn of the loop it fails: asyncio would wait for ever for the pipes of a start that it cancels."""
    srun = tmp_path / "srun"
    srun.write_text("#!/bin/sh\nexec cat\n")
    srun.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", FAILING_COMMAND], env=environment, capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.split() == [str(turns) for turns in range(12)], ended.stderr
