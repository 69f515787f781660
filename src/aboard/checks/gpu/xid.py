"""Xid errors: what the NVIDIA driver has written into the kernel's log since the machine was started."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from aboard.checks.gpu.parity import short_of_gpus
from aboard.checks.gpu.smi import DRIVER
from aboard.checks.gpu.state import lost_gpus
from aboard.checks.listed import listed
from aboard.core.facts import Facts
from aboard.core.finding import Finding, Severity
from aboard.core.nodeset import fold
from aboard.core.probe import Answer, Command, Output, Probe, Unparsed
from aboard.core.words import visible

# https://docs.nvidia.com/deploy/xid-errors: what each means, and whether the GPU is fit for a run before it is mended.
MEANINGS: dict[int, tuple[str, bool]] = {
    13: ("a program's own fault on the graphics engine", False),
    31: ("a program's own fault: it touched memory that wasn't its", False),
    43: ("a program's own fault; the GPU went on", False),
    45: ("a program was ended; the GPU is fine", False),
    48: ("an error in memory that can't be corrected", True),
    62: ("its microcontroller halted", True),
    63: ("a memory row was marked for replacement; reset it to do so", True),
    64: ("a memory row could not be replaced", True),
    74: ("an NVLink error", True),
    79: ("it has fallen off the bus", True),
    92: ("many memory errors that could still be corrected", True),
    94: ("a memory error that ended one program", True),
    95: ("a memory error that hit all programs", True),
    119: ("its system processor (GSP) doesn't answer", True),
    120: ("its system processor (GSP) failed", True),
    140: ("a memory error that it could not recover from", True),
    149: ("an NVLink error", True),
    154: ("the driver asks for a reset or a reboot", True),
}
GONE = frozenset({79, 119, 120})


@dataclass(frozen=True, kw_only=True)
class Log:
    """How often each (PCI address, Xid) stands in the log; `readable` is False when this user may not see it."""

    readable: bool
    xids: tuple[tuple[str, int, int], ...] = ()


def parse_log(answer: Answer) -> Log:
    """The last line says which of the two logs could be read, `dmesg` or `journal`, or that neither could: `none`."""
    if not isinstance(answer, Output) or answer.timed_out:
        raise Unparsed("the kernel's log was not read in time")
    lines = answer.stdout.splitlines()
    if not lines:
        return Log(readable=True)  # no driver there, so nothing was read
    counts: Counter[tuple[str, int]] = Counter()
    for line in lines:
        xid = re.search(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{1,16})\): ([0-9]{1,4})\b", line)
        if xid:
            counts[xid[1], int(xid[2])] += 1
    return Log(readable=lines[-1] != "none", xids=tuple((bus, xid, count) for (bus, xid), count in counts.items()))


def xid_errors(facts: Facts) -> Iterator[Finding]:
    """A GPU that had a hardware error once this boot will have it again under load."""
    lost, short = lost_gpus(facts), short_of_gpus(facts)
    for name, log in facts.of(KERNEL_LOG).items():
        bad = [entry for entry in log.xids if _is_bad(entry[1])]
        if bad:
            gone = sorted({entry[0] for entry in bad if entry[1] in GONE})
            yield Finding(
                code="gpu-xid",
                severity=Severity.WARN,
                nodes=(name,),
                seen="the kernel's log has " + listed([_told(*entry) for entry in bad]),
                why="The driver reports the GPU's own hardware or firmware; a run will crash or hang there.",
                fix=_mend(name, gone, bad[0][0]),
                consequences=tuple(follows[name] for follows in (lost, short) if gone and name in follows),
            )
        elif log.xids:
            yield Finding(
                code="gpu-xid",
                severity=Severity.INFO,
                nodes=(name,),
                seen="the kernel's log has " + listed([_told(*entry) for entry in log.xids]),
                why="Such errors mostly come from programs, not from the GPU; an earlier run may have crashed here.",
                fix=f"sudo dmesg -T | grep -i xid    # on {name}; nothing to do if an earlier run of yours was faulty",
            )


def _is_bad(xid: int) -> bool:
    """One that we have no name for is not held against the GPU."""
    return MEANINGS.get(xid, ("", False))[1]


def _told(bus: str, xid: int, count: int) -> str:
    meaning = MEANINGS.get(xid, ("see NVIDIA's list of Xids", False))[0]
    return f"Xid {xid} for {visible(bus)}" + (f" {count} times" if count > 1 else "") + f" ({meaning})"


def _mend(name: str, gone: list[str], bus: str) -> str:
    if gone:
        return f"sudo reboot    # on {name}; if {gone[0]} isn't back, or falls again: take {name} out, it needs repair"
    return (
        f"sudo nvidia-smi --gpu-reset -i {bus}.0    # on {name}; with no program on the GPU\n"
        f"sudo dcgmi diag -r 3    # on {name}; if it fails, or the Xid comes again: take {name} out of the run"
    )


def gpus_gone(facts: Facts) -> Iterator[Finding]:
    """A lost GPU, and fewer than slots: said by themselves only where the log doesn't say which one fell off."""
    logs = facts.of(KERNEL_LOG)
    fell = {name for name, log in logs.items() if any(xid in GONE for _bus, xid, _count in log.xids)}
    for found in (lost_gpus(facts), short_of_gpus(facts)):
        yield from (finding for name, finding in found.items() if name not in fell)


def log_unreadable(facts: Facts) -> Iterator[Finding]:
    """Many systems keep the kernel's log from ordinary users; then nobody can vouch for what isn't in it."""
    drivers = facts.of(DRIVER)
    logs = facts.of(KERNEL_LOG)
    names = tuple(name for name, log in logs.items() if not log.readable and name in drivers and drivers[name].version)
    if names:
        yield Finding(
            code="unknown-kernel-log",
            severity=Severity.INFO,
            nodes=names,
            seen="this user may not read the kernel's log, so Xid errors can't be seen",
            why="A GPU that has fallen off the bus or has bad memory says so only there.",
            fix=f"sudo usermod -aG systemd-journal $USER    # on {fold(names)}; or once: sudo dmesg | grep -i xid",
        )


# On the node, since a log may be larger than an answer may be; dmesg is mostly kept for root, the journal for groups.
_SCRIPT = """[ -d /proc/driver/nvidia ] || exit 0
if dmesg >/dev/null 2>&1; then dmesg | grep -a 'NVRM: Xid' | tail -n 500; echo dmesg
elif journalctl -k -b -q -n 1 2>/dev/null | grep -q .; then
journalctl -k -b -q --no-pager | grep -a 'NVRM: Xid' | tail -n 500; echo journal
else echo none; fi"""
KERNEL_LOG = Probe(name="kernel-log", question=Command(argv=("sh", "-c", _SCRIPT)), parse=parse_log)
