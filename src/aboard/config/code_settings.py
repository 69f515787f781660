"""What in aboard.yaml or .deepspeed_env decides which code runs with the user's rights, without their typing it."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from aboard.config.yaml_tree import VERBATIM, Items, Leaf, Table, Tree, convert_to_builtins
from aboard.lazy_dataclass import dataclass

_NODE_KEYS = frozenset({"python", "setup", "container"})
# By section; variables in `env` count by their names.
CODE_KEYS: Mapping[str, frozenset[str]] = {
    "cluster": _NODE_KEYS,
    "cluster.nodes": _NODE_KEYS,
    "cluster.slurm": frozenset({"extra"}),
    "train": frozenset({"trust_remote_code"}),
}

# Patterns of variables with which a program loads or starts what they name, or sends the user's credentials there.
_LOADING_VARIABLES = (
    # Directories and files in general: PATH, PYTHONPATH, LD_LIBRARY_PATH, GCONV_PATH, UCX_MODULE_DIR, HF_HOME, HOME.
    *("*PATH", "*PATH_*", "*HOME", "*_PREFIX", "*LIB*", "*_MODULE*", "*_ENGINES", "OPENSSL_*", "IPYTHON*"),
    *("*_CONF", "*CONFIG*", "*_CONF_FILE", "*RC", "*_CACHE_DIR", "*_EXTENSIONS_DIR", "*_HANDLER*"),
    # The dynamic linker and the C library; plugins, injected libraries and drivers of CUDA, NCCL, ROCm and MPI.
    *("LD_*", "DYLD_*", "GLIBC_TUNABLES", "*PRELOAD*", "*_PLUGIN*", "*_INJECTION*", "*_DRIVER*", "*_ICD_*"),
    *("FLEXIBLAS*", "INTEL_*", "XPTI_*", "UR_*"),
    # Switches of loaders that otherwise refuse code.
    *("*TRUST*", "*WEIGHTS_ONLY*"),
    *("OMPI_*", "PMIX_*", "PRTE_*", "OPAL_*", "I_MPI_*", "MPI_*", "KINETO_*", "TRITON_*", "TORCHINDUCTOR_*"),
    # Interpreters and shells.
    *("PYTHON*", "PERL*", "RUBY*", "NODE_*", "LUA_*", "R_*", "JAVA_*", "_JAVA_OPTIONS", "JDK_*", "MPLBACKEND"),
    *("BASH*", "ENV", "SHELL*", "PS4", "PROMPT_COMMAND", "IFS", "ZDOTDIR", "LESSOPEN", "LESSCLOSE"),
    # Programs that other programs start.
    *("*_COMMAND", "*ASKPASS", "*EDITOR", "VISUAL", "*PAGER", "BROWSER", "GIT_*", "SSH_*", "*_OPTIONS", "*_OPTS"),
    *("CC", "CXX", "CPP", "LD", "AR", "NVCC*", "*CXX", "*_COMPILER*", "*FLAGS", "CMAKE_*", "NINJA*", "CONDA_*"),
    # Package managers, containers and Slurm.
    *(
        "PIP_*",
        "UV_*",
        "APPTAINER*",
        "SINGULARITY*",
        "DOCKER_*",
        "CONTAINER*",
        "PODMAN*",
        "SLURM_*",
        "SBATCH_*",
        "SRUN_*",
    ),
    # Where tokens and downloads go.
    *(
        "*_PROXY",
        "*_ENDPOINT*",
        "*_URL*",
        "*_URI",
        "*CREDENTIALS*",
        "*_CA_BUNDLE",
        "SSL_CERT_*",
        "HOSTALIASES",
        "RES_OPTIONS",
        "ABOARD_*",
    ),
)
# Options of sbatch that start nothing and write nowhere.
_RESOURCE_OPTIONS = frozenset(
    {
        *("--exclusive", "--oversubscribe", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--tmp", "--gres", "--gpus"),
        *("--gpus-per-node", "--gpu-freq", "--cpus-per-task", "--cpus-per-gpu", "--cores-per-socket", "--hint"),
        *("--sockets-per-node", "--threads-per-core", "--mincpus", "--constraint", "--prefer", "--nodelist"),
        *("--exclude", "--contiguous", "--switches", "--reservation", "--licenses", "--nice", "--priority", "--qos"),
        *("--begin", "--deadline", "--time-min", "--dependency", "--hold", "--account", "--partition", "--clusters"),
    }
)
_HARMLESS_VARIABLES = frozenset(
    {
        *("PYTHONUNBUFFERED", "PYTHONHASHSEED", "PYTHONFAULTHANDLER", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8"),
        *("PYTHONIOENCODING", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONOPTIMIZE", "XLA_FLAGS", "KINETO_LOG_LEVEL"),
        *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    }
)


@dataclass(frozen=True, kw_only=True)
class CodeSetting:
    """A setting that names code: its key, its value in plain types, and its position in the file."""

    key: str
    value: Any
    where: str


def names_code(variable: str) -> bool:
    """Whether a program may load or start what this environment variable names."""
    name = variable.upper()
    return name not in _HARMLESS_VARIABLES and any(fnmatchcase(name, pattern) for pattern in _LOADING_VARIABLES)


def list_code_settings(tree: Table) -> list[CodeSetting]:
    """The settings of an aboard.yaml that name code, in the order of the file."""
    return [setting for key, value in tree.values.items() for setting in _list_section_settings(key, key, value)]


def list_code_variables(env: Mapping[str, str], file: str) -> list[CodeSetting]:
    """The variables of an environment file that name code."""
    return [CodeSetting(key=name, value=value, where=file) for name, value in env.items() if names_code(name)]


def _list_section_settings(path: str, section: str, tree: Tree) -> "Iterator[CodeSetting]":
    """What is no section has no such key, and validation refuses an unknown one."""
    for key, value in tree.values.items() if isinstance(tree, Table) else ():
        below = f"{path}.{key}"
        if section == "cluster.slurm" and key == "extra" and _asks_for_resources_only(value):
            continue
        if key in CODE_KEYS.get(section, ()):
            yield _build_setting(below, value)
        elif key == "env" and isinstance(value, Table):
            yield from (
                _build_setting(f"{below}.{name}", value.values[name]) for name in value.values if names_code(name)
            )
        elif section == "cluster" and key == "nodes":
            for number, entry in enumerate(value.values if isinstance(value, Items) else (value,)):
                yield from _list_section_settings(f"{below}[{number}]", "cluster.nodes", entry)
        elif section == "cluster" and key == "slurm":
            yield from _list_section_settings(below, "cluster.slurm", value)


def _asks_for_resources_only(tree: Tree) -> bool:
    """Whether all of these options of sbatch only say which nodes a job gets, and when."""
    options = tree.values if isinstance(tree, Items) else (tree,)
    return all(isinstance(each, Leaf) and each.text.partition("=")[0] in _RESOURCE_OPTIONS for each in options)


def _build_setting(key: str, tree: Tree) -> CodeSetting:
    value = convert_to_builtins(tree, verbatim=VERBATIM, as_text=".env." in key)
    return CodeSetting(key=key, value=value, where=tree.where)
