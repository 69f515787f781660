"""Attacks by a node or a rank on a resume: markers and answers that are made to stop it, or to poison it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any, cast

import pytest
from deadlines import within
from made_events import made_event
from node_checkpoints import HALVES, OUT, PartlyOff, record, save, share

from aboard.commands.shared.local_checkpoints import choose_checkpoint
from aboard.commands.sync.download import NodeDownload
from aboard.commands.train.checkpoints.checkpoint_survey import CheckpointOffer, CheckpointSurvey
from aboard.commands.train.checkpoints.gather_checkpoint import GatherRequest, gather_checkpoint
from aboard.commands.train.checkpoints.pass_parts import PartWish, pass_parts
from aboard.commands.train.checkpoints.recorded_checkpoints import (
    RecordedCheckpoint,
    RecordedTraining,
    collect_saved_parts,
)
from aboard.core.run.events import Event
from aboard.core.run.run_state import Run
from aboard.core.run.saved_markers import MARKERS, SavedMarker, choose_newest, format_markers, parse_markers
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.durable_files import FileEntry
from aboard.trainer.checkpoint.commit_marker import CommitMarker, read_marker_hash
from aboard.trainer.checks.resumable_checkpoints import find_newest_checkpoint
from aboard.transport.node_dialer import NodeDialer

pytestmark = pytest.mark.ci


def craft_marker(serial: int, fields: str, files: str) -> bytes:
    """A marker whose first line has the right hash of whatever it contains."""
    head = f'"format":"aboard-checkpoint",\n"version":1,\n"serial":{serial},\n{fields}'
    body = f'{head}"tensors":{{\n\n}},\n"files":[\n{files}\n]}}\n'
    return f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}'.encode()


DEEP = "[" * 100_000 + "]" * 100_000
FILE = '{"name":"rank-00000-000.safetensors","rank":0,"node":"n","disk":0,"bytes":1,"sha256":"' + "a" * 64 + '"'


CRAFTED = {
    "deep progress": (f'"progress":{DEEP},\n', ""),
    "deep file": ("", DEEP),
    "slices in a list": ("", '{"slices":[]}'),
    "file as list": ("", "[]"),
    "file as number": ("", "7"),
    "deep box": ("", FILE + ',"slices":{"model/w":' + DEEP + "}}"),
    "box as number": ("", FILE + ',"slices":{"model/w":7}}'),
    "file without a name": ("", '{"slices":{}}'),
}


@pytest.mark.parametrize("crafted", CRAFTED)
def test_a_crafted_marker_is_named_and_the_good_checkpoint_is_found(tmp_path: Path, crafted: str) -> None:
    """Deep nesting and wrong types stop no reader: the node still counts as reachable, and its parts are used."""
    save(tmp_path, 4, 2)
    poisoned = tmp_path / "n2" / OUT / "step-000009"
    poisoned.mkdir()
    (poisoned / "manifest.json").write_bytes(craft_marker(9, *CRAFTED[crafted]))
    done = share(tmp_path, HALVES, recorded=record())
    assert done is not None
    assert done.name == "step-000004"
    assert done.notes == (
        "step-000009 is skipped: its manifest.json on n2 is damaged",
        "no record of a run vouches for step-000004",
    )


def test_a_node_that_never_gets_further_is_not_waited_for(tmp_path: Path) -> None:
    """Its copier reports the same for ever: what it lacks is left to the head after the stated time."""

    class StuckNode:
        async def find_address(self) -> str:
            return "127.0.0.1"

        async def ask_copier(self, _folder: str, do: str, **_fields: object) -> Mapping[str, Any]:
            replies = {"open": {"address": "127.0.0.1", "port": 9}, "status": {"left": 1, "moved": 7, "lacking": []}}
            return replies.get(do, {})

    files = [FileEntry(name=f"rank-0000{number}-000.safetensors", bytes=1, sha256="a" * 64) for number in (0, 1)]
    wishes = {"n1": [PartWish(file=file, sources=["n2"]) for file in files]}
    nodes = cast("Mapping[str, NodeDownload]", {"n1": StuckNode(), "n2": StuckNode()})

    async def main() -> dict[str, set[str]]:
        return await pass_parts(nodes, "~/out", "step-000004", wishes, None, patience=0.01)

    with within(30):
        assert asyncio.run(asyncio.wait_for(main(), 60)) == {"n1": {files[0].name}}


def vouch(folder: Path, *steps: int) -> tuple[SavedMarker, ...]:
    """What the record of a run knows that saved these steps, the later one with the higher serial."""
    names = [f"step-{step:06d}" for step in steps]
    hashes = [read_marker_hash((folder / name / "manifest.json").read_bytes()) for name in names]
    rows = enumerate(zip(names, hashes, strict=True), 1)
    return choose_newest(SavedMarker(name=name, serial=serial, sha256=sha256) for serial, (name, sha256) in rows)


def vouch_for(homes: Path, node: str, *steps: int) -> RecordedTraining:
    return replace(record(), markers=vouch(homes / node / OUT, *steps))


def poison(homes: Path, step: int = 999) -> None:
    """One node offers a checkpoint with all ranks' parts, and a serial above all others."""
    save(homes / "made", step, 999)
    for folder in (homes / "made").glob(f"*/{OUT}/step-*"):
        copytree(folder, homes / "n2" / OUT / folder.name, dirs_exist_ok=True)


def test_a_poisoned_checkpoint_is_not_preferred_to_a_recorded_one(tmp_path: Path) -> None:
    """One node offers step 999 with all ranks' parts; the run resumes from step 10, which its record knows."""
    save(tmp_path, 10, 1)
    recorded = vouch_for(tmp_path, "n1", 10)
    poison(tmp_path)
    done = share(tmp_path, HALVES, recorded=recorded)
    assert done is not None
    assert done.name == "step-000010"
    anyway = f"to use it anyway: --set train.resume=~/{OUT}/step-000999"
    assert done.notes == (f"not considered: step-000999: no record of a run vouches for it; {anyway}",)


def test_a_poisoned_checkpoint_under_a_recorded_name_is_not_used(tmp_path: Path) -> None:
    """The hash of the marker counts, not the name; and the order is the record's, not the markers' own."""
    save(tmp_path, 10, 1)
    save(tmp_path, 20, 2)
    recorded = vouch_for(tmp_path, "n1", 10, 20)
    poison(tmp_path, 10)
    done = share(tmp_path, HALVES, recorded=recorded)
    assert done is not None
    assert done.name == "step-000020"


def test_a_poisoned_checkpoint_takes_no_place_of_one_that_is_unreachable(tmp_path: Path) -> None:
    """The resume stops and names the node that has the recorded one."""
    save(tmp_path, 10, 1)
    saved = RecordedCheckpoint(name="step-000010", serial=1, nodes={"rank-00000-000.safetensors": ("n1",)})
    recorded = replace(record(saved), markers=vouch_for(tmp_path, "n1", 10).markers)
    rmtree(tmp_path / "n2" / OUT / "step-000010")
    poison(tmp_path)
    with pytest.raises(AboardError, match="step-000010 was last on n1"):
        share(tmp_path, {0: "n3", 1: "n2"}, off=["n1"], recorded=recorded)


def test_without_a_record_the_newest_is_used_and_nobody_vouches_for_it(tmp_path: Path) -> None:
    """After the records were pruned, or from another head; a name that the user types needs no record."""
    save(tmp_path, 10, 1)
    save(tmp_path, 20, 2)
    done = share(tmp_path, HALVES, recorded=record())
    assert done is not None
    assert (done.name, done.notes) == ("step-000020", ("no record of a run vouches for step-000020",))
    recorded = vouch_for(tmp_path, "n1", 10)
    done = share(tmp_path, HALVES, recorded=recorded, resume=f"~/{OUT}/step-000020")
    assert done is not None
    assert (done.name, done.notes) == ("step-000020", ())


def test_a_step_that_the_user_went_back_to_stays_the_newest(tmp_path: Path) -> None:
    """Serials, not steps, decide among recorded checkpoints, too."""
    for serial, step in enumerate((10, 20, 15), 1):
        save(tmp_path, step, serial)
    done = share(tmp_path, HALVES, recorded=vouch_for(tmp_path, "n1", 10, 20, 15))
    assert done is not None
    assert (done.name, done.notes) == ("step-000015", ())


def test_only_rank_0_vouches_for_a_checkpoint() -> None:
    """Other ranks, copies, and texts that are no hash or name count for nothing."""
    data = {"checkpoint": Untrusted("step-000010"), "serial": 1, "files": (), "marker": "a" * 64}
    good = made_event("saved", node="n1", at=1.0, rank=0, **data)
    run = Run.replay("r", [good])
    assert [each.name for each in run.markers] == ["step-000010"]
    assert parse_markers(format_markers(run.markers)) == run.markers
    for changed in (
        replace(good, rank=1),
        made_event("saved", node="n1", rank=0, **data | {"copied": True}),
        made_event("saved", node="n1", rank=0, **data | {"marker": "../x"}),
        made_event("saved", node="n1", rank=0, **data | {"checkpoint": "../step-000010"}),
    ):
        assert Run.replay("r", [changed]).markers == ()


@pytest.mark.xdist_group("torch_a")
def test_ranks_on_a_shared_disk_prefer_what_the_head_vouches_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, the ranks choose: a checkpoint that appeared on the disk is left out, with a note, or has one."""
    from saving import resumed, save as save_steps  # noqa: PLC0415 - imports torch

    out = tmp_path / "out"
    save_steps(out, 10)
    markers = vouch(out, 10)
    save_steps(out, 999)
    monkeypatch.setenv(MARKERS, format_markers(markers))
    step, notes = resumed(out)
    assert step == 10
    assert any(note.startswith("not considered: step-000999: no record of a run vouches for it") for note in notes)
    monkeypatch.setenv(MARKERS, format_markers(()))
    step, notes = resumed(out)
    assert step == 999
    assert any(note.startswith("no record of a run vouches for step-000999") for note in notes)
    monkeypatch.setenv(MARKERS, format_markers(markers))
    assert resumed(out, resume=str(out / "step-000999"))[0] == 999


def gather(homes: Path, recorded: RecordedTraining, *, off: Sequence[str] = ()) -> str:
    """The name of the checkpoint that an export takes."""
    request = GatherRequest(run="r", folder=f"~/{OUT}", recorded=recorded, cache=homes / "cache", to=homes / "to")

    async def main() -> str:
        dialer = NodeDialer(lambda _node: PartlyOff(homes, off))
        try:
            return (await gather_checkpoint(request, dialer, lambda _progress: None)).name
        finally:
            await dialer.close()

    return asyncio.run(main())


def test_a_poisoned_checkpoint_is_not_exported(tmp_path: Path) -> None:
    """Neither one that a node offers, nor one that lies in the run's directory on this machine."""
    save(tmp_path, 10, 1)
    recorded = vouch_for(tmp_path, "n1", 10)
    poison(tmp_path)
    assert gather(tmp_path, recorded) == "step-000010"
    folder = tmp_path / "n2" / OUT
    local = choose_checkpoint(folder, None, recorded.markers)
    assert local is not None
    assert local.path.name == "step-000010"
    local = choose_checkpoint(folder, "step-000999", recorded.markers)
    assert local is not None
    assert local.path.name == "step-000999"


def say_saved(node: str, rank: int, name: str, serial: int) -> Event:
    data = {"checkpoint": Untrusted(name), "serial": serial, "files": ["rank-00001-000.safetensors"]}
    return made_event("saved", node=node, at=1.0, rank=rank, **data)


def test_no_other_rank_makes_a_checkpoint_the_newest(tmp_path: Path) -> None:
    """It could say that a newer one is on its node, and switch that off: no export or resume waits for it."""
    save(tmp_path, 10, 1, copies=True)
    said = collect_saved_parts([say_saved("n2", 1, "step-999999", 2**52)])
    recorded = replace(vouch_for(tmp_path, "n1", 10), checkpoints=said)
    assert gather(tmp_path, recorded, off=["n2"]) == "step-000010"
    done = share(tmp_path, {0: "n1", 1: "n3"}, off=["n2"], recorded=recorded)
    assert done is not None
    assert (done.name, done.notes) == ("step-000010", ())


def test_what_a_node_says_of_a_serial_hides_no_newer_checkpoint(tmp_path: Path) -> None:
    """The record has the order: a node that only earlier runs had is still asked for the newest."""
    for serial, step in enumerate((10, 20), 1):
        save(tmp_path, step, serial, copies=True)
    recorded = vouch_for(tmp_path, "n1", 10, 20)
    rmtree(tmp_path / "n2" / OUT / "step-000020")
    marker = tmp_path / "n2" / OUT / "step-000010" / "manifest.json"
    marker.write_bytes(marker.read_bytes().replace(b'"serial":1,', b'"serial":10000000000000,'))
    done = share(tmp_path, {0: "n3", 1: "n2"}, recorded=recorded)
    assert done is not None
    assert done.name == "step-000020"


@pytest.mark.parametrize("said", [[], [say_saved("n2", 1, "step-000010", 7)]])
def test_a_rank_does_not_hide_that_a_recorded_checkpoint_is_out_of_reach(tmp_path: Path, said: list[Event]) -> None:
    """It could say that the recorded one was only on its own node: no other checkpoint is used for that."""
    save(tmp_path, 10, 1)
    saved = collect_saved_parts([say_saved("n1", 0, "step-000010", 1), *said])
    recorded = replace(vouch_for(tmp_path, "n1", 10), checkpoints=saved)
    rmtree(tmp_path / "n2" / OUT / "step-000010")
    poison(tmp_path)
    with pytest.raises(AboardError, match="not considered: step-000999: no record of a run vouches for it"):
        share(tmp_path, {0: "n3", 1: "n2"}, off=["n1"], recorded=recorded)


def test_no_other_checkpoint_takes_the_place_of_one_that_was_changed(tmp_path: Path) -> None:
    """Whoever damages the recorded marker on the nodes that are left gets no checkpoint of his own resumed."""
    save(tmp_path, 10, 1)
    recorded = vouch_for(tmp_path, "n1", 10)
    for node in ("n1", "n2"):
        marker = tmp_path / node / OUT / "step-000010" / "manifest.json"
        marker.write_bytes(b"{" + marker.read_bytes())
    poison(tmp_path)
    with pytest.raises(AboardError, match=r"step-000010 has no manifest.json that a record knows; .*step-000999"):
        share(tmp_path, HALVES, recorded=recorded)


def test_a_marker_that_a_node_summarizes_but_does_not_send_ends_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named as damaged; the head used to ask for it for ever. Nodes get no marker with another hash."""
    save(tmp_path, 10, 1, copies=True)
    recorded = vouch_for(tmp_path, "n1", 10)
    save(tmp_path / "made", 10, 5)
    theirs = (tmp_path / "made" / "n2" / OUT / "step-000010" / "manifest.json").read_bytes()
    place = tmp_path / "n2" / OUT / "step-000010"

    read_summary = CheckpointSurvey.read_summary

    async def read_and_change(
        survey: CheckpointSurvey, offer: CheckpointOffer
    ) -> tuple[CommitMarker, FileEntry] | None:
        found = await read_summary(survey, offer)
        (place / "manifest.json").write_bytes(theirs)
        return found

    rmtree(tmp_path / "n1")
    monkeypatch.setattr(CheckpointSurvey, "read_summary", read_and_change)
    with pytest.raises(AboardError, match=r"step-000010 is skipped: its manifest.json on n2 is damaged"):
        share(tmp_path, {0: "n3", 1: "n2"}, off=["n1"], recorded=recorded, address="no-address")
    assert not (tmp_path / "n3" / OUT / "step-000010" / "manifest.json").exists()


@pytest.mark.parametrize("rank", [2, 99])
def test_a_marker_with_a_rank_that_no_run_had_stops_no_command(tmp_path: Path, rank: int) -> None:
    """Its part is missing, and the run has fewer ranks: neither a resume nor an export breaks."""
    save(tmp_path, 4, 2)
    crafted = tmp_path / "n2" / OUT / "step-000009"
    crafted.mkdir()
    file = FILE.replace('"rank":0', f'"rank":{rank}') + ',"slices":{"model/w":[[0],[8]]}}'
    about = {
        "step": 9, "progress": {}, "training": {}, "step_size": 1, "world": 2, "sharding": "full", "versions": {},
        "data": "d", "config": None, "ties": {}, "state": {},
    }  # fmt: skip
    fields = "".join(f"{json.dumps(name)}:{json.dumps(value)},\n" for name, value in about.items())
    (crafted / "manifest.json").write_bytes(craft_marker(9, fields, file))
    done = share(tmp_path, HALVES, recorded=record())
    assert done is not None
    assert done.name == "step-000004"
    with pytest.raises(AboardError, match=r"step-000009 needs rank-00000-000\.safetensors, last on n"):
        gather(tmp_path, record())


def test_who_repeats_a_recorded_hash_does_not_decide_that_a_training_is_finished() -> None:
    """Before ranks start, the head has only the beginning of a marker: where nodes differ, the ranks decide."""
    path, known = Untrusted("/home/u/out/step-000010"), SavedMarker(name="step-000010", serial=5, sha256="a" * 64)
    good = {"sha256": "a" * 64, "serial": 5, "progress": {"index": 10}}
    finished = {**good, "progress": {"index": 10**9}}
    assert find_newest_checkpoint({"n1": {path: good}, "n2": {path: good}}, [known]) == ("n1", path, good)
    for answers in ({"n1": {path: good}, "n2": {path: finished}}, {"n2": {path: finished}, "n1": {path: good}}):
        assert find_newest_checkpoint(answers, [known]) is None
    unknown = {Untrusted(f"/home/u/out/step-{step:06d}"): {**finished, "sha256": "b" * 64} for step in range(8)}
    assert find_newest_checkpoint({"n1": unknown}, [known]) is None
    assert find_newest_checkpoint({"n1": unknown}) is not None
