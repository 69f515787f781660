"""A training over gloo in which rank TROUBLE_RANK does what TROUBLE says, in step TROUBLE_STEP or before the first."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TROUBLE = os.environ.get("TROUBLE", "")
AT = int(os.environ.get("TROUBLE_STEP", "20"))
MINE = os.environ.get("TROUBLE_RANK", "0") in (str(RANK), "all")
SECONDS = float(os.environ.get("TROUBLE_SECONDS", "600"))

if MINE and TROUBLE == "slow-import":
    __import__("slow_module")

import torch  # noqa: E402 - what is slow comes after the first trouble
import torch.distributed as dist  # noqa: E402 - as above


def nothing(_seconds: float) -> None:
    """No trouble."""


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def loop(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


def lock(seconds: float) -> None:
    mutex = threading.Lock()
    mutex.acquire()
    threading.Timer(seconds, mutex.release).start()
    mutex.acquire()


def load_batch(seconds: float) -> None:
    reader, writer = os.pipe()
    threading.Timer(seconds, os.close, [writer]).start()
    os.read(reader, 1)


def outside(seconds: float) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()) as client:
            far, _address = listener.accept()
            threading.Timer(seconds, far.close).start()
            client.settimeout(None)
            client.recv(1)


def read_file(_seconds: float) -> None:
    Path("/mnt/dead/shard-7").read_bytes()


def evaluate(seconds: float) -> None:
    time.sleep(seconds)


def save_checkpoint(seconds: float) -> None:
    time.sleep(seconds)


def declared(seconds: float) -> None:
    sys.modules["aboard_beacon"].armed.doing("checkpoint")
    try:
        time.sleep(seconds)
    finally:
        sys.modules["aboard_beacon"].armed.doing("")


def stop(_seconds: float) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def broadcast(_seconds: float) -> None:
    dist.broadcast(torch.ones(4), 0)


def other_size(_seconds: float) -> None:
    dist.all_reduce(torch.ones(77))


def leave(_seconds: float) -> None:
    os._exit(0)


def memory(_seconds: float) -> None:
    held = []
    while True:
        held.append(bytearray(64 << 20))


def nan(_seconds: float) -> None:
    for _ in range(30):
        print("step 21 loss: nan", flush=True)


TROUBLES = {
    "sleep": sleep,
    "loop": loop,
    "lock": lock,
    "data": load_batch,
    "outside": outside,
    "file": read_file,
    "evaluate": evaluate,
    "save": save_checkpoint,
    "declared": declared,
    "stop": stop,
    "broadcast": broadcast,
    "size": other_size,
    "leave": leave,
    "nan": nan,
    "memory": memory,
}
trouble = TROUBLES.get(TROUBLE, nothing) if MINE else nothing


class ReleasedError(Exception):
    """The file of troubles was written anew while this rank was in one: it is over."""


def suffer(kind: str, seconds: float, written: str) -> None:
    """Ends early when the file of troubles no longer says what it said: a signal ends any wait of the main thread."""

    def raise_released(*_: object) -> None:
        raise ReleasedError

    main = threading.get_ident()

    def release() -> None:
        while TROUBLES_FILE.read_text() == written:
            if over.wait(0.1):
                return
        signal.pthread_kill(main, signal.SIGRTMIN)

    signal.signal(signal.SIGRTMIN, raise_released)
    over = threading.Event()
    threading.Thread(target=release, daemon=True).start()
    try:
        TROUBLES[kind](seconds)
    except ReleasedError:
        pass
    finally:
        signal.signal(signal.SIGRTMIN, signal.SIG_IGN)
        over.set()


if AT < 0:
    trouble(SECONDS)
TROUBLES_FILE = Path(__file__).parent / "trouble"
last = ""


def asked() -> "tuple[str, float] | None":
    """A trouble for this rank that was written into a file since the job began: number, kind, rank, seconds."""
    global last
    try:
        said = TROUBLES_FILE.read_text()
    except FileNotFoundError:
        return None
    if said == last:
        return None
    first, last = not last and not WARM, said
    _number, kind, rank, seconds = said.split()
    if kind not in TROUBLES:
        return None
    return (kind, float(seconds)) if rank in (str(RANK), "all") and not first else None


WARM = not TROUBLES_FILE.exists()
if MINE and TROUBLE == "port":
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
if MINE and TROUBLE == "address":
    os.environ["MASTER_ADDR"] = os.environ["TROUBLE_ADDRESS"]
if TROUBLE == "world":
    dist.init_process_group("gloo", world_size=WORLD + 1, rank=RANK)
else:
    dist.init_process_group("gloo")
size = int(os.environ.get("SIZE", "1000"))
model = torch.nn.Linear(size, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
pause = float(os.environ.get("STEP_SECONDS", "0.1"))
for step in range(int(os.environ.get("STEPS", "100000"))):
    if step == AT:
        trouble(SECONDS)
    said = asked()
    if said is not None:
        suffer(said[0], said[1], last)
    if step >= AT and MINE and TROUBLE == "slow":
        time.sleep(SECONDS)
    if step >= AT and MINE and TROUBLE == "compute":
        until = time.process_time() + SECONDS
        while time.process_time() < until:
            sum(range(1000))
    model(torch.ones(1, size)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(pause)
print("world", dist.get_world_size(), flush=True)
dist.destroy_process_group()
