"""What the tests of logs share: a folder that was written to, read back."""

import resource
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from aboard.core.logline import Line
from aboard.record.logs import LogLimits, LogWriter
from aboard.record.merged import Selection, merged, merged_backward
from aboard.record.reading import LogReader
from aboard.ui.logs import raw

ROOMY = LogLimits()
ALL = Selection()


def writer(folder: Path, *, ranks: int = 8, limits: LogLimits = ROOMY) -> LogWriter:
    return LogWriter(folder, ranks=ranks, limits=limits)


def read(folder: Path, selection: Selection = ALL) -> list[Line]:
    """All lines, merged."""
    with closing(LogReader(folder)) as reader:
        return list(merged(reader, reader.snapshot(selection.ranks), selection))


def read_backward(folder: Path) -> list[Line]:
    """The same from the end."""
    with closing(LogReader(folder)) as reader:
        return list(merged_backward(reader, reader.snapshot(), ALL))


def bytes_of(lines: list[Line]) -> dict[tuple[int, str], bytes]:
    """What each stream of each rank wrote."""
    found: defaultdict[tuple[int, str], list[bytes]] = defaultdict(list)
    for line in lines:
        found[line.rank, line.stream].append(raw(line))
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
