"""Builds the command that runs a rank in a container, from what this node has.

The agent stays outside. Values of variables never reach the command line, where every user of the node can read them.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

# Apptainer is the later name of Singularity; both read the variables of their own name.
VARIABLE_PREFIXES = {"apptainer": "APPTAINER", "singularity": "SINGULARITY"}
RUN_LABEL = "aboard.run"
# What NCCL and its plug-ins read, and InfiniBand's devices.
SYSTEM_PATHS = ("/etc/nccl.conf", "/etc/crusoe", "/opt/hpcx", "/dev/infiniband")
# Variables that name files or directories which libraries read or fill, and where they are by default.
PATH_VARIABLES = {
    "NCCL_TOPO_FILE": "",
    "NCCL_GRAPH_FILE": "",
    "NCCL_CONF_FILE": "",
    "HF_HOME": "~/.cache/huggingface",
    "TORCH_HOME": "~/.cache/torch",
    "TRITON_CACHE_DIR": "~/.triton",
    "TORCH_EXTENSIONS_DIR": "~/.cache/torch_extensions",
    "WANDB_DIR": "",
    "WANDB_CONFIG_DIR": "~/.config/wandb",
    "NETRC": "~/.netrc",
}
# Variables of the node's login that ranks in a container get, as ranks outside do.
INHERITED_PREFIXES = ("NCCL_", "GLOO_", "UCX_", "HF_", "WANDB_", "MLFLOW_", "TORCH_", "OMP_", "CUDA_VISIBLE", "SLURM_")
# Variables of the node's login that describe its own Python, and break the one inside.
OUTSIDE_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX", "LD_PRELOAD", "LD_LIBRARY_PATH")
# Puts our modules before those of the image, whose own PYTHONPATH is known only inside.
WITH_PATH = 'PYTHONPATH="$ABOARD_PATH${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH; unset ABOARD_PATH; exec "$@"'


class ContainerSpec:
    """A container of the head's request: see `Container` in core/cluster/node.py for the fields."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.runtime = str(fields["runtime"])
        self.image = str(fields["image"])
        self.binds = [str(bind) for bind in fields.get("binds") or ()]
        self.directories = [str(path) for path in fields.get("directories") or ()]
        self.options = [str(option) for option in fields.get("options") or ()]
        self.writable_tmpfs = bool(fields.get("writable_tmpfs"))
        self.gpus = str(fields.get("gpus") or "auto")
        self.workdir = fields.get("workdir")
        self.entry = str(fields.get("entry") or "exec")

    def list_directories(self, home: str) -> list[str]:
        """The directories that the run reads and writes; they may not exist yet."""
        return [home + path[1:] if path.startswith("~/") else path for path in self.directories]

    @property
    def is_apptainer(self) -> bool:
        return self.runtime in VARIABLE_PREFIXES


def wrap_command(
    spec: ContainerSpec,
    argv: Sequence[str],
    env: Mapping[str, str],
    given: Iterable[str],
    *,
    run: str,
    directory: str,
    cwd: str | None,
    exists: Callable[[str], bool] = os.path.exists,
) -> tuple[list[str], dict[str, str]]:
    """The runtime's argv and environment that run `argv` inside; `given` are the variables that Aboard sets.

    The run's directory is bound at its own path: the beacon, its socket and files for stacks are in it.
    """
    names = set(given)
    path = env.get("PYTHONPATH", "") if "PYTHONPATH" in names else ""
    inside = list(argv)
    outer = {name: value for name, value in env.items() if name not in OUTSIDE_VARIABLES or name in names}
    if path:
        inside = ["/bin/sh", "-c", WITH_PATH, "sh", *inside]
        outer["ABOARD_PATH"] = path
        outer.pop("PYTHONPATH", None)
        names = (names - {"PYTHONPATH"}) | {"ABOARD_PATH"}
    binds = [*spec.binds, directory, *spec.list_directories(env.get("HOME", "")), *_list_paths(env, cwd, exists)]
    workdir = spec.workdir or cwd
    if spec.is_apptainer:
        return _wrap_apptainer(spec, inside, outer, names, binds, workdir, directory, exists)
    return _wrap_docker(spec, inside, outer, names, binds, workdir, run, exists)


def _wrap_apptainer(
    spec: ContainerSpec,
    argv: list[str],
    env: dict[str, str],
    names: set[str],
    binds: list[str],
    workdir: str | None,
    directory: str,
    exists: Callable[[str], bool],
) -> tuple[list[str], dict[str, str]]:
    prefix = VARIABLE_PREFIXES[spec.runtime]
    for name in names:
        if name in env:
            # The image may set the same variable: this one wins.
            env["%sENV_%s" % (prefix, name)] = env[name]
    # An image that it must unpack goes there, and is removed with the run's directory whatever happens.
    env[prefix + "_TMPDIR"] = directory
    words = [spec.runtime, "--quiet", spec.entry]
    for bind in _drop_duplicates(binds):
        words += ["--bind", bind]
    if workdir and "--pwd" not in spec.options:
        words += ["--pwd", workdir]
    gpus = _detect_gpus(exists) if spec.gpus == "auto" else spec.gpus
    words += {"nvidia": ["--nv"], "rocm": ["--rocm"]}.get(gpus, [])
    words += ["--writable-tmpfs"] if spec.writable_tmpfs else []
    return [*words, *spec.options, spec.image, *argv], env


def _wrap_docker(
    spec: ContainerSpec,
    argv: list[str],
    env: dict[str, str],
    names: set[str],
    binds: list[str],
    workdir: str | None,
    run: str,
    exists: Callable[[str], bool],
) -> tuple[list[str], dict[str, str]]:
    words = [spec.runtime, "run", "--rm", "--label", "%s=%s" % (RUN_LABEL, run), "--network=host", "--ipc=host"]
    if spec.runtime == "podman":
        # PID 1 ignores signals that it does not handle: an init forwards them to Python.
        words += ["--init", "--ulimit=host"]
    else:
        words += ["--init", "--ulimit=memlock=-1", "--user=%d:%d" % (os.getuid(), os.getgid())]
    inherited = [name for name in env if name.startswith(INHERITED_PREFIXES)]
    for name in sorted({*names, *inherited} & env.keys()):
        words += ["--env", name]
    for bind in _drop_duplicates(binds):
        source, _, rest = bind.partition(":")
        if source.startswith("/dev/") and not rest:
            words += ["--device", source]
        else:
            words += ["--volume", "%s:%s" % (source, rest or source)]
    if workdir:
        words += ["--workdir", workdir]
    gpus = _detect_gpus(exists) if spec.gpus == "auto" else spec.gpus
    if gpus == "nvidia":
        words += ["--device=nvidia.com/gpu=all"] if spec.runtime == "podman" else ["--gpus=all"]
    elif gpus == "rocm":
        words += ["--device=/dev/kfd", "--device=/dev/dri"]
    if not spec.writable_tmpfs:
        words += ["--read-only", "--tmpfs=/tmp"] if spec.runtime == "docker" else ["--read-only"]
    entry = [] if spec.entry == "run" else ["--entrypoint=%s" % argv[0]]
    return [*words, *spec.options, *entry, spec.image, *(argv if spec.entry == "run" else argv[1:])], env


def _list_paths(env: Mapping[str, str], cwd: str | None, exists: Callable[[str], bool]) -> list[str]:
    """The working directory, and what NCCL, caches and trackers use, where it exists."""
    home = env.get("HOME", "")
    paths = [cwd] if cwd else []
    paths += [path for path in SYSTEM_PATHS if exists(path)]
    for name, usual in PATH_VARIABLES.items():
        path = env.get(name) or (usual.replace("~", home, 1) if home else "")
        if path.startswith("/") and exists(path):
            paths.append(path)
    return paths


def _detect_gpus(exists: Callable[[str], bool]) -> str:
    if exists("/dev/nvidiactl"):
        return "nvidia"
    return "rocm" if exists("/dev/kfd") else "none"


def _drop_duplicates(binds: Iterable[str]) -> list[str]:
    """Each target once: the user's own binds come first, and win."""
    by_target: dict[str, str] = {}
    for bind in binds:
        parts = bind.split(":")
        by_target.setdefault(parts[1] if len(parts) > 1 else parts[0], bind)
    return list(by_target.values())
