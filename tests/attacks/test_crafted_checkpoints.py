"""Checkpoints that somebody put into an output directory: they stop, displace and replace nothing that a run saved."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any, cast

import pytest
from deadlines import within
from saving import resumed, save

from aboard.core.run.saved_markers import MARKERS, SavedMarker, format_markers
from aboard.diagnoses import AboardError
from aboard.trainer.checkpoint.checkpoint_folder import list_checkpoints
from aboard.trainer.checkpoint.checkpoint_writer import find_highest_serial, find_superfluous
from aboard.trainer.checkpoint.commit_marker import CommitMarker, RunSettings, parse_marker, read_marker_hash
from aboard.trainer.checkpoint.resume import ResumeResult, _list_offers
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.checkpoint.setting_differences import find_differences
from aboard.trainer.distributed.json_exchange import RankExchange
from aboard.trainer.distributed.rank_group import CheckpointRanks, SharedDisks

pytestmark = [pytest.mark.ci, pytest.mark.xdist_group("torch_a")]
GOOD, CRAFTED = "step-000010", "step-000099"
SERIAL = ('"serial":1,', '"serial":99,')


def craft(out: Path, *changes: tuple[str, str], name: str = CRAFTED) -> Path:
    """A copy of the good checkpoint whose marker has these changes, and the right hash of them."""
    copytree(out / GOOD, out / name)
    marker = out / name / "manifest.json"
    body = marker.read_text().partition("\n")[2]
    for old, new in changes:
        assert old in body
        body = body.replace(old, new)
    marker.write_text(f'{{"sha256":"{sha256(body.encode()).hexdigest()}",\n{body}')
    return out / name


@pytest.mark.parametrize(
    "change",
    [
        ('"step_size":', '"step_sizes":'),
        ("[[0,0],", "[[0],"),
        ('"index":40', '"index":"x"'),
        ('"tensors":{\n', '"tensors":{\n"optimizer/nothing/x":["F32",[1]],\n'),
    ],
    ids=["field", "slice", "progress", "optimizer"],
)
def test_a_crafted_marker_with_the_highest_serial_stops_no_resume(tmp_path: Path, change: tuple[str, str]) -> None:
    """Its hash is right and its content wrong: it is skipped by name, as a damaged one is."""
    save(tmp_path, 10)
    craft(tmp_path, SERIAL, change)
    step, notes = resumed(tmp_path)
    assert step == 10
    assert notes[0].startswith(f"skipped {CRAFTED}: ")


@pytest.mark.parametrize(
    ("plant", "why"),
    [
        (os.mkfifo, "it is a named pipe, not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    ],
    ids=["pipe", "device"],
)
def test_a_part_that_never_ends_is_not_read(tmp_path: Path, plant: Callable[[Path], None], why: str) -> None:
    """Its marker says that it is empty, as the size of a pipe and of a device is."""
    save(tmp_path, 10)
    part = parse_marker((tmp_path / GOOD / "manifest.json").read_bytes()).files[0]
    crafted = craft(tmp_path, SERIAL, (f'"bytes":{part.bytes}', '"bytes":0'))
    (crafted / part.name).unlink()
    plant(crafted / part.name)
    with within(30):
        assert SavedCheckpoint.open(crafted).verify() == [f"{part.name} can't be read ({why})"]


def test_a_crafted_serial_leaves_the_order_of_later_saves_as_it_is(tmp_path: Path) -> None:
    """Each save has a higher serial than the one before, and old ones go before new ones."""
    save(tmp_path, 10)
    craft(tmp_path, ('"serial":1,', '"serial":999999999999,'), name="step-000005")
    save(tmp_path, 20, 30, 40, keep=2)
    good = dict(list_checkpoints(tmp_path).good)
    assert good.pop("step-000005") == 999_999_999_999
    assert good == {"step-000030": 3, "step-000040": 4}


@pytest.mark.parametrize("adapter", [7, "x", [[1]], True])
def test_an_adapter_that_is_none_is_a_difference_by_name(adapter: object) -> None:
    """The head compares the settings before ranks start, and no marker may break it."""
    same: dict[str, Any] = {
        "step_size": 4, "world": 1, "sharding": "none", "versions": {}, "data": "d", "config": None
    }  # fmt: skip
    there: dict[str, Any] = {"serial": 1, "step": 1, "progress": {}, "ties": {}, "tensors": {}, "files": ()}
    marker = CommitMarker(training={"adapter": adapter}, **same, **there)
    for own in (None, {"r": 8}):
        found = find_differences(marker, RunSettings(training={"adapter": own}, **same))
        assert [(each.name, each.old) for each in found] == [("trained", "an adapter")]


def test_serials_rise_whatever_is_planted_beside_them() -> None:
    """Also if only a crafted one is there, and after it was removed; a rank can't report one that can't be written."""
    assert find_highest_serial([1, 2, 999_999_999_999], least=0) == 2
    assert find_highest_serial([5_000_000, 999_999_999_999], least=0) == 5_000_000
    assert find_highest_serial([999_999_999_999], least=0) == 999_999_999_999
    assert find_highest_serial([999_999_999_999], least=10**12) == 10**12
    assert find_highest_serial([], least=10**12) == 10**12
    assert find_highest_serial([3, 10**18], least=4) == 4
    good = {"step-000005": 10**15, "step-000010": 1, "step-000020": 2, "step-000030": 3}
    assert find_superfluous(good, keep=2, newest="step-000030", broken=()) == ["step-000010"]


def test_nothing_takes_the_place_of_a_recorded_checkpoint_whose_marker_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a shared disk: neither if it is damaged, nor if it is another one now."""
    save(tmp_path, 10)
    text = (tmp_path / GOOD / "manifest.json").read_bytes()
    monkeypatch.setenv(MARKERS, format_markers([SavedMarker(name=GOOD, serial=1, sha256=read_marker_hash(text))]))
    craft(tmp_path, SERIAL)
    other = (tmp_path / CRAFTED / "manifest.json").read_bytes()
    for changed in (text + b" ", other):
        (tmp_path / GOOD / "manifest.json").write_bytes(changed)
        with pytest.raises(AboardError, match=f"{GOOD} is not as a record of a run knows it") as refused:
            resumed(tmp_path)
        assert (
            f"not considered: {GOOD}, {CRAFTED}" in refused.value.seen or f"considered: {CRAFTED}" in refused.value.seen
        )
    assert resumed(tmp_path, resume=str(tmp_path / CRAFTED))[0] == 10


def test_a_name_that_another_node_reports_leads_out_of_no_folder(tmp_path: Path) -> None:
    """Its marker would be written there, beside any file that it names."""
    save(tmp_path, 10)

    class LyingExchange:
        def gather(self, value: dict[str, Any]) -> list[dict[str, Any]]:
            lie = {name: [99, "a" * 64] for name in ("../keys", "/etc", "step-000010/..", "step-000099/x")}
            return [value, {"good": {**lie, CRAFTED: [98, "b" * 64]}, "skipped": {}, "torn": []}]

    group = CheckpointRanks(
        folder=tmp_path,
        rank=0,
        disks=SharedDisks(nodes=("n1", "n2"), leaders=(0, 1)),
        exchange=cast("RankExchange", LyingExchange()),
    )
    assert [each.name for each in _list_offers(group, tmp_path, None, ResumeResult(), ())] == [CRAFTED, GOOD]
