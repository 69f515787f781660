"""Watches the trainer's steps from inside of a rank, as the variable FIRST_GPU_DAY says, and changes nothing else.

    {"stop": 12}       all ranks end after this step, without a checkpoint
    {"kill": [7, 1]}   rank 1 kills itself with SIGKILL after step 7
    {"waits": [3, 6]}  between these steps, a wait of the host for the device is an error
    {"trace": [5, 7]}  the kernels of rank 0 between these steps, as a table; the trace itself stays in its directory

Before the ranks end, rank 0 reports the memory that the allocator has reserved. Anything that fails here is reported
and ignored.
"""

import json
import os
import signal
import sys

WISHES = json.loads(os.environ.get("FIRST_GPU_DAY", "{}"))


def report(**values):
    print("first-gpu-day " + json.dumps(values), flush=True)


class Steps:
    """Counts the steps of this rank's optimizer, and does at each what was asked for."""

    def __init__(self, torch):
        self.torch = torch
        self.rank = int(os.environ["RANK"])
        self.done = 0
        self.profiler = None

    def __call__(self, *_given):
        self.done += 1
        for name in ("waits", "trace", "kill", "stop"):
            if name in WISHES:
                try:
                    getattr(self, name)(WISHES[name])
                except Exception as error:  # noqa: BLE001 - what only watches must not end a training
                    report(failed=f"{name}: {type(error).__name__}: {error}"[:300])

    def waits(self, wish):
        mode = {wish[0]: "error", wish[1]: "default"}.get(self.done)
        if mode is None:
            return
        try:
            self.torch.cuda.set_sync_debug_mode(mode)
        except (AttributeError, AssertionError, RuntimeError) as error:
            report(waits=f"{type(error).__name__}: {error}"[:300])
        else:
            report(waits=mode)

    def trace(self, wish):
        if self.rank == 0 and self.done == wish[0]:
            from torch.profiler import profile

            self.profiler = profile(record_shapes=False)
            self.profiler.__enter__()
        elif self.profiler is not None and self.done == wish[1]:
            self.profiler.__exit__(None, None, None)
            averages = self.profiler.key_averages()
            key = "self_cuda_time_total" if hasattr(averages[0], "self_cuda_time_total") else "self_device_time_total"
            for line in averages.table(sort_by=key, row_limit=30, max_name_column_width=60).splitlines():
                report(text="kernels", line=line[:300])
            self.profiler.export_chrome_trace("trace-rank0.json.gz")
            report(trace=os.path.abspath("trace-rank0.json.gz"))

    def kill(self, wish):
        if (self.done, self.rank) == tuple(wish):
            report(fault="kill")
            os.kill(os.getpid(), signal.SIGKILL)

    def stop(self, wish):
        if self.done == wish:
            try:
                self.torch.cuda.synchronize()
                if self.rank == 0:
                    cuda = self.torch.cuda
                    report(reserved=cuda.max_memory_reserved(), allocated=cuda.max_memory_allocated())
                    free, total = cuda.mem_get_info()
                    report(used=total - free)
            finally:
                os._exit(0)


class TorchUsers:
    """Sees that transformers is about to be imported, which the trainer does once it has torch."""

    def find_spec(self, name, path=None, target=None):
        if name == "transformers" and self in sys.meta_path:
            sys.meta_path.remove(self)
            import torch
            from torch.optim.optimizer import register_optimizer_step_post_hook

            register_optimizer_step_post_hook(Steps(torch))


if WISHES and "RANK" in os.environ:
    sys.meta_path.insert(0, TorchUsers())

# Another module of this name runs as it would without this one.
folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [part for part in sys.path if os.path.abspath(part or ".") != folder]
sys.path_importer_cache.pop(folder, None)
sys.modules.pop("sitecustomize", None)
try:
    __import__("sitecustomize")
except ImportError as error:
    if error.name != "sitecustomize":
        raise
