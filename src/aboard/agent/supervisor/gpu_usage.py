"""GPU usage, from an nvidia-smi that runs beside the ranks: one that hangs costs the samples, and blocks nothing."""

from __future__ import annotations

import contextlib
import os
import signal

from aboard.agent import process_tree
from aboard.agent.event_loop import EventLoop
from aboard.agent.process_spawn import drop_relative_folders, spawn_process

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from typing import Optional

    Row = list[Optional[float]]

SECONDS = 10
FIELDS = "index,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"
COMMAND = ("nvidia-smi", "--query-gpu=%s" % FIELDS, "--format=csv,noheader,nounits", "--loop=%d" % SECONDS)
# The driver's directory: without it, nvidia-smi has nothing to say.
DRIVER = "/proc/driver/nvidia"
MOST_GPUS, LINE_BYTES = 64, 4096
MIB = 1 << 20


class GpuSampler:
    """Starts nvidia-smi a while after the ranks, and keeps its latest figures."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop
        self._rows: dict[int, Row] = {}
        self._rest = b""
        self._fd = self._pid = -1
        self._started = 0
        self._began = False

    def read(self) -> list[Row]:
        """One row per GPU: utilization in percent, memory used and total in bytes, watts, °C; None where unknown."""
        if not self._began:
            self._began = True
            if os.path.isdir(DRIVER):
                self._loop.later(SECONDS, self._start)
        return [self._rows[index] for index in sorted(self._rows)]

    def close(self) -> None:
        """Ends nvidia-smi; a pid that was reused stays alive."""
        if self._fd >= 0:
            self._stop_reading()
            if process_tree.read_start_time(self._pid) == self._started:
                process_tree.send_signal([self._pid], signal.SIGKILL)
        self._began = True

    def _start(self) -> None:
        env = dict(os.environ, LC_ALL="C")
        drop_relative_folders(env)
        self._fd, write_end = os.pipe()
        null = os.open(os.devnull, os.O_RDWR)
        with contextlib.suppress(OSError):
            self._pid, error_fd = spawn_process(COMMAND, env=env, cwd="/", stdin=null, stdout=write_end, stderr=null)
            os.close(error_fd)
            self._started = process_tree.read_start_time(self._pid)
        os.close(null)
        os.close(write_end)
        os.set_blocking(self._fd, False)
        self._loop.on_readable(self._fd, self._drain)

    def _drain(self) -> None:
        data = os.read(self._fd, 65536)
        if not data:
            self._stop_reading()
            return
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[:LINE_BYTES]
        for line in lines:
            parsed = parse_gpu_line(line.decode("ascii", "replace"))
            if parsed is not None and parsed[0] < MOST_GPUS:
                self._rows[parsed[0]] = parsed[1]

    def _stop_reading(self) -> None:
        """Without nvidia-smi, nothing is known any more."""
        self._loop.remove_fd(self._fd)
        os.close(self._fd)
        self._fd = -1
        self._rows.clear()


def parse_gpu_line(line: str) -> tuple[int, Row] | None:
    """The GPU's number and its row, from a line such as `0, 97, 40536, 81559, 512.32, 61`; None for any other text."""
    index, *values = line.split(", ")
    if not index.strip().isdigit() or len(values) != len(FIELDS.split(",")) - 1:
        return None
    used, memory, total, power, temperature = map(_parse_number, values)
    row = [used, memory and memory * MIB, total and total * MIB, power, temperature]
    return int(index), row


def _parse_number(text: str) -> float | None:
    """None for `[N/A]`, `[Not Supported]` and the like."""
    try:
        number = float(text)
    except ValueError:
        return None
    # nan and inf are not in it.
    return number if 0 <= number < 1 << 53 else None
