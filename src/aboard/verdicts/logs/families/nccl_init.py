"""NCCL's set-up and its errors as torch passes them on."""

from aboard.verdicts.logs.symptom import Symptom, cause, echo, end

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "log-world-mismatch",
        r"Bootstrap Root ?: rank (?P<rank>\d+) of (?P<world>\d+) ranks has already checked in"
        r"|Bootstrap Root ?: mismatch in (?:info|rank count) from procs",
        "Two processes came with the same rank, or with another world size than the rest.",
        "echo $RANK $WORLD_SIZE    # where each rank starts: every number from 0 once, and one world size",
        weight=3,
    ),
    cause(
        "hang-mismatch",
        r"Message truncated ?: received [\d,]+ bytes instead of",
        "Two ranks met in different collectives, or with tensors of different size: their code or data differs.",
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL    # then start again: torch names the ranks and both collectives",
        weight=3,
    ),
    # Up to 2.29, then in other words.
    cause(
        "log-same-gpu",
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<other>\d+) both on CUDA device (?P<device>\w+)"
        r"|Multiple Ranks are using the same GPU",
        "Two ranks took one GPU: the script never calls torch.cuda.set_device(LOCAL_RANK), or more ranks were started"
        " than there are GPUs.",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))    # in the script, before init_process_group",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}; fewer GPUs than ranks?",
        weight=3,
    ),
    cause(
        "log-nvls",
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory|NVLS multicast.*(?:failed|error)"
        r"|transport/nvls\.cc:\d+ NCCL WARN",
        "The switches between the GPUs (NVSwitch) can't set up multicast: the fabric manager isn't well, or"
        " its memory"
        " is used up by another container.",
        "export NCCL_NVLS_ENABLE=0    # goes on without it",
        "sudo systemctl restart nvidia-fabricmanager    # on {node}, when no GPU is in use",
        weight=3,
    ),
    cause(
        "host-shm",
        r"[Ee]rror: failed to extend (?P<file>/dev/shm/\S+) to (?P<size>\d+) bytes|Error while (?:creating"
        r"|attaching to) shared memory",
        "Shared memory (/dev/shm) is too small or full; in a container it has 64 MB by default.",
        "df -h /dev/shm    # on {node}, inside of the container",
        "docker run --shm-size=16g …    # or --ipc=host; Apptainer: --bind /dev/shm",
        weight=3,
    ),
    cause(
        "log-gpu-memory",
        r"(?:NCCL WARN|Last error:|ncclUnhandledCudaError).*Cuda failure (?:\d+ )?'out of memory'"
        r"|Failed to CUDA (?:calloc|host alloc|malloc)",
        "The GPU had no room left for NCCL's buffers.",
        "nvidia-smi    # on {node}; does something else use the GPU? else a smaller batch",
        weight=3,
    ),
    cause(
        "gpu-count",
        r"Cuda failure (?:\d+ )?'invalid device ordinal'|CUDA error: invalid device ordinal|invalid device ordinal",
        "A rank was given the number of a GPU that isn't there: more ranks on the node than GPUs it may see.",
        "echo $CUDA_VISIBLE_DEVICES; nvidia-smi -L    # on {node}, where ranks start",
        weight=3,
    ),
    cause(
        "gpu-driver-mismatch",
        r"CUDA driver version is insufficient for CUDA runtime version|NVIDIA driver on your system is too old",
        "torch was built for a newer CUDA than this node's driver can do.",
        "nvidia-smi | head -4    # on {node}; Driver Version and the CUDA that it can do",
        "python -c 'import torch; print(torch.version.cuda)'    # the CUDA that torch wants",
        weight=3,
    ),
    cause(
        "log-nccl-algorithm",
        r"no algorithm/protocol available",
        "NCCL_ALGO or NCCL_PROTO leave NCCL no way to do a collective.",
        "unset NCCL_ALGO NCCL_PROTO    # where ranks start; NCCL chooses by itself",
        weight=3,
    ),
    cause(
        "log-nccl-invalid",
        r"ncclInvalidArgument|ncclInvalidUsage",
        "NCCL was called in a way that it can't obey; its own warning above says which.",
        "export NCCL_DEBUG=WARN    # then start again: the line before this one says why",
        weight=1,
    ),
    cause(
        "log-nccl-system",
        r"ncclSystemError|unhandled system error",
        "A system call failed inside of NCCL, and the log doesn't say which: with NCCL_DEBUG=INFO it would.",
        "export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG",
        "aboard check --only network    # interfaces and firewalls are the usual reasons",
        weight=1,
    ),
    cause(
        "log-nccl-cuda",
        r"ncclUnhandledCudaError|Cuda failure (?:\d+ )?'(?P<error>[^']+)'|NCCL WARN Cuda failure",
        "A CUDA call failed inside of NCCL.",
        "sudo dmesg -T | grep -i xid    # on {node}; did a GPU fail?",
        "export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG",
        weight=1,
    ),
    cause(
        "log-nccl-internal",
        r"ncclInternalError",
        "NCCL met what it did not expect: mostly libraries that don't fit each other, or a broken topology.",
        "export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG",
        "aboard check --only software    # what differs between nodes",
        weight=1,
    ),
    echo(r"ncclRemoteError|remote process exited or there was a network error"),
    echo(r"ncclCommAbort|NCCL communicator was aborted|Abort COMPLETE"),
    end(
        "run-exited",
        r"DistBackendError: NCCL error in: ",
        "torch passes on an error of NCCL.",
        "export NCCL_DEBUG=INFO    # then start again, and: aboard why --log LOG",
    ),
)
