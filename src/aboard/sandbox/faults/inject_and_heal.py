"""Injects and heals faults, and keeps their records correct when that fails half-way."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from aboard.core.text.input_text import suggest_word
from aboard.diagnoses import AboardError, SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.faults import fault_records
from aboard.sandbox.faults.catalogue import FAULTS
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.fault_records import FaultRecord
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_BY_NAME: Mapping[str, type[Fault]] = {kind.name: kind for kind in FAULTS}


def find_fault_class(name: str) -> type[Fault]:
    """The fault class of this name, as the user typed it."""
    if name not in _BY_NAME:
        raise SandboxError(sandbox.FAULT_UNKNOWN, f"there is no fault {name!r}: {suggest_word(name, _BY_NAME)}")
    return _BY_NAME[name]


def inject_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Injects a fault; False when the host already has it."""
    with fault_records.open_records(box, host) as entries:
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
        fault_records.save_records(box, host, [*entries, entry])
        try:
            fault.inject(box, host)
        except BaseException:
            # If the undo fails too, the record stays, so that a later heal finds it.
            with contextlib.suppress(AboardError):
                fault.heal(box, host)
                fault_records.save_records(box, host, entries)
            raise
        _reapply_faults(box, host, present)
    return True


def heal_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Heals one fault; False when the host does not have it."""
    with fault_records.open_records(box, host) as entries:
        if fault not in map(_build_fault, _list_in_force(box, host.name, entries)):
            return False
        _heal_faults(box, host, [fault])
    return True


def heal_all_faults(box: Sandbox, host: Host, kind: type[Fault] | None = None) -> list[Fault]:
    """Heals all faults of a host, latest first, and powers it on; with `kind`, only faults of that class."""
    if kind is None:
        host.power_on()
    with fault_records.open_records(box, host) as entries:
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
    found = {name: _list_in_force(box, name, fault_records.read_records(box, name)) for name in box.hosts}
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
            for entry in _list_in_force(box, host.name, fault_records.read_records(box, host.name))
            if _build_fault(entry) != fault
        ]
        fault_records.save_records(box, host, remaining)
        _reapply_faults(box, host, [_build_fault(entry) for entry in remaining])


def _reapply_faults(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    if host.on:
        for fault in faults:
            fault.reapply(box, host)
