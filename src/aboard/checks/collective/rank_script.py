"""The scripts that nodes run for this subject: a short one that looks for torch, and the ranks' own."""

from aboard.checks.collective import rank_measurement_script, rank_roster_script
from aboard.checks.node_scripts import IGNORE_WORKDIR

# Below what Linux hands out by itself, so that nothing takes it between now and then; 29500 is others' default.
LOWEST_PORT, PORTS = 20_011, 9_000

# Without importing torch: that takes seconds.
_LIMITS = f"LOWEST, PORTS = {LOWEST_PORT}, {PORTS}\n"
_CAPABILITIES_BODY = r"""
import importlib.util, json, os, re, socket

def text(path):
    try:
        with open(path) as file:
            return file.read(65536)
    except OSError:
        return ""

def port():
    for attempt in range(100):
        number = LOWEST + int.from_bytes(os.urandom(2), "big") % PORTS
        try:
            with socket.create_server(("", number)):
                return number
        except OSError:
            continue
    return 0

try:
    found = importlib.util.find_spec("torch")
except (ImportError, ValueError):
    found = None
try:
    gpus = len(os.listdir("/proc/driver/nvidia/gpus"))
except OSError:
    gpus = 0
version = text(os.path.join(os.path.dirname(found.origin), "version.py")) if found and found.origin else ""
cuda = re.search(r"^(cuda|hip)\b[^=\n]*= *['\"]", version, re.M) is not None
visible = os.environ.get("CUDA_VISIBLE_DEVICES")
if visible is not None:
    gpus = min(gpus, len([word for word in visible.split(",") if word.strip() not in ("", "-1")]))
print(json.dumps({
    "torch": bool(found and found.origin),
    "cuda": cuda,
    "gpus": gpus,
    "cores": len(os.sched_getaffinity(0)),
    "machine": text("/proc/sys/kernel/random/boot_id").strip(),
    "port": port(),
    "token": os.urandom(8).hex(),
}))
"""
CAPABILITIES_SCRIPT = _LIMITS + _CAPABILITIES_BODY

# Several ranks of a node are children of one process, which hands on what each said last.
_SEVERAL_RANKS_SCRIPT = r"""
import json, subprocess, sys
task, source = json.loads(sys.argv[1]), sys.argv[2]
ranks = []
for local in range(task["locals"]):
    own = json.dumps(dict(task, rank=task["rank"] + local, local=local))
    command = [sys.executable, "-c", source, own]
    ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
said = []
for local, rank in enumerate(ranks):
    try:
        out, err = rank.communicate(timeout=task["within"])
        said.append(json.loads(out.decode("utf-8", "replace").strip().rpartition("\n")[2]))
    except (subprocess.TimeoutExpired, ValueError):
        rank.kill()
        last = rank.communicate()[1].decode("utf-8", "replace").strip().rpartition("\n")[2]
        said.append({"rank": task["rank"] + local, "phase": "gone", "error": last or "it ended without any message"})
print(json.dumps({"ranks": said}))
"""
RANK_SCRIPT = rank_roster_script.SOURCE + rank_measurement_script.SOURCE


def build_python_arguments(task: str, ranks: int) -> tuple[str, str, *tuple[str, ...]]:
    """What follows the node's Python on its command line."""
    if ranks == 1:
        return "-c", RANK_SCRIPT, task
    return "-c", _SEVERAL_RANKS_SCRIPT, task, IGNORE_WORKDIR + RANK_SCRIPT
