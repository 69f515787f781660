"""A practice cluster: real hosts on one Linux machine."""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from aboard.core.words import many
from aboard.diagnoses import SandboxError, sandbox
from aboard.sandbox import files, hull, inside, needs, running, shipyard, state
from aboard.sandbox.boot import Blueprint
from aboard.sandbox.host import Host
from aboard.sandbox.layout import HEAD, Layout
from aboard.sandbox.process import Process, boot_id
from aboard.sandbox.running import Command
from aboard.sandbox.slurm import ready
from aboard.sandbox.state import State

Progress = Callable[[int], None]
_USUAL = "sandbox"
_BUILD_TIMEOUT = 60.0
_BUILD_TIMEOUT_PER_HOST = 2.0


class Sandbox:
    """A practice cluster that is up: `head`, where the user types, and the nodes n1…nN."""

    def __init__(self, state_now: State, *, found: bool, launch: hull.Launch | None = None) -> None:
        self._state = state_now
        # A temporary sandbox ends with this object, and with this process at the latest.
        self._finalizer = weakref.finalize(self, launch.abandon) if launch is not None else None
        #: Whether `up` found it running instead of building it.
        self.found = found
        self.programs = needs.find_programs()
        self.hosts = {name: Host(self, name) for name in self.layout.places}

    @classmethod
    def up(
        cls,
        name: str = _USUAL,
        *,
        nodes: int = 4,
        slots: int = 2,
        fabric: bool = False,
        slurm: bool = False,
        temporary: bool = False,
        progress: Progress | None = None,
    ) -> Self:
        """Build a practice cluster; one of this name and shape that is up already is taken as it is.

        A temporary one is always new. It ends when the object is dropped, or with this process, even by SIGKILL.
        """
        layout = Layout(name=name, nodes=nodes, slots=slots, fabric=fabric, slurm=slurm)
        needs.require_root("up")
        programs = needs.find_programs()
        if slurm:
            needs.require_slurm()
        needs.require_readable(inside.SOURCE)
        with state.lock(name, "up"):
            there = state.read(name)
            if there is not None and there.ready and there.alive() and not temporary:
                return cls(_same_shape(there, layout), found=True)
            try:
                now, launch = _build(layout, programs, progress or _silent, temporary=temporary)
                return cls(now, found=False, launch=launch)
            except BaseException:
                state.remove(name)
                raise

    @classmethod
    def attach(cls, name: str = _USUAL) -> Self:
        """The practice cluster of this name, built by this process or another."""
        needs.require_root("status")
        there = state.read(name)
        if there is None or not there.ready or not there.alive():
            told = f"no sandbox {name!r} is up"
            if name == _USUAL:
                raise SandboxError(sandbox.DOWN, told, "usual")
            raise SandboxError(sandbox.DOWN, told, "named", name=name)
        return cls(there, found=True)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def layout(self) -> Layout:
        return self._state.layout

    @property
    def crew_id(self) -> int:
        """The user and group number of `crew`."""
        return self._state.crew_id

    @property
    def hull(self) -> Process:
        """The process whose end is the end of all of it."""
        return self._state.hull

    @property
    def head(self) -> Host:
        """The host where the user types `aboard`."""
        return self.hosts[HEAD]

    @property
    def nodes(self) -> list[Host]:
        """All hosts but the head."""
        return [host for host in self.hosts.values() if host is not self.head]

    def host(self, name: str) -> Host:
        """A host by its name, as a user gave it."""
        if name not in self.hosts:
            raise SandboxError(
                sandbox.HOST,
                f"sandbox {self.name!r} has no host {name!r}; it has head and n1 to n{self.layout.nodes}",
                name=self.name,
            )
        return self.hosts[name]

    def switch(self, argv: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a program as root where the bridges (`mgmt`, `fabric`) and the hosts' ports are."""
        command = Command(argv=argv, uid=0, env={}, cwd="/")
        return running.run(self.hull, command, text=None, timeout=timeout)

    def first_process(self, name: str) -> Process | None:
        """The init of a host; None when it has no power. Another process may have power-cycled it."""
        process = self._state.hosts.get(name)
        if process is None or not process.alive():
            fresh = state.read(self.name)
            if fresh is None or fresh.hull != self.hull:
                return None
            self._state = fresh
            process = fresh.hosts.get(name)
        return process if process is not None and process.alive() else None

    def boot(self, names: Iterable[str]) -> None:
        """Bring up hosts that have no power, from the disks they had."""
        with state.lock(self.name, "heal"):
            started = _boot(self.layout, self.hull, self.crew_id, self.programs, list(names), _silent)
            self._state = replace(self._state, hosts={**self._state.hosts, **started})
            state.write(self._state)

    def down(self) -> None:
        """End it: no process, mount, namespace or file of it is left. Down already is fine."""
        with contextlib.suppress(FileNotFoundError), state.lock(self.name, "down"):
            there = state.read(self.name)
            if there is None or there.hull == self.hull:
                state.remove(self.name)
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def down(name: str = _USUAL) -> bool:
    """End the sandbox of this name, or clear away what a crash left of it; False when there was nothing."""
    needs.require_root("down")
    if not state.directory(name).exists():
        return False
    with state.lock(name, "down"):
        state.remove(name)
    return True


def _build(
    layout: Layout, programs: needs.Programs, progress: Progress, *, temporary: bool
) -> tuple[State, hull.Launch | None]:
    # What a crash left of an earlier one goes first.
    state.clear(layout.name)
    disks = state.directory(layout.name) / "disks"
    disks.mkdir()
    with state.lock_user_ids() as taken:
        crew_id = files.free_id(_read("/etc/passwd"), _read("/etc/group"), taken=taken)
        launch = hull.launch(disks=disks, programs=programs)
        now = State(layout=layout, boot=boot_id(), hull=launch.hull, crew_id=crew_id, ready=False, hosts={})
        state.write(now)
    try:
        hosts = _boot(layout, launch.hull, crew_id, programs, list(layout.places), progress)
        now = replace(now, hosts=hosts)
        state.write(now)
        if layout.slurm:
            ready.wait(layout, hosts, crew_id=crew_id, timeout=_build_timeout(len(hosts)))
        if not temporary:
            launch.keep()
        now = replace(now, ready=True)
        state.write(now)
    except BaseException:
        launch.abandon()
        raise
    return now, launch if temporary else None


def _boot(
    layout: Layout, hull_process: Process, crew_id: int, programs: needs.Programs, names: list[str], progress: Progress
) -> dict[str, Process]:
    trees = _trees()
    blueprint = Blueprint(
        layout=layout,
        disks=state.directory(layout.name) / "disks",
        crew_id=crew_id,
        programs=programs,
        python=sys.executable,
        trees=trees,
        trusted=_owners(trees),
        active=active_environment(),
        shim=files.aboard_shim(sys.executable, None if _installed() else str(inside.SOURCE)),
    )
    timeout = _build_timeout(len(names))
    return shipyard.build(hull_process, blueprint, names, progress=progress, timeout=timeout)


def _build_timeout(hosts: int) -> float:
    return _BUILD_TIMEOUT + _BUILD_TIMEOUT_PER_HOST * hosts


def _same_shape(there: State, wanted: Layout) -> State:
    if there.layout != wanted:
        seen = there.layout
        told = (
            f"sandbox {seen.name!r} is up with {many(seen.nodes, 'node')}, {many(seen.slots, 'slot')} each, "
            f"{'a' if seen.fabric else 'no'} fabric, {'a' if seen.slurm else 'no'} Slurm; that isn't what you ask for"
        )
        if seen.name == _USUAL:
            raise SandboxError(sandbox.DIFFERS, told, "usual")
        raise SandboxError(sandbox.DIFFERS, told, "named", name=seen.name)
    return there


def _trees() -> tuple[Path, ...]:
    """What the ordinary user of a host must reach to run this very `aboard`, and ranks in the active environment."""
    program = Path(sys.executable)
    active = [Path(prefix) for name, prefix in active_environment().items() if name != "PATH"]
    bases = [(prefix / "bin/python").resolve().parents[1] for prefix in active]
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), *active, *bases]
    homes = (program.parent.resolve(), program.resolve().parent)
    outside = [parent for parent in homes if not any(parent.is_relative_to(p.resolve()) for p in prefixes)]
    return (*prefixes, *outside, inside.SOURCE)


def active_environment() -> dict[str, str]:
    """What names the Python environment that is active here, and the PATH of the hosts' user with it; hosts see it."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = os.environ.get(name) or "."
        if Path(prefix).is_absolute() and Path(prefix, "bin/python").is_file():
            return {name: prefix, "PATH": f"{prefix}/bin:{files.CREW_PATH}"}
    return {}


def _owners(trees: Iterable[Path]) -> tuple[int, ...]:
    """Who made these environments: the hosts' user runs them, so they are trusted there as root is."""
    return tuple(sorted({tree.stat().st_uid for tree in trees} - {0}))


def _installed() -> bool:
    try:
        importlib.metadata.distribution("aboard")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _read(path: str) -> str:
    return Path(path).read_text()


def _silent(up: int) -> None:
    del up
