"""The whole day on two sandbox hosts with simulated GPUs: the script itself runs there, as an ordinary user."""

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from aboard.sandbox import Host, Sandbox

ROOT = Path(__file__).parents[2]
PLACE = "/shared/day"
_DAY = f"{PLACE}/first-gpu-day"
_KIT = "/shared/simulated"
# The files of a driver and its nvidia-smi, and a torch that says it was built for CUDA.
_GPU_HOST = """
model="NVIDIA H100 80GB HBM3"
mount -t tmpfs tmpfs /proc/driver
for bus in $(seq 17 $((16 + $1))); do
    mkdir -p /proc/driver/nvidia/gpus/0000:$bus:00.0
    echo "Model: $model" > /proc/driver/nvidia/gpus/0000:$bus:00.0/information
done
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Mon' > /proc/driver/nvidia/version
cat > /usr/local/bin/nvidia-smi <<END
#!/bin/sh
for index in $(seq -s ' ' 0 $(($1 - 1))); do
    case "\\$1" in
        --query-gpu=memory*) echo '81559, 9.0, 81008' ;;
        --query-gpu=index*) echo "\\$index, $model, GPU-\\$index, 00000000:\\$((17 + index)):00.0, 550.163.01, 0" ;;
    esac
done
END
chmod 755 /usr/local/bin/nvidia-smi
mount --bind "$2" "$3"
"""


def simulate_day(argv: Sequence[str], *, directory: str, gpus: int) -> int:
    """Builds the hosts, runs the script on their head, and copies the day's directory here."""
    with Sandbox.up(f"first-gpu-day-{os.getpid()}", nodes=2, slots=gpus, temporary=True) as box:
        variables = _simulate_gpus(box, gpus)
        cluster = {"python": sys.executable, "nodes": [f"n[1-2] slots={gpus}"], "env": variables}
        _write(box.head, f"{PLACE}/aboard.yaml", json.dumps({"cluster": cluster}))
        script = [sys.executable, str(ROOT / "scripts" / "first-gpu-day"), f"{PLACE}/aboard.yaml", "--faults"]
        process = box.head.popen([*script, *argv, "--directory", _DAY], cwd=PLACE)
        try:
            return int(process.wait())
        finally:
            process.kill()
            found = Path(f"/proc/{box.head.pid}/root{_DAY}")
            if found.is_dir():
                shutil.copytree(found, directory, dirs_exist_ok=True, symlinks=True)


def _simulate_gpus(box: Sandbox, gpus: int) -> dict[str, str]:
    """Makes the nodes look like GPU nodes; the variables are those with which a Python finds the GPUs."""
    # The kit of the tests: on a user's machine there is no need for it.
    sys.path.insert(0, str(ROOT / "tests" / "kit"))
    import simulated_gpus  # noqa: PLC0415 - as above

    kit = Path(simulated_gpus.__file__).parent
    for source in kit.rglob("*.py"):
        _write(box.head, f"{_KIT}/{source.relative_to(kit)}", source.read_text("utf-8"))
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    version = Path(torch.origin).with_name("version.py")
    text = version.read_text("utf-8").replace("+cpu'", "+cu126'")
    text = text.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '12.6'")
    _write(box.head, f"{_KIT}/version.py", text)
    for host in box.nodes:
        words = ["sh", "-euc", _GPU_HOST, "sh", str(gpus), f"{_KIT}/version.py", str(version)]
        host.run(words, root=True).check_returncode()
    variables = {"PYTHONPATH": f"{_KIT}/startup", "SIMULATED_CUDA_DRIVER": "12040", "SIMULATED_GPUS_GIB": "4"}
    return simulated_gpus.environment(gpus) | variables | {"OMP_NUM_THREADS": "1"}


def _write(host: Host, path: str, text: str) -> None:
    host.run(["sh", "-euc", 'mkdir -p "$(dirname "$1")" && cat > "$1"', "sh", path], input=text).check_returncode()
