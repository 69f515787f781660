"""A sandbox: builds, finds and removes a practice cluster of real hosts on one Linux machine."""

import contextlib
import importlib.metadata
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from aboard.core.text.input_text import format_count
from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox import requirements, saved_state
from aboard.sandbox.host import Host
from aboard.sandbox.host_setup import build_hosts, system_files
from aboard.sandbox.host_setup.boot_host import HostBlueprint
from aboard.sandbox.layout import HEAD, SandboxLayout
from aboard.sandbox.namespaces import helper_program, host_commands, outer_namespace
from aboard.sandbox.namespaces.host_commands import HostCommand
from aboard.sandbox.namespaces.process_identity import ProcessIdentity, read_boot_id
from aboard.sandbox.saved_state import SandboxState
from aboard.sandbox.slurm import wait_until_ready

BuildProgress = Callable[[int], None]
_DEFAULT_NAME = "sandbox"
_BUILD_TIMEOUT = 60.0
_BUILD_TIMEOUT_PER_HOST = 2.0


class Sandbox:
    """A running practice cluster: `head`, where the user runs `aboard`, and the nodes n1…nN."""

    def __init__(
        self, state_now: SandboxState, *, found: bool, launch: outer_namespace.OuterNamespace | None = None
    ) -> None:
        self._state = state_now
        # A temporary sandbox is removed with this object, at the latest when this process exits.
        self._finalizer = weakref.finalize(self, launch.abandon) if launch is not None else None
        #: Whether `up` found it running instead of building it.
        self.found = found
        self.programs = requirements.find_programs()
        self.hosts = {name: Host(self, name) for name in self.layout.places}

    @classmethod
    def up(
        cls,
        name: str = _DEFAULT_NAME,
        *,
        nodes: int = 4,
        slots: int = 2,
        fabric: bool = False,
        slurm: bool = False,
        bare: bool = False,
        shared_home: bool = False,
        containers: bool = False,
        temporary: bool = False,
        progress: BuildProgress | None = None,
    ) -> Self:
        """Builds a practice cluster, or attaches to the running one of the same name and layout.

        A temporary one is always new. It is removed with the object, or when this process exits, even by SIGKILL.
        """
        layout = SandboxLayout(
            name=name,
            nodes=nodes,
            slots=slots,
            fabric=fabric,
            slurm=slurm,
            bare=bare,
            shared_home=shared_home,
            containers=containers,
        )
        requirements.require_root("up")
        programs = requirements.find_programs()
        if slurm:
            requirements.require_slurm()
        if containers:
            requirements.require_containers()
        requirements.require_readable(helper_program.SOURCE)
        with saved_state.lock_sandbox(name, "up"):
            existing = saved_state.read_state(name)
            if existing is not None and existing.ready and existing.alive() and not temporary:
                return cls(_require_same_layout(existing, layout), found=True)
            try:
                now, launch = _build_sandbox(layout, programs, progress or _ignore_progress, temporary=temporary)
                return cls(now, found=False, launch=launch)
            except BaseException:
                saved_state.remove_sandbox(name)
                raise

    @classmethod
    def attach(cls, name: str = _DEFAULT_NAME) -> Self:
        """Attaches to the running sandbox of this name, whichever process built it."""
        requirements.require_root("status")
        existing = saved_state.read_state(name)
        if existing is None or not existing.ready or not existing.alive():
            message = f"no sandbox {name!r} is up"
            if name == _DEFAULT_NAME:
                for other in saved_state.list_sandboxes():
                    state = saved_state.read_state(other)
                    if state is not None and state.ready and state.alive():
                        raise SandboxError(sandbox.DOWN, f"{message}, but {other!r} is", "other", other=other)
                raise SandboxError(sandbox.DOWN, message, "usual")
            raise SandboxError(sandbox.DOWN, message, "named", name=name)
        return cls(existing, found=True)

    @property
    def name(self) -> str:
        return self.layout.name

    @property
    def layout(self) -> SandboxLayout:
        return self._state.layout

    @property
    def crew_id(self) -> int:
        """The user id and group id of `crew`."""
        return self._state.crew_id

    @property
    def outer_init(self) -> ProcessIdentity:
        """The init process of the whole sandbox: when it exits, the kernel kills everything in the sandbox."""
        return self._state.outer_init

    @property
    def head(self) -> Host:
        """The host where the user runs `aboard`."""
        return self.hosts[HEAD]

    @property
    def nodes(self) -> list[Host]:
        """All hosts but the head."""
        return [host for host in self.hosts.values() if host is not self.head]

    def host(self, name: str) -> Host:
        """The host of this name, as the user typed it."""
        if name not in self.hosts:
            raise SandboxError(
                sandbox.HOST,
                f"sandbox {self.name!r} has no host {name!r}; it has head and n1 to n{self.layout.nodes}",
                name=self.name,
            )
        return self.hosts[name]

    def switch(self, argv: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs a program as root in the namespace of the bridges (`mgmt`, `fabric`) and the switch ports."""
        command = HostCommand(argv=argv, uid=0, env={}, cwd="/")
        return host_commands.run_command(self.outer_init, command, text=None, timeout=timeout)

    def first_process(self, name: str) -> ProcessIdentity | None:
        """The init process of a host; None when it is off. Another process may have power-cycled it."""
        process = self._state.hosts.get(name)
        if process is None or not process.alive():
            fresh = saved_state.read_state(self.name)
            if fresh is None or fresh.outer_init != self.outer_init:
                return None
            self._state = fresh
            process = fresh.hosts.get(name)
        return process if process is not None and process.alive() else None

    def boot(self, names: Iterable[str]) -> None:
        """Boots hosts that are off, from their disks."""
        with saved_state.lock_sandbox(self.name, "heal"):
            started = _boot_hosts(self._state, self.programs, list(names), _ignore_progress)
            self._state = replace(self._state, hosts={**self._state.hosts, **started})
            saved_state.write_state(self._state)

    def down(self) -> None:
        """Removes all its processes, mounts, namespaces and files; does nothing if it is gone already."""
        with contextlib.suppress(FileNotFoundError), saved_state.lock_sandbox(self.name, "down"):
            existing = saved_state.read_state(self.name)
            if existing is None or existing.outer_init == self.outer_init:
                saved_state.remove_sandbox(self.name)
        if self._finalizer is not None:
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()


def take_down_sandbox(name: str = _DEFAULT_NAME) -> bool:
    """Removes a sandbox, or what a crash left of it; False when there is nothing to remove."""
    requirements.require_root("down")
    if not saved_state.get_directory(name).exists():
        return False
    with saved_state.lock_sandbox(name, "down"):
        saved_state.remove_sandbox(name)
    return True


def _build_sandbox(
    layout: SandboxLayout, programs: requirements.HostPrograms, progress: BuildProgress, *, temporary: bool
) -> tuple[SandboxState, outer_namespace.OuterNamespace | None]:
    # First remove what a crash left of an earlier sandbox.
    saved_state.clear_sandbox(layout.name)
    disks = saved_state.get_directory(layout.name) / "disks"
    disks.mkdir()
    with saved_state.lock_user_ids() as taken:
        users, groups = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
        crew_id = system_files.find_free_id(users, groups, taken=taken)
        launch = outer_namespace.create_outer_namespace(disks=disks, programs=programs)
        now = SandboxState(
            layout=layout, boot=read_boot_id(), outer_init=launch.outer_init, crew_id=crew_id, ready=False, hosts={}
        )
        saved_state.write_state(now)
    try:
        hosts = _boot_hosts(now, programs, list(layout.places), progress)
        now = replace(now, hosts=hosts)
        saved_state.write_state(now)
        if layout.slurm:
            wait_until_ready.wait_until_idle(layout, hosts, crew_id=crew_id, timeout=_compute_build_timeout(len(hosts)))
        if not temporary:
            launch.keep()
        now = replace(now, ready=True)
        saved_state.write_state(now)
    except BaseException:
        launch.abandon()
        raise
    return now, launch if temporary else None


def _boot_hosts(
    state: SandboxState, programs: requirements.HostPrograms, names: list[str], progress: BuildProgress
) -> dict[str, ProcessIdentity]:
    layout, trees = state.layout, _list_exposed_trees()
    blueprint = HostBlueprint(
        layout=layout,
        disks=saved_state.get_directory(layout.name) / "disks",
        crew_id=state.crew_id,
        programs=programs,
        python=str(Path(sys.executable).resolve()) if layout.bare else sys.executable,
        trees=trees,
        images=tuple(_list_base_prefixes()),
        trusted=_list_owners(trees),
        active=find_active_environment(),
        environment=Path(sys.prefix) if layout.bare and layout.containers and sys.prefix != sys.base_prefix else None,
        shim=system_files.format_aboard_shim(sys.executable, None if _is_installed() else str(helper_program.SOURCE)),
    )
    timeout = _compute_build_timeout(len(names))
    return build_hosts.build_hosts(state.outer_init, blueprint, names, progress=progress, timeout=timeout)


def _compute_build_timeout(hosts: int) -> float:
    return _BUILD_TIMEOUT + _BUILD_TIMEOUT_PER_HOST * hosts


def _require_same_layout(existing: SandboxState, wanted: SandboxLayout) -> SandboxState:
    if existing.layout != wanted:
        layout = existing.layout
        message = (
            f"sandbox {layout.name!r} is running with {format_count(layout.nodes, 'node')},"
            f" {format_count(layout.slots, 'slot')} each, "
            f"{'with' if layout.fabric else 'no'} fabric, {'with' if layout.slurm else 'no'} Slurm"
            f"{', bare' if layout.bare else ''}"
            f"{', a shared home' if layout.shared_home else ''}{', containers' if layout.containers else ''};"
            " you asked for something else"
        )
        if layout.name == _DEFAULT_NAME:
            raise SandboxError(sandbox.DIFFERS, message, "usual")
        raise SandboxError(sandbox.DIFFERS, message, "named", name=layout.name)
    return existing


def _list_exposed_trees() -> tuple[Path, ...]:
    """The directories that a host's ordinary user needs to run this `aboard`, and ranks in the active environment."""
    program = Path(sys.executable)
    prefixes = [Path(sys.prefix), *_list_active_prefixes(), *_list_base_prefixes()]
    homes = (program.parent.resolve(), program.resolve().parent)
    outside = [parent for parent in homes if not any(parent.is_relative_to(p.resolve()) for p in prefixes)]
    return (*prefixes, *outside, helper_program.SOURCE)


def _list_base_prefixes() -> list[Path]:
    """The interpreters below this environment and the active one; even a bare node has them, as in its image."""
    return [
        Path(sys.base_prefix),
        *((prefix / "bin/python").resolve().parents[1] for prefix in _list_active_prefixes()),
    ]


def _list_active_prefixes() -> list[Path]:
    return [Path(prefix) for name, prefix in find_active_environment().items() if name != "PATH"]


def find_active_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables of the active Python environment, and the PATH of the hosts' user with it."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        prefix = environ.get(name) or "."
        if Path(prefix).is_absolute() and Path(prefix, "bin/python").is_file():
            return {name: prefix, "PATH": f"{prefix}/bin:{system_files.CREW_PATH}"}
    return {}


def _list_owners(trees: Iterable[Path]) -> tuple[int, ...]:
    """The owners of these environments: the hosts' user runs their code, so hosts trust them like root."""
    return tuple(sorted({tree.stat().st_uid for tree in trees} - {0}))


def _is_installed() -> bool:
    """Whether the interpreter finds this source by itself; a PYTHONPATH may name another than the installed one."""
    if helper_program.SOURCE in map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        return False
    try:
        importlib.metadata.distribution("aboard")
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _ignore_progress(up: int) -> None:
    del up
