"""The logs of ranks: whole lines in, the same bytes out; bounded, and what is missing is said."""

import re
import tempfile
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from recording_logs import bytes_of, files_no_larger_than, read, read_backward, writer

from aboard.core.text.fold_lines import OutputLine
from aboard.record.rank_logs.line_splitter import BLOCK, LINE_LIMIT
from aboard.record.rank_logs.log_reader import ON_DISK, ON_NODE, PAST_LIMIT
from aboard.record.rank_logs.log_writer import UNFINISHED, LogLimits
from aboard.record.rank_logs.merged_logs import LineSelection

SMALL = LogLimits(rank=8 * 65_536, run=2**30)

_texts = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\n\n", b"\r", b"\x00\xff", b"x" * 300]), max_size=40)


@st.composite
def _streams(draw: st.DrawFn) -> list[tuple[int, str, bytes]]:
    """Pieces of two streams of three ranks, cut at any byte, in any interleaving."""
    pieces = []
    for rank in range(3):
        for stream in ("stdout", "stderr"):
            text = b"".join(draw(_texts))
            cuts = sorted({0, len(text), *draw(st.lists(st.integers(0, len(text)), max_size=6))})
            pieces.append([(rank, stream, text[low:high]) for low, high in pairwise(cuts)])
    order = draw(st.permutations([number for number, each in enumerate(pieces) for _ in each]))
    return [pieces[number].pop(0) for number in order]


@given(_streams())
def test_pieces_cut_anywhere_never_lose_or_mix_a_line(pieces: list[tuple[int, str, bytes]]) -> None:
    """Each stream's lines come back as they were, each whole, in their order, at the time of their first byte."""
    wrote: dict[tuple[int, str], bytes] = {}
    times: dict[tuple[int, str], list[int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        logs = writer(Path(folder))
        for at, (rank, stream, data) in enumerate(pieces):
            wrote[rank, stream] = wrote.get((rank, stream), b"") + data
            times.setdefault((rank, stream), []).extend([at] * len(data))
            logs.take(rank, f"n{rank}", stream, data, float(at))
        logs.close()
        lines = read(Path(folder))
    assert bytes_of(lines) == {key: data for key, data in wrote.items() if data}
    for (rank, stream), data in wrote.items():
        own = [line for line in lines if (line.rank, line.stream) == (rank, stream)]
        assert [line.text for line in own] == (data.removesuffix(b"\n").split(b"\n") if data else [])
        starts = [0, *(match.end() for match in re.finditer(rb"\n", data))][: len(own)]
        assert [line.at for line in own] == [times[rank, stream][start] for start in starts]


@given(_streams(), st.sets(st.integers(0, 60)))
def test_a_line_that_was_let_go_unfinished_is_still_the_same_bytes(
    pieces: list[tuple[int, str, bytes]], ticks: set[int]
) -> None:
    """Whenever time passes, the file has whole lines only, and the bytes are the rank's own."""
    wrote: dict[tuple[int, str], bytes] = {}
    with tempfile.TemporaryDirectory() as folder:
        logs = writer(Path(folder))
        for number, (rank, stream, data) in enumerate(pieces):
            wrote[rank, stream] = wrote.get((rank, stream), b"") + data
            logs.take(rank, "n1", stream, data, 0.0)
            if number in ticks:
                logs.tick(number * 10.0)
                logs.tick(number * 10.0 + 1)
        logs.close()
        assert bytes_of(read(Path(folder))) == {key: data for key, data in wrote.items() if data}
        for path in Path(folder).glob("*.log"):
            assert path.read_bytes().endswith(b"\n")


def test_an_unfinished_line_waits_for_silence(tmp_path: Path) -> None:
    """A prompt is there after half a second; what comes then is the rest of it."""
    logs = writer(tmp_path)
    logs.take(0, "n1", "stdout", b"continue? ", 1.0)
    logs.tick(100.0)
    assert read(tmp_path) == []
    logs.tick(100.6)
    assert [(line.text, line.cut) for line in read(tmp_path)] == [(b"continue? ", True)]
    logs.take(0, "n1", "stdout", b"yes\nnext\n", 2.0)
    logs.close()
    assert [(line.text, line.continues) for line in read(tmp_path)] == [
        (b"continue? ", False),
        (b"yes", True),
        (b"next", False),
    ]


def test_a_progress_bar_that_never_rests_is_shown_too(tmp_path: Path) -> None:
    """A line that grows and grows is let go after five seconds."""
    logs = writer(tmp_path)
    for second in range(5):
        logs.take(0, "n1", "stderr", b"\r%d%%" % second, float(second))
        logs.tick(float(second))
    assert read(tmp_path) == []
    logs.take(0, "n1", "stderr", b"\r5%", 5.0)
    logs.tick(5.0)
    assert [line.text for line in read(tmp_path)] == [b"\r0%\r1%\r2%\r3%\r4%\r5%"]


def test_a_line_of_megabytes_is_cut_and_marked(tmp_path: Path) -> None:
    """In parts of 64 KB, each but the first marked as a rest; together they are the line."""
    logs = writer(tmp_path)
    logs.take(0, "n1", "stdout", b"before\n", 0.0)
    for _ in range(8):
        logs.take(0, "n1", "stdout", b"x" * 2**20, 1.0)
    logs.take(0, "n1", "stdout", b"end\nafter\n", 2.0)
    logs.close()
    lines = read(tmp_path)
    assert max(len(line.text) for line in lines) == LINE_LIMIT
    assert [line.continues for line in lines] == [False, False, *[True] * 128, False]
    assert bytes_of(lines)[0, "stdout"] == b"before\n" + b"x" * 8 * 2**20 + b"end\nafter\n"


def test_blocks_stay_small_enough_to_read_thousands_at_once(tmp_path: Path) -> None:
    """A piece of many lines is several blocks, so that a reader holds little of each rank."""
    logs = writer(tmp_path)
    logs.take(0, "n1", "stdout", b"some line\n" * 10_000, 0.0)
    logs.close()
    sizes = (tmp_path / "00000.idx").stat().st_size // 24
    assert sizes >= 100_000 / BLOCK
    assert len(read(tmp_path)) == 10_000


def test_what_a_node_dropped_is_said_where_it_is_missing(tmp_path: Path) -> None:
    """And the line that it tore is not glued to another."""
    logs = writer(tmp_path)
    logs.take(0, "n1", "stdout", b"one\ntw", 1.0)
    logs.take(0, "n1", "stdout", b"rn\nlast\n", 2.0, dropped=1234)
    logs.close()
    lines = read(tmp_path)
    assert [line.text or (line.missing, line.why) for line in lines] == [
        b"one", b"tw", (1234, ON_NODE), b"rn", b"last",
    ]  # fmt: skip
    assert not any(line.continues for line in lines)
    assert logs.lost_on_nodes == 1234


@pytest.mark.ci
def test_a_flood_keeps_its_beginning_and_its_end_within_the_limit(tmp_path: Path) -> None:
    """What lies between is counted to the byte, and a quiet rank loses nothing."""
    logs = writer(tmp_path, limits=SMALL)
    logs.take(1, "n1", "stdout", b"quiet\n", 0.0)
    flood = [b"%07d %s\n" % (number, b"x" * 91) for number in range(30_000)]
    for line in flood:
        logs.take(0, "n1", "stdout", line, 1.0)
    logs.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("00000*")) <= SMALL.rank
    lines = [line for line in read(tmp_path) if line.rank == 0]
    kept = [line.text + b"\n" for line in lines if not line.missing]
    (gap,) = (line for line in lines if line.missing)
    assert gap.why == PAST_LIMIT
    assert gap.missing + sum(map(len, kept)) == sum(map(len, flood))
    split = lines.index(gap)
    assert kept[0] == flood[0]
    assert kept == flood[:split] + flood[split - len(kept) :]
    assert sum(map(len, kept)) > SMALL.rank // 2
    assert [line.text for line in read(tmp_path) if line.rank == 1] == [b"quiet"]
    assert read_backward(tmp_path) == read(tmp_path)[::-1]


def test_the_run_has_a_limit_too_and_the_largest_gives_first(tmp_path: Path) -> None:
    """Nine ranks that flood share the room; the tenth, which doesn't, keeps all of it."""
    limits = LogLimits(rank=2**30, run=10 * 4 * 65_536)
    logs = writer(tmp_path, ranks=10, limits=limits)
    quiet = b"quiet line of a healthy rank\n" * 500
    logs.take(9, "n1", "stdout", quiet, 0.0)
    for number in range(2000):
        for rank in range(9):
            logs.take(rank, "n1", "stdout", b"x" * 999 + b"\n", float(number))
    logs.close()
    # What is written at once may be past it until the next look.
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= limits.run
    lines = read(tmp_path)
    assert bytes_of([line for line in lines if line.rank == 9])[9, "stdout"] == quiet
    shares = [sum(len(line.text) for line in lines if line.rank == rank) for rank in range(9)]
    assert min(shares) > max(shares) / 2
    assert logs.past_limits > 0


def test_a_full_disk_loses_lines_which_are_counted_and_then_goes_on(tmp_path: Path) -> None:
    """Nothing raises; behind the gap, which is said, lines are whole again."""
    logs = writer(tmp_path)
    logs.take(0, "n1", "stdout", b"before\n", 1.0)
    logs.flush()
    with files_no_larger_than(40):
        logs.take(0, "n1", "stdout", b"no room for this line, of which a part fits\n", 2.0)
        logs.flush()
        logs.take(0, "n1", "stdout", b"nor for this one, as the index is full\n", 3.0)
        logs.flush()
    logs.take(0, "n1", "stdout", b"after\n", 4.0)
    logs.close()
    lines = read(tmp_path)
    assert [line.text or (line.missing, line.why) for line in lines] == [b"before", (83, ON_DISK), b"after"]
    assert logs.lost_on_disk == 83
    assert (tmp_path / "00000.log").read_bytes() == b"before\nafter\n"


def test_merged_by_time_not_by_arrival(tmp_path: Path) -> None:
    """Ranks are merged by corrected time; the lines of one rank keep their order, whatever its clock does."""
    logs = writer(tmp_path)
    logs.take(1, "n2", "stdout", b"third\n", 3.0)
    logs.take(0, "n1", "stdout", b"first\n", 1.0)
    logs.take(2, "n2", "stderr", b"second\n", 2.0)
    logs.take(0, "n1", "stdout", b"back in time\n", 0.5)
    logs.close()
    assert [line.text for line in read(tmp_path)] == [b"first", b"back in time", b"second", b"third"]


def test_selected_by_rank_node_stream_and_text(tmp_path: Path) -> None:
    """Each narrows what is shown, but never hides that something is missing."""
    logs = writer(tmp_path)
    for rank in range(4):
        logs.take(rank, f"n{rank // 2 + 1}", "stdout", b"step %d \xc3\xa4\n" % rank, float(rank))
        logs.take(rank, f"n{rank // 2 + 1}", "stderr", b"warning\n", float(rank))
    logs.take(3, "n2", "stdout", b"", 9.0, dropped=7)
    logs.close()

    def ranks(selection: LineSelection) -> list[int]:
        return [line.rank for line in read(tmp_path, selection) if not line.missing]

    def missing(lines: list[OutputLine]) -> int:
        return sum(line.missing for line in lines)

    assert ranks(LineSelection(ranks=frozenset({1, 3}))) == [1, 1, 3, 3]
    assert ranks(LineSelection(nodes=frozenset({"n2"}))) == [2, 2, 3, 3]
    assert ranks(LineSelection(stream="stderr")) == [0, 1, 2, 3]
    grep = LineSelection(grep=re.compile("step [02] ä"))
    assert ranks(grep) == [0, 2]
    assert missing(read(tmp_path, grep)) == 7
    assert missing(read(tmp_path, LineSelection(nodes=frozenset({"n1"})))) == 0


def test_thousands_of_ranks_need_few_descriptors(tmp_path: Path) -> None:
    """Files are opened and closed as they are needed, by the writer and by the reader."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    logs = writer(tmp_path, ranks=600)
    for rank in range(600):
        logs.take(rank, "n1", "stdout", b"here\n", 0.0)
    logs.tick(0.0)
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 130
    logs.close()
    assert len(read(tmp_path)) == 600
    # What earlier tests left open may be collected meanwhile.
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


@pytest.mark.ci
def test_a_late_tick_writes_all_in_a_few(tmp_path: Path) -> None:
    """Of very many ranks each tick writes a part; none waits longer than five."""
    logs = writer(tmp_path, ranks=6000)
    for rank in range(6000):
        logs.take(rank, "n1", "stdout", b"here\n", 0.0)
    logs.tick(0.0)
    assert len(list(tmp_path.glob("*.log"))) == 1200
    for second in range(1, 5):
        logs.tick(float(second))
    assert len(list(tmp_path.glob("*.log"))) == 6000
    logs.close()


def test_the_last_lines_are_at_hand(tmp_path: Path) -> None:
    """A live view shows them without reading a file; a rank that has none has none."""
    logs = writer(tmp_path)
    assert logs.tail(3) == ()
    logs.take(3, "n1", "stdout", b"one\ntwo\n", 0.0)
    logs.take(3, "n1", "stderr", b"three\n", 0.0)
    assert [line.visible() for line in logs.tail(3)] == ["one", "two", "three"]
    logs.close()


def test_a_second_writer_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    """The launcher may write before its conductor does; a torn end of the first is written over."""
    limits = LogLimits(rank=2**20, run=2**30)
    first = writer(tmp_path, limits=limits)
    flood = [b"%05d %s\n" % (number, b"x" * 93) for number in range(4000)]
    for line in flood[:2000]:
        first.take(0, "n1", "stdout", line, 1.0)
    first.close()
    last = max(tmp_path.glob("00000-*.log"))
    for torn in (last, last.with_suffix(".idx")):
        with torn.open("ab") as file:
            file.write(b"torn")
    second = writer(tmp_path, limits=limits)
    for line in flood[2000:]:
        second.take(0, "n2", "stdout", line, 2.0)
    second.close()
    lines = read(tmp_path)
    assert [line.text + b"\n" for line in lines] == flood
    assert {line.node for line in lines} == {"n1", "n2"}


@pytest.mark.ci
def test_unfinished_lines_of_all_ranks_are_bounded(tmp_path: Path) -> None:
    """Thousands of ranks that each hold back a long line don't fill the memory."""
    logs = writer(tmp_path, ranks=1200)
    held = []
    for rank in range(1200):
        logs.take(rank, "n1", "stdout", b"x" * 60_000, 0.0)
        held.append(sum(each.buffered for log in logs._ranks.values() for each in log.splitters))
    assert max(held) <= UNFINISHED
    logs.close()
    assert sum(len(line.text) for line in read(tmp_path)) == 1200 * 60_000
