"""Injects and heals faults, and keeps their records correct when that fails half-way."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from aboard.core.text.input_text import suggest_word
from aboard.diagnoses import AboardError, SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.durable_files import acquire_lock, write_atomically
from aboard.lazy_dataclass import dataclass
from aboard.sandbox import saved_state
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.host.clock import ClockOffset
from aboard.sandbox.faults.host.containers import ImageDiffers, ImageMissing, NoRuntime, NoSubordinateIds
from aboard.sandbox.faults.host.control_groups import CpuQuota, FewTasks, MemoryLimit
from aboard.sandbox.faults.host.disk import DiskFull, PathMissing
from aboard.sandbox.faults.host.login_shell import LoginShell, NoisyShell
from aboard.sandbox.faults.host.processes import PortTaken, PowerLoss, ProcessKilled, ProcessStopped
from aboard.sandbox.faults.host.python_interpreter import HostilePython, NoPython, OldPython, OtherPython
from aboard.sandbox.faults.host.resource_limits import LowLimits, SmallShm
from aboard.sandbox.faults.host.ssh_server import KeyRemoved, MaxStartups, OtherHostKey, SshdSlow, SshdStopped
from aboard.sandbox.faults.network.connection_tracking import ConntrackFull
from aboard.sandbox.faults.network.firewall import FirewallDrop, FirewallReject
from aboard.sandbox.faults.network.links import LinkDelay, LinkDown, LinkRateLimit, MtuBlackHole, PacketLoss
from aboard.sandbox.faults.network.name_resolution import OwnNameOnLoopback, UnresolvedName
from aboard.sandbox.faults.slurm.daemons import MungeClock, SlurmctldStopped, SlurmdKilled
from aboard.sandbox.faults.slurm.node_state import FewSrunPorts, NodeDrained, PrologFails
from aboard.sandbox.host import Host
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.sandbox import Sandbox

_LOCK_TIMEOUT = 120.0


@dataclass(frozen=True, kw_only=True)
class FaultRecord:
    """A fault as data; `boot` is the host's init process at the time of injection."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    boot: ProcessIdentity | None


@contextmanager
def open_records(box: Sandbox, host: Host) -> Iterator[list[FaultRecord]]:
    """Locks and reads the records of one host; `save_records` writes them."""
    directory = _get_directory(box)
    directory.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(directory / f"{host.name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not acquire_lock(handle, patience=_LOCK_TIMEOUT):
            seen = f"another aboard process has been changing {host.name} for {_LOCK_TIMEOUT:.0f} s"
            raise SandboxError(sandbox.BUSY, seen, "host")
        yield read_records(box, host.name)
    finally:
        os.close(handle)


def read_records(box: Sandbox, name: str) -> list[FaultRecord]:
    """The records of a host, oldest first."""
    try:
        raw = json.loads((_get_directory(box) / f"{name}.json").read_text())
    except FileNotFoundError:
        return []
    return [
        FaultRecord(
            name=entry["name"], fields=entry["fields"], boot=ProcessIdentity(**entry["boot"]) if entry["boot"] else None
        )
        for entry in raw
    ]


def save_records(box: Sandbox, host: Host, entries: list[FaultRecord]) -> None:
    """Writes the records atomically."""
    target = _get_directory(box) / f"{host.name}.json"
    write_atomically(target, json.dumps([asdict(entry) for entry in entries]), sync=False)


def _get_directory(box: Sandbox) -> Path:
    return saved_state.get_directory(box.name) / "faults"


FAULTS: tuple[type[Fault], ...] = (
    FirewallDrop, FirewallReject, LinkDown, LinkRateLimit, PacketLoss, LinkDelay, MtuBlackHole, ConntrackFull,
    SshdStopped, SshdSlow, MaxStartups, OtherHostKey, KeyRemoved, UnresolvedName, OwnNameOnLoopback, ClockOffset,
    SmallShm, LowLimits, MemoryLimit, CpuQuota, FewTasks, DiskFull, PathMissing,
    NoPython, OldPython, OtherPython, HostilePython, NoisyShell, LoginShell,
    ImageDiffers, ImageMissing, NoSubordinateIds, NoRuntime, PortTaken, ProcessStopped, ProcessKilled, PowerLoss,
    SlurmdKilled, SlurmctldStopped, MungeClock, NodeDrained, PrologFails, FewSrunPorts,
)  # fmt: skip


_BY_NAME: Mapping[str, type[Fault]] = {kind.name: kind for kind in FAULTS}


def find_fault_class(name: str) -> type[Fault]:
    """The fault class of this name, as the user typed it."""
    if name not in _BY_NAME:
        raise SandboxError(sandbox.FAULT_UNKNOWN, f"there is no fault {name!r}: {suggest_word(name, _BY_NAME)}")
    return _BY_NAME[name]


def inject_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Injects a fault; False when the host already has it."""
    with open_records(box, host) as entries:
        entries[:] = _list_in_force(box, host.name, entries)
        present = [_build_fault(entry) for entry in entries]
        if fault in present:
            return False
        _refuse_clash(box, host, fault, present)
        _require_power(host)
        fault.check(box, host)
        if fault.momentary:
            fault.inject(box, host)
            return True
        entry = FaultRecord(name=fault.name, fields=asdict(fault), boot=box.first_process(host.name))
        # Recorded first: if this process is killed half-way, the fault can still be healed.
        save_records(box, host, [*entries, entry])
        try:
            fault.inject(box, host)
        except BaseException:
            # If the undo fails too, the record stays, so that a later heal finds it.
            with contextlib.suppress(AboardError):
                fault.heal(box, host)
                save_records(box, host, entries)
            raise
        _reapply_faults(box, host, present)
    return True


def heal_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Heals one fault; False when the host does not have it."""
    with open_records(box, host) as entries:
        if fault not in map(_build_fault, _list_in_force(box, host.name, entries)):
            return False
        _heal_faults(box, host, [fault])
    return True


def heal_all_faults(box: Sandbox, host: Host, kind: type[Fault] | None = None) -> list[Fault]:
    """Heals all faults of a host, latest first, and powers it on; with `kind`, only faults of that class."""
    if kind is None:
        host.power_on()
    with open_records(box, host) as entries:
        found = [_build_fault(entry) for entry in reversed(_list_in_force(box, host.name, entries))]
        healed = [fault for fault in found if kind is None or isinstance(fault, kind)]
        _heal_faults(box, host, healed)
    return healed


@contextmanager
def inject_temporarily(box: Sandbox, host: Host, *faults: Fault) -> Iterator[None]:
    """Injects faults for the duration of a `with` block."""
    with contextlib.ExitStack() as stack:
        for fault in faults:
            if inject_fault(box, host, fault):
                stack.callback(heal_fault, box, host, fault)
        yield


def list_active_faults(box: Sandbox) -> dict[str, list[Fault]]:
    """The active faults by host, oldest first; healthy hosts are left out."""
    found = {name: _list_in_force(box, name, read_records(box, name)) for name in box.hosts}
    return {name: [_build_fault(entry) for entry in entries] for name, entries in found.items() if entries}


def _build_fault(record: FaultRecord) -> Fault:
    return find_fault_class(record.name)(**record.fields)


def _list_in_force(box: Sandbox, name: str, entries: list[FaultRecord]) -> list[FaultRecord]:
    """The records without those that a power cycle has ended."""
    boot = box.first_process(name)
    return [entry for entry in entries if find_fault_class(entry.name).survives_power or entry.boot == boot]


def _refuse_clash(box: Sandbox, host: Host, fault: Fault, present: list[Fault]) -> None:
    for other in present:
        if fault.claims & other.claims:
            raise SandboxError(
                sandbox.FAULT_CLASH,
                f"{fault.name} conflicts with a fault that {host.name} already has: {other.describe()}",
                fault=other.name,
                node=host.name,
                name=box.name,
            )


def _require_power(host: Host) -> None:
    # Raises the error for a host that is off.
    _ = host.pid


def _heal_faults(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    for fault in faults:
        fault.heal(box, host)
        # Read again: healing a power loss ends other faults, too.
        remaining = [
            entry
            for entry in _list_in_force(box, host.name, read_records(box, host.name))
            if _build_fault(entry) != fault
        ]
        save_records(box, host, remaining)
        _reapply_faults(box, host, [_build_fault(entry) for entry in remaining])


def _reapply_faults(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    if host.on:
        for fault in faults:
            fault.reapply(box, host)
