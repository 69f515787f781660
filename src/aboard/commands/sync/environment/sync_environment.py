"""Recreates the head's active virtual environment at the same path on every node, from wheels, without an index."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import field, replace
from pathlib import Path
from secrets import token_hex
from time import monotonic
from typing import Any, TypeVar

from aboard.agent.packages.virtual_environment import ask_interpreter, read_stamp
from aboard.agent.transfer.receive_folders import MARK
from aboard.commands.sync.environment.installed_distributions import InstalledDistribution, read_environment
from aboard.commands.sync.environment.node_environment import HeadContents, NodeEnvironment
from aboard.commands.sync.environment.wheel_packing import (
    PackedWheel,
    find_packed_wheel,
    pack_distribution,
    remove_unused_wheels,
)
from aboard.commands.sync.sync_files import AT_ONCE
from aboard.core.cluster.interpreter import HeadEnvironment, InterpreterSource
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.decoding import DecodeError, decode
from aboard.core.environment.node_parity import InterpreterDescription
from aboard.core.environment.sync_report import EnvironmentProgress, EnvironmentSyncResult, NodeEnvironmentResult
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import environment_sync as diagnoses
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer

WHEELS_FOLDER = "wheels"
OnProgress = Callable[[EnvironmentProgress], None]
T = TypeVar("T")


async def sync_environment(
    nodes: Iterable[Node],
    dialer: NodeDialer,
    environment: HeadEnvironment | None,
    *,
    cache: Path,
    target: str | None = None,
    dry: bool = False,
    on_progress: OnProgress = lambda _progress: None,
) -> EnvironmentSyncResult:
    """A node that fails does not stop the others; a problem of the head's environment raises before any is changed.

    `target` is the path on the nodes. With `dry`, the result is what would be done, and nothing is packed.

    The links go back to the dialer; the caller closes it.
    """
    began = monotonic()
    prefix = require_virtual_environment(environment)
    remote = [node for node in nodes if node.transport is not TransportKind.LOCAL]
    head, distributions = await describe_environment(prefix, cache / WHEELS_FOLDER, target or str(prefix))
    result = await sync_described_environment(remote, dialer, head, distributions, on_progress, dry=dry)
    return replace(result, seconds=monotonic() - began)


async def describe_environment(
    prefix: Path, cache: Path, target: str
) -> tuple[HeadContents, tuple[InstalledDistribution, ...]]:
    """Every package of the environment itself, unpacked; those of its base interpreter stay where they are."""
    interpreter = await asyncio.to_thread(_describe_head_interpreter, prefix)
    contents = await asyncio.to_thread(read_environment, prefix, prefix / interpreter.site.raw())
    wheels = await asyncio.to_thread(
        lambda: [find_packed_wheel(each, cache, prefix, interpreter.site.raw()) for each in contents.distributions]
    )
    head = HeadContents(
        prefix=prefix,
        folder=prefix,
        target=target,
        is_packed=all(wheel.file for wheel in wheels),
        interpreter=interpreter,
        system_packages=_uses_system_packages(prefix),
        stamp=read_stamp(str(prefix)),
        wheels={wheel.package: wheel for wheel in wheels},
        cache=cache,
        projects=tuple(each.project for each in contents.distributions if each.project),
        loose=contents.loose,
    )
    return head, contents.distributions


async def pack_environment(
    head: HeadContents, distributions: Sequence[InstalledDistribution], on_progress: OnProgress
) -> HeadContents:
    """Packs every package that the cache doesn't have, several at once: hashing and compression use a core each."""
    turns = asyncio.Semaphore(len(os.sched_getaffinity(0)))
    done = 0

    async def pack(distribution: InstalledDistribution) -> PackedWheel:
        nonlocal done
        async with turns:
            wheel = await asyncio.to_thread(pack_distribution, distribution, head.cache, head.prefix, head.site)
        done += 1
        on_progress(EnvironmentProgress(node="", phase="packing", done=done, total=len(distributions)))
        return wheel

    wheels = await asyncio.gather(*map(pack, distributions))
    await asyncio.to_thread(remove_unused_wheels, head.cache)
    return replace(head, is_packed=True, wheels={wheel.package: wheel for wheel in wheels})


async def sync_described_environment(
    nodes: Iterable[Node],
    dialer: NodeDialer,
    head: HeadContents,
    distributions: Sequence[InstalledDistribution],
    on_progress: OnProgress,
    *,
    dry: bool = False,
) -> EnvironmentSyncResult:
    """Surveys all nodes, packs the environment if one of them can have it, then changes those that differ."""
    began, outcome = monotonic(), _Outcome()
    environments = [NodeEnvironment(node, head, dialer, on_progress) for node in nodes]
    try:
        await asyncio.gather(*(outcome.run(each, each.survey()) for each in environments))
        reached = [each for each in environments if each.node.name not in outcome.failures]
        if not dry and not head.is_packed and any(not each.is_heads for each in reached):
            head = await pack_environment(head, distributions, on_progress)
            for each in reached:
                each.use_packed(head)
        await _sync_nodes(reached, head, outcome, dry=dry)
    finally:
        await asyncio.gather(*(each.close() for each in environments))
    return EnvironmentSyncResult(
        prefix=head.target,
        packages=len(head.wheels),
        projects=head.projects,
        loose=head.loose,
        nodes={
            each.node.name: outcome.nodes[each.node.name] for each in environments if each.node.name in outcome.nodes
        },
        failures=outcome.failures,
        seconds=monotonic() - began,
        dry=dry,
    )


def require_virtual_environment(environment: HeadEnvironment | None) -> Path:
    """The prefix of the active virtual environment; raises if there is none."""
    prefix = Path(environment.python).parents[1] if environment is not None else Path()
    if environment is not None and (prefix / "pyvenv.cfg").is_file():
        return prefix
    if environment is not None and (
        environment.origin is InterpreterSource.CONDA_PREFIX or (prefix / "conda-meta").is_dir()
    ):
        seen = f"{escape_text(str(prefix), 300)} is a conda environment, which wheels can't recreate"
        raise AboardError(diagnoses.CONDA, seen, prefix=prefix)
    raise AboardError(diagnoses.NONE, "no virtual environment is active: $VIRTUAL_ENV is not set in this shell")


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    nodes: dict[str, NodeEnvironmentResult] = field(default_factory=dict)
    failures: dict[str, AboardError] = field(default_factory=dict)

    async def run(self, each: NodeEnvironment, work: Coroutine[Any, Any, T]) -> T | None:
        """The work's result; None for a node that fails."""
        try:
            return await work
        except AboardError as error:
            self.failures[each.node.name] = error
            each.finished.set()
            return None


async def _sync_nodes(reached: Sequence[NodeEnvironment], head: HeadContents, outcome: _Outcome, *, dry: bool) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def finish(each: NodeEnvironment, work: Coroutine[Any, Any, NodeEnvironmentResult]) -> None:
        result = await outcome.run(each, work)
        if result is not None:
            outcome.nodes[each.node.name] = result
            each.finished.set()

    async def install(each: NodeEnvironment) -> NodeEnvironmentResult:
        async with turns:
            return await each.install(dry=dry)

    differing = [each for each in reached if not each.is_heads and not each.is_equal]
    # Finding shared disks leaves marks on them for a moment.
    firsts = {each: each for each in differing} if dry else await _find_shared_disks(differing, head)
    works = []
    for each in reached:
        first = firsts.get(each)
        if each.is_heads or (each in firsts and first is None):
            work = each.accept("shared")
        elif first is None:
            work = each.accept("unchanged")
        else:
            work = install(each) if first is each else each.compare_with(first)
        works.append(finish(each, work))
    await asyncio.gather(*works)


async def _find_shared_disks(
    environments: Sequence[NodeEnvironment], head: HeadContents
) -> dict[NodeEnvironment, NodeEnvironment | None]:
    """For each node, the first one that shares its disk; None if that is the head, whose files must not be touched."""
    token = token_hex(8)
    marks = {f"{token}-{number}": each for number, each in enumerate(environments)}
    own = head.folder / f"{MARK}{token}"
    # In an environment of somebody else, this fails; the stamp of its file has been compared already.
    with suppress(OSError):
        own.touch(mode=0o600)
    try:
        await asyncio.gather(*(each.mark(mark) for mark, each in marks.items()))
        visible = await asyncio.gather(*(each.list_marks() for each in environments))
    finally:
        with suppress(OSError):
            own.unlink()
    return {
        each: None if token in seen else next((first for mark, first in marks.items() if mark in seen), each)
        for each, seen in zip(environments, visible, strict=True)
    }


def _describe_head_interpreter(prefix: Path) -> InterpreterDescription:
    python = prefix / "bin/python"
    try:
        return decode(InterpreterDescription, ask_interpreter(str(python)), strict=True)
    except DecodeError:
        seen = f"{escape_text(str(python), 300)} does not run on this machine"
        raise AboardError(diagnoses.NONE, seen) from None


def _uses_system_packages(prefix: Path) -> bool:
    lines = (prefix / "pyvenv.cfg").read_text("utf-8", "replace").lower().splitlines()
    return any(line.replace(" ", "") == "include-system-site-packages=true" for line in lines)
