"""Connects the simulated device with torch: what torch.cuda, the process groups and pinned memory are in Python.

SIMULATED_GPUS=8                    how many devices there are, before CUDA_VISIBLE_DEVICES hides some
SIMULATED_GPUS_LIBRARIES=DIR        where the device's library is
SIMULATED_GPUS_WAITS=FILE           a line of JSON for each time the host waits for the device
SIMULATED_GPUS_GIB, _NAME, _CAPABILITY  the memory, name and compute capability of a device
"""

import ctypes
import importlib
import importlib.util
import json
import os
import sys
import threading
import time
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

LIBRARY = Path(os.environ.get("SIMULATED_GPUS_LIBRARIES", "")) / "simulated_gpus_device.so"
CAPABILITY = tuple(int(part) for part in os.environ.get("SIMULATED_GPUS_CAPABILITY", "9.0").split("."))
MEMORY = int(float(os.environ.get("SIMULATED_GPUS_GIB", "79.1")) * 2**30)
NAME = os.environ.get("SIMULATED_GPUS_NAME", "NVIDIA H100 80GB HBM3")
NCCL_VERSION = (2, 29, 7)
# Registered for as long as these live.
KERNELS: list[Any] = []


def install() -> None:
    """The devices exist as soon as torch is imported."""
    sys.meta_path.insert(0, TorchFinder())


class TorchFinder:
    """Loads the device's library before torch, which asks for devices while it is imported, and patches torch after."""

    def __init__(self) -> None:
        self.searching = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self.searching:
            return None
        # Also for those who only ask whether there is a torch.
        self.searching = True
        spec = importlib.util.find_spec(name)
        self.searching = False
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_patch(module: types.ModuleType) -> None:
            ctypes.CDLL(str(LIBRARY), ctypes.RTLD_GLOBAL)
            execute(module)
            device = load_device()
            patch_cuda(device)
            patch_memory(device)
            patch_process_groups(device)
            log_waits(device)
            KERNELS.append(load_beside("attention_kernels").install(CAPABILITY))

        spec.loader.exec_module = execute_and_patch  # type: ignore[method-assign]
        return spec


def load_device() -> Any:
    spec = importlib.util.spec_from_file_location("simulated_gpus_device", LIBRARY)
    assert spec is not None
    assert spec.loader is not None
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    device.set_count(count_visible())
    device.limit(MEMORY)
    return device


def load_beside(name: str) -> Any:
    """A module of this directory, which is not in the path of what runs."""
    spec = importlib.util.spec_from_file_location(f"simulated_gpus_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def import_any(name: str) -> Any:
    """A module whose attributes are replaced, which its types forbid; not before this one, which precedes torch."""
    return importlib.import_module(name)


def count_visible() -> int:
    total, visible = int(os.environ["SIMULATED_GPUS"]), os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return total
    return len([word for word in visible.split(",") if word.strip() not in {"", "-1"}])


class Event:
    """An event of a stream on which everything has happened when it is recorded."""

    device: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> "Event":
        self.at = time.perf_counter()
        return self

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        self.device.note("Event.synchronize")

    def elapsed_time(self, other: "Event") -> float:
        return (other.at - self.at) * 1e3


class Stream:
    """There is one stream; a wait of the host for it is noted."""

    device_module: Any = None
    cuda_stream = stream_id = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        torch = import_any("torch")

        self.device = torch.device("cuda", find_index(self.device_module, device))
        self.priority = priority

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: "Stream") -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        return (event or Event()).record()

    def synchronize(self) -> None:
        self.device_module.note("Stream.synchronize")

    def query(self) -> bool:
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def find_index(device_module: Any, device: Any) -> int:
    torch = import_any("torch")

    if isinstance(device, int) and device >= 0:
        return device
    index = None if device is None or isinstance(device, int) else torch.device(device).index
    current: int = device_module.current_device()
    return current if index is None else index


def patch_cuda(device: Any) -> None:  # noqa: C901 - one table, and the functions in it
    torch = import_any("torch")
    generators = import_any("torch.cuda.random")

    cuda, count = torch.cuda, count_visible()
    Event.device = Stream.device_module = device
    streams: dict[int, Stream] = {}

    def current_stream(which: Any = None) -> Stream:
        return streams.setdefault(find_index(device, which), Stream(which))

    def properties(which: Any = None) -> Any:
        if find_index(device, which) >= count:
            raise RuntimeError("CUDA error: invalid device ordinal")
        return types.SimpleNamespace(
            name=NAME, major=CAPABILITY[0], minor=CAPABILITY[1], total_memory=MEMORY, multi_processor_count=132,
            is_integrated=0, warp_size=32, regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
            gcnArchName="", L2_cache_size=50 << 20, uuid="simulated", shared_memory_per_block=49152,
            shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
        )  # fmt: skip

    class DeviceGuard:
        def __init__(self, which: Any) -> None:
            self.index = find_index(device, which)

        def __enter__(self) -> None:
            self.before = device.current_device()
            device.set_device(self.index)

        def __exit__(self, *_: object) -> None:
            device.set_device(self.before)

    @contextmanager
    def use_stream(_stream: Any) -> Iterator[None]:
        yield

    def exchange(index: int) -> int:
        before: int = device.current_device()
        if index >= 0:
            device.set_device(index)
        return before

    def seed(number: int) -> None:
        torch.default_generator.manual_seed(int(number))

    random: dict[str, Any] = {
        "get_rng_state": lambda _device="cuda": torch.get_rng_state(),
        "set_rng_state": lambda state, _device="cuda": torch.set_rng_state(state),
        "manual_seed": seed,
        "manual_seed_all": seed,
    }
    memory: dict[str, Any] = {
        "mem_get_info": lambda _device=None: (MEMORY - device.allocated(), MEMORY),
        "reset_peak_memory_stats": lambda _device=None: device.reset_peak(),
        "memory_stats": lambda _device=None: {},
        "empty_cache": lambda: None,
        **{name: lambda _device=None: device.allocated() for name in ("memory_allocated", "memory_reserved")},
        **{name: lambda _device=None: device.peak() for name in ("max_memory_allocated", "max_memory_reserved")},
    }
    patches: dict[str, Any] = {
        "is_available": lambda: count > 0,
        "device_count": lambda: count,
        "current_device": device.current_device,
        "set_device": lambda which: device.set_device(find_index(device, which)),
        "is_initialized": lambda: True,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "_lazy_call": lambda function, **_: None,  # noqa: ARG005 - torch's signature
        "_is_in_bad_fork": lambda: False,
        "get_device_properties": properties,
        "get_device_name": lambda _device=None: NAME,
        "get_device_capability": lambda _device=None: CAPABILITY,
        "is_bf16_supported": lambda *_, **__: CAPABILITY >= (8, 0),
        "synchronize": lambda _device=None: device.note("torch.cuda.synchronize"),
        "is_current_stream_capturing": lambda: False,
        "Stream": Stream,
        "Event": Event,
        "stream": use_stream,
        "current_stream": current_stream,
        "default_stream": current_stream,
        "device": DeviceGuard,
        "_exchange_device": exchange,
        "_maybe_exchange_device": exchange,
        **random,
        **memory,
    }
    for name, value in patches.items():
        setattr(cuda, name, value)
    for name, value in random.items():
        setattr(generators, name, value)
    nccl = types.ModuleType("torch.cuda.nccl")
    nccl.__dict__.update(version=lambda: NCCL_VERSION, is_available=lambda _tensors=None: True)
    cuda.nccl = sys.modules["torch.cuda.nccl"] = nccl
    torch.version.cuda = "13.0"
    torch.backends.cuda.is_flash_attention_available = lambda: True
    torch._C._cuda_isCurrentStreamCapturing = lambda: False
    torch._C._cuda_getCurrentRawStream = lambda _index: 0


def patch_memory(device: Any) -> None:
    """Pinned memory, and storages on the device that are resized."""
    torch = import_any("torch")

    # Cached: `with torch.device("meta")` applies to the functions that it lists, the original torch.empty among them.
    import_any("torch.utils._device")._device_constructors()
    empty, resize = torch.empty, torch.UntypedStorage.resize_
    # Of `with torch.device(…)`: torch lists its own functions at the first use, and a wrapper is none of them.
    import_any("torch.utils._device")._device_constructors()

    def pin_memory(self: Any, device_: Any = None) -> Any:
        if self.is_cuda:
            raise RuntimeError("cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned")
        if device.is_pinned(self):
            return self
        pinned = empty(self.shape, dtype=self.dtype)
        pinned.copy_(self)
        device.pin(pinned)
        return pinned

    def empty_maybe_pinned(*args: Any, pin_memory: bool = False, **named: Any) -> Any:
        tensor = empty(*args, **named)
        if pin_memory:
            device.pin(tensor)
        return tensor

    def resize_storage(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resize(self, size)
        device.resize_storage(self, int(size))
        return self

    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = lambda self, _device=None: self.device.type == "cpu" and device.is_pinned(self)
    torch.Tensor.record_stream = lambda _self, _stream: None
    torch.empty = empty_maybe_pinned
    torch.UntypedStorage.resize_ = resize_storage


def patch_process_groups(device: Any) -> None:
    """The backend nccl: gloo on aliases of the tensors."""
    raw = import_any("torch._C._distributed_c10d")
    dist = import_any("torch.distributed")
    c10d = import_any("torch.distributed.distributed_c10d")

    class IsSimulated(type):
        def __instancecheck__(cls, group: object) -> bool:
            return isinstance(group, device.SimulatedNccl)

    class NcclOptions:
        is_high_priority_stream = False
        _timeout: Any = None
        config = None

    class ProcessGroupNCCL(metaclass=IsSimulated):
        Options = NcclOptions

        def __new__(cls, store: Any, rank: int, size: int, options: Any) -> Any:
            gloo = c10d.ProcessGroupGloo(store, rank, size, timeout=options._timeout)
            return device.SimulatedNccl(gloo, rank, size)

    device.SimulatedNccl.options = property(lambda _self: None)
    raw.Logger.set_runtime_stats_and_log = lambda _self: None
    c10d.ProcessGroupNCCL = dist.ProcessGroupNCCL = ProcessGroupNCCL
    c10d._NCCL_AVAILABLE = True
    c10d.is_nccl_available = dist.is_nccl_available = lambda: True


def log_waits(device: Any) -> None:
    """Also raises as torch does in `set_sync_debug_mode("error")`: for waits that a program doesn't ask for."""
    log, lock, mode = os.environ.get("SIMULATED_GPUS_WAITS"), threading.Lock(), ["default"]

    def set_mode(word: str) -> None:
        mode[:] = [word]
        device.on_wait(note)

    def note(what: str) -> None:
        if mode == ["error"] and "synchronize" not in what:
            raise RuntimeError(f"called a synchronizing CUDA operation: {what} (simulated)")
        if not log:
            return
        frames = [
            f"{frame.filename.rpartition('/aboard/')[2]}:{frame.name}"
            for frame in reversed(traceback.extract_stack())
            if "/aboard/trainer/" in frame.filename
        ]
        line = {"rank": os.environ.get("RANK"), "thread": threading.current_thread().name, "what": what, "by": frames}
        with lock, Path(log).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    import_any("torch").cuda.set_sync_debug_mode = set_mode
    if log:
        device.on_wait(note)
