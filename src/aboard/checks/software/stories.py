"""The long stories of the software codes."""

from aboard.checks.software.facts import SOFTWARE
from aboard.checks.unknown import unknown_stories
from aboard.core.story import Story
from aboard.diagnoses import Severity

_SAME = (
    "The surest way is one environment that all nodes see at the same path: on a shared directory, or in a container"
    " image. If each node has its own, write its packages down once (`python3 -m pip freeze > requirements.txt`) and"
    " install that file on every node (`python3 -m pip install -r requirements.txt`)."
)

_FOLLOWS = (
    "software-python",
    "software-python-path",
    "software-torch",
    "software-cuda",
    "software-nccl",
    "software-package",
    "software-environment",
    "software-import",
    "collective-no-rank",
    "collective-not-held",
)

STORIES = (
    Story(
        code="software-interpreter",
        title="The active Python environment is on some nodes only",
        severity=Severity.BLOCK,
        shows=("ModuleNotFoundError: No module named 'torch'", "No such file or directory: '/home/me/venv/bin/python'"),
        why="Ranks use the environment that is active on the head ($VIRTUAL_ENV, $CONDA_PREFIX, or the one that runs"
        " aboard) on every node that has it at the same path. If only some nodes have it, ranks would run different"
        " packages. It is a warning if python3 of the others has the same versions of torch and of everything that the"
        " script imports.",
        mend="Make the environment at the same path on the nodes that lack it, or put it on a shared directory. To use"
        " another interpreter, add `--set cluster.python=PATH` or write `python: PATH` under `cluster:` in aboard.yaml;"
        " `python3` means the login shell's.",
        leads_to=_FOLLOWS,
    ),
    Story(
        code="software-interpreter-login",
        title="The active Python environment is on none of the nodes",
        severity=Severity.WARN,
        shows=("ModuleNotFoundError: No module named 'torch'",),
        why="Ranks use the environment that is active on the head where nodes have it at the same path. No node has it,"
        " so ranks use python3 of the login shell.",
        mend="If that is meant, write `python: python3` under `cluster:` in aboard.yaml. Otherwise make the environment"
        " on the nodes, or give the path of theirs.",
        leads_to=("software-import",),
    ),
    Story(
        code="software-interpreter-unsafe",
        title="Another user can change the active Python environment",
        severity=Severity.BLOCK,
        shows=("is not used: ", "is writable for the group"),
        why="The interpreter, its packages or a directory above them belong to another user who is not root, or can be"
        " written by one. That user could make your ranks run any code with your rights. Aboard does not choose such an"
        " environment by itself.",
        mend="If you trust its owner, name it yourself: `--set cluster.python=PATH`, or `python: PATH` under `cluster:`"
        " in aboard.yaml. Otherwise make an environment of your own, or take the others' write permission away.",
        leads_to=_FOLLOWS,
    ),
    Story(
        code="software-program",
        title="The script, module or program is not on a node",
        severity=Severity.BLOCK,
        shows=("can't open file 'train.py': [Errno 2] No such file or directory", "No module named"),
        why="Every node runs its own copy. A script that exists only where the command was typed can't start elsewhere,"
        " and the ranks that do start would wait for the others.",
        mend="Copy it as the finding says, or work in a directory that all nodes share. `workdir:` in aboard.yaml says"
        " where ranks start.",
        leads_to=("software-code", "software-import", "storage-missing"),
    ),
    Story(
        code="software-program-differs",
        title="The script is not the same on all nodes",
        severity=Severity.BLOCK,
        shows=("Detected mismatch between collectives on ranks",),
        why="It was edited on one node only, or copied before the last change. Ranks of different scripts issue"
        " different collectives.",
        mend="Copy it as the finding says; if the odd one is right, copy it the other way.",
        leads_to=("software-code",),
    ),
    Story(
        code="software-import",
        title="The script imports a package that a node does not have",
        severity=Severity.WARN,
        shows=("ModuleNotFoundError: No module named",),
        why="The import stands at the top level of the script, and the interpreter of the node finds no such module."
        " The script may still make it importable by itself, so this is a warning.",
        mend=f"Install the package into the interpreter that the finding names, or choose another interpreter. {_SAME}",
    ),
    Story(
        code="unknown-environment",
        title="A node did not say whether it has the environment and the script",
        severity=Severity.WARN,
        shows=("whether it has your Python environment and your script is not known",),
        why="The paths did not answer in time: the environment, the working directory or the script may be on a dead"
        " mount.",
        mend="Type the command of the finding. If it hangs, the mount is dead: see storage-dead-mount.",
    ),
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
