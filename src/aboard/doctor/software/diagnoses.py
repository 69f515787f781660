"""Software that ranks run: Python, packages, code and variables, which must match on every node."""

from aboard.diagnoses.diagnosis import Diagnosis, remark, warning
from aboard.diagnoses.fixes import Advice
from aboard.diagnoses.output_patterns import cause

_SAME = (
    "On the nodes that differ from the majority, install the majority's version, from the same index: `python3 -m pip"
    " install NAME==VERSION`. An environment in a shared directory or a container image can't differ between nodes."
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

_OTHER = "# To use a different Python instead, add: --set cluster.python="
_SYNC = "aboard sync --env{on:shell  --on NODES}    # creates the environment on the nodes"
_INSTALL = "{look:shell}    # install it on {nodes:shell}"
_SAME_PYTHON = {
    "look": "{look:shell}    # if it exists, set `python:` for {node} in aboard.yaml to this path; otherwise install"
    " it",
    "all": "{lines:shell}",
}
_PIP = {"all": "{lines:shell}"}
_FILES = {"copy": "{lines:shell}", "look": "{look:shell}"}

INTERPRETER = Diagnosis(
    code="software-interpreter",
    title="the active Python environment exists only on some nodes",
    symptoms=("ModuleNotFoundError: No module named 'torch'", "No such file or directory: '/home/me/venv/bin/python'"),
    explanation="Ranks use the environment that is active where you ran the command, at the same path on every node."
    " If only some nodes have it, ranks would run different packages. This is only a warning if python3 on the"
    " other nodes has the same versions of torch and of the script's imports as the environment.",
    remedy="`aboard sync --env` creates a virtual environment at the same path on all nodes. An environment on a shared"
    " file system is on all nodes anyway. To use a different Python, pass `--set cluster.python=PATH` or set `python:"
    " PATH` under `cluster:` in aboard.yaml; `python3` selects the login shell's python3.",
    fixes={
        "sync": (_SYNC + "\n" + _OTHER + "python3"),
        "copy": "{lines:shell}\n" + _OTHER + "python3",
        "install": (_INSTALL + "\n" + _OTHER + "python3"),
    },
    leads_to=_FOLLOWS,
)

INTERPRETER_LOGIN = warning(
    code="software-interpreter-login",
    title="the active Python environment exists on none of the nodes",
    symptoms=("ModuleNotFoundError: No module named 'torch'",),
    explanation="The environment that is active where you ran the command does not exist on the nodes, so ranks use"
    " the login shell's python3.",
    remedy="`aboard sync --env` creates a virtual environment on the nodes. To use the nodes' own Python, set `python:"
    " PATH` under `cluster:` in aboard.yaml. `python: python3` keeps the login shell's python3.",
    fixes={
        "sync": (_SYNC + "\n" + _OTHER + "/path/to/python"),
        "copy": "{lines:shell}\n" + _OTHER + "/path/to/python",
        "install": (_INSTALL + "\n" + _OTHER + "/path/to/python"),
    },
    leads_to=("software-import",),
)

INTERPRETER_UNSAFE = Diagnosis(
    code="software-interpreter-unsafe",
    title="another user can change the active Python environment",
    symptoms=("is not used: ", "is writable by the group"),
    explanation="A user other than you and root owns or can write to the interpreter, its packages or a directory"
    " above them, and could change the code that your ranks run. Aboard does not select such an environment"
    " automatically.",
    fixes="--set cluster.python={path}    # add this if you trust that user\n"
    "--set cluster.python=python3    # or this, to use the login shell's python3",
    leads_to=_FOLLOWS,
)

PROGRAM = Diagnosis(
    code="software-program",
    title="the script, module or program is missing on a node",
    symptoms=("can't open file 'train.py': [Errno 2] No such file or directory", "No module named"),
    explanation="Every node runs its own copy of the program. Ranks can't start on a node where it is missing, and the"
    " other ranks would wait for them.",
    remedy="Copy the program to the nodes with `aboard sync`, or launch with `--sync`. Or set `workdir:` in aboard.yaml"
    " to a directory that all nodes share.",
    fixes={
        "sync": "aboard sync{on:shell  --on NODES} {path}    # or add --sync to the command",
        "near": Advice("write {near} in the command: this machine does not have {path} either"),
        "nowhere": Advice("correct the path in the command: this machine does not have {path} either"),
        "copy": "{lines:shell}",
        "install": "{look:shell}    # install it on {nodes:shell}, or use its full path",
        "module": "{try_it:shell}",
    },
    leads_to=("software-code", "software-import", "storage-missing"),
)

COMMAND_PATH = Diagnosis(
    code="software-path",
    title="a path of the command is missing on a node",
    symptoms=("FileNotFoundError: [Errno 2] No such file or directory", "Unable to find", "doesn't exist"),
    explanation="An argument of the command is a file or directory on this machine that a node does not have. Ranks"
    " that read it there fail; a directory for output may be made by the ranks themselves. A configuration of DeepSpeed"
    " is read by every rank, so its absence stops the launch. `aboard sync` leaves out what `.gitignore` names, unless"
    " the path is named.",
    fixes={
        "sync": "aboard sync --ignored {paths:words}{on:shell}",
        "copy": Advice(
            "copy {paths:words} to the working directory on {nodes:shell}, or name a path that all nodes have"
        ),
    },
)

PROGRAM_DIFFERS = Diagnosis(
    code="software-program-differs",
    title="the script differs between nodes",
    symptoms=("Detected mismatch between collectives on ranks",),
    explanation="The script may have been edited on one node only, or copied before the last change. Ranks that run"
    " different code issue different collectives and crash or hang.",
    remedy="Copy the version that most nodes have to the other nodes. If a different version is the right one, copy"
    " that one instead.",
    fixes="{lines:shell}",
    leads_to=("software-code",),
)

IMPORT = warning(
    code="software-import",
    title="the script imports a package that a node doesn't have",
    symptoms=("ModuleNotFoundError: No module named",),
    explanation="The node's interpreter can't find the module. Ranks there fail with ModuleNotFoundError, unless the"
    " script itself makes the module importable.",
    fixes="{try_it:shell}    # install what provides {them} on {nodes:shell}\n"
    "--set cluster.python=/path/to/python    # or add this, with the path of a Python that has {them}",
)

PYTHON = Diagnosis(
    code="software-python",
    title="nodes run different Python versions",
    symptoms=("ModuleNotFoundError: No module named 'torch'", "ValueError: unsupported pickle protocol"),
    explanation="Ranks with different Python versions load different packages, and may not be able to read each"
    " other's pickles. Commands over ssh don't get a login shell, so `conda activate` or `module load` lines in a"
    " start-up file often don't run, and `python3` is then the system's Python.",
    remedy="Set `python:` in aboard.yaml to the full path of the right Python, or put the lines that activate it under"
    " `setup:`. `ssh NODE 'command -v python3; python3 --version'` shows what a rank would get.",
    fixes=_SAME_PYTHON,
)

PYTHON_PATH = remark(
    code="software-python-path",
    title="nodes find Python at different paths",
    symptoms=("python: /opt/conda/bin/python3 on one node, /usr/bin/python3 on another",),
    explanation="The Python version is the same, so the different paths may be intended. However, two environments"
    " match only until one of them is updated.",
    remedy="Set `python:` in aboard.yaml to the same full path for all nodes.",
    fixes=_SAME_PYTHON,
)

TORCH = Diagnosis(
    code="software-torch",
    title="nodes have different versions of torch, or one has none",
    symptoms=(
        "ModuleNotFoundError: No module named 'torch'",
        "Received data size doesn't match expected size. Is there a distributed collective mismatch",
        "Detected mismatch between collectives on ranks",
    ),
    explanation="Ranks with different torch versions are incompatible: their collectives hang, crash, or return wrong"
    " numbers.",
    remedy=_SAME,
    fixes=_PIP,
)

NCCL = Diagnosis(
    code="software-nccl",
    title="nodes have different versions of NCCL",
    symptoms=("Mismatched NCCL version detected : rank", "NCCL WARN Mismatched NCCL version"),
    explanation="NCCL refuses to connect to a different version of itself; older versions just hang. torch ships its"
    " own NCCL, but LD_LIBRARY_PATH or LD_PRELOAD can make a different one load first.",
    remedy=f"{_SAME} Check whether a system libnccl is loaded first: `ldconfig -p | grep nccl`,"
    " `echo $LD_LIBRARY_PATH $LD_PRELOAD`.",
    fixes={**_PIP, "paths": "echo $LD_LIBRARY_PATH $LD_PRELOAD    # on each node, where ranks start"},
    log_fix="python -c 'import torch; print(torch.cuda.nccl.version())'    # on each node, where ranks start\n"
    "echo $LD_LIBRARY_PATH $LD_PRELOAD    # there: a system libnccl that comes first is the usual cause",
    patterns=cause(
        r"Mismatched NCCL version detected ?: rank (?P<rank>\d+) (?:has"
        r"|version) (?P<one>\d+) (?:but )?rank (?P<other>\d+) (?:has|version) (?P<two>\d+)"
        r"|Mismatched NCCL version detected|NCCL version mismatch|unexpected address family 0|socket .*family 0",
        "Nodes load different versions of NCCL, which can't communicate with each other.",
    ),
)

CUDA = Diagnosis(
    code="software-cuda",
    title="nodes have torch builds for different CUDA versions",
    symptoms=(
        "The NVIDIA driver on your system is too old",
        "CUDA error: no kernel image is available for execution on the device",
    ),
    explanation="A torch build for a different CUDA version, or for CPU only, comes with different NCCL and CUDA"
    " libraries, or does not match the installed driver.",
    remedy=_SAME,
    fixes=_PIP,
    log_fix="python -c 'import torch; print(torch.version.cuda, torch.cuda.get_arch_list())'    # on {node}",
    patterns=cause(
        r"no kernel image is available for execution on the device"
        r"|is not compatible with the current PyTorch installation|CUDAMismatchException"
        r"|CUDA version \(?[\d.]+\)? (?:does not match|mismatches) the version",
        "torch, or an extension, was built for GPUs or a CUDA version other than this node's.",
    ),
)

ROCM = Diagnosis(
    code="software-rocm",
    title="nodes have torch builds for different ROCm versions",
    symptoms=("HIP error: invalid device function",),
    explanation="A torch build for a different ROCm version comes with different RCCL and ROCm libraries.",
    remedy=_SAME,
    fixes=_PIP,
)

PACKAGE = warning(
    code="software-package",
    title="nodes have different versions of a training library",
    symptoms=("ImportError: cannot import name", "KeyError: 'qwen3'", "unexpected keyword argument"),
    explanation="Ranks that run different library code may take different code paths, and then wait for each other"
    " forever.",
    remedy=_SAME,
    fixes=_PIP,
)

ENVIRONMENT = remark(
    code="software-environment",
    title="nodes have different versions of packages other than training libraries",
    symptoms=("pip freeze differs from node to node",),
    explanation="Small packages seldom affect collectives, but results may differ between nodes.",
    remedy=_SAME,
    fixes="{pip:shell}",
)

CODE = Diagnosis(
    code="software-code",
    title="the code in the working directory differs between nodes",
    symptoms=(
        "Received data size doesn't match expected size. Is there a distributed collective mismatch",
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0]",
        "ModuleNotFoundError: No module named",
    ),
    explanation="Each node runs its own files. Ranks that run different code issue different collectives, so they"
    " crash with mismatched sizes or wait forever.",
    remedy="Copy the files from a node that has the majority version, or from the edited node if its version is the"
    " right one. A working directory on shared storage can't differ between nodes.",
    fixes=_FILES,
)

CONFIG = warning(
    code="software-config",
    title="configuration files in the working directory differ between nodes",
    symptoms=("ds_config.json differs", "batch size or sequence length isn't the same on all ranks"),
    explanation="If a DeepSpeed, Accelerate or trainer configuration file differs, ranks use different batch sizes or"
    " ZeRO stages. JSON and YAML files may also be results from earlier runs, so a difference does not stop a launch.",
    remedy="Copy the file to all nodes. Directories named `outputs`, `runs` or `logs` are not compared: keep results"
    " there.",
    fixes=_FILES,
)

VARIABLE = warning(
    code="software-variable",
    title="an NCCL, CUDA or torch variable differs between nodes",
    symptoms=("NCCL_DEBUG", "NCCL_IB_DISABLE", "NCCL_PROTO", "LD_LIBRARY_PATH"),
    explanation="Ranks with different settings may choose different algorithms or networks, and then can't communicate."
    " The variables may come from start-up files, PAM or sshd. Tokens and keys are compared by digest and never shown.",
    remedy="Set the variable once under `env:` in aboard.yaml, which takes precedence, or remove it from the file that"
    " sets it: `grep -n NAME ~/.bashrc ~/.profile /etc/environment`.",
    fixes={
        "look": "{look:shell}    # here; shows whether one of these files sets it",
        "set": Advice("env: {{{name}: {value}}}    # in aboard.yaml, under cluster:; one value for all nodes"),
    },
)
