"""Containers that start, but whose ranks would differ between nodes or lack what the node has."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.fixes import Advice

_OPTIONS = "container: {{options: [{option}]}}    # in aboard.yaml"

IMAGE_DIFFERS = Diagnosis(
    code="container-image-differs",
    title="nodes have different versions of the container's image",
    symptoms=("an error on one node only, although all ranks run in the same container",),
    explanation="Ranks of one job must run the same software. Another image may have another torch or NCCL, which then"
    " fails in the first collective or, worse, computes something else.",
    fixes={"file": "{lines:shell}", "store": "{lines:shell}    # or pull it by its digest on every node"},
    leads_to=(
        *("software-torch", "software-nccl", "software-cuda", "software-rocm", "software-python", "software-package"),
        *("software-environment", "software-import", "software-code"),
    ),
)

UNPACKING = remark(
    code="container-unpacking",
    title="the image must be unpacked before ranks start",
    symptoms=("INFO:    Converting SIF file to temporary sandbox...",),
    explanation="Without its setuid starter, and without FUSE and squashfuse, Apptainer can't mount an image file."
    " Aboard unpacks it once on each node, for all of its ranks, and removes it after the run.",
    fixes="{build:shell}    # once; then use this directory as `image:` in aboard.yaml",
    remedy="An administrator can install squashfuse and allow users to open /dev/fuse, or install apptainer-suid. Or"
    " unpack the image once to a directory on a local disk with `apptainer build --sandbox DIRECTORY IMAGE`, and use"
    " that directory as the image.",
)

INFINIBAND = warning(
    code="container-infiniband",
    title="the container has no access to the node's InfiniBand adapters",
    symptoms=("NCCL INFO NET/IB : No device found.", "NCCL INFO Using network Socket"),
    explanation="The node has InfiniBand or RoCE adapters, but /dev/infiniband is missing in the container. NCCL then"
    " uses TCP sockets without an error, often at a tenth of the rate.",
    fixes={"bind": Advice("container: {{binds: [/dev/infiniband]}}    # in aboard.yaml"), "device": Advice(_OPTIONS)},
)

SHM = warning(
    code="container-shm",
    title="shared memory (/dev/shm) is smaller in the container",
    symptoms=("DataLoader worker (pid 1234) is killed by signal: Bus error.",),
    explanation="Data loaders pass batches through /dev/shm, and NCCL uses it between ranks on the same node. When it"
    " is full, ranks and data loader workers die with a bus error.",
    fixes=Advice(_OPTIONS),
)

LIMITS = warning(
    code="container-limits",
    title="resource limits are lower in the container",
    symptoms=("OSError: [Errno 24] Too many open files", "ibv_reg_mr failed: Cannot allocate memory"),
    explanation="InfiniBand locks the memory that it sends from, and each connection, data loader worker and shard"
    " needs an open file. Above these limits, ranks die.",
    fixes=Advice(_OPTIONS),
)

HOME = warning(
    code="container-home",
    title="the home directory is missing or read-only in the container",
    symptoms=("PermissionError: [Errno 13] Permission denied: '/root/.cache'", "OSError: [Errno 30] Read-only file"),
    explanation="Hugging Face, Triton, torch and wandb write their caches below the home directory unless variables"
    " such as HF_HOME name another one.",
    fixes=Advice("container: {{binds: [{home}], env: {{HOME: {home}}}}}    # in aboard.yaml"),
)

WORKDIR = Diagnosis(
    code="container-workdir",
    title="the working directory is missing in the container",
    symptoms=("python3: can't open file 'train.py': [Errno 2] No such file or directory",),
    explanation="Ranks start in this directory and read their code from it. In the container it does not exist, or it"
    " is another directory of the same name in the image.",
    fixes={
        "bind": Advice("container: {{binds: [{path}]}}    # in aboard.yaml, without options that hide directories"),
        "map": Advice("container: {{binds: ['{source}:{path}']}}    # in aboard.yaml"),
    },
)

VERSIONS = remark(
    code="container-versions",
    title="the container has other versions than the node outside",
    symptoms=("a script that works outside of the container behaves differently inside",),
    explanation="Ranks use the image's versions. What you install outside has no effect on them.",
    fixes="{line:shell}    # prints what ranks import",
)
