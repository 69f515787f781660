"""From GPU memory directly to the network: GPUDirect, ACS on PCI bridges, and the limit of pinned memory."""

import re
from collections.abc import Iterator

from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeFiles
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import list_active_ports
from aboard.doctor.host.limits import collect_limits
from aboard.doctor.shared.answer_text import extract_files, require_output
from aboard.doctor.shared.majority import group_by_value
from aboard.lazy_dataclass import dataclass

# NCCL pins some MB for each peer and channel; below this a few dozen ranks are already too many.
PINNED_BYTES = 4 << 30
# From here on the open driver can hand memory to the adapter by DMA-BUF, without nvidia_peermem.
DMA_BUF_KERNEL = (5, 12)
_PEERMEM = (
    "/sys/module/nvidia_peermem/version",
    "/sys/kernel/mm/memory_peers/nv_mem/version",
    "/sys/kernel/mm/memory_peers/nv_mem_nc/version",
)


@dataclass(frozen=True, kw_only=True)
class GpuDirectSupport:
    """What decides whether an adapter can read GPU memory. GeForce cards, which don't support it, are not counted."""

    gpus: int
    peermem: bool
    dma_buf: bool


@dataclass(frozen=True, kw_only=True)
class AcsState:
    """PCI bridges that route traffic between devices through the CPU; `readable` is False for an ordinary user."""

    readable: bool
    bridges: tuple[str, ...]


def parse_gpudirect(answer: ProbeAnswer) -> GpuDirectSupport:
    files = extract_files(answer)
    cards = [text for path, text in files.items() if path.startswith("/proc/driver/nvidia/gpus/")]
    kernel = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", files.get("/proc/sys/kernel/osrelease", ""))
    new = kernel is not None and (int(kernel[1]), int(kernel[2])) >= DMA_BUF_KERNEL
    return GpuDirectSupport(
        gpus=sum("GeForce" not in text for text in cards),
        peermem=any(path in files for path in _PEERMEM),
        dma_buf=new and "Open Kernel Module" in files.get("/proc/driver/nvidia/version", ""),
    )


def parse_acs(answer: ProbeAnswer) -> AcsState:
    """From `lspci -vvv`, which shows `<access denied>` to users who may not read the capabilities."""
    readable, bridges, device = False, [], ""
    for line in require_output(answer, "lspci timed out").stdout.splitlines():
        if re.match(r"[0-9a-f:.]{2,20} ", line):
            device = line
        elif "ACSCtl" in line:
            readable = True
            if "PCI bridge" in device and ("SrcValid+" in line or "ReqRedir+" in line):
                bridges.append(device.split()[0])
    return AcsState(readable=readable, bridges=tuple(bridges))


def find_missing_gpudirect(facts: Facts) -> Iterator[Finding]:
    """Without GPUDirect each byte goes through CPU memory, twice."""
    up = list_active_ports(facts)
    lacking = tuple(
        name
        for name, direct in facts.of(GPUDIRECT).items()
        if direct.gpus and name in up and not (direct.peermem or direct.dma_buf)
    )
    if lacking:
        yield fabric.NO_GPUDIRECT.finding(
            nodes=lacking,
            seen="GPUs and RDMA are present, but nvidia_peermem isn't loaded and the driver doesn't support DMA-BUF",
            fix=fabric.NO_GPUDIRECT.fix(where=quote_folded_names(lacking)),
        )


def find_enabled_acs(facts: Facts) -> Iterator[Finding]:
    """ACS routes traffic between two PCI devices through the CPU."""
    up = list_active_ports(facts)
    both = {name for name, direct in facts.of(GPUDIRECT).items() if direct.gpus and name in up}
    known = {name: acs for name, acs in facts.of(ACS).items() if name in both}
    on = {name: acs.bridges for name, acs in known.items() if acs.bridges}
    for bridges, names in group_by_value(on).items():
        yield fabric.ACS.finding(
            nodes=names,
            seen=f"ACS is enabled on {len(bridges)} PCI bridges: {format_list(bridges, 4)}",
            fix=fabric.ACS.fix(bridge=bridges[0], where=quote_folded_names(names)),
        )
    unread = tuple(name for name, acs in known.items() if not acs.readable)
    if unread:
        yield fabric.UNKNOWN_ACS.finding(
            severity=Severity.INFO,
            nodes=unread,
            seen="only root can see whether ACS is enabled",
            why="GPUDirect is slow where ACS is enabled.",
            fix=fabric.UNKNOWN_ACS.fix(where=quote_folded_names(unread)),
        )


def find_low_memlock(facts: Facts) -> Iterator[Finding]:
    """RDMA pins its buffers; the limit that counts is that of a process started as ranks are."""
    up = list_active_ports(facts)
    low = {
        name: (limits.locked.soft, limits.locked.hard is None or limits.locked.hard >= PINNED_BYTES)
        for name, limits in collect_limits(facts).items()
        if limits.locked.soft is not None and limits.locked.soft < PINNED_BYTES
        if name in up and not _is_root(facts, name)
    }
    for (limit, may), names in group_by_value(low).items():
        yield fabric.MEMLOCK.finding(
            nodes=names,
            seen=f"a rank can lock only {format_size(limit)} of memory, but RDMA must lock its buffers",
            fix=fabric.MEMLOCK.fix("setup", where=fold_names(names))
            if may
            else fabric.MEMLOCK.fix("limits", where=quote_folded_names(names)),
        )


def _is_root(facts: Facts, name: str) -> bool:
    """Root is exempt from this limit (CAP_IPC_LOCK)."""
    contact = facts.contacts.get(name)
    return isinstance(contact, ReachedNode) and contact.user == "root"


GPUDIRECT = Probe(
    name="gpudirect",
    question=ProbeFiles(
        globs=(
            "/proc/driver/nvidia/version",
            "/proc/driver/nvidia/gpus/*/information",
            "/proc/sys/kernel/osrelease",
            *_PEERMEM,
        )
    ),
    parse=parse_gpudirect,
)
# All of `lspci -vvv` is more than a megabyte on such machines.
ACS = Probe(
    name="acs",
    question=ProbeCommand(
        argv=("sh", "-c", "[ -d /sys/class/infiniband ] && lspci -vvv | grep -E '^[0-9a-f]|ACSCtl'"), timeout=20
    ),
    parse=parse_acs,
    quick=False,
)
