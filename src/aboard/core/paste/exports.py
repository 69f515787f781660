"""What DeepSpeed carries from the head's environment to the nodes.

launcher/runner.py of DeepSpeed 0.19: names that start with one of its prefixes (NCCL is its CUDA accelerator's), but
not two that differ from node to node on one cloud; the working directory in front of PYTHONPATH; then the lines of
`~/.deepspeed_env` and `./.deepspeed_env`, the later winning. It does so only when it goes to other nodes.
"""

from collections.abc import Mapping

from aboard.core.envfile import read_envfile
from aboard.core.paste.pasted import Around

PREFIXES = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
ENVFILE = ".deepspeed_env"

_LEFT_OUT = {"AISC_JOB_NAME": ("NCCL_IB_HCA", "UCX_NET_DEVICES")}


def exported(environ: Mapping[str, str], *, cwd: str) -> dict[str, str]:
    """The variables that DeepSpeed takes along, with PYTHONPATH as its ranks get it."""
    out = {name for mark, names in _LEFT_OUT.items() if mark in environ for name in names}
    carried = {name: value for name, value in environ.items() if name.startswith(PREFIXES) and name not in out}
    before = environ.get("PYTHONPATH")
    return {**carried, "PYTHONPATH": f"{cwd}:{before}" if before else cwd}


def envfiles(around: Around, *, folders: tuple[str, ...] = ("~", ".")) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of the env files that are there, and the paths of these files."""
    name = around.environ.get("DS_ENV_FILE", ENVFILE)
    # os.path.join drops the folder before an absolute name, and so does DeepSpeed.
    paths = [name] if name.startswith("/") else [f"{folder}/{name}" for folder in folders]
    found = tuple(path for path in paths if around.files.exists(path))
    env: dict[str, str] = {}
    for path in found:
        env |= read_envfile(around.files.read(path), where=path)
    return env, found
