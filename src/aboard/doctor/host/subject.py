"""Host: each node's kernel, clock and resources; each part has its own file."""

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from aboard.core.probes.check_subject import Subject
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeFiles, ProbeParseError
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor import host as package
from aboard.doctor.host import diagnoses as host
from aboard.doctor.host.cpu_cores import CORES
from aboard.doctor.host.leftovers import LEFTOVERS
from aboard.doctor.host.memory import MEMORY
from aboard.doctor.shared.answer_text import extract_file_text, extract_files
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule

__all__ = ["ACCELERATORS", "CORES", "KERNEL", "MEMORY", "PROBES", "SUBJECT"]


def parse_kernel(answer: ProbeAnswer) -> Untrusted:
    release = extract_file_text(answer).strip()
    if not release:
        raise ProbeParseError("an empty kernel release")
    return Untrusted(release)


def parse_accelerators(answer: ProbeAnswer) -> tuple[Untrusted, ...]:
    """The models of the NVIDIA GPUs that the driver sees, one each; none without a driver."""
    found = []
    for _path, text in sorted(extract_files(answer).items()):
        model = re.search(r"^Model:\s*(.+)$", text, re.MULTILINE)
        found.append(Untrusted(model[1].strip() if model else "unknown model"))
    return tuple(found)


KERNEL = Probe(name="kernel", question=ProbeFiles(globs=("/proc/sys/kernel/osrelease",)), parse=parse_kernel)
ACCELERATORS = Probe(
    name="accelerators",
    question=ProbeFiles(globs=("/proc/driver/nvidia/gpus/*/information",)),
    parse=parse_accelerators,
)


# Each other file of this package has PROBES and RULES, in the order of their names.
_PARTS = [
    import_module(f"{package.__name__}.{module.name}")
    for module in iter_modules(package.__path__)
    if module.name not in ("subject", "diagnoses")
]

PROBES: tuple[Probe[Any], ...] = (KERNEL, ACCELERATORS, *(probe for part in _PARTS for probe in part.PROBES))

SUBJECT = Subject(
    name="host",
    title="every reachable host has the resources for a run",
    probes=PROBES,
    rules=(*(rule for part in _PARTS for rule in part.RULES), make_unknown_rule(*PROBES)),
    multi_node_probes=(LEFTOVERS,),
    diagnoses=(*list_diagnoses(host), unanswered_probes.LEFTOVERS, *list_unknown_diagnoses(PROBES)),
)
