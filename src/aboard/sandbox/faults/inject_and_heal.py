"""Breaking and healing: what is recorded, in which order, and what happens when it goes wrong half-way."""

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
    """The fault of this name, as a user typed it."""
    if name not in _BY_NAME:
        raise SandboxError(sandbox.FAULT_UNKNOWN, f"there is no fault {name!r}: {suggest_word(name, _BY_NAME)}")
    return _BY_NAME[name]


def inject_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Break a host; False when it is broken in just this way already."""
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
        # Recorded first: whoever is killed half-way leaves something that can be healed.
        fault_records.save_records(box, host, [*entries, entry])
        try:
            fault.inject(box, host)
        except BaseException:
            # When it can't be undone either, the record stays, so that a later heal finds it.
            with contextlib.suppress(AboardError):
                fault.heal(box, host)
                fault_records.save_records(box, host, entries)
            raise
        _reapply_faults(box, host, present)
    return True


def heal_fault(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Undo one fault; False when the host doesn't have it."""
    with fault_records.open_records(box, host) as entries:
        if fault not in map(_build_fault, _list_in_force(box, host.name, entries)):
            return False
        _heal_faults(box, host, [fault])
    return True


def heal_all_faults(box: Sandbox, host: Host, kind: type[Fault] | None = None) -> list[Fault]:
    """Undo every fault of a host, or every one of a kind, the latest first; a host without power gets it."""
    if kind is None:
        host.power_on()
    with fault_records.open_records(box, host) as entries:
        found = [_build_fault(entry) for entry in reversed(_list_in_force(box, host.name, entries))]
        healed = [fault for fault in found if kind is None or isinstance(fault, kind)]
        _heal_faults(box, host, healed)
    return healed


@contextmanager
def inject_temporarily(box: Sandbox, host: Host, *faults: Fault) -> Iterator[None]:
    """Faults for the length of a `with` block."""
    with contextlib.ExitStack() as stack:
        for fault in faults:
            if inject_fault(box, host, fault):
                stack.callback(heal_fault, box, host, fault)
        yield


def list_active_faults(box: Sandbox) -> dict[str, list[Fault]]:
    """What is broken now, by host, oldest first; hosts that are well aren't in it."""
    found = {name: _list_in_force(box, name, fault_records.read_records(box, name)) for name in box.hosts}
    return {name: [_build_fault(entry) for entry in entries] for name, entries in found.items() if entries}


def _build_fault(entry: FaultRecord) -> Fault:
    return find_fault_class(entry.name)(**entry.fields)


def _list_in_force(box: Sandbox, name: str, entries: list[FaultRecord]) -> list[FaultRecord]:
    """Without those that the host lost with its power."""
    boot = box.first_process(name)
    return [entry for entry in entries if find_fault_class(entry.name).survives_power or entry.boot == boot]


def _refuse_clash(box: Sandbox, host: Host, fault: Fault, present: list[Fault]) -> None:
    for other in present:
        if fault.claims & other.claims:
            raise SandboxError(
                sandbox.FAULT_CLASH,
                f"{host.name} is broken already in a way that {fault.name} can't be added to: {other.describe()}",
                fault=other.name,
                node=host.name,
                name=box.name,
            )


def _require_power(host: Host) -> None:
    # Asking for its first process is refused when there is none, in the right words.
    _ = host.pid


def _heal_faults(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    for fault in faults:
        fault.heal(box, host)
        # Looked at anew: a power loss that is healed has taken others with it.
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
            fault.hold(box, host)
