"""The spool: the end of an endless output, by offset, with every dropped byte counted."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import given, strategies as st

from aboard.agent.supervisor.output_spool import OutputSpool


def _read_all(spool: OutputSpool, offset: int, size: int) -> tuple[int, bytes]:
    """All that is kept from the offset on, read in pieces of `size`; and where it begins."""
    first, data = spool.read(offset, size)
    whole = data
    while data:
        at, data = spool.read(first + len(whole), size)
        assert at == first + len(whole)
        whole += data
    return first, whole


@given(st.lists(st.binary(max_size=50), max_size=30), st.integers(2, 60), st.integers(1, 20), st.data())
def test_reads_give_the_bytes_or_a_counted_drop(parts: list[bytes], limit: int, size: int, data: st.DataObject) -> None:
    """From any offset come exactly the bytes that were appended there, or those behind a hole of known size."""
    whole = b"".join(parts)
    with tempfile.TemporaryDirectory() as folder:
        spool = OutputSpool(f"{folder}/out", limit)
        for part in parts:
            spool.append(part)
        assert spool.end == len(whole)
        offset = data.draw(st.integers(0, len(whole)))
        first, kept = _read_all(spool, offset, size)
        assert first == max(offset, spool.start)
        assert kept == whole[first:]
        assert spool.end - spool.start >= min(len(whole), limit // 2)
        assert sum(path.stat().st_size for path in Path(folder).iterdir()) <= max(limit, 2)
        spool.close()
        assert not list(Path(folder).iterdir())


def test_a_disk_that_takes_nothing_drops_and_never_raises(tmp_path: Path) -> None:
    """A child goes on when its spool can't: what was lost is counted by the offset."""
    folder = tmp_path / "gone"
    folder.mkdir()
    spool = OutputSpool(f"{folder}/out", 8)
    spool.append(b"kept")
    shutil.rmtree(folder)
    spool.append(b"0123456789")
    assert spool.end == 14
    assert spool.read(0, 100) == (14, b"")
    folder.mkdir()
    spool.append(b"back")
    spool.append(b"again")
    first, data = _read_all(spool, 0, 100)
    assert b"backagain"[first - 14 :] == data
    assert data
    spool.close()
