"""`aboard sync --back`: collects paths from all nodes; a node that fails is named, and the others continue."""

import asyncio
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from aboard.commands.sync.download import NodeDownload, download_tree, run_locally
from aboard.commands.sync.download_target import DownloadTarget
from aboard.commands.sync.trees.source_tree import GITIGNORE
from aboard.config.this_machine import abbreviate_home
from aboard.core.cluster.file_sync import CollectedPath
from aboard.core.cluster.node import Node
from aboard.diagnoses import AboardError
from aboard.transport.node_dialer import NodeDialer

__all__ = ["CollectedPath", "collect_from_nodes"]

# Downloads share our disk and uplink.
AT_ONCE = 8


async def collect_from_nodes(
    nodes: Sequence[Node], paths: Sequence[PurePosixPath], folder: Path, dialer: NodeDialer
) -> list[CollectedPath]:
    """Copies each path of each node to `folder/NODE/`, under the path's own name.

    The directory ignores itself, so that the next sync doesn't send it back to the nodes.
    """
    await run_locally(folder, _make_folders, folder, [node.name for node in nodes])
    turns = asyncio.Semaphore(AT_ONCE)

    async def collect(node: Node) -> list[CollectedPath]:
        async with turns:
            return [await _collect_path(node, path, folder / node.name, dialer) for path in paths]

    return [each for found in await asyncio.gather(*(collect(node) for node in nodes)) for each in found]


def _make_folders(folder: Path, names: Sequence[str]) -> None:
    with DownloadTarget(folder) as made:
        made.write_file(GITIGNORE, b"*\n")
        for name in names:
            made.make_folder(name)


async def _collect_path(node: Node, path: PurePosixPath, folder: Path, dialer: NodeDialer) -> CollectedPath:
    text = str(path) if str(path).startswith("~") else abbreviate_home(Path(path))
    # `..` would lead to the files of other nodes.
    target = folder / path.name if path.name != ".." else folder
    try:
        is_directory = await _is_directory(node, text, dialer)
        result = await download_tree(node, text, target if is_directory else folder, dialer)
    except AboardError as error:
        return CollectedPath(node=node.name, target=str(target), error=error)
    return CollectedPath(
        node=node.name,
        target=str(target),
        files=result.files,
        bytes=result.bytes,
        received=result.received,
        skipped=len(result.skipped),
    )


async def _is_directory(node: Node, path: str, dialer: NodeDialer) -> bool:
    """Whether the path is a directory there: the listing of a file is that of its directory, with one entry."""
    download = NodeDownload(node, dialer)
    try:
        root = (await download.list_tree(path)).root
        await download.leave()
    finally:
        await download.close()
    return root.rstrip("/").endswith(path.removeprefix("~").rstrip("/"))
