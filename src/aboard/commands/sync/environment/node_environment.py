"""Recreates the head's virtual environment on one node: survey, create, send wheels, install, compare."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from time import monotonic

from aboard.agent.packages.virtual_environment import WHEELS
from aboard.commands.sync.environment.wheel_packing import PackedWheel, compute_record
from aboard.commands.sync.file_packs import split_batches
from aboard.commands.sync.reconnecting_channel import ReconnectingChannel
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import SPARE, sync_files
from aboard.core.cluster.file_sync import UploadProgress
from aboard.core.cluster.file_transfer_errors import build_no_room_error
from aboard.core.cluster.interpreter import is_at_place
from aboard.core.cluster.node import Node
from aboard.core.environment.node_parity import (
    InterpreterDescription,
    PackageChanges,
    choose_base_interpreter,
    find_base_differences,
    find_needed_glibc,
    find_platform_mismatch,
    parse_glibc,
    plan_package_changes,
)
from aboard.core.environment.sync_report import (
    EnvironmentAction,
    EnvironmentPhase,
    EnvironmentProgress,
    NodeEnvironmentResult,
)
from aboard.core.text.input_text import format_count
from aboard.diagnoses import AboardError, Finding, ProtocolError, Severity
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import environment_sync
from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.software_inventory import MODULES
from aboard.transport.files.environment_requests import EnvironmentRequests, EnvironmentSurvey
from aboard.transport.files.file_sender import FileSender, FolderContents
from aboard.transport.node_dialer import NodeDialer

# Wheels per request: enough to save round trips, few enough for steady progress.
BATCH_WHEELS = 20
BATCH_BYTES = 64 * 1024 * 1024
_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class HeadContents:
    """The environment of the head; `folder` is where it is, and `target` its path on the nodes, maybe below `~/`.

    Until `is_packed`, some wheels are only described. `projects` and `loose` are as in the result.
    """

    prefix: Path
    folder: Path
    target: str
    is_packed: bool
    interpreter: InterpreterDescription
    system_packages: bool
    stamp: str
    wheels: Mapping[str, PackedWheel]
    cache: Path
    projects: tuple[str, ...]
    loose: tuple[str, ...]

    @property
    def site(self) -> str:
        return self.interpreter.site.raw()


class NodeEnvironment:
    """The environment of one node, while it is made equal to the head's."""

    def __init__(
        self, node: Node, head: HeadContents, dialer: NodeDialer, on_progress: Callable[[EnvironmentProgress], None]
    ) -> None:
        self.node = node
        self.finished = asyncio.Event()
        self._head = head
        self._prefix = head.target
        self._dialer = dialer
        self._on_progress = on_progress
        self._sender = ReconnectingChannel(node, dialer, FileSender)
        self._began = monotonic()
        self._found: EnvironmentSurvey | None = None
        self._base: InterpreterDescription | None = None
        self._sent = 0

    async def survey(self) -> None:
        """Finds what the node has, and raises if it can't have this environment."""
        self._report("checking")
        self._found = await self._ask_survey(interpreters=True)
        if not is_at_place(self._found.prefix.raw(), self._head.target):
            raise ProtocolError(f"{self.node.name} reports another path than {escape_text(self._head.target, 300)}")
        self._prefix = self._found.prefix.raw()
        self._base = self._require_base(self._found)
        self._require_path(self._found)
        if not (self.is_heads or self.is_equal):
            await self._list_disk()

    def use_packed(self, head: HeadContents) -> None:
        """From now on, packages are compared by their files, and can be sent."""
        self._head = head

    @property
    def is_heads(self) -> bool:
        """Whether the node sees the head's own files: equal inode, change time and size."""
        return bool(self._survey.stamp) and self._survey.stamp == self._head.stamp

    @property
    def is_equal(self) -> bool:
        survey = self._survey
        usable = survey.kind == "venv" and survey.complete and survey.runs
        return usable and survey.system_packages == self._head.system_packages and not self._plan(survey)

    async def mark(self, mark: str) -> None:
        """Leaves a temporary file: nodes that see it share the disk."""
        try:
            await self._sender.run(lambda sender: sender.mark(self._mark_folder, mark))
        except AboardError:
            # No permission, for example: the next write says so with more detail.
            return

    async def list_marks(self) -> frozenset[str]:
        try:
            return await self._sender.run(lambda sender: sender.marks(self._mark_folder))
        except AboardError:
            return frozenset()

    async def install(self, *, dry: bool) -> NodeEnvironmentResult:
        """Makes the environment equal to the head's and compares it; `dry` stops before the first change."""
        survey, changes = self._survey, self._plan(self._survey)
        fresh = survey.kind == "none" or self._is_stale(survey)
        if fresh:
            changes = PackageChanges(install=tuple(self._head.wheels), remove=())
        await self._require_space(changes)
        action: EnvironmentAction = "updated" if survey.complete and not fresh else "created"
        if dry:
            return self._finish(NodeEnvironmentResult(action=action, installed=changes.install, removed=changes.remove))
        if fresh or survey.system_packages != self._head.system_packages:
            await self._create(clear=survey.kind == "venv" and fresh)
        await self._apply(changes)
        # A removed package may have shared files with another one; that is installed again.
        again = self._plan(await self._ask_survey())
        if again:
            await self._apply(again)
        await self._sender.run(lambda sender: self._requests(sender).finish())
        await self._compare()
        return self._finish(
            NodeEnvironmentResult(
                action=action,
                installed=tuple(dict.fromkeys((*changes.install, *again.install))),
                removed=changes.remove,
                sent=self._sent,
            )
        )

    async def compare_with(self, first: "NodeEnvironment") -> NodeEnvironmentResult:
        """Waits for the node that shares the disk, and compares the result as seen from here."""
        self._report("waiting")
        await first.finished.wait()
        await self._compare()
        return self._finish(NodeEnvironmentResult(action="shared", same_disk_as=first.node.name))

    async def accept(self, action: EnvironmentAction) -> NodeEnvironmentResult:
        """Nothing to do: it is equal, or it is the head's own."""
        same = "" if action == "shared" else None
        return self._finish(NodeEnvironmentResult(action=action, same_disk_as=same))

    async def close(self) -> None:
        """Gives the link back to the dialer, for the next command of the same program."""
        self.finished.set()
        await self._sender.leave()

    @property
    def _survey(self) -> EnvironmentSurvey:
        assert self._found is not None  # noqa: S101 - survey comes first
        return self._found

    @property
    def _mark_folder(self) -> str:
        return self._prefix if self._survey.kind == "venv" else str(PurePosixPath(self._prefix).parent)

    def _requests(self, sender: FileSender) -> EnvironmentRequests:
        return EnvironmentRequests(sender, self._prefix)

    async def _ask_survey(self, *, interpreters: bool = False) -> EnvironmentSurvey:
        head = self._head.interpreter
        return await self._sender.run(lambda sender: self._requests(sender).survey(head, interpreters=interpreters))

    def _plan(self, survey: EnvironmentSurvey) -> PackageChanges:
        wanted = {name: self._find_record(wheel, survey) for name, wheel in self._head.wheels.items()}
        return plan_package_changes(wanted, survey.packages)

    def _find_record(self, wheel: PackedWheel, survey: EnvironmentSurvey) -> str:
        """What the package's record is on this node; before it is packed, the same version counts as the same."""
        if not wheel.file:
            found = survey.packages.get(wheel.package)
            return found.record if found is not None and found.version == wheel.version else ""
        if not wheel.scripts or self._prefix == str(self._head.prefix):
            return wheel.record
        return compute_record(self._head.cache / wheel.file, self._prefix, self._head.site)

    def _is_stale(self, survey: EnvironmentSurvey) -> bool:
        """Whether it belongs to another Python version, or to an interpreter that is gone."""
        minor = self._head.interpreter.minor
        return survey.kind == "venv" and (not f"{survey.version}.".startswith(f"{minor}.") or not survey.runs)

    def _require_base(self, survey: EnvironmentSurvey) -> InterpreterDescription:
        head, name = self._head.interpreter, self.node.name
        base = choose_base_interpreter(head, survey.interpreters)
        if base is None:
            for each in survey.interpreters:
                why = find_platform_mismatch(head, each)
                if why is not None:
                    raise AboardError(environment_sync.PLATFORM, f"{name} {why}", node=name)
            has = ", ".join(dict.fromkeys(each.version for each in survey.interpreters))
            raise self._build_python_error(f"{name} has no Python {head.minor}" + (f"; it has {has}" if has else ""))
        needed = find_needed_glibc(wheel.platforms for wheel in self._head.wheels.values())
        found = parse_glibc(base.glibc)
        if needed > (found or (0, 0)):
            own = f"glibc {base.glibc}" if found else "no glibc"
            seen = f"{name} has {own}, but the packages need glibc {needed[0]}.{needed[1]}"
            raise AboardError(environment_sync.PLATFORM, seen, node=name)
        return base

    def _build_python_error(self, seen: str) -> AboardError:
        head = self._head.interpreter
        if head.base.startswith("/usr") and not head.base.startswith("/usr/local"):
            packages = [f"python{head.minor}", f"python{head.minor}-venv"]
            return AboardError(environment_sync.NO_PYTHON, seen, "install", packages=packages, node=self.node.name)
        return AboardError(environment_sync.NO_PYTHON, seen, "copy", base=head.base)

    def _require_path(self, survey: EnvironmentSurvey) -> None:
        path = escape_text(self._prefix, 300)
        if survey.kind == "other":
            seen = f"{self.node.name}: {path} exists, but is not a virtual environment"
        elif self._is_stale(survey) and not survey.ours:
            state = f"of Python {survey.version}" if survey.runs else "whose base interpreter is missing"
            seen = f"{self.node.name}: {path} is a virtual environment {state}"
        else:
            return
        raise AboardError(environment_sync.PATH, seen, path=self._prefix, node=self.node.name)

    async def _require_space(self, changes: PackageChanges) -> None:
        wheels = [self._head.wheels[name] for name in changes.install]
        needed = sum(wheel.bytes + wheel.installed_bytes for wheel in wheels) + SPARE
        disk = await self._list_disk()
        if wheels and needed > disk.free:
            raise build_no_room_error(self.node.name, disk.nearest, free=disk.free, needed=needed)

    async def _list_disk(self) -> FolderContents:
        """Raises if the environment can't be written there."""
        disk = await self._sender.run(lambda sender: sender.list_folder(self._prefix, []))
        if not disk.writable:
            seen = f"{self.node.name}: {escape_text(self._prefix, 300)} can't be written: no write permission in"
            other = f"~/{PurePosixPath(self._prefix).name}"
            raise AboardError(environment_sync.DENIED, f"{seen} {disk.nearest.visible(300)}", other=other)
        return disk

    async def _create(self, *, clear: bool) -> None:
        assert self._base is not None  # noqa: S101 - survey comes first
        base = self._base
        printed = await self._sender.run(
            lambda sender: self._requests(sender).create(base, system_packages=self._head.system_packages, clear=clear)
        )
        if printed:
            seen = f"{self.node.name}: python -m venv failed: {printed.visible(300)}"
            raise AboardError(
                environment_sync.CREATE, seen, python=base.executable, path=self._prefix, node=self.node.name
            )

    async def _apply(self, changes: PackageChanges) -> None:
        wheels = [self._head.wheels[name] for name in changes.install]
        if wheels:
            await self._send(wheels)
        if changes.remove:
            await self._sender.run(lambda sender: self._requests(sender).change(self._head.site, remove=changes.remove))
        done = 0
        for batch in split_batches(wheels, attrgetter("bytes"), most_bytes=BATCH_BYTES, most_items=BATCH_WHEELS):
            self._report("installing", done, len(wheels))
            install = [wheel.file for wheel in batch]
            await self._sender.run(partial(self._install_batch, install))
            done += len(batch)
        self._report("installing", done, len(wheels))

    async def _install_batch(self, install: Sequence[str], sender: FileSender) -> None:
        await self._requests(sender).change(self._head.site, install=install)

    async def _send(self, wheels: Sequence[PackedWheel]) -> None:
        """Sends by the same path as a model's files; the link is passed on to that and back."""
        await self._sender.leave()
        directory = SyncDirectory(
            folder=self._head.cache,
            files=tuple(FileEntry(name=wheel.file, bytes=wheel.bytes, sha256=wheel.sha256) for wheel in wheels),
            to=f"{self._prefix}/{WHEELS}",
        )
        result = await sync_files([self.node], [directory], self._dialer, on_progress=self._report_upload)
        self._sent += result.sent

    async def _compare(self) -> None:
        survey = await self._ask_survey()
        if not survey.runs:
            raise self._build_python_error(
                f"{self.node.name} does not have the base interpreter of {escape_text(self._prefix, 300)}"
            )
        differing = self._plan(survey)
        if not differing and survey.complete:
            return
        wanted, found = self._head.wheels, survey.packages
        parts = [
            f"{name} {wanted[name].version} (found: {found[name].version if name in found else 'none'})"
            for name in differing.install
        ]
        parts += [f"{name} {found[name].version} (not on the head)" for name in differing.remove]
        seen = f"{self.node.name}: {escape_text(self._prefix, 300)} differs from the head after the installation: "
        shown = _join_some(parts) or "it is still marked as incomplete"
        raise AboardError(environment_sync.DIFFERS, seen + shown, path=self._prefix, node=self.node.name)

    def _finish(self, result: NodeEnvironmentResult) -> NodeEnvironmentResult:
        self._report("done", len(result.installed), len(result.installed))
        return replace(result, seconds=monotonic() - self._began, findings=tuple(self._find_base_findings()))

    def _find_base_findings(self) -> Iterator[Finding]:
        """Packages that come from the base interpreter are not copied, so they must be there already."""
        if not self._head.system_packages or self._base is None:
            return
        # The environment's own packages hide those of the base.
        wanted = {
            name: version for name, version in self._head.interpreter.packages.items() if name not in self._head.wheels
        }
        differing = find_base_differences(wanted, self._base.packages)
        for severity in (Severity.BLOCK, Severity.WARN):
            names = [name for name in differing if (name in MODULES) is (severity is Severity.BLOCK)]
            if not names:
                continue
            parts = [
                f"{name} {differing[name][0]} ({self.node.name}: {differing[name][1] or 'none'})" for name in names
            ]
            yield environment_sync.BASE.finding(
                nodes=(self.node.name,),
                seen=f"the base interpreter on {self.node.name} differs from the head's in"
                f" {format_count(len(names), 'package')}: {_join_some(parts)}",
                fix=environment_sync.BASE.fix(
                    python=self._head.prefix / "bin/python",
                    names=[f"{name}=={differing[name][0]}" for name in names[:_NAMES_SHOWN]],
                ),
                severity=severity,
            )

    def _report_upload(self, progress: UploadProgress) -> None:
        if progress.phase == "sending":
            self._report("sending", progress.done, progress.total)

    def _report(self, phase: EnvironmentPhase, done: int = 0, total: int = 0) -> None:
        self._on_progress(EnvironmentProgress(node=self.node.name, phase=phase, done=done, total=total))


def _join_some(parts: Sequence[str]) -> str:
    more = len(parts) - _NAMES_SHOWN
    return ", ".join(parts[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
