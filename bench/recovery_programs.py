"""Small programs without torch for bench/recovery.py: deterministic bugs, and ranks that fail once in a given way."""

# Each is the body of a script that runs on every rank, with `rank`. What it stands for is its name.
BUGS = {
    "an exception": 'raise ValueError("expected 3 channels, got 4")',
    "an assertion": "assert rank < 0, 'the batch is empty'",
    "a missing key": "{}['input_ids']",
    "an index out of range": "[][rank]",
    "a wrong type": "1 + '1'",
    "an unknown attribute": "os.no_such_function()",
    "a division by zero": "1 / 0",
    "a missing package": "import no_such_package",
    "a missing file": "open('/shared/recovery/no-such-file')",
    "a syntax error in a module": "compile('def f(:', 'model.py', 'exec')",
    "endless recursion": "def f(): f()\nf()",
    "broken JSON": "import json; json.loads('{')",
    "broken UTF-8": r"b'\xff'.decode()",
    "a shape that does not fit": "raise RuntimeError('mat1 and mat2 shapes cannot be multiplied (4x8 and 16x4)')",
    "GPU memory": "raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')",
    "a bug on one rank only": "raise ValueError('only here') if rank == 1 else SystemExit(time.sleep(600))",
    "not implemented": "raise NotImplementedError",
    "a bug at step 20": "time.sleep(1); raise ValueError('loss is not a scalar')",
    "an exit code": "sys.exit(3)",
    "a segmentation fault": "import ctypes; ctypes.string_at(0)",
}
# Whose cause no exception names: they may be tried once more.
UNKNOWN = ("an exit code", "a segmentation fault")
BUG = """
import os, sys, time
rank = int(os.environ["RANK"])
{body}
"""
# In the first attempt, the rank on the chosen node fails as told; the others wait to be ended. In the next, all finish.
JOB = """
import os, pathlib, signal, socket, sys, time
how, victim = sys.argv[1:]
rank, count = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("rank", rank, "of", os.environ["WORLD_SIZE"], "on", os.uname().nodename, "restart", count, flush=True)
if count == 0 and os.uname().nodename == victim:
    time.sleep(0.5)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        sys.exit(7)
    elif how == "bug":
        raise ValueError("expected 3 channels, got 4")
    elif how == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB")
    elif how == "file":
        open("/private/only-missing-here")
    elif how == "package":
        import no_such_package
    elif how == "port":
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            first.listen()
            second.bind(first.getsockname())
    elif how == "disk":
        with open("/private/full", "wb") as file:
            while True:
                file.write(bytes(1 << 20))
                file.flush()
elif count == 0 and how == "everywhere":
    raise ValueError("expected 3 channels, got 4")
deadline = time.monotonic() + 600
while count == 0 and time.monotonic() < deadline:
    time.sleep(0.1)
"""
# Imported by Python at the start of each rank: waits at each step of the optimizer.
WAIT = """
import importlib.util, sys, time

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name != "torch.optim.adamw":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        load = spec.loader.exec_module

        def load_slow(module):
            load(module)
            step = module.AdamW.step

            def step_slowly(*args, **kwargs):
                time.sleep({seconds})
                return step(*args, **kwargs)

            module.AdamW.step = step_slowly

        spec.loader.exec_module = load_slow
        return spec

sys.meta_path.insert(0, Finder())
"""
# Imported by Python at the start of each rank: in the first attempt, the trainer on the chosen node fails once the file
# `go` says so.
SABOTAGE = """
import os, pathlib, signal, sys, threading, time
folder = pathlib.Path(__file__).parent

def fail(*_):
    how = (folder / "go").read_text().split()[0]
    if how == "segv":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        os._exit(7)
    elif how == "memory":
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79 GiB")
    raise ValueError("expected 3 channels, got 4")

def watch():
    while not (folder / "go").exists() or (folder / "go").read_text().split()[1:] != [os.uname().nodename]:
        time.sleep(0.1)
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)

if os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0" and "aboard.trainer" in sys.orig_argv:
    signal.signal(signal.SIGALRM, fail)
    threading.Thread(target=watch, daemon=True).start()
"""
