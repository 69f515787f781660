"""Builds the hosts inside the outer namespace, in parallel."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.containers import image_files
from aboard.sandbox.host_setup import network_commands, root_filesystem
from aboard.sandbox.host_setup.boot_host import HostBlueprint, SshKeys, boot_host, run_ip_batch
from aboard.sandbox.host_setup.system_files import ROOT_PATH
from aboard.sandbox.layout import HostAddress, SandboxLayout
from aboard.sandbox.namespaces import helper_program, system_calls
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.requirements import HostPrograms, build_system_call_error

_KEYGENS_AT_ONCE = 16
_KEYGEN_TIMEOUT = 30.0


def build_hosts(
    outer_init: ProcessIdentity,
    blueprint: HostBlueprint,
    names: Iterable[str],
    *,
    progress: Callable[[int], None],
    timeout: float,
) -> dict[str, ProcessIdentity]:
    """Builds and boots these hosts; calls `progress` with the number that are up."""
    wanted = list(names)
    spec = {"outer_init": asdict(outer_init), "blueprint": asdict(blueprint), "names": wanted}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with helper_program.start_helper("aboard.sandbox.host_setup.build_hosts", spec, **streams) as worker:
        try:
            inner = _follow_worker(worker, len(wanted), progress, deadline=time.monotonic() + timeout)
        except BaseException:
            worker.terminate()
            raise
    return _find_outer_pids(outer_init, inner)


def _follow_worker(
    worker: subprocess.Popen[bytes], wanted: int, progress: Callable[[int], None], *, deadline: float
) -> dict[str, int]:
    """Read the worker's lines until every host is up."""
    if worker.stdout is None or worker.stderr is None:
        raise AssertionError("Popen was given PIPE")
    inner: dict[str, int] = {}
    buffer = b""
    while len(inner) < wanted:
        ready, _, _ = select.select([worker.stdout], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(worker.stdout.fileno(), 65536) if ready else b""
        if not chunk:
            detail = "time is up" if not ready else worker.stderr.read().decode(errors="replace").strip()
            raise SandboxError(
                sandbox.BUILD, f"{len(inner)} of {wanted} hosts came up, then: {detail[-2000:] or 'the builder exited'}"
            )
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            message = json.loads(line)
            helper_program.raise_error(message)
            inner[message["host"]] = message["pid"]
            progress(len(inner))
    return inner


def _find_outer_pids(outer_init: ProcessIdentity, inner: dict[str, int]) -> dict[str, ProcessIdentity]:
    """Maps pids of the outer namespace to the machine's own processes."""
    found: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            status = (entry / "status").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        numbers = fields["NSpid"].split()
        if int(fields["PPid"]) == outer_init.pid and numbers[-1] == "1":
            found[int(numbers[-2])] = int(entry.name)
    return {name: ProcessIdentity.of(found[pid]) for name, pid in inner.items()}


def main(handle: int) -> None:
    """Entry point of the started program: enters the outer namespace and builds the hosts there."""
    spec = helper_program.read_spec(handle)
    outer_init = ProcessIdentity(**spec["outer_init"])
    pidfd = os.pidfd_open(outer_init.pid)
    if not outer_init.alive():
        sys.exit("the sandbox is gone")
    system_calls.set_namespaces(pidfd, system_calls.ALL_NAMESPACES)
    pid = os.fork()
    if pid:
        # We must reap it ourselves: the outer namespace cannot go away before its zombies are reaped, and the
        # machine's init may be slow.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGKILL))
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    try:
        _build_in_namespace(_decode_blueprint(spec["blueprint"]), spec["names"])
    except SandboxError as error:
        _write_line(helper_program.format_error_line(error))
    except OSError as error:
        _write_line(helper_program.format_error_line(build_system_call_error("namespaces", error)))


def _build_in_namespace(blueprint: HostBlueprint, names: list[str]) -> None:
    ip, places = blueprint.programs.ip, blueprint.layout.places
    for name in names:
        if not (blueprint.disks / name).exists():
            root_filesystem.make_disk(blueprint.disks / name)
    home = blueprint.disks / "home"
    if blueprint.layout.shared_home and not home.exists():
        home.mkdir(mode=0o700)
        os.chown(home, blueprint.crew_id, blueprint.crew_id)
    if not (blueprint.disks / "switch").exists():
        run_ip_batch(ip, network_commands.format_switch_batch(fabric=blueprint.layout.fabric))
        (blueprint.disks / "switch").touch()
    keys = _ensure_keys(blueprint)
    if blueprint.layout.containers and not (blueprint.disks / "images").exists():
        programs = Path(blueprint.python).parent if blueprint.environment is None else blueprint.environment / "bin"
        search_path = f"{programs}:{ROOT_PATH}"
        image_files.build_image_files(blueprint.disks / "images", search_path)
    new_hosts = {name: _NewHost(places[name], blueprint, keys) for name in names}
    first = {name: new_host.first_process() for name, new_host in new_hosts.items()}
    run_ip_batch(ip, network_commands.format_cable_batch((places[name], pid) for name, pid in first.items()))
    for new_host in new_hosts.values():
        new_host.boot()
    waiting = {new_host.answers: name for name, new_host in new_hosts.items()}
    while waiting:
        ready, _, _ = select.select(list(waiting), [], [])
        for answers in ready:
            name = waiting.pop(answers)
            _write_line(os.read(answers, 65536).decode() or json.dumps({"host": name, "pid": first[name]}) + "\n")


class _NewHost:
    """The namespaces of a new host; its first process waits for the NICs before it boots."""

    def __init__(self, host: HostAddress, blueprint: HostBlueprint, keys: SshKeys) -> None:
        started, self._go = os.pipe()
        self.answers, answer = os.pipe()
        self._numbers, number = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._go)
            with _report_errors(answer):
                system_calls.unshare_namespaces(system_calls.ALL_NAMESPACES)
                first = os.fork()
                if first:
                    os.write(number, str(first).encode())
                elif os.read(started, 1):
                    boot_host(host, blueprint, keys)
                    _become_init(blueprint.programs)
            os._exit(0)
        for end in (started, answer, number):
            os.close(end)

    def first_process(self) -> int:
        """The pid of its first process in the outer namespace."""
        number = os.read(self._numbers, 64)
        os.close(self._numbers)
        if not number:
            helper_program.raise_error(json.loads(os.read(self.answers, 65536)))
        return int(number)

    def boot(self) -> None:
        """Continues the boot once the NICs are attached; the reply is an error, or empty when the host's init runs."""
        os.write(self._go, b"!")
        os.close(self._go)


@contextmanager
def _report_errors(answer: int) -> Iterator[None]:
    """Sends errors of a forked process to the reader of its pipe."""
    try:
        yield
    except SandboxError as error:
        os.write(answer, helper_program.format_error_line(error).encode())
    except OSError as error:
        os.write(answer, helper_program.format_error_line(build_system_call_error("namespaces", error)).encode())
    except BaseException as error:  # noqa: BLE001 - sent to the parent, which raises it
        trouble = SandboxError(sandbox.BUILD, f"{type(error).__name__}: {error}")
        os.write(answer, helper_program.format_error_line(trouble).encode())


def _become_init(programs: HostPrograms) -> NoReturn:
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # Python ignores SIGPIPE, and every program that the host runs would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execve(programs.tini, ["tini", "--", programs.sleep, "infinity"], {"PATH": ROOT_PATH})  # noqa: S606 - no shell


def _ensure_keys(blueprint: HostBlueprint) -> SshKeys:
    """The keys of the whole sandbox, generated once; a host that is rebuilt keeps its key."""
    store = blueprint.disks / "keys"
    store.mkdir(mode=0o700, exist_ok=True)
    names = ["crew-of-all", *blueprint.layout.places]
    todo = [name for name in names if not (store / f"{name}.pub").exists()]
    for start in range(0, len(todo), _KEYGENS_AT_ONCE):
        running = [_start_keygen(blueprint, store / name) for name in todo[start : start + _KEYGENS_AT_ONCE]]
        for process in running:
            process.wait(timeout=_KEYGEN_TIMEOUT)
    pairs = {name: ((store / name).read_text(), (store / f"{name}.pub").read_text().strip()) for name in names}
    return SshKeys(crew=pairs.pop("crew-of-all"), hosts=pairs)


def _start_keygen(blueprint: HostBlueprint, path: Path) -> subprocess.Popen[bytes]:
    owner = "admin" if blueprint.layout.bare else "crew@head"
    comment = owner if path.name == "crew-of-all" else f"root@{path.name}"
    return subprocess.Popen(
        [blueprint.programs.ssh_keygen, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _write_line(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _decode_blueprint(raw: dict[str, Any]) -> HostBlueprint:
    raw |= {
        "layout": SandboxLayout(**raw["layout"]),
        "disks": Path(raw["disks"]),
        "programs": HostPrograms(**raw["programs"]),
        "trees": tuple(map(Path, raw["trees"])),
        "images": tuple(map(Path, raw["images"])),
        "trusted": tuple(raw["trusted"]),
        "environment": None if raw["environment"] is None else Path(raw["environment"]),
    }
    return HostBlueprint(**raw)
