"""Faults of a rank itself or of its script, which need no network."""

import fcntl
import importlib
import json
import os
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults_own_deaths import DEATHS
from faults_own_more import MORE

FOLDER = Path(__file__).resolve().parent
FAULT = os.environ.get("FAULT", "")
PLACE = os.environ.get("FAULT_PLACE", "step")
STEP = int(os.environ.get("FAULT_STEP", "20"))
WHO = os.environ.get("FAULT_RANK", "")

# It gives way to all others, and ends by itself should it be left behind.
_COMPILER = "import os, time\nos.nice(19)\nwhile time.process_time() < 300: pass"

#: What the loss is multiplied with.
factor = 1.0
_ordered = [""]


def mark(name: str) -> None:
    """The job puts its own here, once it can."""
    del name


def at(place: str, rank: int, step: int | None = None) -> None:
    """A rank has come to a place in the script; in a step, to that step."""
    if place == PLACE and _mine(rank) and (step is None or step == STEP or place != "step"):
        _do(FAULT)


def ordered(path: Path, rank: int) -> None:
    """A fault that was asked for since the job began: its number, its name, whose it is."""
    try:
        said = path.read_text()
    except FileNotFoundError:
        return
    if said and said != _ordered[0]:
        _ordered[0] = said
        _number, name, who = said.split()
        if who in (str(rank), "all"):
            _do(name)


def options(rank: int) -> dict[str, Any]:
    """What the script gives to init_process_group, where it gives something wrong."""
    world = int(os.environ["WORLD_SIZE"])
    if FAULT == "world" and _mine(rank):
        mark("effect")
        return {"world_size": world + 1, "rank": rank}
    if FAULT == "same-rank" and _mine(rank):
        mark("effect")
        return {"world_size": world, "rank": (rank + 1) % world}
    return {}


def fewer(steps: int, rank: int) -> int:
    """How many batches this rank has."""
    return STEP if FAULT == "fewer" and _mine(rank) else steps


def _mine(rank: int) -> bool:
    return WHO in (str(rank), "all")


def _do(name: str) -> None:
    if name in _FAULTS:
        _mark_effect()
        _FAULTS[name]()


def _mark_effect() -> None:
    """Written by hand: a fault may come before the job has its own way to do so."""
    rank = os.environ["RANK"]
    part = FOLDER / "marks" / f".effect.{rank}"
    part.write_text(repr(time.time()))
    part.rename(FOLDER / "marks" / f"effect.{rank}")


def _released() -> bool:
    return (FOLDER / "release").exists()


# -- ranks that don't come -----------------------------------------------------------------------------------


def load_batch() -> None:
    """The next part of the data comes from a program that has stopped to write."""
    with Path("/private/data/pipe").open("rb") as pipe:
        pipe.read(1)


class _Shards:
    """What a DataLoader takes for a dataset."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        load_batch()
        return index


def _worker() -> None:
    """The next batch comes from a worker process, which waits for what never comes."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - the job may not have come to it

    next(iter(DataLoader(_Shards(), num_workers=1)))  # type: ignore[arg-type]


def _reader() -> None:
    """A thread that reads ahead dies of a bad line, and whoever takes batches from it is not told."""
    batches: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=lambda: batches.put(json.loads('{"text": "an unfinished li')), daemon=True).start()
    batches.get()


def _file_lock() -> None:
    """Another program has the lock of the data's cache, and keeps it."""
    with Path("/private/data/cache.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)


def _build() -> None:
    """A package that compiles its kernels when it is imported."""
    subprocess.run([sys.executable, "-c", _COMPILER], check=True)


def _thread() -> None:
    """A thread that the end of the script waits for."""
    threading.Thread(target=_sleep).start()


def _deadlock() -> None:
    lock = threading.Lock()
    with lock:
        threading.Thread(target=_let_go, args=[lock], daemon=True).start()
        lock.acquire()


def _let_go(lock: "threading.Lock") -> None:
    while not _released():
        time.sleep(0.2)
    lock.release()


def _match() -> None:
    """A pattern that goes back ever further holds the interpreter for hours."""
    re.match(r"(a+)+$", "a" * 40 + "b")


def _loop() -> None:
    number = 0
    while number % 100_000 or not _released():
        number += 1


def _sleep() -> None:
    while not _released():
        time.sleep(0.2)


def _import() -> None:
    """A package whose import waits for a file system or a licence server."""
    importlib.import_module("licensed_package")


def _service() -> None:
    """A tracker that takes the connection, and gives no answer."""
    with socket.create_connection((os.environ["HEAD_ADDRESS"], 8765)) as client:
        client.settimeout(None)
        client.recv(1)


def _other_size() -> None:
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it
    from torch import ones  # noqa: PLC0415 - as above

    dist.all_reduce(ones(77))


def _other_call() -> None:
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it
    from torch import ones  # noqa: PLC0415 - as above

    dist.broadcast(ones(40000 * 4).reshape(4, 40000), 0)


def _barrier() -> None:
    """A barrier that only this rank calls."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it

    dist.barrier()


def _groups() -> None:
    """Two groups, used in another order by the first rank."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it
    from torch import ones  # noqa: PLC0415 - as above

    pair = [dist.new_group(), dist.new_group()]
    for group in reversed(pair) if os.environ["RANK"] == os.environ["ODD_RANK"] else pair:
        dist.all_reduce(ones(5), group=group)


def _slower() -> None:
    """From here on each of its steps takes longer, until it is released."""
    global at  # noqa: PLW0603 - each further step comes by here
    before = at

    def slow(place: str, rank: int, step: int | None = None) -> None:
        global at  # noqa: PLW0603 - as above
        if _released():
            at = before
        elif place == "step":
            time.sleep(1.0)
        before(place, rank, step)

    at = slow


def _no_number() -> None:
    global factor  # noqa: PLW0603 - the loss of all further steps
    factor = float("nan")


def _again_a_number() -> None:
    global factor  # noqa: PLW0603 - as above
    factor = 1.0


# -- what is no fault ----------------------------------------------------------------------------------------


def evaluate() -> None:
    time.sleep(12)


def save_checkpoint() -> None:
    time.sleep(20)


def next_batch() -> None:
    time.sleep(2.5)


def _talk() -> None:
    for number in range(60_000):
        print(f"debug: tensor {number} has shape (4, 40000) and norm 0.{number:05}")


def _slow_import() -> None:
    importlib.import_module("slow_package")


def _long_first_step() -> None:
    until = time.monotonic() + 12
    while time.monotonic() < until:
        sum(range(100_000))


# -- a script that sends ranks elsewhere ---------------------------------------------------------------------


def _setting(name: str, value: Callable[[], str]) -> Callable[[], None]:
    def put() -> None:
        os.environ[name] = value()

    return put


_FAULTS: dict[str, Callable[[], None]] = {
    **DEATHS,
    **MORE,
    "worker": _worker,
    "reader": _reader,
    "file-lock": _file_lock,
    "build": _build,
    "thread": _thread,
    "barrier": _barrier,
    "data": load_batch,
    "deadlock": _deadlock,
    "match": _match,
    "loop": _loop,
    "sleep": _sleep,
    "import": _import,
    "service": _service,
    "other-size": _other_size,
    "other-call": _other_call,
    "groups": _groups,
    "slower": _slower,
    "evaluation": evaluate,
    "checkpoint": save_checkpoint,
    "slow-batch": next_batch,
    "talk": _talk,
    "long-first-step": _long_first_step,
    "slow-import": _slow_import,
    "nan": _no_number,
    "number": _again_a_number,
    "port": _setting("MASTER_PORT", lambda: str(int(os.environ["MASTER_PORT"]) + 7)),
    "name": _setting("MASTER_ADDR", lambda: "trainer-0.cluster.example"),
    "address": _setting("MASTER_ADDR", lambda: os.environ["OTHER_ADDRESS"]),
    "no-such-address": _setting("MASTER_ADDR", lambda: os.environ["NO_ADDRESS"]),
    "interface": _setting("GLOO_SOCKET_IFNAME", lambda: "ib0"),
    "loopback": _setting("GLOO_SOCKET_IFNAME", lambda: "lo"),
}
