"""Nodes pass large files on to each other: agents on this machine, each with a home of its own, over loopback."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from node_homes import HomeTransport
from test_file_transfer import contents, folder, packed

from aboard.core.cluster.node import Node
from aboard.data.store.sync_directory import SyncDirectory
from aboard.flows.sync.sync_files import SyncResult, UploadProgress, sync_files
from aboard.transport.node_dialer import NodeDialer

MB = 1024 * 1024


def spread(
    homes: Path, directories: Sequence[SyncDirectory], *nodes: str, heard: list[UploadProgress] | None = None
) -> SyncResult:
    async def main() -> SyncResult:
        dialer = NodeDialer(lambda _node: HomeTransport(homes))
        try:
            return await sync_files(
                [Node(name=name, fabric_address="127.0.0.1") for name in nodes],
                directories,
                dialer,
                on_progress=(heard if heard is not None else []).append,
            )
        finally:
            await dialer.close()

    return asyncio.run(main())


def large(path: Path, to: str = "~/model") -> SyncDirectory:
    return replace(packed(path, to), peers=True)


def test_the_head_sends_each_piece_once(tmp_path: Path) -> None:
    """Every node has the file in the end, most of it from its peers; nothing else is left in the directory."""
    content = os.urandom(9 * MB + 17)
    model = folder(tmp_path / "model", a=content, small=b"s")
    heard: list[UploadProgress] = []
    done = spread(tmp_path, [large(model)], "n1", "n2", "n3", "n4", heard=heard)
    for node in ("n1", "n2", "n3", "n4"):
        assert contents(tmp_path / node / "model") == {"a": content, "small": b"s"}
    assert done.sent == len(content) + 4
    assert done.sent + sum(node.from_peers for node in done.nodes.values()) == 4 * (len(content) + 1)
    assert done.findings == ()
    last = {progress.node: (progress.phase, progress.done) for progress in heard}
    assert set(last.values()) == {("done", len(content) + 1)}
