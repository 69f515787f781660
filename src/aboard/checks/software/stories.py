"""The long stories of the software codes."""

from aboard.checks.software.facts import SOFTWARE
from aboard.checks.unknown import unknown_stories
from aboard.core.finding import Severity
from aboard.core.story import Story

_SAME = (
    "The surest way is one environment that all nodes see at the same path: on a shared directory, or in a container"
    " image. If each node has its own, write its packages down once (`python3 -m pip freeze > requirements.txt`) and"
    " install that file on every node (`python3 -m pip install -r requirements.txt`)."
)

STORIES = (
    Story(
        code="software-python",
        title="Nodes run different versions of Python",
        severity=Severity.BLOCK,
        shows=("ModuleNotFoundError: No module named 'torch'", "ValueError: unsupported pickle protocol"),
        why="Over ssh, a command gets a shell that is neither a login shell nor interactive, so `conda activate` or"
        " `module load` lines of a start-up file often don't run there, and `python3` is the system's. Each version of"
        " Python has its own packages, so nearly everything else differs too.",
        mend="Give the whole path of the right Python as `python:` in aboard.yaml, for all nodes or for one, or put"
        " what activates it under `setup:`. `ssh NODE 'command -v python3; python3 --version'` shows what a rank would"
        " get.",
    ),
    Story(
        code="software-python-path",
        title="Nodes find Python at different paths",
        severity=Severity.INFO,
        shows=("python: /opt/conda/bin/python3 on one node, /usr/bin/python3 on another",),
        why="The version is the same, so this may be meant. Often it is not: two environments look alike until one is"
        " updated.",
        mend="Give the same whole path as `python:` in aboard.yaml for all nodes.",
    ),
    Story(
        code="software-torch",
        title="Nodes have different versions of torch, or one has none",
        severity=Severity.BLOCK,
        shows=(
            "ModuleNotFoundError: No module named 'torch'",
            "Received data size doesn't match expected size. Is there a distributed collective mismatch",
            "Detected mismatch between collectives on ranks",
        ),
        why="torch brings NCCL, CUDA and the code that decides which collective comes next. Two versions may meet and"
        " then wait for each other, crash, or sum what doesn't belong together.",
        mend=f"Install the version of the finding on the node that it names. {_SAME}",
    ),
    Story(
        code="software-nccl",
        title="Nodes have different versions of NCCL",
        severity=Severity.BLOCK,
        shows=("Mismatched NCCL version detected : rank", "NCCL WARN Mismatched NCCL version"),
        why="All ranks of a communicator must run the same NCCL. Since 2.23 it says so and ends; earlier versions hang"
        " while they connect. The version is that of the package which torch brings; LD_LIBRARY_PATH and LD_PRELOAD can"
        " put another library before it.",
        mend=f"Install the version of the finding on the node that it names, and look for a library of the system that"
        f" comes first: `ldconfig -p | grep nccl`, `echo $LD_LIBRARY_PATH $LD_PRELOAD`. {_SAME}",
    ),
    Story(
        code="software-cuda",
        title="torch is built for different versions of CUDA",
        severity=Severity.BLOCK,
        shows=(
            "The NVIDIA driver on your system is too old",
            "CUDA error: no kernel image is available for execution on the device",
            "AssertionError: Torch not compiled with CUDA enabled",
        ),
        why="The same torch comes in builds for several CUDA versions and one for the CPU only. They bring other NCCL"
        " versions and kernels, and need other drivers.",
        mend=f"Install torch on the node from the same package index as on the others. {_SAME}",
    ),
    Story(
        code="software-rocm",
        title="torch is built for different versions of ROCm",
        severity=Severity.BLOCK,
        shows=("HIP error: invalid device function",),
        why="The same torch comes in builds for several ROCm versions; they bring other RCCL versions and kernels.",
        mend=f"Install torch on the node from the same package index as on the others. {_SAME}",
    ),
    Story(
        code="software-package",
        title="Nodes have different versions of a training library",
        severity=Severity.WARN,
        shows=("ImportError: cannot import name", "KeyError: 'qwen3'", "unexpected keyword argument"),
        why="transformers, accelerate, DeepSpeed, flash-attn and the like decide what a rank computes and when it calls"
        " a collective. Small differences often do no harm, and sometimes one rank takes another path and all wait.",
        mend=f"Install the version of the finding on the node that it names. {_SAME}",
    ),
    Story(
        code="software-environment",
        title="Nodes have different versions of other packages",
        severity=Severity.INFO,
        shows=("pip freeze differs from node to node",),
        why="None of them is a library that training usually stands on, so this is worth a line and no more.",
        mend=_SAME,
    ),
    Story(
        code="software-code",
        title="The code in the working directory differs from node to node",
        severity=Severity.BLOCK,
        shows=(
            "Received data size doesn't match expected size. Is there a distributed collective mismatch",
            "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
            "ModuleNotFoundError: No module named",
        ),
        why="Each node runs the files that it has. After an edit on one node only, ranks make different collectives,"
        " and the error that comes of it names neither the file nor the node.",
        mend="The fix of the finding copies the files that differ from a node that has what most have. If the edited"
        " node is the one that is right, copy the other way round. A working directory on shared storage can't"
        " differ.",
    ),
    Story(
        code="software-config",
        title="Settings in the working directory differ from node to node",
        severity=Severity.WARN,
        shows=("ds_config.json differs", "batch size or sequence length isn't the same on all ranks"),
        why="A DeepSpeed, Accelerate or trainer file that differs gives ranks different batch sizes or stages. JSON and"
        " YAML files may also be results of earlier runs, so this does not stop a launch. If the files could not be"
        " listed, it is not known which they are.",
        mend="Copy the file as the finding says, or keep results in a directory called `outputs`, `runs` or `logs`,"
        " which are not compared.",
    ),
    Story(
        code="software-variable",
        title="A variable of NCCL, CUDA or torch is not the same everywhere",
        severity=Severity.WARN,
        shows=("NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_PROTO", "OMP_NUM_THREADS", "LD_LIBRARY_PATH"),
        why="Variables come from start-up files, PAM or sshd, and one node's may be left from an experiment. Ranks that"
        " disagree about NCCL_IB_DISABLE, NCCL_PROTO or NCCL_ALGO don't find each other or hang in the first"
        " collective.",
        mend="Write the variable once under `env:` in aboard.yaml; it then comes before what the node has. Or take it"
        " out of the file that sets it: `grep -n NAME ~/.bashrc ~/.profile /etc/environment`. Names that are rightly"
        " different (CUDA_VISIBLE_DEVICES, NCCL_SOCKET_IFNAME, NCCL_IB_HCA) and what aboard.yaml sets for one node are"
        " not compared. Values of tokens and keys are compared by a digest and never shown.",
    ),
    *unknown_stories((SOFTWARE,)),
)
