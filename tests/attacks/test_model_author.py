"""Attacks by the author of a model, a checkpoint, an adapter, a data set or a bundle."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from aboard.diagnoses import AboardError
from aboard.flows.why.bundle_replay import replay_bundle

MANIFEST = b'{"format": 1, "aboard": "0", "run": "r"}'


def _pack(path: Path, members: dict[str, bytes], pax: dict[str, str] | None = None) -> Path:
    """A bundle of these members, as anybody could make it; `pax` are headers of the last one."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (name, content) in enumerate(members.items(), 1):
            entry = tarfile.TarInfo(f"aboard-bundle/{name}")
            entry.size = len(content)
            entry.pax_headers = pax if pax and number == len(members) else {}
            tar.addfile(entry, io.BytesIO(content))
    path.write_bytes(gzip.compress(data.getvalue(), 1))
    return path


@pytest.mark.parametrize(
    "pax",
    [
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "nan"},
    ],
)
def test_a_bundle_with_crafted_headers_is_refused_by_name(tmp_path: Path, pax: dict[str, str]) -> None:
    """A header that Python's own tar reader fails on is reported as a broken bundle."""
    path = _pack(tmp_path / "b.tar.gz", {"manifest.json": MANIFEST, "plan.json": b"{}"}, pax)
    with pytest.raises(AboardError) as refused:
        replay_bundle(path)
    assert refused.value.code == "bundle-broken"
