"""The GPUs of a node as a training run sees them: their memory, and whether they support bfloat16."""

import re

from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.shared.answer_text import require_output
from aboard.lazy_dataclass import dataclass
from aboard.trainer.memory.usable_memory import find_usable_memory

# The CUDA compute capability from which bfloat16 is supported in hardware: Ampere.
BF16_SINCE = 8.0
_LINE = re.compile(r"([0-9]{1,9}), ([0-9]{1,3}\.[0-9]{1,3}), ([0-9]{1,9})")


@dataclass(frozen=True, kw_only=True)
class GpuSpec:
    """One GPU: the bytes of memory that ranks can use, and its compute capability."""

    memory: int
    capability: float


def parse_gpu_specs(answer: ProbeAnswer) -> tuple[GpuSpec, ...]:
    """The GPUs; empty on a node without NVIDIA's tools."""
    output = require_output(answer, "nvidia-smi timed out")
    lines = [line.strip() for line in output.stdout.splitlines() if line.strip()]
    if output.code != 0 or not lines or "No devices were found" in lines[0]:
        return ()
    found = [_LINE.fullmatch(line) for line in lines]
    for number, (line, match) in enumerate(zip(lines, found, strict=True)):
        if match is None:
            raise ProbeParseError(f"GPU {number} reports no memory size: {escape_text(line, 100)}")
    return tuple(
        GpuSpec(memory=find_usable_memory(int(each[3]) * MIB, int(each[1]) * MIB), capability=float(each[2]))
        for each in found
        if each
    )


GPU_SPECS = Probe(
    name="cards",
    question=ProbeCommand(
        argv=("nvidia-smi", "--query-gpu=memory.total,compute_cap,memory.free", "--format=csv,noheader,nounits")
    ),
    parse=parse_gpu_specs,
)
