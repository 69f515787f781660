"""The beacon's torch hooks: report when its modules are imported, its group is created, its optimizer steps.

It never imports torch itself, and does without what a torch version lacks (2.1 to 2.13 differ).
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from _json import encode_basestring_ascii as quoted  # json would cost 3 ms
from contextlib import suppress

TYPE_CHECKING = False  # typing itself costs each rank 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from aboard.agent.beacon.aboard_beacon import Beacon

REPORT_SECONDS = 0.2

# Imported by name from the same directory: on a node it is not part of a package.
_flight = __import__("aboard_beacon_flight")


def watch(beacon: Beacon, folder: str, request_path: str, awaited: str) -> None:
    """Starts reporting what torch does in this process; the flight recorder's files go to the folder.

    The supervisor may request the recorder's content through the socket at `request_path`. `awaited` is the port that
    this rank must not connect to before the file behind the colon has its number; empty without such a port.
    """
    # A script may change the address; then it connects to a master of its own.
    hold = ClientHold(beacon)
    hold.expect(awaited)
    beacon.on_rank = hold.expect
    steps = Steps(beacon)

    def torch_came(torch: ModuleType) -> None:
        beacon.reach("torch")
        with suppress(Exception):
            _enable_flight_recorder(torch, folder)
        optimizer = sys.modules.get("torch.optim.optimizer")
        if optimizer is not None:
            optimizer_came(optimizer)

    def optimizer_came(optimizer: Any) -> None:
        # It may be imported as part of torch, which is incomplete then; in that case torch's own import handles it.
        if beacon.reached("torch"):
            optimizer.register_optimizer_step_post_hook(_build_step_hook(steps, sys.modules["torch"]))

    after = {
        "torch": torch_came,
        "torch.distributed.distributed_c10d": lambda c10d: _watch_process_group(beacon, c10d, request_path, hold),
        "torch.optim.optimizer": optimizer_came,
        "torch.cuda.graphs": _flight.follow_captures,
        "torch.distributed.run": lambda run: _watch_launcher(beacon, run, "run", "torchrun"),
        "accelerate.commands.launch": lambda launch: _watch_launcher(
            beacon, launch, "launch_command", "accelerate", "launch"
        ),
        "deepspeed.launcher.runner": lambda runner: _watch_launcher(beacon, runner, "main", "deepspeed"),
        "torch._dynamo.callback": lambda dynamo: _watch_compilations(beacon, dynamo.callback_handler),
    }
    # It stays there: removing it could make a concurrent import in another thread skip the next finder.
    sys.meta_path.insert(0, ImportHook(after))


class ImportHook:
    """Finds no module itself: calls back when another finder has imported one of the awaited modules."""

    def __init__(self, after: dict[str, Callable[[ModuleType], None]]) -> None:
        self._after = after

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._after:
            return None
        after = self._after.pop(name)
        try:
            for finder in list(sys.meta_path):
                if finder is not self:
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        self._wrap_loader(spec.loader, name, after)
                        return spec
        except Exception:  # noqa: BLE001 - Python calls the failing finder again itself, and it raises again
            return None
        return None

    def _wrap_loader(self, loader: Any, name: str, after: Callable[[ModuleType], None]) -> None:
        """Patches the loader of this module instead of replacing it, so that its `__loader__` stays correct."""
        plain = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != name:
                # A shared loader, such as that of a zip file.
                plain(module)
                return
            del loader.exec_module
            try:
                if name == "torch":
                    _import_without_gc(lambda: plain(module))
                else:
                    plain(module)
            except BaseException:
                self._after[name] = after
                raise
            with suppress(Exception):
                after(module)

        loader.exec_module = exec_module


def _watch_launcher(beacon: Beacon, module: Any, function: str, *launcher: str) -> None:
    """Reports a call of the launcher's function: the rank would start ranks of its own."""
    launch = getattr(module, function)

    def report_and_launch(*args: Any, **kwargs: Any) -> Any:
        with suppress(Exception):
            words = [*launcher, *_list_launch_words(args[0] if args else kwargs.get("args"))]
            beacon.tell('"nested":[%s]' % ",".join(quoted(word[:300]) for word in words[:65]))
        return launch(*args, **kwargs)

    setattr(module, function, report_and_launch)


def _list_launch_words(args: Any) -> list[str]:
    """The script and its arguments; all words where the launcher has not parsed them yet."""
    if args is None or isinstance(args, (list, tuple)):
        return [str(word) for word in (sys.argv[1:] if args is None else args)]
    words = ["-m"] if getattr(args, "module", False) else []
    return words + [str(word) for word in (args.training_script, *args.training_script_args)]


def _import_without_gc(run: Callable[[], None]) -> None:
    """Imports torch with Python's cycle collector paused, and keeps what it made out of later collections.

    The import creates half a million objects that live as long as the process. Scanning them repeatedly takes a
    tenth of the import's time.
    """
    thresholds = gc.get_threshold()
    gc.set_threshold(0)
    try:
        run()
    finally:
        # Unless something that torch imports has set its own thresholds.
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*thresholds)
        gc.freeze()


def _enable_flight_recorder(torch: ModuleType, folder: str) -> None:
    """Enables torch's flight recorder unless the user configured it; sets the variables that this torch reads."""
    version = tuple(int(part) for part in str(torch.__version__).split(".")[:2])
    size, file = ("TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE")
    old_size, old_file = ("TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    if not {size, old_size} & set(os.environ):
        os.environ[size if version >= (2, 9) else old_size] = "2000"
    if not {file, old_file} & set(os.environ):
        # Torch appends the rank's number.
        os.environ[file if version >= (2, 9) else old_file] = os.path.join(folder, "flight.")
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")


# -- the phases of torch.distributed ---------------------------------------------------------------------------------


RANK_AT = 4
STORE_ARGUMENTS = ("host_name", "port", "world_size", "is_master", "timeout")
# The store's own default.
STORE_SECONDS = 300.0
POLL_SECONDS = 0.02


def _watch_process_group(beacon: Beacon, c10d: Any, request_path: str, hold: ClientHold) -> None:
    plain = c10d.init_process_group
    rank_argument: list[Any] = []

    def init_process_group(*args: Any, **named: Any) -> Any:
        # The script may pass its rank as the fifth argument.
        rank_argument[:] = [args[RANK_AT] if len(args) > RANK_AT else named.get("rank")]
        result = plain(*args, **named)
        with suppress(Exception):
            grouped()
        return result

    def grouped() -> None:
        if not beacon.reached("group"):
            beacon.reach("group")
            parts = ((c10d.Work, "wait"), (sys.modules["torch.distributed"], "_verify_params_across_processes"))
            # Every collective called from Python ends in Work.wait; DDP and similar wrappers begin with the other.
            once = FirstCallHook(lambda: beacon.reach("collective"))
            for holder, name in parts:
                with suppress(Exception):
                    once.hook_function(holder, name)

    def joining(_store: Any, host: Any = None, port: Any = None, world: Any = None, *rest: Any, **named: Any) -> None:
        """Reports the script's store before it waits for it; from here on the supervisor may send requests."""
        with suppress(Exception):
            _flight.start_listener(beacon, request_path)
        arguments = {"host_name": host, "port": port, "world_size": world, "is_master": rest[0] if rest else None}
        arguments.update(named)
        fields = {"host": '"%s"' % str(arguments["host_name"]).replace("\\", "").replace('"', "")[:200]}
        fields["port"], fields["master"] = "%d" % arguments["port"], "true" if arguments["is_master"] else "false"
        if arguments["world_size"] is not None:
            fields["world"] = "%d" % arguments["world_size"]
        rank = rank_argument[0] if rank_argument else None
        if isinstance(rank, int) and rank >= 0:
            fields["rank"] = "%d" % rank
        elif os.environ.get("RANK", "").isdigit():
            fields["rank"] = os.environ["RANK"]
        beacon.tell('"joining":{%s}' % ",".join('"%s":%s' % each for each in fields.items()))

    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(init_process_group, name, getattr(plain, name))
    init_process_group.__wrapped__ = plain  # type: ignore[attr-defined]
    # It stays: it is called once or twice in a process, and other modules may already have imported it.
    c10d.init_process_group = init_process_group
    store = sys.modules["torch._C._distributed_c10d"].TCPStore
    hold.hook_store(store)
    FirstCallHook(lambda: beacon.reach("store"), hold).hook_function(store, "__init__", joining)


class ClientHold:
    """Lets a store connect to rank 0 only once the supervisor has seen rank 0 listen, and then removes itself.

    Until then another user of rank 0's node could listen there. `awaited` is as in `watch`.
    """

    def __init__(self, beacon: Beacon) -> None:
        self._beacon = beacon
        self._over = False
        self._undo: Callable[[], None] = lambda: None

    def expect(self, awaited: str) -> None:
        self._master = os.environ.get("MASTER_ADDR", "")
        self._port, _colon, self._path = awaited.partition(":")

    def hook_store(self, store: Any) -> None:
        plain = vars(store)["__init__"]

        def connect(*args: Any, **named: Any) -> Any:
            with suppress(Exception):
                self._before(dict(zip(STORE_ARGUMENTS, args[1:]), **named))
            result = plain(*args, **named)
            self.leave()
            return result

        def undo() -> None:
            # Unless other code has replaced it since.
            if vars(store).get("__init__") is connect:
                store.__init__ = plain

        if self._port or self._beacon.silent:
            store.__init__ = connect
            self._undo = undo

    def leave(self) -> None:
        if self._over:
            self._undo()

    def _before(self, arguments: dict[str, Any]) -> None:
        is_master = arguments.get("is_master")
        if "%d" % arguments["port"] == self._port and (is_master or arguments["host_name"] == self._master):
            if not is_master and not self._over:
                self._wait(arguments.get("timeout"))
            self._over = True

    def _wait(self, timeout: Any) -> None:
        if self._listens():
            return
        deadline = time.monotonic() + (STORE_SECONDS if timeout is None else timeout.total_seconds())
        self._beacon.doing("rendezvous")
        try:
            # Without the directory there is no supervisor that could write the file.
            while not self._listens() and time.monotonic() < deadline and os.path.isdir(os.path.dirname(self._path)):
                time.sleep(POLL_SECONDS)
        finally:
            self._beacon.doing("")

    def _listens(self) -> bool:
        try:
            with open(self._path, "rb") as file:
                return file.read(16).decode("ascii") == self._port
        except OSError:
            return False


class FirstCallHook:
    """Calls back when the first of some functions has returned, then removes itself: later calls cost nothing.

    `inner` is a hook below it, which can only remove itself afterwards.
    """

    def __init__(self, done: Callable[[], None], inner: ClientHold | None = None) -> None:
        self._inner = inner
        self._done: Callable[[], None] | None = done
        self._hooked: list[tuple[Any, str, Any, Any]] = []

    def hook_function(self, holder: Any, name: str, before: Callable[..., None] | None = None) -> None:
        """Hooks one function; `before` is called with the same arguments before it."""
        plain = vars(holder)[name]

        def once(*args: Any, **named: Any) -> Any:
            if before is not None:
                with suppress(Exception):
                    before(*args, **named)
            result = plain(*args, **named)
            with suppress(Exception):
                self._leave()
            return result

        setattr(holder, name, once)
        self._hooked.append((holder, name, plain, once))

    def _leave(self) -> None:
        done, self._done = self._done, None
        for holder, name, plain, once in self._hooked:
            # Unless other code has replaced it since.
            if vars(holder).get(name) is once:
                setattr(holder, name, plain)
        self._hooked = []
        if self._inner is not None:
            self._inner.leave()
        if done is not None:
            done()


# -- compilations ----------------------------------------------------------------------------------------------------


def _watch_compilations(beacon: Beacon, handler: Any) -> None:
    """Reports when torch compiles, so that it counts as no stall; torch calls them once for nested compilations."""

    def started(*_: Any) -> None:
        with suppress(Exception):
            beacon.doing("compiling")

    def ended(*_: Any) -> None:
        with suppress(Exception):
            beacon.doing("")

    handler.register_start_callback(started)
    handler.register_end_callback(ended)


# -- steps -----------------------------------------------------------------------------------------------------------


class Steps:
    """Counts the steps of the first optimizer that steps, and reports at most five times a second."""

    def __init__(self, beacon: Beacon) -> None:
        self._beacon = beacon
        self._which = 0
        self._others = 0
        self._patience = 64
        self._count = 0
        self._reported = 0
        self._since = 0.0
        self._next = 0.0
        atexit.register(self._last_report)

    def take(self, optimizer: Any) -> None:
        # Identified by its first parameter: DeepSpeed's ZeRO calls one optimizer for each group or part of a step.
        which = id(optimizer.param_groups[0]["params"][0])
        if which != self._which and not self._adopt(which):
            return
        self._others = 0
        self._count += 1
        if time.monotonic() >= self._next:
            self._report()

    def _adopt(self, which: int) -> bool:
        """Switches to another optimizer only when the first has not stepped for long: a script may train twice."""
        self._others += 1
        if self._which and self._others <= self._patience:
            return False
        # The more optimizers alternate, the longer it takes until the same one steps again.
        self._patience *= 2
        self._which = which
        return True

    def _report(self) -> None:
        now = time.monotonic()
        self._next = now + REPORT_SECONDS
        steps = self._count - self._reported
        if not steps:
            return
        fields = '"step":%d' % (self._beacon.first_step + self._count)
        if self._reported:
            fields += ',"seconds":%.6f' % ((now - self._since) / steps)
        if self._beacon.mention(fields):
            self._reported, self._since = self._count, now
        if self._beacon.reached("group") and not self._beacon.reached("collective"):
            self._detect_collectives()

    def _last_report(self) -> None:
        with suppress(Exception):
            self._report()

    def _detect_collectives(self) -> None:
        """Detects collectives that torch issues without Python (functional ones, FSDP's) by the groups' counters."""
        groups = sys.modules["torch.distributed.distributed_c10d"]._world.pg_map  # noqa: SLF001 - there is no other
        if any(group._get_sequence_number_for_group() for group in list(groups)):  # noqa: SLF001 - nor here
            self._beacon.reach("collective")


def _build_step_hook(steps: Steps, torch: Any) -> Callable[..., None]:
    def stepped(optimizer: Any, _args: Any, _named: Any) -> None:
        # Under torch.compile there is nothing to count, and the hook cannot be traced.
        if not compiling():
            try:  # noqa: SIM105 - suppress() costs three times as much, and this runs in every step
                steps.take(optimizer)
            except Exception:  # noqa: BLE001, S110 - an uncounted step must not stop a training run
                pass

    def never() -> bool:
        return False

    compiling = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", never)
    return stepped
