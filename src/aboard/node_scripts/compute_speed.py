"""What a node runs to measure its slots: a matrix multiplication, a copy in memory, and copies to and from the device.

The same code measures GPUs and, on a node without any, the CPU as one slot. Each rate is that of the fastest of several
short tries, so that other work on the node disturbs it little.
"""

from __future__ import annotations

import json
import re
import sys
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# All slots together may take this long, and each measurement at most a part of a second.
_SECONDS, _LONGEST = 14.0, 0.3
# A device that other processes use would be slow, and so would their training.
_HELD = 2 << 30
# Multiplied on a device that is faster than this, in TFLOP/s; smaller matrices would measure its launches.
_FAST, _SMALL, _LARGE = 3.0, 512, 8192


def main() -> None:
    try:
        import torch  # noqa: PLC0415 - a node may have none
    except Exception as error:  # noqa: BLE001 - a broken torch raises anything
        lines = str(error).strip().splitlines() or [""]
        print(json.dumps({"torch": False, "why": ("%s: %s" % (type(error).__name__, lines[-1]))[:300]}))
        return
    devices = ["cuda:%d" % number for number in range(torch.cuda.device_count())]
    if not devices and "gpus" in sys.argv:
        print(json.dumps({"torch": True, "why": "torch finds no GPU"}))
        return
    slots = [measure_slot(torch, name, _SECONDS / max(1, len(devices))) for name in devices or ["cpu"]]
    print(json.dumps({"torch": True, "slots": slots}))


def measure_slot(torch: Any, name: str, seconds: float) -> dict[str, Any]:
    on_gpu = name != "cpu"
    found: dict[str, Any] = {"kind": torch.cuda.get_device_name(name) if on_gpu else describe_cpu(torch)}
    try:
        if on_gpu:
            free, total = torch.cuda.mem_get_info(name)
            if total - free > _HELD:
                return dict(found, why="%.1f GiB of its memory are in use" % ((total - free) / 2**30))
        timer = Timer(torch, name, min(_LONGEST, seconds / 8))
        size, multiply = 0, 0.0
        for size in (_SMALL, _LARGE):
            one = torch.full((size, size), 0.5, dtype=torch.bfloat16 if on_gpu else torch.float32, device=name)
            multiply = 2 * size**3 / timer.find_fastest(partial(torch.matmul, one, one)) / 1e12
            if multiply < _FAST or not on_gpu:
                break
        large = size == _LARGE
        found.update(size=size, multiply=multiply)
        source = torch.ones((1 << 30 if large else 1 << 26) // 4, device=name)
        target = torch.empty_like(source)
        found["copy"] = 2 * source.nbytes / timer.find_fastest(lambda: target.copy_(source)) / 1e9
        if on_gpu:
            part = source[: (1 << 28 if large else 1 << 24) // 4]
            host = torch.empty(part.shape, pin_memory=True)
            found["to_device"] = part.nbytes / timer.find_fastest(lambda: part.copy_(host, non_blocking=True)) / 1e9
            found["from_device"] = part.nbytes / timer.find_fastest(lambda: host.copy_(part, non_blocking=True)) / 1e9
            del one, source, target, part
            torch.cuda.empty_cache()
    except Exception as error:  # noqa: BLE001 - one slot that fails is reported beside the others
        found["why"] = ("%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[0]))[:300]
    return found


class Timer:
    def __init__(self, torch: Any, name: str, seconds: float) -> None:
        self._wait = (lambda: torch.cuda.synchronize(name)) if name != "cpu" else (lambda: None)
        self._seconds = seconds

    def find_fastest(self, action: Callable[[], object]) -> float:
        """The seconds of the fastest call, after one that warms up."""
        action()
        self._wait()
        end, fastest = time.perf_counter() + self._seconds, float("inf")
        while fastest == float("inf") or time.perf_counter() < end:
            began = time.perf_counter()
            action()
            self._wait()
            fastest = min(fastest, time.perf_counter() - began)
        return fastest


def describe_cpu(torch: Any) -> str:
    """Its model, and the threads that torch uses."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            model = re.search(r"^model name\s*: (.*)$", file.read(65536), re.MULTILINE)
    except OSError:
        model = None
    return "%s, %d threads" % (model.group(1)[:100] if model else "CPU", torch.get_num_threads())


if __name__ == "__main__":
    main()
