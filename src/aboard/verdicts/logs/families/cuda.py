"""CUDA, the driver and the GPUs themselves, with what the kernel says of them."""

from aboard.core.xid import Part, numbers
from aboard.verdicts.logs.symptom import Symptom, cause, odd

_XID = r"NVRM: Xid \((?:PCI:)?(?P<pci>[\w:.]+)\): "
_EVICT = "sudo dmesg -T | grep -i xid    # on {node}; then take the node out, and have the GPU looked at"

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "gpu-lost",
        _XID + rf"(?:{numbers(Part.BUS)})\b"
        r"|fallen off the bus|Unable to determine the device handle for GPU|GPU is lost|RmInitAdapter failed",
        "A GPU left the PCI bus: power, heat, the riser, or the board. Nothing on it works until the node restarts.",
        _EVICT,
        weight=3,
        late=True,
    ),
    cause(
        "gpu-ecc",
        _XID + rf"(?:{numbers(Part.MEMORY)})\b"
        r"|[Uu]ncorrectable ECC error|double[- ]bit ECC|CUDA error: uncorrectable ECC",
        "A GPU's memory has errors that can't be corrected: what it computes can't be trusted.",
        "nvidia-smi -q -d ECC,ROW_REMAPPER    # on {node}; which GPU? reset it, and replace it if they come back",
        weight=3,
        late=True,
    ),
    cause(
        "gpu-nvlink",
        _XID + rf"(?:{numbers(Part.LINK)})\b|NVLink.*(?:fatal|recovery failed)"
        # A switch says "Non-fatal", too.
        r"|SXid \([^)]*\): \d+, Fatal\b",
        "A link between GPUs (NVLink) failed.",
        "nvidia-smi nvlink -s; nvidia-smi nvlink -e    # on {node}; which link has errors?",
        weight=3,
        late=True,
    ),
    # 13, 31 and 43 are mostly the program's own: a kernel that wrote where it may not.
    cause(
        "log-illegal-access",
        r"CUDA error: an illegal memory access was encountered|illegal memory access|misaligned address"
        r"|CUDA error: unspecified launch failure|Warp Illegal|" + _XID + r"(?:13|31)\b",
        "A kernel on the GPU touched memory that isn't its own: a bug in a kernel or an index, rarely the GPU.",
        "export CUDA_LAUNCH_BLOCKING=1    # then start again: the traceback shows the line that did it",
        "sudo dmesg -T | grep -i xid    # on {node}; another Xid beside 13 and 31 is the hardware",
        weight=2,
    ),
    # Told of every process that a failure before took down.
    cause(
        "gpu-xid",
        _XID + r"45\b.*caused by previous Xid (?P<xid>\d+)",
        "The driver ended the process because of an error of the GPU before.",
        "sudo dmesg -T | grep -i xid    # on {node}; Xid {xid} is explained in NVIDIA's list of Xid errors",
        weight=2,
    ),
    cause(
        "gpu-xid",
        _XID + r"(?P<xid>43|45)\b",
        "The driver ended the process: mostly its own fault, or of an error of the GPU before.",
        "sudo dmesg -T | grep -i xid    # on {node}; another Xid before it is the cause",
        weight=1,
    ),
    cause(
        "gpu-xid",
        _XID + rf"(?P<xid>{numbers(Part.PROCESSOR)})\b",
        "The GPU's own processor (GSP) doesn't answer: calls to it never return until the node restarts.",
        "sudo reboot    # on {node}; if Xid {xid} comes again, take the node out: a newer driver, or a repair",
        weight=3,
        late=True,
    ),
    cause(
        "gpu-xid",
        _XID + r"(?P<xid>\d+)",
        "The driver reported an error of the GPU.",
        "sudo dmesg -T | grep -i xid    # on {node}; Xid {xid} is explained in NVIDIA's list of Xid errors",
        weight=3,
        late=True,
    ),
    cause(
        "host-busy-gpu",
        # Alone, `Process N has` is the rank itself; beside `this process has` it is somebody else.
        r"CUDA out of memory\..*Process (?P<pid>\d+) has (?P<held>[\d.]+ [GM]iB) memory in use.*this process has"
        r"|CUDA out of memory\..*this process has.*Process (?P<pid2>\d+) has (?P<held2>[\d.]+ [GM]iB) memory in use",
        "Another process holds memory of this GPU: one that an earlier run left behind, or another user's.",
        "nvidia-smi --query-compute-apps=pid,used_memory,name --format=csv    # on {node}; then end process {pid}",
        weight=3,
    ),
    cause(
        "log-gpu-memory",
        r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: |CUDA out of memory|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED"
        r"|HIP out of memory",
        "The GPU's memory is too small for what was asked of it.",
        "nvidia-smi    # on {node}; does something else use the GPU? else a smaller batch, more sharding,"
        " checkpointing",
        weight=3,
    ),
    cause(
        "log-device-assert",
        r"CUDA error: device-side assert triggered|Assertion `[^`]*` failed.*\n?.*blockIdx"
        r"|indexSelectLargeIndex|ScatterGatherKernel\.cu",
        "A kernel found a value that can't be: mostly a token id or a label past the end of a table.",
        "export CUDA_LAUNCH_BLOCKING=1    # then start again: the traceback shows the line",
        "assert max(input_ids) < model.config.vocab_size    # the usual reason",
        weight=2,
    ),
    cause(
        "gpu-fabric-manager",
        r"Error 802: system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized",
        "The GPUs of this node hang on an NVSwitch, and its fabric manager isn't running.",
        "systemctl status nvidia-fabricmanager    # on {node}; its version must be the driver's",
        "sudo systemctl restart nvidia-fabricmanager    # on {node}",
        weight=3,
    ),
    cause(
        "gpu-driver-mismatch",
        r"Driver/library version mismatch",
        "The driver was upgraded and the old kernel module is still loaded.",
        "sudo reboot    # {node}; or unload and load the nvidia modules when nothing uses them",
        weight=3,
    ),
    cause(
        "log-container-gpu",
        r"Could not find any nv files on this host|nvidia-container-cli: (?:initialization|mount) error"
        r"|could not select device driver .* capabilities: \[\[gpu\]\]|nvidia-container-cli: .*driver",
        "The container gets no GPU: the host has no driver, or the container was started without it.",
        "nvidia-smi    # on {node}, outside of the container: is there a driver at all?",
        "apptainer exec --nv …    # Docker: --gpus all, with nvidia-container-toolkit installed",
        weight=3,
    ),
    cause(
        "gpu-hidden",
        r"No CUDA GPUs are available|Found no NVIDIA driver on your system|CUDA unknown error - this may be due"
        r"|no CUDA-capable device is detected|Unable to proceed, no GPU resources available",
        "The process sees no GPU: hidden by CUDA_VISIBLE_DEVICES, not asked for in Slurm, or no driver.",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}, where ranks start",
        weight=3,
    ),
    cause(
        "software-cuda",
        r"no kernel image is available for execution on the device"
        r"|is not compatible with the current PyTorch installation"
        r"|CUDAMismatchException|CUDA version \(?[\d.]+\)? (?:does not match|mismatches) the version",
        "torch, or an extension, was built for other GPUs or for another CUDA.",
        "python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'    # on {node}",
        weight=3,
    ),
    cause(
        "log-cuda-error",
        r"CUDA error: (?P<error>[^\n]+)|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|AcceleratorError: ",
        "A call to the GPU failed. CUDA tells it late: the line in the traceback is often not the one that did it.",
        "export CUDA_LAUNCH_BLOCKING=1    # then start again: the traceback shows the line",
        "sudo dmesg -T | grep -i xid    # on {node}; did the GPU fail?",
        weight=1,
    ),
    odd(
        "gpu-throttled",
        r"(?:HW|SW) (?:Thermal|Power Brake) Slowdown\s*: Active|clocks? (?:event|throttle) reason.*(?:thermal|brake)",
        "A GPU is slowed down by heat or power, and all others wait for it.",
        "nvidia-smi -q -d PERFORMANCE,TEMPERATURE    # on {node}",
    ),
)
