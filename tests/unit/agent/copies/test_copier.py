"""Copiers fetch the parts of checkpoints that another disk has: whole or not at all, whatever is killed."""

import json
import os
from hashlib import sha256
from pathlib import Path
from time import monotonic

import pytest
from copiers import SOON, introduce, read_state, run_copiers, save_parts, wait_for_state
from deadlines import wait_until

pytestmark = pytest.mark.ci
MB = 1_000_000


def test_each_disk_gets_the_part_of_the_one_before_it(tmp_path: Path) -> None:
    """Also what is beside the checkpoints of rank 0's node, under a name of its own; and the parent is told."""
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    parts = save_parts(roots, 4, [3 * MB, 0, 10])
    (roots[0] / "metrics.jsonl").write_text("{}\n")
    (roots[0] / "trackers" / "tensorboard").mkdir(parents=True)
    (roots[0] / "trackers" / "tensorboard" / "events").write_text("curve")
    (roots[0] / "secret").write_text("is none of it")
    with run_copiers(*roots) as copiers:
        for each in copiers:
            assert each.ask("status", seconds=SOON)["pending"] == []
        assert [report["saved"]["files"] for report in copiers[1].reports] == [[parts[0][0]]]
    for rank, root in enumerate(roots):
        name, content = parts[(rank - 1) % 3]
        assert (root / "step-000004" / name).read_bytes() == content
        assert read_state(root, 4) == "copied"
    beside = roots[1] / ".first-node"
    assert sorted(str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file()) == [
        "metrics.jsonl",
        "trackers/tensorboard/events",
    ]


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_killed_copier_loses_nothing_and_leaves_nothing_half(tmp_path: Path, kills: int) -> None:
    """A file has its final name only when it is complete, and the next copier continues the partial one."""
    roots = [tmp_path / "a", tmp_path / "b"]
    parts = save_parts(roots, 2, [4 * MB, 10])
    target = roots[1] / "step-000002"
    with run_copiers(*roots, rate=4 * MB) as copiers:
        for count in range(kills):
            part = max(target.glob(".aboard-*.part"), key=os.path.getsize, default=None)
            before = 0 if part is None else part.stat().st_size
            wait_until(
                lambda before=before: (
                    read_state(roots[1], 2) == "copied"  # type: ignore[misc]
                    or any(path.stat().st_size > before for path in target.glob(".aboard-*.part"))
                ),
                SOON,
            )
            victim = copiers[count % 2]
            victim.kill()
            done = target / parts[0][0]
            assert not done.exists() or done.read_bytes() == parts[0][1]
            assert (roots[0] / "step-000002" / parts[0][0]).read_bytes() == parts[0][1]
            victim.start()
            introduce(copiers)
        wait_for_state(roots[1], 2, "copied")
    assert (target / parts[0][0]).read_bytes() == parts[0][1]
    assert not list(target.glob(".aboard-*"))


def test_the_rate_limit_is_held(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    save_parts(roots, 2, [4 * MB, 0])
    began = monotonic()
    with run_copiers(*roots, rate=4 * MB):
        wait_for_state(roots[1], 2, "copied")
    assert monotonic() - began > 0.9


def test_a_damaged_part_is_not_copied_and_is_named(tmp_path: Path) -> None:
    """The hash is that of the record on this disk, whatever the other node sends."""
    roots = [tmp_path / "a", tmp_path / "b"]
    parts = save_parts(roots, 2, [1000, 0])
    (roots[0] / "step-000002" / parts[0][0]).write_bytes(b"x" * 1000)
    with run_copiers(*roots) as copiers:
        assert copiers[1].ask("status", seconds=0.5)["pending"] == [["step-000002", 1000]]
        report = copiers[1].wait_report("uncopied")
        assert (report["checkpoint"], report["obstacle"]) == ("step-000002", "damaged")
        assert report["why"] == f"127.0.0.1 port {copiers[0].port}: its content is not what was saved"
    assert not (roots[1] / "step-000002" / parts[0][0]).exists()


def test_a_disk_without_room_is_named_and_takes_nothing(tmp_path: Path) -> None:
    """Checked before anything is sent: the next save of this disk's own ranks needs space, too."""
    roots = [tmp_path / "a", tmp_path / "b"]
    save_parts(roots, 2, [10, 10])
    record = roots[1] / "step-000002" / "copies.json"
    content = json.loads(record.read_text())
    content["files"][0][1] = 10**15
    record.write_text(json.dumps(content))
    with run_copiers(*roots) as copiers:
        wait_for_state(roots[1], 2, "full")
        assert copiers[1].ask("status", seconds=0)["pending"] == [["step-000002", 10**15]]
        report = copiers[1].wait_report("uncopied")
        assert report["obstacle"] == "full"
        assert "bytes are free, and 1000000000000" in report["why"]
    assert not list((roots[1] / "step-000002").glob(".aboard-*"))


def test_the_newest_checkpoint_is_copied_first(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    for step in (2, 4, 6):
        save_parts(roots, step, [1000, 0])
    with run_copiers(*roots) as copiers:
        assert copiers[1].ask("status", seconds=SOON)["pending"] == []
        done = [report["saved"]["checkpoint"] for report in copiers[1].reports if "saved" in report]
    assert done == ["step-000006", "step-000004", "step-000002"]


def test_a_blank_disk_gets_what_the_head_names(tmp_path: Path) -> None:
    """From any of the nodes that have it, with what is beside the checkpoints; what nobody has is named."""
    roots = [tmp_path / "a", tmp_path / "b", tmp_path / "blank"]
    parts = save_parts(roots[:2], 2, [1000, 500])
    (roots[1] / ".first-node").mkdir()
    (roots[1] / ".first-node" / "metrics.jsonl").write_text("curve")
    rows = [
        ["step-000002", name, len(content), sha256(content).hexdigest(), [1 - rank, rank]]
        for rank, (name, content) in enumerate(parts)
    ]
    rows.append(["step-000002", "rank-00009-000.safetensors", 7, sha256(b"x").hexdigest(), [0, 1]])
    with run_copiers(*roots) as copiers:
        copiers[2].ask("fetch", files=rows, beside=1)
        status = copiers[2].ask("status", seconds=SOON)
    assert (status["left"], [row[1] for row in status["lacking"]]) == (0, ["rank-00009-000.safetensors"])
    assert {path.name for path in (roots[2] / "step-000002").glob("rank-*")} == {name for name, _ in parts}
    assert (roots[2] / "metrics.jsonl").read_text() == "curve"
