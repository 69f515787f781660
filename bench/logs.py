"""Rank logs: cost of a log flood and of thousands of quiet ranks for the conductor and for a reader."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, process_time

from aboard.core.text.fold_lines import fold_lines
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.rank_logs.log_writer import LogLimits, LogWriter
from aboard.record.rank_logs.merged_logs import LineSelection, merge_logs, merge_logs_backward
from figures import Figures, main

PIECE = 32_768  # what a supervisor sends in one frame
MB = 1e6

# In its own process, to measure its peak memory. The last lines as `aboard logs` reads them, then all of them.
READ = """
import json, resource, sys
from contextlib import closing
from itertools import islice
from pathlib import Path
from time import monotonic
from aboard.core.text.fold_lines import fold_lines
from aboard.record.rank_logs.merged_logs import (LineSelection, merge_logs, merge_logs_backward)
from aboard.record.rank_logs.log_reader import LogReader

began = monotonic()
with closing(LogReader(Path(sys.argv[1]))) as reader:
    lines = merge_logs_backward(reader, reader.list_segments(), LineSelection())
    last = list(islice(fold_lines(islice(lines, 100_000)), 200))
tail = monotonic() - began
count = 0
with closing(LogReader(Path(sys.argv[1]))) as reader:
    for line in merge_logs(reader, reader.list_segments(), LineSelection()):
        count += 1
print(json.dumps([tail, monotonic() - began - tail, count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3]))
"""


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures the cost of log floods, of many quiet ranks, and of reading merged logs."""
    size = 2**28 if quick else 2**30
    _measure_flood(
        figures, "a flood of lines", b"2026-11-15 05:07:12 INFO step 1234 loss 1.2345 lr 3e-5\n" * 3000, size
    )
    _measure_flood(figures, "one endless line", b"x" * 199_999, size)
    ranks, seconds = (2000, 15) if quick else (8000, 30)
    with tempfile.TemporaryDirectory() as folder:
        _measure_quiet_ranks(figures, Path(folder), ranks, seconds)
        _measure_reader(figures, Path(folder), ranks, ranks * seconds)


def _measure_flood(figures: Figures, name: str, text: bytes, size: int) -> None:
    """Wall-clock seconds per 100 MB, including the disk as far as the kernel makes writers wait."""
    limits = LogLimits()
    with tempfile.TemporaryDirectory() as folder:
        logs = LogWriter(Path(folder), ranks=8, limits=limits)
        began, cpu = monotonic(), process_time()
        for data in _cut_chunks(text, size):
            logs.take(0, "n1", "stdout", data, 1.0)
        logs.close()
        seconds, cpu = monotonic() - began, process_time() - cpu
        kept = sum(path.stat().st_size for path in Path(folder).iterdir())
    note = f"{size / MB / seconds:.0f} MB/s, {1000 * cpu / (size / MB):.2f} ms of CPU per MB"
    figures.add(f"{name}: seconds per 100 MB", 100 * MB * seconds / size, 1.0, unit="s", note=note)
    figures.add(f"{name}: bytes kept / limit", kept / limits.rank, 1.0, unit="×")


def _cut_chunks(text: bytes, size: int) -> Iterator[bytes]:
    """Chunks cut anywhere, like those of a pipe."""
    cuts = [text[start : start + PIECE] for start in range(0, len(text), PIECE)]
    return islice(cycle(cuts), size * len(cuts) // len(text))


def _measure_quiet_ranks(figures: Figures, folder: Path, ranks: int, seconds: int) -> None:
    """One line per second from each rank: CPU per second, with and without the creation of files."""
    logs = LogWriter(folder, ranks=ranks, limits=LogLimits())
    began = process_time()
    for second in range(seconds):
        if second == seconds // 3:
            steady = process_time()
        for rank in range(ranks):
            logs.take(
                rank, f"n{rank // 8}", "stdout", b"rank %d: step %d loss 1.2345\n" % (rank, second), float(second)
            )
        logs.tick(float(second))
    used = (process_time() - steady) / (seconds - seconds // 3)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    logs.close()
    figures.add(
        f"{ranks} ranks × 1 line/s: share of a core",
        used,
        0.1 * ranks / 8000,
        note=f"{used / ranks * 1e6:.1f} µs per line",
    )
    figures.add(f"{ranks} ranks × 1 line/s: with file creation", (process_time() - began) / seconds, 0.2)
    figures.add(f"{ranks} ranks: open files", opened, 150)


def _measure_reader(figures: Figures, folder: Path, ranks: int, lines: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], capture_output=True, text=True, check=True, timeout=300
    )
    tail, whole, count, memory = (float(word) for word in done.stdout.strip("[]\n").split(","))
    assert count == lines, (count, lines)
    figures.add(f"reading the last lines of {ranks} ranks", tail, 5, unit="s")
    figures.add(
        f"merging {lines} lines of {ranks} ranks", whole, lines / 50_000, unit="s", note=f"{lines / whole:.0f}/s"
    )
    figures.add("peak memory of the reader", memory, 300, unit="MB")
    with closing(LogReader(folder)) as reader:
        snapshot = reader.list_segments()
        forward = [told.ranks for told in islice(fold_lines(merge_logs(reader, snapshot, LineSelection())), 3)]
        backward = [
            told.ranks for told in islice(fold_lines(merge_logs_backward(reader, snapshot, LineSelection())), 3)
        ]
    assert [len(each) for each in forward + backward] == [ranks] * 6, "equal lines of all ranks are folded into one"


if __name__ == "__main__":
    main("logs", measure)
