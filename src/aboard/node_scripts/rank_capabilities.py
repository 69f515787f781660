"""What a node runs before the collective test: whether it has torch, without importing it, which would take seconds."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import socket

# Below what Linux hands out by itself, so that nothing takes it between now and then; 29500 is others' default.
LOWEST_PORT, PORTS = 20_011, 9_000


def describe_capabilities() -> dict[str, object]:
    torch = find_torch()
    version = read_text(os.path.join(os.path.dirname(torch), "version.py")) if torch else ""
    return {
        "torch": bool(torch),
        "cuda": re.search(r"^(cuda|hip)\b[^=\n]*= *['\"]", version, re.MULTILINE) is not None,
        "gpus": count_gpus(),
        "cores": len(os.sched_getaffinity(0)),
        "machine": read_text("/proc/sys/kernel/random/boot_id").strip(),
        "port": find_free_port(),
        "token": os.urandom(8).hex(),
    }


def find_torch() -> str:
    """The file of its package; "" if there is none."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    return spec.origin or "" if spec else ""


def count_gpus() -> int:
    try:
        gpus = len(os.listdir("/proc/driver/nvidia/gpus"))
    except OSError:
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return gpus
    return min(gpus, len([word for word in visible.split(",") if word.strip() not in {"", "-1"}]))


def find_free_port() -> int:
    for _attempt in range(100):
        number = LOWEST_PORT + int.from_bytes(os.urandom(2), "big") % PORTS
        try:
            with socket.create_server(("", number)):
                return number
        except OSError:
            continue
    return 0


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


if __name__ == "__main__":
    print(json.dumps(describe_capabilities()))
