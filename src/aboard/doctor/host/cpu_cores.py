"""Cores: how many a process on the node may use, of how many the machine has."""

import re
from collections.abc import Iterator

from aboard.core.cluster.node import TransportKind
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.host import diagnoses as host
from aboard.doctor.shared.answer_text import extract_file_text, extract_files
from aboard.lazy_dataclass import dataclass

_MOST_CORES = 4096


@dataclass(frozen=True, kw_only=True)
class MemoryNodes:
    """The cores of each NUMA node, and those beside each GPU; empty on a machine with one NUMA node."""

    nodes: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[tuple[int, ...], ...] = ()


def parse_allowed_cores(answer: ProbeAnswer) -> int:
    """Counts the cores that a process may use, from a list such as "0-3,8"."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", extract_file_text(answer), re.MULTILINE)
    if allowed is None:
        raise ProbeParseError("no Cpus_allowed_list in /proc/self/status")
    return _count_cores(allowed[1])


def parse_online_cores(answer: ProbeAnswer) -> int:
    """Counts the cores that the machine has, from the same kind of list."""
    return _count_cores(extract_file_text(answer).strip())


def parse_memory_nodes(answer: ProbeAnswer) -> MemoryNodes:
    """The kernel lists the cores of each NUMA node, and those beside each GPU; on one node, none of it matters."""
    # By number, and by address, which is how CUDA counts with PCI_BUS_ID.
    files = sorted(extract_files(answer).items(), key=lambda file: (len(file[0]), file[0]))
    nodes = [tuple(_list_cores(text.strip())) for path, text in files if "/system/node/" in path]
    gpus = [tuple(_list_cores(text.strip())) for path, text in files if "/drivers/nvidia/" in path]
    nodes = [cores for cores in nodes if cores]
    return MemoryNodes(nodes=tuple(nodes), gpus=tuple(gpus) if all(gpus) else ()) if len(nodes) > 1 else MemoryNodes()


CORES = Probe(name="cores", question=ProbeFiles(globs=("/proc/self/status",)), parse=parse_allowed_cores)
ONLINE_CORES = Probe(
    name="online-cores", question=ProbeFiles(globs=("/sys/devices/system/cpu/online",)), parse=parse_online_cores
)


MEMORY_NODES = Probe(
    name="memory-nodes",
    question=ProbeFiles(
        globs=("/sys/devices/system/node/node*/cpulist", "/sys/bus/pci/drivers/nvidia/*:*/local_cpulist")
    ),
    parse=parse_memory_nodes,
)


def find_narrow_affinity(facts: Facts) -> Iterator[Finding]:
    """Ranks that share one core, or have fewer cores than ranks, are slow without any error."""
    online = facts.of(ONLINE_CORES)
    for name, allowed in facts.of(CORES).items():
        node = facts.cluster.node(name)
        ranks = node.slots or 1
        if allowed < online.get(name, 0) and allowed < max(2, ranks):
            in_job = node.transport is TransportKind.SLURM
            of_job = ", which is all that the Slurm job has there" if in_job and node.cores == allowed else ""
            yield host.AFFINITY.finding(
                nodes=(name,),
                seen=f"a process can use {format_count(allowed, 'core')} of {online[name]}{of_job}",
                fix=host.AFFINITY.fix("job", cores=online[name]) if in_job else host.AFFINITY.fix("sshd", node=name),
            )


def _count_cores(core_list: str) -> int:
    return sum(len(part) for part in _list_parts(core_list))


def _list_cores(core_list: str) -> Iterator[int]:
    """The numbers of at most so many cores as a machine has; a NUMA node may have none."""
    for part in _list_parts(core_list) if core_list else ():
        yield from part[:_MOST_CORES]


def _list_parts(core_list: str) -> Iterator[range]:
    for part in core_list.split(","):
        span = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part)
        first, last = (int(span[1]), int(span[2] or span[1])) if span else (0, -1)
        if last < first:
            raise ProbeParseError(f"unreadable list of cores: {escape_text(core_list)}")
        yield range(first, last + 1)


PROBES = (CORES, ONLINE_CORES, MEMORY_NODES)
RULES = (find_narrow_affinity,)
