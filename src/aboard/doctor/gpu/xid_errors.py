"""Xid errors that the NVIDIA driver has logged to the kernel log since boot."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.count_and_model_parity import find_missing_gpus
from aboard.doctor.gpu.gpu_errors import GpuError, build_gpu_fix, parse_gpu_error
from aboard.doctor.gpu.hardware_health import find_lost_gpus
from aboard.doctor.gpu.nvidia_smi import DRIVER
from aboard.doctor.shared.answer_text import require_output
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class XidLog:
    """The count of each error in the log; `readable` is False when this user may not read it."""

    readable: bool
    errors: tuple[tuple[GpuError, int], ...] = ()


def parse_xid_log(answer: ProbeAnswer) -> XidLog:
    """The last line names the log that was read, `dmesg` or `journal`, or `none`."""
    lines = require_output(answer, "reading the kernel log timed out").stdout.splitlines()
    if not lines:
        return XidLog(readable=True)  # no driver there, so nothing was read
    found = (parse_gpu_error(line) for line in lines)
    # The same error hits one program after another.
    counts = Counter(replace(error, pid=None) for error in found if error is not None)
    return XidLog(readable=lines[-1] != "none", errors=tuple(counts.items()))


def find_xid_errors(facts: Facts) -> Iterator[Finding]:
    """A GPU that had a hardware error since boot will have it again under load."""
    lost, short = find_lost_gpus(facts), find_missing_gpus(facts)
    for name, log in facts.of(KERNEL_LOG).items():
        bad = [(error, count) for error, count in log.errors if error.meaning.harms]
        if bad:
            gone = [error for error, _count in bad if error.meaning.gone]
            yield gpu.XID.finding(
                nodes=(name,),
                seen="the kernel log has " + format_list([_format_error(error, count) for error, count in bad]),
                why="The driver blames the GPU's hardware or firmware; a run will crash or hang on it.",
                fix=build_gpu_fix(min(gone, key=lambda error: error.device) if gone else bad[0][0], name),
                consequences=tuple(follows[name] for follows in (lost, short) if gone and name in follows),
            )
        elif log.errors:
            yield gpu.XID.finding(
                severity=Severity.INFO,
                nodes=(name,),
                seen="the kernel log has " + format_list([_format_error(error, count) for error, count in log.errors]),
                why="These errors are usually caused by the program, not by the GPU; an earlier run may have crashed"
                " here.",
                fix=gpu.XID.fix("earlier", node=name),
            )


def _format_error(error: GpuError, count: int) -> str:
    times = f" {count} times" if count > 1 else ""
    return f"{error.name or 'an error'} for {error.device}{times} ({error.meaning.what})"


def find_lost_or_missing_gpus(facts: Facts) -> Iterator[Finding]:
    """Lost GPUs, and fewer GPUs than slots, where the kernel log doesn't already explain them."""
    logs = facts.of(KERNEL_LOG)
    fell = {name for name, log in logs.items() if any(error.meaning.gone for error, _count in log.errors)}
    for found in (find_lost_gpus(facts), find_missing_gpus(facts)):
        yield from (finding for name, finding in found.items() if name not in fell)


def find_unreadable_log(facts: Facts) -> Iterator[Finding]:
    """Many systems hide the kernel log from ordinary users; then Xid errors are unknown."""
    drivers = facts.of(DRIVER)
    logs = facts.of(KERNEL_LOG)
    names = tuple(name for name, log in logs.items() if not log.readable and name in drivers and drivers[name].version)
    if names:
        yield gpu.UNKNOWN_KERNEL_LOG.finding(
            severity=Severity.INFO,
            nodes=names,
            seen="this user can't read the kernel log, so Aboard could not check for Xid errors",
            why="Only the kernel log shows a GPU that fell off the bus or has bad memory.",
            fix=gpu.UNKNOWN_KERNEL_LOG.fix(where=quote_folded_names(names)),
        )


# Filtered on the node, since a log may exceed the reply limit; dmesg is mostly for root only, the journal for groups.
_SCRIPT = """[ -d /proc/driver/nvidia ] || exit 0
if dmesg >/dev/null 2>&1; then dmesg | grep -aE 'NVRM: Xid|SXid' | tail -n 500; echo dmesg
elif journalctl -k -b -q -n 1 2>/dev/null | grep -q .; then
journalctl -k -b -q --no-pager | grep -aE 'NVRM: Xid|SXid' | tail -n 500; echo journal
else echo none; fi"""
KERNEL_LOG = Probe(name="kernel-log", question=ProbeCommand(argv=("sh", "-c", _SCRIPT)), parse=parse_xid_log)
