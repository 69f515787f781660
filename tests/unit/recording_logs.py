"""What the tests of logs share: a folder that was written to, read back."""

import resource
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from aboard.commands.shared.log_lines import format_raw
from aboard.core.text.fold_lines import OutputLine
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.rank_logs.log_writer import LogLimits, LogWriter
from aboard.record.rank_logs.merged_logs import LineSelection, merge_logs, merge_logs_backward

ROOMY = LogLimits()
ALL = LineSelection()


def writer(folder: Path, *, ranks: int = 8, limits: LogLimits = ROOMY) -> LogWriter:
    return LogWriter(folder, ranks=ranks, limits=limits)


def read(folder: Path, selection: LineSelection = ALL) -> list[OutputLine]:
    """All lines, merged."""
    with closing(LogReader(folder)) as reader:
        return list(merge_logs(reader, reader.list_segments(selection.ranks), selection))


def read_backward(folder: Path) -> list[OutputLine]:
    """The same from the end."""
    with closing(LogReader(folder)) as reader:
        return list(merge_logs_backward(reader, reader.list_segments(), ALL))


def bytes_of(lines: list[OutputLine]) -> dict[tuple[int, str], bytes]:
    """What each stream of each rank wrote."""
    found: defaultdict[tuple[int, str], list[bytes]] = defaultdict(list)
    for line in lines:
        found[line.rank, line.stream].append(format_raw(line))
    return {key: b"".join(parts) for key, parts in found.items()}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """A disk that is full, as far as this process can tell: a write past the size fails, after a part of it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
