"""Faults that kill a rank: errors of its script, its data, or too much use of a resource."""

import argparse
import ctypes
import importlib
import json
import mmap
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_GREEDY = "import os\nheld = []\nwhile True: held.append(bytearray(os.urandom(1) * (32 << 20)))"


def _raise() -> None:
    raise ValueError("expected 32 labels, got 31")


def _exit() -> None:
    os._exit(3)


def _segfault() -> None:
    ctypes.string_at(0)


def _abort() -> None:
    os.abort()


def _share() -> None:
    """A worker's batch goes to the others by shared memory, of which there is too little."""
    with Path("/dev/shm/batch-0").open("w+b") as file:  # noqa: S108 - that it is there is the point
        file.truncate(256 << 20)
        with mmap.mmap(file.fileno(), 256 << 20) as shared:
            for offset in range(0, 256 << 20, 4096):
                shared[offset] = 1


def _memory() -> None:
    held = []
    while True:
        held.append(bytearray(os.urandom(1) * (32 << 20)))


def _module() -> None:
    importlib.import_module("flash_attention_kernels")


def _file() -> None:
    Path("/private/data/tokenizer.json").read_text()


def _bad_shard() -> None:
    json.loads('{"text": "an unfinished li')


def _torn_checkpoint() -> None:
    import torch  # noqa: PLC0415 - the job may not have come to it

    path = Path("/private/out/torn.pt")
    torch.save({"step": 3}, path)
    os.truncate(path, path.stat().st_size // 2)
    torch.load(path)


def _open_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
    held = []
    while True:
        held.append(os.open("/private/data/shard.bin", os.O_RDONLY))


def _usage() -> None:
    """The launch script is of another version than the training script."""
    argparse.ArgumentParser().parse_args(["--flash-attention"])


def _raise_with_child() -> None:
    """A process that it has forked lives on, with all of its connections and pipes."""
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    _raise()


def _leave() -> None:
    """It was told to save and to leave, and the others were not."""
    sys.exit(0)


def _greedy_child() -> None:
    """A program that computes a metric takes more memory than there is."""
    subprocess.run([sys.executable, "-c", _GREEDY], check=True)


def _port_taken() -> None:
    """A port that the script names, and that another program has."""
    other = socket.socket()
    other.bind(("", 0))
    other.listen()
    os.environ["MASTER_PORT"] = str(other.getsockname()[1])
    _held.append(other)


_held: list[Any] = []


DEATHS: dict[str, Callable[[], None]] = {
    "raise": _raise,
    "exit": _exit,
    "segfault": _segfault,
    "abort": _abort,
    "share": _share,
    "memory": _memory,
    "module": _module,
    "file": _file,
    "bad-shard": _bad_shard,
    "torn-checkpoint": _torn_checkpoint,
    "open-files": _open_files,
    "usage": _usage,
    "raise-with-child": _raise_with_child,
    "leave": _leave,
    "greedy-child": _greedy_child,
    "port-taken": _port_taken,
}
