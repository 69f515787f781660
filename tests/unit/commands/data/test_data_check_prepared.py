"""The gate over prepared data, and over rows that several processes read: what it says is what one reading says."""

import random
from pathlib import Path
from typing import Any

import pytest
from chats import CHATML
from data_files import conversation, tokenizer, written

from aboard.commands.data.prepare_data import DataCheckRequest, PreparedSources, inspect_data, report_prepared_data
from aboard.diagnoses import AboardError
from aboard.trainer.data.intake.read_chunk import detect_format
from aboard.trainer.data.intake.source_chunks import SourceSpec, list_source_chunks
from aboard.trainer.data.quality.data_report import DataReport
from aboard.trainer.data.quality.row_statistics import DataStatistics
from aboard.trainer.data.tokenize_workers import source_inspection
from aboard.trainer.data.tokenize_workers.prepare_data import PreparationSource, prepare_data
from aboard.trainer.data.tokenize_workers.source_inspection import InspectionProgress
from aboard.trainer.data.tokens.encoder import Encoder

pytestmark = pytest.mark.ci  # each test prepares with processes of its own

LENGTH = 48


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files() -> tuple[str, ...]:
    """Rows with most of what the gate looks for."""
    draw = random.Random(5)  # noqa: S311 - no secrets
    rows: list[Any] = [conversation(at, answer="I am fine " * draw.randrange(1, 30)) for at in range(80)]
    rows[7] = '{"messages": ['
    rows[11] = {"messages": [{"role": "user", "content": "Who"}]}
    rows[13] = conversation(13, ask="<|im_start|> Who")
    rows[17] = {"messages": [{"role": "user", "content": "Hi " * 99}, {"role": "assistant", "content": "Yes"}]}
    rows[23] = rows[2]
    more = [{"prompt": f"Who {at}", "completion": f" I am {at}"} for at in range(20)] + [
        {"prompt": "", "completion": ""}
    ]
    return written(Path("a.jsonl"), rows), written(Path("b.jsonl"), more)


def question(*paths: str, **asked: Any) -> DataCheckRequest:
    name = tokenizer(Path("tokenizer"), CHATML)
    return DataCheckRequest(
        files=paths, command="aboard data a.jsonl b.jsonl", tokenizer=name, max_length=LENGTH, show=3, **asked
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For tests that leave it as it is: what several of them prepare is prepared once."""
    return tmp_path_factory.mktemp("cache")


def ready(encoder: Encoder, cache: Path, *paths: str, length: int = LENGTH, workers: int = 1) -> PreparedSources:
    given = []
    for path in paths:
        chunks = tuple(list_source_chunks(SourceSpec(path=path), chunk_bytes=4096))
        given.append(PreparationSource(form=detect_format(chunks), chunks=chunks))
    return PreparedSources(
        sources=given, prepared=prepare_data(given, encoder, cache, max_length=length, workers=workers)
    )


def signs(found: DataStatistics) -> dict[str, tuple[int, list[tuple[str, str, int, list[int]]]]]:
    return {
        name: (
            seen.count,
            [
                (
                    str(each.location),
                    each.note.raw(),
                    each.length,
                    [] if each.encoded is None else each.encoded.ids.tolist(),
                )
                for each in seen.examples
            ],
        )
        for name, seen in found.signs.items()
    }


def plain(found: DataReport) -> object:
    """All that a report says, but how long it took and which rows it shows."""
    lengths = {kind: (each.counts, each.total, each.longest) for kind, each in found.statistics.by_kind.items()}
    numbers = (
        found.statistics.rows,
        found.statistics.broken,
        found.statistics.kinds,
        found.statistics.supervised,
        found.statistics.longest,
    )
    each_source = [(each.path, each.format, each.statistics.rows, each.validation) for each in found.sources]
    return found.findings, found.examples, found.fill, lengths, numbers, each_source, signs(found.statistics)


def test_prepared_data_is_judged_as_its_rows_are(cache: Path) -> None:
    """The same findings, examples and counts, from what was counted when the rows were encoded."""
    paths, held = files(), written(Path("held.jsonl"), [conversation(3), conversation(900)])
    asked = question(*paths, validation=(held,))
    encoder = Encoder(str(asked.tokenizer))
    found = report_prepared_data(
        asked, encoder, [ready(encoder, cache, *paths, workers=2)], ready(encoder, cache, held)
    )
    assert plain(found) == plain(inspect_data(asked))
    apart = report_prepared_data(
        asked, encoder, [ready(encoder, cache, path) for path in paths], ready(encoder, cache, held)
    )
    assert plain(apart) == plain(found)
    codes = {finding.code for finding in found.findings}
    assert codes >= {"data-broken", "data-cut", "data-duplicates", "data-special-text"}


def test_a_cached_preparation_is_judged_at_once(cache: Path) -> None:
    """By the names that its files have now, and at another length without being encoded again."""
    paths = files()
    encoder = Encoder(str(question(*paths).tokenizer))
    first = ready(encoder, cache, *paths).prepared
    Path("a.jsonl").rename("moved.jsonl")
    again = ready(encoder, cache, "moved.jsonl", "b.jsonl").prepared
    assert again.cached
    assert [str(each.location) for each in again.statistics.find_flagged("broken").examples] == ["moved.jsonl:8"]
    assert [str(each.location) for each in again.statistics.find_flagged("empty").examples] == ["b.jsonl:21"]
    assert again.statistics.find_flagged("cut").count == first.statistics.find_flagged("cut").count > 0
    wide = ready(encoder, cache, "moved.jsonl", "b.jsonl", length=10_000).prepared
    assert wide.cached
    assert not wide.statistics.find_flagged("cut")
    assert wide.statistics.tokens == first.statistics.tokens


def test_a_damaged_count_is_said_not_used(tmp_path: Path) -> None:
    """It is judged by hash, as the shards are."""
    paths = files()
    encoder = Encoder(str(question(*paths).tokenizer))
    folder = ready(encoder, tmp_path, *paths).prepared.shards.folder
    content = (folder / "gate.json").read_bytes()
    (folder / "gate.json").write_bytes(content.replace(b'"rows": 80', b'"rows": 81'))
    with pytest.raises(AboardError, match=r"gate\.json"):
        ready(encoder, tmp_path, *paths)


def test_several_processes_read_as_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same findings, the same rows shown in the same order, and a progress that comes to its end."""
    paths = files()
    asked = question(*paths)
    alone = inspect_data(asked)
    monkeypatch.setattr(source_inspection, "MIN_PARALLEL_BYTES", 0)
    far: list[InspectionProgress] = []
    together = inspect_data(asked, far.append)
    assert plain(together) == plain(alone)
    assert together.rows == alone.rows
    assert len(alone.rows) == 3 * len(paths)
    assert far[-1].done == far[-1].total == sum(Path(path).stat().st_size for path in paths)
    assert far[-1].rows == alone.statistics.rows


def test_without_a_tokenizer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have no encoder look at rows all the same."""
    paths = files()
    asked = DataCheckRequest(files=paths, command="aboard data", show=2)
    alone = inspect_data(asked)
    monkeypatch.setattr(source_inspection, "MIN_PARALLEL_BYTES", 0)
    assert plain(inspect_data(asked)) == plain(alone)
