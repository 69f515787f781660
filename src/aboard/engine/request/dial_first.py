"""Dials the nodes of a launch before anything else: ssh needs longer than the rest of the program needs to load."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, TypeAlias

from aboard.engine.request.typed_launch import TypedLaunch
from aboard.transport.node_dialer import NodeDialer
from aboard.transport.open_file_limit import raise_open_file_limit

if TYPE_CHECKING:
    from aboard.engine.request.launch_spec import LaunchSpec


# What a command passes on to the engine, without using it.
Links: TypeAlias = NodeDialer


def reuse_links(links: Links | None) -> AbstractAsyncContextManager[Links]:
    """These links, which stay open; links of its own if there are none."""
    return nullcontext(links) if links is not None else NodeDialer()


@asynccontextmanager
async def dial_first(typed: TypedLaunch, *, load: str) -> "AsyncIterator[tuple[LaunchSpec, NodeDialer]]":
    """The launch, and links to its nodes; arguments are parsed and the module `load` is imported while ssh connects."""
    nodes = typed.guess()
    raise_open_file_limit(len(nodes))
    async with NodeDialer() as dialer:
        dialer.begin(nodes)
        spec = await asyncio.to_thread(typed.read)
        await asyncio.to_thread(import_module, load)
        dialer.begin(spec.cluster)
        yield spec, dialer
