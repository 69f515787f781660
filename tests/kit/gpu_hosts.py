"""Makes hosts of a sandbox GPU nodes: the driver's files, nvidia-smi with recorded output, simulated GPUs in torch."""

import importlib.util
import json
import lzma
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import simulated_gpus

from aboard.sandbox.host import Host

PLACE = "/shared/simulated"
_RECORDINGS = Path(__file__).parents[1] / "unit/doctor/gpu/nvidia-smi.json.xz"
_HEALTHY = "h100/healthy/550.163.01"
_SOURCES = ("startup/sitecustomize.py", "torch_patches.py", "attention_kernels.py")
_ADDRESSES = ("1A", "1B", "4A", "4B")
# nvidia-smi prints what was recorded for its words; libcuda and torch are of the versions that a driver 550 runs.
_SETUP = f"""
mount -t tmpfs tmpfs /proc/driver
for bus in "$@"; do
    mkdir -p "/proc/driver/nvidia/gpus/0000:$bus:00.0"
    echo 'Model: NVIDIA H100 80GB HBM3' > "/proc/driver/nvidia/gpus/0000:$bus:00.0/information"
done
echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.163.01  Mon' > /proc/driver/nvidia/version
cat > /usr/local/bin/nvidia-smi <<'END'
#!/bin/sh
exec cat "{PLACE}/nvidia-smi/$(echo "$*" | tr -c '[:alnum:]\\n' _)"
END
chmod 755 /usr/local/bin/nvidia-smi
"""


def list_variables(count: int = 2) -> dict[str, str]:
    """Of the Pythons that find so many GPUs on the hosts."""
    own = {"PYTHONPATH": f"{PLACE}/startup", "SIMULATED_CUDA_DRIVER": "12040"}
    return simulated_gpus.environment(count) | own


def make_gpu_hosts(hosts: Iterable[Host], *, count: int = 2) -> None:
    """Each host has so many H100 and their driver."""
    every = tuple(hosts)
    outputs = _list_outputs(count)
    source = Path(simulated_gpus.__file__).parent
    files = {
        **{name: (source / name).read_text("utf-8") for name in _SOURCES},
        **{f"nvidia-smi/{name}": text for name, text in outputs.items()},
        "version.py": re.sub(r"\+cpu'", "+cu126'", _find_version().read_text("utf-8")).replace(
            "cuda: Optional[str] = None", "cuda: Optional[str] = '12.6'"
        ),
    }
    for name, text in files.items():
        script = f"mkdir -p $(dirname {PLACE}/{name}) && cat > {PLACE}/{name}"
        every[0].run(["sh", "-euc", script], input=text).check_returncode()
    for host in every:
        host.run(["sh", "-euc", _SETUP, "sh", *_ADDRESSES[:count]], root=True).check_returncode()
        mount = ["mount", "--bind", f"{PLACE}/version.py", str(_find_version())]
        host.run(mount, root=True).check_returncode()


def _find_version() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("version.py")


def _list_outputs(count: int) -> dict[str, str]:
    """What nvidia-smi prints for the first GPUs, by its words."""
    document: dict[str, Any] = json.loads(lzma.decompress(_RECORDINGS.read_bytes()))
    found, sections = {}, dict.fromkeys(range(count), "")
    for number in document["recordings"][_HEALTHY]:
        argv, _code, text, _errors = document["outputs"][number]
        if argv[1] == "-q":
            _, *parts = re.split(r"^(GPU 0.*\n)", text, flags=re.MULTILINE)
            for each in sections:
                sections[each] = (sections[each] or parts[2 * each]) + parts[2 * each + 1].strip("\n") + "\n"
        elif argv[1] == "nvlink":
            found[_name(argv[1:])] = "".join(re.split(r"^(?=GPU )", text, flags=re.MULTILINE)[: count + 1])
        else:
            found[_name(argv[1:])] = "".join(text.splitlines(keepends=True)[:count])
    found["_q"] = "\n".join(sections.values())
    # Not recorded: free memory, and an idle GPU has no processes.
    memory, processes = "--query-gpu=memory.total,compute_cap,memory.free", "--query-compute-apps=pid,used_memory"
    found[_name([memory, "--format=csv,noheader,nounits"])] = "81920, 9.0, 80896\n" * count
    found[_name([processes, "--format=csv,noheader"])] = ""
    return found


def _name(words: list[str]) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", " ".join(words))
