"""Breaking and healing: what is recorded, in which order, and what happens when it goes wrong half-way."""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from aboard.core.words import did_you_mean
from aboard.diagnoses import AboardError, SandboxError, sandbox
from aboard.sandbox.faults import ledger
from aboard.sandbox.faults.catalogue import FAULTS
from aboard.sandbox.faults.fault import Fault
from aboard.sandbox.faults.ledger import Entry
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox

_BY_NAME: Mapping[str, type[Fault]] = {kind.name: kind for kind in FAULTS}


def kind_of(name: str) -> type[Fault]:
    """The fault of this name, as a user typed it."""
    if name not in _BY_NAME:
        raise SandboxError(sandbox.FAULT_UNKNOWN, f"there is no fault {name!r}: {did_you_mean(name, _BY_NAME)}")
    return _BY_NAME[name]


def inject(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Break a host; False when it is broken in just this way already."""
    with ledger.opened(box, host) as entries:
        entries[:] = _in_force(box, host.name, entries)
        there = [_fault(entry) for entry in entries]
        if fault in there:
            return False
        _refuse_clash(box, host, fault, there)
        _require_power(host)
        fault.check(box, host)
        if fault.momentary:
            fault.inject(box, host)
            return True
        entry = Entry(name=fault.name, fields=asdict(fault), boot=box.first_process(host.name))
        # Recorded first: whoever is killed half-way leaves something that can be healed.
        ledger.save(box, host, [*entries, entry])
        try:
            fault.inject(box, host)
        except BaseException:
            # When it can't be undone either, the record stays, so that a later heal finds it.
            with contextlib.suppress(AboardError):
                fault.heal(box, host)
                ledger.save(box, host, entries)
            raise
        _hold(box, host, there)
    return True


def heal(box: Sandbox, host: Host, fault: Fault) -> bool:
    """Undo one fault; False when the host doesn't have it."""
    with ledger.opened(box, host) as entries:
        if fault not in map(_fault, _in_force(box, host.name, entries)):
            return False
        _heal(box, host, [fault])
    return True


def heal_all(box: Sandbox, host: Host, kind: type[Fault] | None = None) -> list[Fault]:
    """Undo every fault of a host, or every one of a kind, the latest first; a host without power gets it."""
    if kind is None:
        host.power_on()
    with ledger.opened(box, host) as entries:
        found = [_fault(entry) for entry in reversed(_in_force(box, host.name, entries))]
        healed = [fault for fault in found if kind is None or isinstance(fault, kind)]
        _heal(box, host, healed)
    return healed


@contextmanager
def broken(box: Sandbox, host: Host, *faults: Fault) -> Iterator[None]:
    """Faults for the length of a `with` block."""
    with contextlib.ExitStack() as stack:
        for fault in faults:
            if inject(box, host, fault):
                stack.callback(heal, box, host, fault)
        yield


def active(box: Sandbox) -> dict[str, list[Fault]]:
    """What is broken now, by host, oldest first; hosts that are well aren't in it."""
    found = {name: _in_force(box, name, ledger.read(box, name)) for name in box.hosts}
    return {name: [_fault(entry) for entry in entries] for name, entries in found.items() if entries}


def _fault(entry: Entry) -> Fault:
    return kind_of(entry.name)(**entry.fields)


def _in_force(box: Sandbox, name: str, entries: list[Entry]) -> list[Entry]:
    """Without those that the host lost with its power."""
    boot = box.first_process(name)
    return [entry for entry in entries if kind_of(entry.name).survives_power or entry.boot == boot]


def _refuse_clash(box: Sandbox, host: Host, fault: Fault, there: list[Fault]) -> None:
    for other in there:
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


def _heal(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    for fault in faults:
        fault.heal(box, host)
        # Looked at anew: a power loss that is healed has taken others with it.
        left = [entry for entry in _in_force(box, host.name, ledger.read(box, host.name)) if _fault(entry) != fault]
        ledger.save(box, host, left)
        _hold(box, host, [_fault(entry) for entry in left])


def _hold(box: Sandbox, host: Host, faults: list[Fault]) -> None:
    if host.on:
        for fault in faults:
            fault.hold(box, host)
