"""Whether torch on each node can use the node's GPUs: its own CUDA version, and what the driver supports."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import enter_container, format_node_command, get_setup_lines
from aboard.core.decoding import Matching, MaxLength
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.slurm.job_nodes import NO_GPUS_OPTION
from aboard.diagnoses import Finding, Fix, chain_commands, format_shell, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS
from aboard.doctor.shared.answer_text import NOT_INSTALLED, require_output
from aboard.doctor.shared.script_probes import Plain, build_rank_command, decode_script_output, parse_script_output
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script

# Without the driver's directory there is nothing to ask, and no Python to start.
_IF_DRIVER = '[ -e /proc/driver/nvidia/version ] || exit 0; exec "$@"'
# The driver wakes every GPU when the first program asks.
_SECONDS = 30.0
_MOST_ERROR = 160
# The oldest driver of each CUDA version (https://docs.nvidia.com/deploy/cuda-compatibility). torch 2.8 and later, which
# training needs, have no builds for CUDA 11.
_DRIVERS = {12: "525", 13: "580"}
# GPUs before Turing, for which cu128 and cu130 have no kernels, and Blackwell, for which cu126 has none
# (https://github.com/pytorch/pytorch/blob/main/RELEASE.md).
_BEFORE_TURING = re.compile(r"\b[VP]100\b|\bTesla [PM]\d|GTX (?:9|10)\d\d|TITAN (?:V|X)|Quadro [GPM]?[VP]\d")
_BLACKWELL = re.compile(r"\bG?B[23]00\b|RTX 50\d\d|Blackwell")


@dataclass(frozen=True, kw_only=True)
class CudaSupport:
    """What torch was built for, and what the driver says: `supported` is 12040 for 12.4, `error` that of cuInit."""

    torch: Plain = ""
    cuda: Annotated[str, Matching(r"([0-9]{1,3}(\.[0-9]{1,3}){1,2})?")] = ""
    hip: Plain = ""
    supported: int = 0
    code: int = 0
    devices: int = 0
    error: Annotated[Untrusted, MaxLength(300)] = NO_TEXT


def parse_cuda_support(answer: ProbeAnswer) -> CudaSupport | None:
    """None on a node without the driver, or without the ranks' Python, which the software subject reports."""
    output = require_output(answer, "asking the driver timed out; a lost GPU can make it hang")
    if output.code == NOT_INSTALLED or (output.code == 0 and not output.stdout.strip()):
        return None
    return decode_script_output(CudaSupport, parse_script_output(answer))


def find_unusable_gpus(facts: Facts) -> dict[str, Finding]:
    """The nodes whose GPUs torch can't use: ranks there would compute on the CPU, or fail in their first collective."""
    drivers, smi = facts.of(DRIVER), facts.of(GPUS)
    found = {}
    for node in facts.cluster:
        support, driver = facts.of(CUDA).get(node.name), drivers.get(node.name)
        # A Slurm job without GPUs on a node that has some uses CPUs on purpose.
        if support is None or driver is None or not driver.cards or NO_GPUS_OPTION in node.step_options:
            continue
        if support.torch and not support.hip and (reason := _describe_obstacle(support, driver.version)):
            known = smi.get(node.name)
            models = "" if known is None else "; ".join(each.model.raw() for each in known.gpus)
            found[node.name] = _build_finding(node, support, models, reason)
    return found


def find_cuda_problems(facts: Facts) -> Iterator[Finding]:
    """As in `find_unusable_gpus`."""
    yield from find_unusable_gpus(facts).values()


def _describe_obstacle(support: CudaSupport, driver: str) -> str:
    """Why this torch can't use the GPUs; empty if it can. A driver runs every CUDA of its own major version."""
    if not support.cuda:
        return f"torch {support.torch} is a CPU build; the driver {driver} {_describe_newest(support)}"
    if not support.supported:
        return f"the driver {driver} is loaded, but ranks can't load its library: {support.error.visible(_MOST_ERROR)}"
    if support.supported // 1000 < int(support.cuda.partition(".")[0]):
        return (
            f"torch {support.torch} needs a driver for CUDA {support.cuda}; the driver {driver}"
            f" {_describe_newest(support)}"
        )
    if support.code:
        return f"CUDA doesn't start: error {support.code}, {support.error.visible(_MOST_ERROR)}; driver {driver}"
    return ""


def _describe_newest(support: CudaSupport) -> str:
    if not support.supported:
        return "is loaded"
    return f"supports CUDA up to {support.supported // 1000}.{support.supported % 1000 // 10}"


def _choose_build(supported: int, models: str) -> str:
    """The name of torch's builds for this driver and these GPUs; empty if there is none, and cu126 if it is unknown."""
    newest = min(supported // 1000, max(_DRIVERS)) if supported else min(_DRIVERS)
    if newest not in _DRIVERS:
        return ""
    if _BEFORE_TURING.search(models):
        return "cu126"
    return "cu130" if newest > min(_DRIVERS) else "cu128" if _BLACKWELL.search(models) else "cu126"


def _build_finding(node: Node, support: CudaSupport, models: str, reason: str) -> Finding:
    fixes: list[Fix] = []
    needs = int(support.cuda.partition(".")[0]) if support.cuda else min(_DRIVERS)
    too_old = bool(support.supported) and support.supported // 1000 < needs
    if (not support.cuda or too_old) and (build := _choose_build(support.supported, models)):
        install = format_shell(
            "{python} -m pip install --force-reinstall torch --index-url {index}",
            python=node.rank_python,
            index=f"https://download.pytorch.org/whl/{build}",
        )
        command = format_node_command(node, chain_commands(*get_setup_lines(node), enter_container(node, install)))
        fixes.append(gpu.CUDA.fix("torch", command=command))
    if too_old and needs in _DRIVERS:
        cuda = support.cuda or f"{needs}.x"
        fixes.append(gpu.CUDA.fix("driver", least=_DRIVERS[needs], cuda=cuda, node=node.name))
    if not fixes:
        fixes.append(gpu.CUDA.fix("look", node=node.name))
    return gpu.CUDA.finding(nodes=(node.name,), seen=reason, fix=join_fixes(*fixes, gpu.CUDA.fix("cpu")))


def _build_question(node: Node) -> ProbeCommand:
    words = ("sh", "-c", _IF_DRIVER, "sh")
    command = build_rank_command(node, "-c", read_script("cuda_support"), timeout=_SECONDS)
    return replace(command, argv=(*words, *command.argv))


CUDA = Probe(name="cuda", question=_build_question, parse=parse_cuda_support)
