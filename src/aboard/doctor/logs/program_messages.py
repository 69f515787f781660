"""Log messages about a rank's own program: CUDA, disks, Python environment, data and checkpoints."""

from aboard.diagnoses.diagnosis import Diagnosis, warning
from aboard.diagnoses.output_patterns import KERNEL_XID, cause, end, odd

ILLEGAL_ACCESS = Diagnosis(
    code="log-illegal-access",
    title="a GPU kernel accessed invalid memory",
    symptoms=("CUDA error: an illegal memory access was encountered",),
    explanation="An invalid memory access usually comes from a bug in a GPU kernel or from an out-of-range index,"
    " rarely from a GPU fault.",
    fixes="export CUDA_LAUNCH_BLOCKING=1    # then rerun: the traceback shows the failing line\n"
    "sudo dmesg -T | grep -i xid    # on {node}; an Xid other than 13 or 31 points to the hardware",
    # Xid 13 and 31 usually come from the program: a kernel accessed memory out of bounds.
    patterns=cause(
        r"CUDA error: an illegal memory access was encountered|illegal memory access|misaligned address"
        r"|CUDA error: unspecified launch failure|Warp Illegal|" + KERNEL_XID + r"(?:13|31)\b",
        weight=2,
    ),
)

GPU_MEMORY = Diagnosis(
    code="log-gpu-memory",
    title="the GPU is out of memory",
    symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate",),
    explanation="The program needs more memory than the GPU has free. Usually the batch is too large, or another"
    " process uses the same GPU.",
    fixes="nvidia-smi    # on {node}; does another process use the GPU? Otherwise use a smaller batch, more sharding,"
    " or activation checkpointing",
    patterns=(
        cause(
            r"(?:NCCL WARN|Last error:|ncclUnhandledCudaError).*Cuda failure (?:\d+ )?'out of memory'"
            r"|Failed to CUDA (?:calloc|host alloc|malloc)",
            "The GPU had no memory left for NCCL's buffers.",
        ),
        cause(
            r"(?:torch\.)?(?:cuda\.)?OutOfMemoryError: |CUDA out of memory|CUDA error: out of memory"
            r"|CUBLAS_STATUS_ALLOC_FAILED|HIP out of memory"
        ),
    ),
)

DEVICE_ASSERT = Diagnosis(
    code="log-device-assert",
    title="a GPU kernel received an invalid value",
    symptoms=("CUDA error: device-side assert triggered",),
    explanation="An assertion in a GPU kernel failed, usually because a token id or a label is out of range.",
    fixes="export CUDA_LAUNCH_BLOCKING=1    # then rerun: the traceback shows the failing line\n"
    "assert max(input_ids) < model.config.vocab_size    # in the script: checks for the usual cause",
    patterns=cause(
        r"CUDA error: device-side assert triggered|Assertion `[^`]*` failed[\s\S]*blockIdx|indexSelectLargeIndex"
        r"|ScatterGatherKernel\.cu",
        weight=2,
    ),
)

CUDA_ERROR = Diagnosis(
    code="log-cuda-error",
    title="a CUDA call failed",
    symptoms=("CUDA error: unknown error", "CUBLAS_STATUS_EXECUTION_FAILED"),
    explanation="CUDA reports errors late: the line in the traceback is often not the one that failed.",
    fixes="export CUDA_LAUNCH_BLOCKING=1    # then rerun: the traceback shows the failing line\n"
    "sudo dmesg -T | grep -i xid    # on {node}; did the GPU fail?",
    patterns=cause(r"CUDA error: (?P<error>[^\n]+)|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|AcceleratorError: ", weight=1),
)

IO_ERROR = Diagnosis(
    code="log-io-error",
    title="a disk is failing",
    symptoms=("OSError: [Errno 5] Input/output error", "blk_update_request: I/O error"),
    explanation="The kernel could not read from or write to one of this node's disks. Usually the disk itself is"
    " failing.",
    fixes="sudo dmesg -T | grep -iE 'i/o error|nvme|ext4|xfs'; sudo smartctl -a /dev/DISK    # on {node}",
    patterns=cause(
        r"\[Errno 5\]|Input/output error|I/O error, dev (?P<device>\w+)|EXT4-fs error|XFS .*(?:[Cc]orruption"
        r"|error)|blk_update_request: I/O error|nvme\d.*(?:timeout|I/O Error)",
        late=True,
        precedence=600,
    ),
)

PERMISSION = Diagnosis(
    code="log-permission",
    title="access to a path is denied on a node",
    symptoms=("PermissionError: [Errno 13] Permission denied:",),
    explanation="The user that runs the ranks has no permission to use this path on this node. User and group ids may"
    " differ between nodes.",
    fixes="ls -ld {path}; id    # on {node}; uid and gid must be the same on all nodes",
    patterns=(
        cause(r"PermissionError: \[Errno 13\] Permission denied: '(?P<path>[^']+)'", weight=2),
        cause(
            r"cannot create directory ['\u2018](?P<path>/run/enroot[^'\u2019]*)['\u2019]: Permission denied",
            "enroot can't write its runtime directory. The user may not create it: set ENROOT_RUNTIME_PATH in"
            " /etc/enroot/enroot.conf to a directory that each user can write.",
            precedence=190,
        ),
        cause(
            r"cannot (?:create|open|remove|stat|access|touch)\b.{0,40}['\u2018](?P<path>/[^'\u2019]+)['\u2019].*Perm"
            r"ission denied",
            precedence=195,
            weight=2,
        ),
    ),
)

MODULE_MISSING = Diagnosis(
    code="log-module-missing",
    title="a rank's Python lacks a module",
    symptoms=("ModuleNotFoundError: No module named 'flash_attn'",),
    explanation="The module is not installed in the Python environment that this rank uses. That environment usually"
    " differs from the one on the machine where you started the job.",
    fixes="python3 -m pip install {module}    # on {node}; or start ranks with the right Python's absolute path",
    patterns=cause(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'|No module named (?P<module2>[\w.]+)$"),
)

LIBRARY = Diagnosis(
    code="log-library",
    title="a native library is missing or has the wrong version",
    symptoms=("ImportError: libcudart.so.11.0: cannot open shared object file", "undefined symbol: ncclCommRegister"),
    explanation="A native library is missing on this node, or its version differs from the one that the program was"
    " built against.",
    fixes="python -c 'import torch'; ldd FILE.so | grep 'not found'    # on {node}\n"
    "echo $LD_LIBRARY_PATH    # on {node}; the first match in these directories is loaded",
    patterns=cause(
        r"Error: (?P<library>lib[\w.+-]+): cannot open shared object file"
        r"|Error: .*undefined symbol: (?P<symbol>\w+)"
        r"|version `(?P<version>\w+_[\d.]+)' not found|symbol lookup error"
    ),
)

IMPORT = Diagnosis(
    code="log-import",
    title="a package has a different version than the code needs",
    symptoms=("ImportError: cannot import name",),
    explanation="Usually the code uses a class or function that the installed version of a package doesn't have.",
    fixes="python -m pip list | grep -iE 'torch|transformers|deepspeed|accelerate|peft'    # on each node",
    patterns=cause(
        r"ImportError: cannot import name '(?P<name>\w+)'"
        r"|AttributeError: module '(?P<module>[\w.]+)' has no attribute|ImportError: ",
        weight=2,
    ),
)

HUB = Diagnosis(
    code="log-hub",
    title="the Hugging Face Hub requires a login",
    symptoms=("GatedRepoError: 401 Client Error", "Cannot access gated repo for url"),
    explanation="The Hugging Face Hub requires a login with access to this model, and this node is not logged in or"
    " has no access.",
    fixes="hf auth login    # on {node}, or set HF_TOKEN in the ranks' environment; request access on the model's page",
    patterns=cause(
        r"GatedRepoError|401 Client Error|403 Client Error|RepositoryNotFoundError|Cannot access gated repo"
    ),
)

HUB_UNREACHABLE = Diagnosis(
    code="log-hub-unreachable",
    title="a node can't reach the Hugging Face Hub",
    symptoms=("We couldn't connect to 'https://huggingface.co' to load the files", "LocalEntryNotFoundError"),
    explanation="This node can't reach the Hugging Face Hub and has no local copy of the files. Compute nodes often"
    " have no internet access.",
    fixes="hf download MODEL --local-dir /shared/MODEL    # on a machine with internet access; then use that path\n"
    "export HF_HUB_OFFLINE=1    # uses only the cache",
    patterns=cause(
        r"LocalEntryNotFoundError|We couldn't connect to 'https://huggingface"
        r"|Max retries exceeded with url: .*huggingface|OfflineModeIsEnabled"
        r"|Connection error, and we cannot find the requested files in the (?:disk )?cache"
        r"|HTTPSConnectionPool\(host='huggingface"
    ),
)

MODEL_MISSING = Diagnosis(
    code="log-model-missing",
    title="a model's path does not exist",
    symptoms=("is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",),
    explanation="The model's path does not exist on this node, or the model's name is wrong. transformers treats a"
    " missing path as a name on the Hugging Face Hub.",
    fixes="ls PATH    # on {node}; is the directory there, with config.json?",
    patterns=cause(
        r"is not a local folder and is not a valid model identifier|Can't load (?:tokenizer|config|the model) for"
        r"|does not appear to have a file named|Repo id must be in the form"
    ),
)

WANDB = Diagnosis(
    code="log-wandb",
    title="Weights & Biases has no API key or no internet access",
    symptoms=("wandb.errors.UsageError: api_key not configured",),
    explanation="wandb raises an exception if it has no API key or can't reach its server. The exception ends the rank"
    " unless the script catches it.",
    fixes="aboard launch --env WANDB_API_KEY -- …    # after `export WANDB_API_KEY=…` here: gives every rank the key\n"
    "aboard launch --env WANDB_MODE=offline -- …    # if the nodes have no internet access",
    patterns=cause(r"wandb(?:\.errors)?[.:].*(?:api_key not configured|UsageError|CommError|AuthenticationError)"),
)

SYNTAX = Diagnosis(
    code="log-syntax",
    title="this Python can't parse the code",
    symptoms=("SyntaxError: invalid syntax",),
    explanation="The file may have been copied only in part, or it may be written for a newer Python than this node's.",
    fixes="python --version; sha256sum *.py    # on each node, where the script is",
    patterns=cause(r"^SyntaxError: |^IndentationError: ", weight=2),
)

LOADER = Diagnosis(
    code="log-loader",
    title="a data-loader worker died",
    symptoms=("DataLoader worker (pid(s) 4711) exited unexpectedly",),
    explanation="A data-loader worker exited, so the rank can't get its next batch. If the worker raised an exception,"
    " the log shows it above this error.",
    fixes={
        "died": "num_workers=0    # in the DataLoader: the exception then comes from the rank itself\n"
        "df -h /dev/shm; free -g    # on {node}; shared memory and host memory are the usual causes",
        "raised": "num_workers=0    # in the DataLoader: the exception then comes from the rank itself",
    },
    patterns=(
        cause(r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) exited unexpectedly", fix="died", weight=1),
        end(
            r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
            "A data-loader worker raised an exception. The log shows its traceback below this line.",
            fix="raised",
        ),
    ),
)

TOKEN_RANGE = Diagnosis(
    code="log-token-range",
    title="a token id is outside the embedding table",
    symptoms=("IndexError: index out of range in self",),
    explanation="The tokenizer's vocabulary is larger than the model's embedding table, so some token ids have no"
    " row in that table.",
    fixes="model.resize_token_embeddings(len(tokenizer))    # or use the model's own tokenizer",
    patterns=cause(
        r"IndexError: index out of range in self|Token indices.{0,200}vocab.{0,100}(?:exceed|larger)", weight=2
    ),
)

UNUSED_PARAMETERS = Diagnosis(
    code="log-unused-parameters",
    title="DDP waited for a gradient that never arrived",
    symptoms=("Expected to have finished reduction in the prior iteration before starting a new one.",),
    explanation="DDP waits for the gradients of all parameters, and in this step a parameter had none, usually because"
    " the forward pass did not use it.",
    fixes="DistributedDataParallel(model, find_unused_parameters=True)    # or remove the parameter from the model",
    patterns=cause(
        r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once"
    ),
)

MODEL_DIFFERS = Diagnosis(
    code="log-model-differs",
    title="ranks built different models",
    symptoms=("DDP expects same model across all ranks, but Rank 0 has",),
    explanation="All ranks must train the same model. Usually one node has a different config, vocabulary or package"
    " version.",
    fixes="sha256sum CONFIG; python -m pip list | grep -iE 'torch|transformers'    # on each node",
    patterns=cause(
        r"DDP expects same model across all ranks|appears not to match (?:sizes"
        r"|strides) of the same param in process 0|inconsistent \d+ params"
    ),
)

NAN = warning(
    code="log-nan",
    title="the loss is NaN or infinite",
    symptoms=("{'loss': nan, 'grad_norm': nan}",),
    explanation="Possible causes: the learning rate is too high, fp16 overflows, a row in the dataset is broken, or a"
    " GPU computes wrong results.",
    fixes="grep -n -m1 -i 'nan' LOG    # the first step with NaN; resume from an earlier checkpoint\n"
    "export TORCH_NCCL_NAN_CHECK=1    # then rerun: shows which rank introduces NaN",
    patterns=odd(
        r"(?i)['\"]?(?:train_|eval_)?loss['\"]?\s*[:=]\s*['\"]?(?:nan|inf)\b"
        r"|grad_?norm['\"]?\s*[:=]\s*['\"]?(?:nan|inf)\b|(?:loss|gradients?) (?:is|became|are) (?:nan|inf"
        r"|not finite)|non-finite (?:loss|grad)"
    ),
)

CHECKPOINT_TORN = Diagnosis(
    code="log-checkpoint-torn",
    title="a checkpoint is incomplete",
    symptoms=(
        "PytorchStreamReader failed reading zip archive: failed finding central directory",
        "Error while deserializing header: MetadataIncompleteBuffer",
    ),
    explanation="A file in the checkpoint was not written completely. Usually the disk was full, or the run was killed"
    " while it was writing.",
    fixes="ls -l CHECKPOINT    # if a file is smaller than the others, resume from the previous checkpoint",
    patterns=cause(
        r"failed finding central directory|PytorchStreamReader failed|HeaderTooLarge|MetadataIncompleteBuffer"
        r"|InvalidHeaderDeserialization|HeaderTooSmall|EOFError: Ran out of input"
        r"|_pickle\.UnpicklingError: (?:invalid load key|pickle data was truncated)|incomplete metadata"
    ),
)

WEIGHTS_ONLY = Diagnosis(
    code="log-weights-only",
    title="a checkpoint contains more than weights",
    symptoms=("Weights only load failed.",),
    explanation="Since version 2.6, torch loads only weights by default, and this file contains other objects.",
    fixes="torch.load(FILE, weights_only=False)    # only for files that you trust: loading can run code in them",
    patterns=cause(r"Weights only load failed"),
)

CHECKPOINT_SHAPE = Diagnosis(
    code="log-checkpoint-shape",
    title="the checkpoint doesn't match the model or the number of ranks",
    symptoms=("size mismatch for lm_head.weight: copying a param with shape", "Missing key(s) in state_dict"),
    explanation="The checkpoint was written for a different model; or it was written by a different number of ranks,"
    " and the code that loads it can't reshard it.",
    fixes="grep -nE 'vocab_size|hidden_size|num_hidden_layers' config.json    # compare it with the checkpoint's",
    patterns=cause(
        r"size mismatch for (?P<name>[\w.]+): copying a param|(?:Missing|Unexpected) key\(s\) in state_dict"
        r"|Error\(s\) in loading state_dict|DP world size of \d+ but the current world size"
        r"|different (?:number of ranks|world size)"
    ),
)

AMD = Diagnosis(
    code="log-amd-gpu",
    title="the kernel reports an error of an AMD GPU",
    symptoms=(
        "amdgpu 0000:1c:00.0: {1}uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT) detected!",
        "[drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring sdma0 timeout, signaled seq=16060, emitted seq=16062",
    ),
    explanation="The GPU has a hardware error, or hung until the driver reset it. Its memory is lost, and with it the"
    " rank.",
    fixes="sudo dmesg -T | grep -i amdgpu; rocm-smi --showrasinfo all    # on {node}; if it recurs, exclude {node}",
    patterns=cause(
        r"amdgpu (?P<pci>[\da-f:.]+): .{0,80}uncorrectable (?:hardware )?error|amdgpu_job_timedout.{0,60} ring \S+"
        r" timeout|amdgpu: (?:GPU reset begin|.{0,20} ?reset failed)|VRAM is lost",
        late=True,
    ),
)

HIP_DEVICE = Diagnosis(
    code="log-hip-device",
    title="ROCm finds no GPU that it may use",
    symptoms=("Test HIP failure common.cu:1129 'hipErrorInvalidDevice'", "no ROCm-capable device is detected"),
    explanation="The process has no access to /dev/kfd and /dev/dri, usually in a container that was started without"
    " them or by a user outside of their groups; or more ranks were started than there are GPUs.",
    fixes="ls -l /dev/kfd /dev/dri/render*; id    # on {node}, where ranks run; is the user in the devices' groups?\n"
    "docker run --device=/dev/kfd --device=/dev/dri --group-add video …    # for a container",
    patterns=cause(r"hipError(?:InvalidDevice|NoDevice)\b|no ROCm-capable device"),
)

OFI = Diagnosis(
    code="log-ofi",
    title="NCCL's plugin for EFA (libfabric) failed",
    symptoms=(
        "NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument",
        "NCCL WARN NET/OFI Request 0x7f completed with error. RC: 113. Error: 4126 (Unresponsive receiver",
    ),
    explanation="The plugin (aws-ofi-nccl) can't use the adapter: libfabric is older than the one that the plugin was"
    " built with, versions differ between nodes, or the container has no access to the devices.",
    fixes={
        "": "fi_info -p efa; fi_info --version    # on {node}, where ranks run: the same on all nodes?\n"
        "ls -l /dev/infiniband    # on {node}, inside the container",
        "group": "aws ec2 describe-security-group-rules    # the nodes' group must allow all traffic from itself and"
        " to itself; 0.0.0.0/0 does not cover EFA",
        "memory": "ulimit -l; grep -i huge /proc/meminfo    # on {node}, where ranks run: unlimited, and huge pages"
        " free?",
    },
    patterns=(
        cause(
            r"NET/OFI .{0,400}(?:[Uu]nresponsive rec|Error: 41(?:19|26)\b|[Uu]nreachable remote)",
            "EFA's packets don't reach the peer. The security group must allow all traffic from itself and to itself;"
            " otherwise the peer has died, or the nodes are in different subnets.",
            fix="group",
        ),
        cause(
            r"NET/OFI .{0,400}(?:Cannot allocate memory|ENOMEM|RC: -12\b)",
            "EFA could not register memory: locked memory, huge pages or the adapter's own resources are used up.",
            fix="memory",
        ),
        cause(
            r"NCCL WARN NET/OFI .{0,400}(?:[Cc]ould ?n[o']t|[Uu]nable to|[Ff]ailed|with error|[Ee]rror)",
            weight=2,
            precedence=510,
        ),
    ),
)
