"""Checkpoints without a shared disk: gathered from agents with homes of their own, and shared among them."""

import asyncio
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
from made_events import made_event
from node_checkpoints import HALVES, OUT, PartlyOff, both, contents, part_content, part_file, record, save, share

from aboard.agent.marker_summary import summarize_marker
from aboard.commands.train.checkpoints.gather_checkpoint import GatheredCheckpoint, GatherRequest, gather_checkpoint
from aboard.commands.train.checkpoints.recorded_checkpoints import (
    RecordedCheckpoint,
    RecordedTraining,
    collect_saved_parts,
)
from aboard.core.cluster.node import Node
from aboard.core.run.events import Event
from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint.checkpoint_parts import list_needed_slices, list_slices, select_parts
from aboard.trainer.checkpoint.commit_marker import (
    CheckpointFile,
    format_file_line,
    format_marker,
    parse_marker,
    parse_marker_summary,
)
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.transport import ByteStream, OnPhase


class CountedStream:
    """A stream that counts what the head sends and gets, but not the agent's source."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def read(self, size: int) -> bytes:
        data = await self._stream.read(size)
        self.bytes += len(data)
        return data

    def write(self, data: bytes | memoryview) -> None:
        self.bytes += len(data) if self.bytes else 0
        self._stream.write(data)


class CountingHead(PartlyOff):
    """As PartlyOff, and it counts what goes through the head."""

    def __init__(self, homes: Path, off: Sequence[str]) -> None:
        super().__init__(homes, off)
        self._streams: list[CountedStream] = []

    @property
    def bytes(self) -> int:
        return sum(stream.bytes for stream in self._streams)

    async def open(self, node: Node, on_phase: OnPhase) -> ByteStream:
        self._streams.append(CountedStream(await super().open(node, on_phase)))
        return cast("ByteStream", self._streams[-1])


def gather(
    tmp_path: Path, *, off: Sequence[str] = (), recorded: RecordedTraining | None = None, name: str | None = None
) -> GatheredCheckpoint:
    request = GatherRequest(
        run="brave-otter",
        folder=f"~/{OUT}",
        recorded=recorded or record(),
        cache=tmp_path / "cache",
        to=Path("made"),
        name=name,
    )

    async def main() -> GatheredCheckpoint:
        dialer = NodeDialer(lambda _node: PartlyOff(tmp_path, off))
        try:
            return await gather_checkpoint(request, dialer, lambda _progress: None)
        finally:
            await dialer.close()

    return asyncio.run(main())


def test_the_parts_of_the_newest_are_gathered(tmp_path: Path) -> None:
    """Each from the node that has it, into a private directory with the marker; then nothing of it is left."""
    save(tmp_path, 2, 1)
    save(tmp_path, 4, 2)
    gathered = gather(tmp_path)
    assert (gathered.name, gathered.nodes) == ("step-000004", ("n1", "n2"))
    assert contents(gathered.path) == both(4)
    assert parse_marker((gathered.path / "manifest.json").read_bytes()).step == 4
    assert gathered.path.parent.stat().st_mode & 0o777 == 0o700
    gathered.remove()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.ci
def test_the_parts_of_the_best_are_gathered(tmp_path: Path) -> None:
    """The newest marker says which it is; by name any is; one that is gone is an error with the newest one's name."""
    save(tmp_path, 2, 1, best=2)
    save(tmp_path, 4, 2, best=2)
    gathered = gather(tmp_path)
    assert (gathered.name, str(gathered.best)) == ("step-000002", "step 2, eval loss 1.5000")
    assert contents(gathered.path) == both(2)
    named = gather(tmp_path, name="step-000004")
    assert (named.name, named.best) == ("step-000004", None)
    save(tmp_path, 6, 3, best=5)
    with pytest.raises(
        AboardError, match=r"the best checkpoint \(step 5, .*\) is gone; the newest is step-000006"
    ) as gone:
        gather(tmp_path)
    assert gone.value.fix.startswith("aboard export brave-otter --checkpoint step-000006 --to DIR")


@pytest.mark.ci
def test_a_node_that_is_off_is_named_with_what_is_still_whole(tmp_path: Path) -> None:
    """The part, its last node and the reason; the command exports the newest checkpoint that is whole without it."""
    save(tmp_path, 2, 1, copies=True)
    save(tmp_path, 4, 2)
    with pytest.raises(AboardError) as caught:
        gather(tmp_path, off=["n2"])
    error = caught.value
    assert error.diagnosis is checkpoints.EXPORT_PART
    assert "step-000004 needs rank-00001-000.safetensors, last on n2 (n2: no route to host)" in error.seen
    assert "the newest checkpoint that is complete without it is step-000002" in error.seen
    assert error.fix.startswith("aboard export brave-otter --checkpoint step-000002 --to made ")
    gathered = gather(tmp_path, off=["n2"], name="step-000002")
    assert contents(gathered.path) == {"rank-00000-000.safetensors": part_content(0, 2)}


@pytest.mark.ci
def test_without_any_whole_checkpoint_the_node_is_waited_for(tmp_path: Path) -> None:
    """The record says where parts were even if no node that has the marker answers."""
    save(tmp_path, 4, 2)
    with pytest.raises(AboardError, match="no other checkpoint of brave-otter is complete") as caught:
        gather(tmp_path, off=["n1"])
    assert "rank-00000-000.safetensors, last on n1 (n1: no route to host)" in caught.value.seen
    assert caught.value.fix.startswith("aboard export brave-otter --to made    # again, when n1 is back")
    saved = RecordedCheckpoint(name="step-000004", serial=2, nodes={"rank-00000-000.safetensors": ("n1",)})
    with pytest.raises(AboardError, match="step-000004 was last on n1: n1: no route to host"):
        gather(tmp_path, off=["n1", "n2"], recorded=record(saved))


@pytest.mark.ci
def test_a_damaged_part_is_named_or_taken_from_a_copy(tmp_path: Path) -> None:
    """By its hash, although its size is right."""
    folders = save(tmp_path, 4, 2, copies=True)
    damaged = folders["n1"] / "rank-00000-000.safetensors"
    damaged.write_bytes(damaged.read_bytes().replace(b"rank", b"junk"))
    gathered = gather(tmp_path)
    assert gathered.nodes == ("n2",)
    assert contents(gathered.path) == {"rank-00001-000.safetensors": part_content(1, 4)}
    gathered.remove()
    save(tmp_path, 6, 3)
    damaged = tmp_path / "n1" / OUT / "step-000006/rank-00000-000.safetensors"
    damaged.write_bytes(damaged.read_bytes().replace(b"rank", b"junk"))
    with pytest.raises(AboardError, match=r"step-000006 needs rank-00000-000\.safetensors, last on n1") as caught:
        gather(tmp_path)
    assert f"has sha256 {sha256(damaged.read_bytes()).hexdigest()}, expected" in caught.value.seen
    assert "--checkpoint step-000004" in caught.value.fix


@pytest.mark.ci
def test_nothing_to_export_is_said_with_where_it_was_looked_for(tmp_path: Path) -> None:
    """All nodes that were asked are named."""
    with pytest.raises(AboardError, match="no complete checkpoint in ~/job/out on this machine or on n1 and n2"):
        gather(tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1.invalid"])
def test_a_blank_node_gets_its_part_from_the_node_with_the_copy(tmp_path: Path, address: str) -> None:
    """Directly, with the metrics of rank 0; by way of the head, the part alone, if they can't connect."""
    folders = save(tmp_path, 4, 2)
    name = "rank-00000-000.safetensors"
    (folders["n2"] / name).write_bytes(part_content(0, 4))
    beside = tmp_path / "n2" / OUT / ".first-node"
    beside.mkdir()
    (beside / "metrics.jsonl").write_text("curve")
    (tmp_path / "n3").mkdir()
    done = share(tmp_path, {0: "n3", 1: "n2"}, off=["n1"], address=address)
    assert done is not None
    assert (done.name, done.nodes) == ("step-000004", ("n3",))
    assert contents(tmp_path / "n3" / OUT / "step-000004") == {name: part_content(0, 4)}
    marker = tmp_path / "n3" / OUT / "step-000004" / "manifest.json"
    assert marker.read_bytes() == (folders["n2"] / "manifest.json").read_bytes()
    direct = address == "127.0.0.1"
    assert (done.sent == 0, done.passed > 0) == (direct, direct)
    assert (tmp_path / "n3" / OUT / "metrics.jsonl").exists() == direct


@pytest.mark.ci
def test_the_same_layout_moves_nothing(tmp_path: Path) -> None:
    """Each node has what its ranks need; a node that replaces another gets only that one's part, and the marker."""
    save(tmp_path, 4, 2)
    done = share(tmp_path, HALVES)
    assert done is not None
    assert (done.name, done.sent) == ("step-000004", 0)
    assert done.notes == ("no record of a run vouches for step-000004",)
    done = share(tmp_path, {0: "n1", 1: "n3"}, recorded=record())
    assert done is not None
    assert done.nodes == ("n3",)
    assert contents(tmp_path / "n3" / OUT / "step-000004") == {"rank-00001-000.safetensors": part_content(1, 4)}
    assert (tmp_path / "n3" / OUT / "step-000004/manifest.json").exists()
    assert contents(tmp_path / "n1" / OUT / "step-000004") == {"rank-00000-000.safetensors": part_content(0, 4)}


@pytest.mark.ci
@pytest.mark.parametrize("ranks", [{0: "n1"}, {0: "n3"}, {0: "n1", 1: "n2", 2: "n3"}])
def test_another_number_of_nodes_gets_every_part(tmp_path: Path, ranks: Mapping[int, str]) -> None:
    """Also nodes that never had one, from nodes that are not part of this run; nothing is left on this machine."""
    save(tmp_path, 4, 2)
    done = share(tmp_path, ranks, recorded=record(RecordedCheckpoint(name="step-000004", serial=2)))
    assert done is not None
    for node in ranks.values():
        assert contents(tmp_path / node / OUT / "step-000004") == both(4)
        assert (tmp_path / node / OUT / "step-000004/manifest.json").exists()
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.ci
def test_a_newer_one_that_is_not_whole_is_named_and_skipped(tmp_path: Path) -> None:
    """The run resumes from the newest whole one on the nodes that answer, and says why."""
    save(tmp_path, 2, 1, copies=True)
    save(tmp_path, 4, 2)
    done = share(tmp_path, {0: "n1"}, off=["n2"], recorded=record())
    assert done is not None
    assert done.name == "step-000002"
    assert done.notes == (
        "step-000004 is not complete: it needs rank-00001-000.safetensors, last on n2 (n2: no route to host)",
        "no record of a run vouches for step-000002",
    )


@pytest.mark.ci
def test_no_training_starts_over_by_itself(tmp_path: Path) -> None:
    """If the record has checkpoints and their nodes are off, the run stops; without checkpoints it starts."""
    assert share(tmp_path, HALVES) is None
    save(tmp_path, 4, 2)
    with pytest.raises(AboardError, match="last on n2") as caught:
        share(tmp_path, {0: "n1"}, off=["n2"], recorded=record())
    assert caught.value.diagnosis is checkpoints.PARTS_LOST
    assert caught.value.fix.startswith("aboard check n2    # when it is back")
    saved = RecordedCheckpoint(name="step-000004", serial=2, nodes={"rank-00000-000.safetensors": ("n1",)})
    with pytest.raises(AboardError, match="step-000004 was last on n1"):
        share(tmp_path, {0: "n3"}, off=["n1", "n2"], recorded=record(saved))


@pytest.mark.ci
def test_one_checkpoint_by_name_is_shared(tmp_path: Path) -> None:
    """`resume: PATH` takes that checkpoint, even if there is a newer one."""
    save(tmp_path, 2, 1)
    save(tmp_path, 4, 2)
    done = share(tmp_path, {0: "n1"}, recorded=record(), resume=f"~/{OUT}/step-000002")
    assert done is not None
    assert done.name == "step-000002"
    assert contents(tmp_path / "n1" / OUT / "step-000002") == both(2)


@pytest.mark.parametrize(
    ("each", "megabytes"), [pytest.param(8, 2, marks=pytest.mark.ci), pytest.param(256, 90, marks=pytest.mark.nightly)]
)
def test_a_restart_takes_less_than_a_megabyte_through_the_head(tmp_path: Path, each: int, megabytes: int) -> None:
    """A spare takes the place of a node whose ranks' parts were copied: also the marker comes from the other node."""
    ranks = {rank: f"n{1 + rank // each}" for rank in range(2 * each)}
    files = [replace(part_file(rank, node, 4, copies=False), disk=rank // each * each) for rank, node in ranks.items()]
    # As a model of 70 billion parameters has them.
    names = [
        f"optimizer/model.layers.{layer}.mlp.projection_{at}.weight/exp_avg" for layer in range(80) for at in range(27)
    ]
    files = [replace(file, slices=dict.fromkeys(names, ((file.rank * 1024, 0), (1024, 8192)))) for file in files]
    text = _format_marker_of(files, world=2 * each)
    assert len(text) > megabytes * 1e6
    folder = tmp_path / "n2" / OUT / "step-000004"
    folder.mkdir(parents=True)
    for file in files:
        (folder / file.name).write_bytes(part_content(file.rank, 4))
    (folder / "manifest.json").write_bytes(text)
    spare = {rank: node.replace("n1", "n3") for rank, node in ranks.items()}
    head = CountingHead(tmp_path, ["n1"])
    done = share(tmp_path, spare, address="127.0.0.1", head=head)
    assert done is not None
    assert (done.sent, done.nodes) == (0, ("n3",))
    made = tmp_path / "n3" / OUT / "step-000004"
    assert {path.name for path in made.glob("rank-*")} == {file.name for file in files[:each]}
    assert (made / "manifest.json").read_bytes() == text
    assert head.bytes < 1e6, f"{head.bytes:,} bytes, for a marker of {len(text):,}"


@pytest.mark.ci
def test_a_summary_of_a_marker_selects_the_same_files() -> None:
    """Whatever slices the files share, and whatever is held or available; a damaged marker has none."""
    draw = random.Random(33)  # noqa: S311 - no secrets
    slices = [(f"model/w{number}", ((number,), (1,))) for number in range(12)]
    for _ in range(50):
        files = [
            replace(part_file(rank, "n1", 1, copies=False), slices=dict(draw.sample(slices, draw.randint(0, 6))))
            for rank in range(6)
        ]
        text = _format_marker_of(files, world=6)
        full, names = parse_marker(text), [file.name for file in files]
        brief, size, digest = parse_marker_summary(zlib.decompress(summarize_marker(text)))
        assert (size, digest) == (len(text), sha256(text).hexdigest())
        held, available = (draw.sample(names, draw.randint(0, 6)) for _ in range(2))
        found = [select_parts(each, list_slices(each.files), held=held, available=available) for each in (full, brief)]
        assert [[file.name for file in one.files] for one in found[:1]] == [
            [file.name for file in one.files] for one in found[1:]
        ]
        assert {file.name for file in found[0].lacking} == {file.name for file in found[1].lacking}
    for damaged in (text[:-1], text.replace(b"rank", b"junk", 1), b"", b"{}"):
        assert summarize_marker(damaged) == b""


def test_parts_by_slices() -> None:
    """Copies count once; what a node holds isn't chosen again; what none has is named."""
    files = tuple(part_file(rank, node, 1, copies=False) for rank, node in HALVES.items())
    copy = replace(files[1], name="rank-00002-000.safetensors", rank=2)
    marker = parse_marker(_format_marker_of([*files, copy], world=3))
    every = list_slices(marker.files)
    names = [file.name for file in marker.files]
    assert [file.name for file in select_parts(marker, every, available=names).files] == names[:2]
    assert [file.name for file in select_parts(marker, every, held=[names[2]], available=names).files] == names[:1]
    assert [file.name for file in select_parts(marker, every, available=names[:1]).lacking] == names[1:2]
    needed = list_needed_slices(marker, {0: "a", 1: "b", 2: "c"}, sharding="none")
    assert needed == dict.fromkeys("abc", every)


def test_the_record_knows_the_nodes_of_each_part() -> None:
    """From the events that supervisors report, of ranks that saved or resumed, and of copies; others don't count."""

    def saved(node: str, serial: int, *files: str, copied: bool = False, name: str = "step-000002") -> Event:
        return made_event("saved", node=node, at=1.0, checkpoint=name, serial=serial, files=files, copied=copied)

    events = [saved("n1", 1, "a"), saved("n2", 1, "b"), saved("n3", 1, "a"), made_event("exited", code=0)]
    assert collect_saved_parts(events)["step-000002"].nodes == {"a": ("n3", "n1"), "b": ("n2",)}
    copy = saved("n1", 1, "b", copied=True)
    assert collect_saved_parts([*events, copy])["step-000002"].nodes == {"a": ("n3", "n1"), "b": ("n2", "n1")}
    hostile = saved("n1", 1, "a", name="../step-000002")
    assert collect_saved_parts([hostile, saved("n1", 1, "a/../b", "a\n")])["step-000002"].nodes == {}
    again = collect_saved_parts([*events, saved("n4", 5, "c")])["step-000002"]
    assert (again.serial, again.nodes) == (5, {"c": ("n4",)})


def _format_marker_of(files: Sequence[CheckpointFile], *, world: int) -> bytes:
    about = {
        "serial": 1,
        "step": 1,
        "progress": {"index": 1},
        "training": {"sharding": "full"},
        "step_size": 1,
        "world": world,
        "sharding": "full",
        "versions": {},
        "data": "d",
        "config": None,
        "ties": {},
    }
    return format_marker(about, {}, [format_file_line(file) for file in files]).encode()
