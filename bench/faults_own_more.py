"""More faults of a rank itself that no rule was written for; the cases are in faults_blind_more.py."""

import atexit
import ctypes
import importlib
import mmap
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
_UPLOAD = "import socket, sys\nsocket.create_connection((sys.argv[1], 8765)).recv(1)"


def _released() -> bool:
    return (FOLDER / "release").exists()


def _rank() -> int:
    return int(os.environ["RANK"])


def _odd() -> bool:
    return os.environ["RANK"] == os.environ["ODD_RANK"]


# -- waits for what is outside of the run ---------------------------------------------------------------------


def from_pretrained() -> None:
    """A tokenizer is asked for at a hub that no packet comes back from."""
    import urllib.request  # noqa: PLC0415 - what all ranks would load at their start

    urllib.request.urlopen(f"http://{os.environ['HEAD_ADDRESS']}:8767/tokenizer.json").read()


def report_metrics() -> None:
    """A tracker's name is asked for again and again, and the name server says nothing."""
    while not _released():
        try:
            socket.getaddrinfo("tracker.cluster.example", 443)
        except socket.gaierror:
            continue
        return


def _remote_debugger() -> None:
    """A debugger that was left in the script listens, and waits for who would use it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


def _breakpoint() -> None:
    """It asks somebody who isn't there."""
    breakpoint()  # noqa: T100 - the very fault


def _upload() -> None:
    """The checkpoint is sent away by a program that gets no answer."""
    subprocess.run([sys.executable, "-c", _UPLOAD, os.environ["HEAD_ADDRESS"]], check=True)


def _upload_at_exit() -> None:
    """A tracker sends what it still has when the script is over."""
    atexit.register(_finish_upload)


def _finish_upload() -> None:
    with socket.create_connection((os.environ["HEAD_ADDRESS"], 8765)) as client:
        client.recv(1)


# -- waits for files and locks --------------------------------------------------------------------------------


def _baton() -> None:
    """A kernel is being built by somebody else, says a file that a killed run has left."""
    from torch.utils.file_baton import FileBaton  # noqa: PLC0415 - the job may not have come to it

    FileBaton("/private/data/build.lock").wait()


def wait_for_data() -> None:
    """The first rank prepares the data and tells by a file, on a disk that only its own node has."""
    ready = Path("/private/out/ready")
    if _rank() == 0:
        ready.touch()
    while not ready.exists():
        time.sleep(0.2)


def _native_lock() -> None:
    """A library waits for a lock of its own, and holds the interpreter meanwhile."""
    library, mutex = ctypes.PyDLL(None), (ctypes.c_char * 64)()
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)


# -- data -----------------------------------------------------------------------------------------------------


def tokenize(number: int) -> int:
    held = []
    while number == 0:
        held.append(b"x" * (128 << 20))
    return number


def _pool() -> None:
    """A pool waits for ever for the part of a worker that the kernel has killed."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokenize, range(4), 1)


class _Far:
    """What a DataLoader takes for a dataset: rows that come from far away."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> int:
        if not _released():
            time.sleep(1.0)
        return index


def _slow_loader() -> None:
    """From here on its worker takes a second for each batch, until it is released."""
    from torch.utils.data import DataLoader  # noqa: PLC0415 - the job may not have come to it

    job: Any = sys.modules["__main__"]
    read, rows = job.next_batch, iter(DataLoader(_Far(), num_workers=1))  # type: ignore[arg-type]

    def next_batch(step: int) -> Any:
        next(rows)
        return read(step)

    job.next_batch = next_batch


def _mapped() -> None:
    """Somebody writes the data anew while it is mapped here."""
    path = Path(f"/private/data/tokens-{_rank()}.bin")
    path.write_bytes(bytes(1 << 20))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as tokens:
        os.truncate(path, 0)
        print(sum(tokens[:: mmap.PAGESIZE]))


# -- too much of something --------------------------------------------------------------------------------------


def _gather() -> None:
    """Each rank's predictions go to the first as objects, and there are too many for its memory."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it

    found: list[Any] | None = [None] * dist.get_world_size() if _rank() == 0 else None
    dist.gather_object(os.urandom(1 << 20) * 80, found)


def _threads() -> None:
    for _ in range(600):
        threading.Thread(target=time.sleep, args=[60], daemon=True).start()


def _cpu_time() -> None:
    """A shell for short jobs gives so many seconds of a core, and no more."""
    limit = int(time.process_time()) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    while time.process_time() < limit + 5:
        sum(range(1000))


# -- ranks that don't call the same ------------------------------------------------------------------------------


def _left_out() -> None:
    """A parameter that this rank's batch does not use has no gradient, and is not exchanged."""
    _skip(lambda gradient: gradient.numel() == 4, calls=1)


def _not_exchanged() -> None:
    """It adds up gradients over one step more than the others, and so exchanges them one time less."""
    _skip(lambda _gradient: True, calls=2)


def _skip(which: Callable[[Any], bool], calls: int) -> None:
    dist: Any = importlib.import_module("torch.distributed")
    exchange, left = dist.all_reduce, [calls]

    def all_reduce(gradient: Any) -> None:
        if not which(gradient):
            exchange(gradient)
            return
        left[0] -= 1
        if left[0] == 0:
            dist.all_reduce = exchange

    dist.all_reduce = all_reduce


def _fewer_in_evaluation() -> None:
    """Each batch of an evaluation is summed up over all ranks, and one has fewer of them."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it
    from torch import ones  # noqa: PLC0415 - as above

    for _ in range(3 if _odd() else 5):
        dist.all_reduce(ones(1))


def _timed_barrier() -> None:
    """A barrier with a time-out of its own, to which one rank does not come."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it

    if not _odd():
        dist.monitored_barrier(timeout=timedelta(seconds=20))
    while _odd() and not _released():
        time.sleep(0.2)


def _new_group() -> None:
    """A group that only its members make, though all ranks must."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it

    dist.new_group()


def _receive() -> None:
    """A stage of a pipeline waits for what the stage before it has not sent."""
    import torch.distributed as dist  # noqa: PLC0415 - the job may not have come to it
    from torch import ones  # noqa: PLC0415 - as above

    dist.recv(ones(4), src=(_rank() + 1) % dist.get_world_size())


def _key() -> None:
    """It asks the store for what another rank should have put there."""
    from torch.distributed.distributed_c10d import _get_default_store  # noqa: PLC0415 - the job may not be there yet

    _get_default_store().get("best_checkpoint")


def _first_by_name() -> None:
    """The script has the name of rank 0's node, and each node looks it up by itself."""
    os.environ["MASTER_ADDR"] = "n1i"


MORE: dict[str, Callable[[], None]] = {
    "hub": from_pretrained,
    "resolve": report_metrics,
    "remote-debugger": _remote_debugger,
    "breakpoint": _breakpoint,
    "upload": _upload,
    "upload-at-exit": _upload_at_exit,
    "baton": _baton,
    "marker": wait_for_data,
    "native-lock": _native_lock,
    "pool": _pool,
    "slow-loader": _slow_loader,
    "mapped": _mapped,
    "gather": _gather,
    "threads": _threads,
    "cpu-time": _cpu_time,
    "left-out": _left_out,
    "not-exchanged": _not_exchanged,
    "fewer-in-evaluation": _fewer_in_evaluation,
    "timed-barrier": _timed_barrier,
    "new-group": _new_group,
    "receive": _receive,
    "key": _key,
    "first-by-name": _first_by_name,
}
