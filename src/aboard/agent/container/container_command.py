"""Builds the command that runs a rank in a container, from what this node has.

The agent stays outside. Values of variables never reach the command line, where every user of the node can read them.
"""

from __future__ import annotations

import os

from aboard.agent.container.runtime_options import has_option, list_bind_targets, split_bind

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

# Apptainer is the later name of Singularity; both read the variables of their own name.
VARIABLE_PREFIXES = {"apptainer": "APPTAINER", "singularity": "SINGULARITY"}
RUN_LABEL = "aboard.run"
# What NCCL, its plug-ins and its topology files usually are, and InfiniBand's devices.
SYSTEM_PATHS = ("/etc/nccl.conf", "/etc/crusoe", "/opt/hpcx", "/dev/infiniband")
# Variables that name a file or directory, and those that libraries use without the variable.
PATH_VARIABLES = {
    "NCCL_TOPO_FILE": "", "NCCL_GRAPH_FILE": "", "NCCL_CONF_FILE": "~/.nccl.conf", "NCCL_NET_PLUGIN": "",
    "NCCL_TUNER_PLUGIN": "", "HF_HOME": "~/.cache/huggingface", "HF_HUB_CACHE": "", "HF_DATASETS_CACHE": "",
    "HF_TOKEN_PATH": "", "TRANSFORMERS_CACHE": "", "TORCH_HOME": "~/.cache/torch", "TORCH_EXTENSIONS_DIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "", "WANDB_DIR": "", "WANDB_CACHE_DIR": "~/.cache/wandb",
    "WANDB_CONFIG_DIR": "~/.config/wandb", "MLFLOW_TRACKING_URI": "~/.mlflow", "NETRC": "~/.netrc", "TMPDIR": "",
}  # fmt: skip
# Variables of the node's login that ranks in a container get, as ranks outside do.
INHERITED_PREFIXES = (
    *("NCCL_", "GLOO_", "UCX_", "FI_", "HF_", "HUGGING_FACE_", "TRANSFORMERS_", "WANDB_", "MLFLOW_", "TORCH"),
    *("TRITON_", "OMP_"),
    *("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_", "NETRC", "TMPDIR"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
# Variables of the node's login that describe its own programs, and break those inside.
OUTSIDE_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONUSERBASE", "VIRTUAL_ENV", "LD_PRELOAD")
OUTSIDE_PREFIXES = ("CONDA_", "_CE_")
# Variables that the runtime itself obeys: a value for inside must not change how it runs outside.
STEERING_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TMPDIR")
CARRIED = "ABOARD_INSIDE_"


# As `apptainer run`. An image that was built without a run script gets one that starts nothing and exits with 0.
RUN_SCRIPT = (
    "while read -r line; do case $line in *'no runscript defined'*) "
    "echo 'FATAL:   image has no run script' >&2; exit 255;; esac; done </.singularity.d/runscript; "
    'exec /.singularity.d/runscript "$@"'
)


class ContainerSpec:
    """A container of the head's request: see `Container` in core/cluster/container.py for the fields."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.runtime = str(fields["runtime"])
        self.image = os.path.expanduser(str(fields["image"]))
        self.binds = [os.path.expanduser(str(bind)) for bind in fields.get("binds") or ()]
        # They may not exist yet.
        self.directories = [os.path.expanduser(str(path)) for path in fields.get("directories") or ()]
        self.options = [str(option) for option in fields.get("options") or ()]
        self.writable_tmpfs = bool(fields.get("writable_tmpfs"))
        self.gpus = str(fields.get("gpus") or "auto")
        self.workdir = fields.get("workdir")
        self.entry = str(fields.get("entry") or "exec")

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
    own: Mapping[str, str] = os.environ,
) -> tuple[list[str], dict[str, str]]:
    """The runtime's argv and environment that run `argv` inside; `given` are the variables that Aboard sets.

    `own` is the node's environment, which the runtime gets. The run's directory is bound at its own path: the beacon,
    its socket and files for stacks are in it.
    """
    values = {name: env[name] for name in given if name in env}
    outer = {name: value for name, value in own.items() if not _is_outside(name)}
    outer.update((name, value) for name, value in values.items() if name not in STEERING_VARIABLES)
    build = _build_apptainer if spec.is_apptainer else _build_docker
    paths = [*filter(_can_bind, spec.directories), *_list_paths({**own, **values}, cwd, exists)]
    binds = [*spec.binds, directory, *paths]
    taken = list_bind_targets(spec.options)
    binds = [bind for bind in _drop_duplicates(binds) if split_bind(bind)[1] not in taken]
    # An empty one is the image's own.
    workdir = cwd if spec.workdir is None else spec.workdir
    return build(spec, list(argv), outer, values, binds, run, directory, exists, workdir)


def run_after_setup(setup: Sequence[str], words: Sequence[str]) -> list[str]:
    """The command after the node's setup lines, which run outside and may load modules for another Python."""
    unset = (word for name in OUTSIDE_VARIABLES for word in ("-u", name))
    return [*setup, "env", *unset, *words] if setup else list(words)


def _build_apptainer(
    spec: ContainerSpec,
    argv: list[str],
    env: dict[str, str],
    values: dict[str, str],
    binds: list[str],
    _run: str,
    directory: str,
    exists: Callable[[str], bool],
    workdir: str | None,
) -> tuple[list[str], dict[str, str]]:
    prefix = VARIABLE_PREFIXES[spec.runtime]
    if "PYTHONPATH" in values:
        argv = _carry_variables({"PYTHONPATH": values.pop("PYTHONPATH")}, argv, values)
    # The image may set the same variables: these win.
    env.update(("%sENV_%s" % (prefix, name), value) for name, value in values.items())
    # Else a shell inside would evaluate the values, such as a password with a `$`.
    env[prefix + "_NO_EVAL"] = "1"
    # What it unpacks without /dev/fuse goes there, and is removed with the run's directory whatever happens.
    env.setdefault(prefix + "_TMPDIR", directory)
    entry = spec.entry
    if entry == "run" and not has_option(spec.options, "--app"):
        entry, argv = "exec", ["/bin/sh", "-c", RUN_SCRIPT, "sh", *argv]
    words = [spec.runtime, "--quiet", entry]
    for bind in binds:
        words += ["--bind", bind]
    if workdir and not has_option(spec.options, "--pwd", "--cwd"):
        words += ["--pwd", workdir]
    if not has_option(spec.options, "--nv", "--nvccli", "--rocm"):
        words += {"nvidia": ["--nv"], "rocm": ["--rocm"]}.get(_choose_gpus(spec, exists), [])
    words += ["--writable-tmpfs"] if spec.writable_tmpfs else []
    return [*words, *spec.options, spec.image, *argv], env


def _build_docker(
    spec: ContainerSpec,
    argv: list[str],
    env: dict[str, str],
    values: dict[str, str],
    binds: list[str],
    run: str,
    _directory: str,
    exists: Callable[[str], bool],
    workdir: str | None,
) -> tuple[list[str], dict[str, str]]:
    # Home is bound as Apptainer does, except packages in it that were installed for the node's Python.
    home = values.get("HOME") or env.get("HOME", "")
    values = {"PYTHONNOUSERSITE": "1", **({"HOME": home} if home else {}), **values}
    carried = {name: values.pop(name) for name in STEERING_VARIABLES if name in values}
    argv = _carry_variables(carried, argv, values)
    env.update(values)
    # Ranks of one node share memory through /dev/shm; SELinux would hide the binds and the beacon's socket.
    words = [spec.runtime, "run", "--rm", "--label", "%s=%s" % (RUN_LABEL, run)]
    words += ["--network=host", "--ipc=host", "--security-opt=label=disable"]
    # PID 1 ignores signals that it does not handle: an init forwards them to Python.
    words += ["--init", *_list_user_and_limits(spec, env)]
    inherited = (name for name in env if name.startswith(INHERITED_PREFIXES) and CARRIED + name not in values)
    for name in sorted({*values, *inherited}):
        words += ["--env", name]
    if home and exists(home) and home not in list_bind_targets(spec.options):
        binds = _drop_duplicates([*binds, home])
    for bind in binds:
        source, target, mode = split_bind(bind)
        is_device = source == target and source.startswith("/dev/")
        words += ["--device", source] if is_device else ["--volume", ":".join(filter(None, (source, target, mode)))]
    workdir = home if workdir is None else workdir
    if workdir and not has_option(spec.options, "--workdir", "-w"):
        words += ["--workdir", workdir]
    words += [*_list_docker_gpus(spec, _choose_gpus(spec, exists)), *spec.options]
    if spec.entry == "run":
        return [*words, spec.image, *argv], env
    return [*words, "--entrypoint=%s" % argv[0], spec.image, *argv[1:]], env


def _list_user_and_limits(spec: ContainerSpec, env: Mapping[str, str]) -> list[str]:
    if spec.runtime == "podman":
        return [] if has_option(spec.options, "--ulimit") else ["--ulimit=host"]
    limits = ["--ulimit=memlock=-1", "--ulimit=stack=67108864"]
    # Without root, Docker maps its root to this user, as Podman does.
    rootless = "/run/user/" in env.get("DOCKER_HOST", "")
    has_user = rootless or has_option(spec.options, "--user", "-u")
    return limits if has_user else [*limits, "--user=%d:%d" % (os.getuid(), os.getgid())]


def _list_docker_gpus(spec: ContainerSpec, gpus: str) -> list[str]:
    is_podman = spec.runtime == "podman"
    if gpus == "nvidia" and not has_option(spec.options, "--gpus"):
        return ["--device=nvidia.com/gpu=all"] if is_podman else ["--gpus=all"]
    if gpus == "rocm":
        # The devices belong to a group of the node.
        return ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=%s" % ("keep-groups" if is_podman else "video")]
    return []


def _carry_variables(carried: dict[str, str], argv: list[str], values: dict[str, str]) -> list[str]:
    """Adds variables to `values` under other names, and lets a shell inside give them their own.

    The image's PYTHONPATH, which is known only inside, comes after ours.
    """
    if not carried:
        return argv
    lines = []
    for name, value in carried.items():
        values[CARRIED + name] = value
        rest = "${PYTHONPATH:+:$PYTHONPATH}" if name == "PYTHONPATH" else ""
        lines.append('export %s="$%s%s"; unset %s%s' % (name, CARRIED + name, rest, CARRIED, name))
    return ["/bin/sh", "-c", '%s; exec "$@"' % "; ".join(lines), "sh", *argv]


def _is_outside(name: str) -> bool:
    return name in OUTSIDE_VARIABLES or name.startswith(OUTSIDE_PREFIXES)


def _list_paths(env: Mapping[str, str], cwd: str | None, exists: Callable[[str], bool]) -> list[str]:
    """The working directory, and what NCCL, caches and trackers use, where it exists."""
    home = env.get("HOME", "")
    paths = [cwd or "", *SYSTEM_PATHS]
    for name, usual in PATH_VARIABLES.items():
        path = env.get(name, "").replace("file://", "", 1)
        paths.append(path or (usual.replace("~", home, 1) if home else ""))
    return [path for path in paths if _can_bind(path) and exists(path)]


def _can_bind(path: str) -> bool:
    """A colon or a comma would be read as another bind; such a directory must be in one that is bound."""
    return path.startswith("/") and path != "/" and not {*":,"} & {*path}


def _choose_gpus(spec: ContainerSpec, exists: Callable[[str], bool]) -> str:
    if spec.gpus != "auto":
        return spec.gpus
    if exists("/dev/nvidiactl"):
        return "nvidia"
    return "rocm" if exists("/dev/kfd") else "none"


def _drop_duplicates(binds: Iterable[str]) -> list[str]:
    """Each target once: the user's own binds come first, and win."""
    by_target: dict[str, str] = {}
    for bind in binds:
        by_target.setdefault(split_bind(bind)[1], bind)
    return list(by_target.values())
