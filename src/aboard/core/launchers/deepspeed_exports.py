"""The variables that DeepSpeed sends from the head's environment to the nodes.

launcher/runner.py of DeepSpeed 0.19 sends names with one of its prefixes (NCCL comes from its CUDA accelerator),
except two that differ between nodes on one cloud; the working directory in front of PYTHONPATH; then the lines of
`~/.deepspeed_env` and `./.deepspeed_env`, of which the later wins. It does so only for other nodes.
"""

from collections.abc import Mapping

from aboard.core.launchers.launcher_command import LauncherContext
from aboard.core.plan.deepspeed_env_file import parse_env_file

PREFIXES = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
ENVFILE = ".deepspeed_env"

_LEFT_OUT = {"AISC_JOB_NAME": ("NCCL_IB_HCA", "UCX_NET_DEVICES")}


def collect_exported_env(environ: Mapping[str, str], *, cwd: str) -> dict[str, str]:
    """The variables that DeepSpeed sends, with PYTHONPATH as its ranks get it."""
    left_out = {name for mark, names in _LEFT_OUT.items() if mark in environ for name in names}
    variables = {name: value for name, value in environ.items() if name.startswith(PREFIXES) and name not in left_out}
    before = environ.get("PYTHONPATH")
    return {**variables, "PYTHONPATH": f"{cwd}:{before}" if before else cwd}


def read_env_files(
    context: LauncherContext, *, folders: tuple[str, ...] = ("~", ".")
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of the env files that exist, and the paths of these files."""
    name = context.environ.get("DS_ENV_FILE", ENVFILE)
    # os.path.join drops the folder before an absolute name, and so does DeepSpeed.
    paths = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in folders]
    found = tuple(path for path in paths if context.files.exists(path))
    env: dict[str, str] = {}
    for path in found:
        env |= parse_env_file(context.files.read(path), where=path)
    # DeepSpeed overwrites these on each node.
    return {name: value for name, value in env.items() if name not in ("MASTER_ADDR", "MASTER_PORT")}, found
