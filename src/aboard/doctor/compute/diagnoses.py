"""A slot that computes or copies more slowly than its like, fails to, or fails NVIDIA's own diagnostics."""

from aboard.diagnoses.diagnosis import warning

SLOW = warning(
    code="compute-slow",
    title="a slot is slower than the others of its kind",
    symptoms=("one rank is always the slowest", "MFU is lower than on the same GPUs elsewhere"),
    explanation="All ranks wait for the slowest one in every step, so one slow GPU or CPU slows down the whole run.",
    remedy="`nvidia-smi -q -d PERFORMANCE,CLOCK,POWER` shows why a GPU lowers its clocks, and `lspci -vv` the width of"
    " its link. `aboard check --only gpu,host` names throttling, lost PCIe lanes and CPU quotas.",
    fixes={
        "gpu": "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER    # on {node}; why are its clocks low?\n"
        "aboard check --only gpu    # names throttling, power limits and lost PCIe lanes",
        "cpu": "top -bn1 | head -15    # on {node}; does something else use its cores?\n"
        "aboard check --only host    # names CPU quotas and few cores",
    },
)

FAILED = warning(
    code="compute-failed",
    title="a slot can't compute",
    symptoms=("CUDA error: uncorrectable ECC error encountered", "CUDA error: an illegal instruction was encountered"),
    explanation="A matrix multiplication or a copy failed on this slot. A rank there would fail in its first step.",
    fixes="nvidia-smi -q    # on {node}; then: sudo dmesg | grep -i xid",
)

DCGM = warning(
    code="compute-dcgm",
    title="NVIDIA's diagnostics found a fault",
    symptoms=("dcgmi diag -r 1 … Fail",),
    explanation="`dcgmi diag -r 1` checks the driver, its libraries, permissions, persistence mode and GPU memory pages"
    " within seconds. It runs where DCGM is installed and its host engine runs.",
    fixes="dcgmi diag -r 1    # on {node}; prints each test with its reason",
)
