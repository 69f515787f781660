"""Uploads the inputs of a training to the nodes that lack them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from aboard.config.this_machine import locate_on_nodes
from aboard.core.cluster.node import TransportKind
from aboard.core.plan.plan import Plan
from aboard.flows.sync.sync_directory import SyncDirectory, build_sync_directory
from aboard.flows.sync.sync_files import SyncResult, UploadProgress, sync_files
from aboard.flows.sync.sync_sources import refuse_system_path
from aboard.flows.train.fetch_model import CODE, CONFIG, FILES, WEIGHTS
from aboard.transport.node_dialer import NodeDialer

HASHES = "fingerprints.json"


async def upload_inputs(
    plan: Plan,
    dialer: NodeDialer,
    folders: Sequence[Path],
    *,
    cache: Path,
    on_progress: Callable[[UploadProgress], None],
) -> SyncResult | None:
    """Uploads to every node but this machine; None if there is no other."""
    nodes = [part.node for part in plan.parts if part.node.transport is not TransportKind.LOCAL]
    if not nodes:
        return None
    directories = [await asyncio.to_thread(_build_upload, folder, cache) for folder in folders]
    return await sync_files(nodes, directories, dialer, on_progress=on_progress)


def _build_upload(folder: Path, cache: Path) -> SyncDirectory:
    refuse_system_path(folder)
    directory = replace(build_sync_directory(folder, hashes=cache / HASHES, to=locate_on_nodes(folder)), peers=True)
    if not (folder / CONFIG).is_file():
        return directory
    # A model's directory may contain the same weights in other formats, and unrelated files.
    needed_files = tuple(
        file for file in directory.files if any(fnmatch(file.name, form) for form in (*FILES, WEIGHTS, CODE))
    )
    return replace(directory, files=needed_files)
