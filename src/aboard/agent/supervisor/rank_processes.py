"""Starts, follows and terminates the processes of a run on this node."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal

from aboard.agent import frames, process_tree
from aboard.agent.beacon.report_receiver import BeaconReceiver
from aboard.agent.event_loop import EventLoop
from aboard.agent.private_folders import replace_file
from aboard.agent.process_spawn import read_start_failure, spawn_process
from aboard.agent.supervisor.nested_launchers import NestedLaunchers
from aboard.agent.supervisor.output_spool import OutputSpool
from aboard.agent.supervisor.rank_group import enter_group, make_group
from aboard.agent.supervisor.rank_output import RankOutput

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.beacon.report_receiver import BeaconState
    from aboard.agent.capture.launcher_captures import LauncherCaptures
    from aboard.agent.container.container_processes import ContainerProcesses
    from aboard.agent.supervisor.standby_processes import Standby
    from aboard.agent.supervisor_events import Emit

SPOOL_LIMIT = 64 * 1024 * 1024
# Of a trainer's metrics, while the head can't be reached.
METRICS_LIMIT = 8 * 1024 * 1024
CODE = "code.zip"
# Tells which standby becomes which rank.
SLOT = "LOCAL_RANK"

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def request_parent_death_signal(number: int) -> None:
    """Requests a signal for when our parent exits: the thread that forked us. It is not inherited. prctl(2)."""
    _libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of init's. prctl(2)."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _prepare_child(run: str, group: str, cores: list[int], directories: list[str], enter: Callable[[], None]) -> None:
    """Runs in the child before exec, so that a dead mount blocks only the child; a missing core fails the start."""
    request_parent_death_signal(signal.SIGKILL)
    process_tree.mark_process(run)
    if group:
        enter_group(group)
    enter()
    for path in directories:
        os.makedirs(os.path.expanduser(path), exist_ok=True)
    if cores:
        os.sched_setaffinity(0, cores)


class RankProcesses:
    """Named children with their outputs; `emit` sends events."""

    def __init__(
        self,
        loop: EventLoop,
        run: str,
        directory: str,
        emit: Emit,
        on_output: Callable[[], None],
        unpacked: dict[str, str] | None = None,
    ) -> None:
        self._loop = loop
        self._run = run
        self._group = make_group(run)
        self._directory = directory
        self._emit = emit
        self._on_output = on_output
        self._pids: dict[int, str] = {}
        self._starting: dict[int, int] = {}
        self._count = 0
        self._unpacks: Any = None
        # Images that the agent unpacked for its checks.
        self._unpacked = unpacked
        self._containers: ContainerProcesses | None = None
        self._captures: LauncherCaptures | None = None
        # By slot.
        self._standbys: dict[str, Standby] = {}
        self.states: dict[str, dict[str, Any]] = {}
        self.outputs: list[RankOutput] = []
        self.launchers = NestedLaunchers(emit)
        self.beacons = BeaconReceiver(loop, directory, emit, self.launchers)
        self.beacons.open_lines = self._open_lines
        loop.on_signal(signal.SIGCHLD, self.reap)

    def store_code(self, code: bytes | memoryview) -> None:
        """Stores modules for children that need them; repeating it is harmless."""
        replace_file(os.path.join(self._directory, CODE), code)

    def start(self, message: frames.Message) -> None:
        """Starts one child; does nothing for a known name, so that a repeat is harmless."""
        name = str(message["child"])
        if name in self.states:
            return
        # Parse everything first: an invalid frame must not leave half a child behind.
        argv, cwd = [str(argument) for argument in message["argv"]], message.get("cwd")
        cores = [int(core) for core in message.get("cores") or ()]
        if message.get("container") and self._wait_for_image(name, message):
            return
        env = self._build_env(message)
        secrets = [env[key] for key in message.get("secrets") or () if key in env]
        if message.get("capture"):
            try:
                self.open_captures().prepare(name, env, secrets)
            except OSError as error:
                self._report_failure(name, "can't capture its launchers: %s" % error.strerror)
                return
        else:
            self.launchers.watch(name, secrets)
        if self._use_standby(name, message, env):
            return
        if message.get("beacon"):
            # On a full disk a rank starts without a beacon.
            with contextlib.suppress(OSError):
                beacon = self.beacons.prepare(self._count, env, secrets)
                env.update(self.beacons.name_rank(name, beacon, int(message.get("await_port") or 0)))
        container = message.get("container") or {}
        directories = [str(path) for path in container.get("directories") or ()]
        enter = self._prepare_container(name, argv, env, message) if container else lambda: None
        outputs = [self._output(name, stream, secrets) for stream in ("stdout", "stderr")]
        env.update(self._name_pipes(outputs))
        self._count += 1
        null = os.open(os.devnull, os.O_RDONLY)
        try:
            pid, error_fd = spawn_process(
                argv,
                env=env,
                cwd=cwd,
                stdin=null,
                stdout=outputs[0].write_end,
                stderr=outputs[1].write_end,
                in_child=lambda: _prepare_child(self._run, self._group, cores, directories, enter),
            )
        except OSError as error:
            self._report_failure(name, str(error.strerror))
        else:
            self._pids[pid] = name
            self._starting[pid] = error_fd
            self.states[name] = {"state": "starting", "pid": pid}
            self._loop.on_readable(error_fd, lambda: self._check_start(pid))
        finally:
            os.close(null)
            for output in outputs:
                output.start_reading()
            self.outputs += outputs

    def start_standby(self, message: frames.Message) -> None:
        """Starts a process that does a rank's imports, for the rank that will start in the same slot."""
        from aboard.agent.supervisor.standby_processes import Standby  # noqa: PLC0415 - most runs have none

        env = self._build_env(message)
        slot = env.get(SLOT, "")
        if slot in self._standbys or message.get("container"):
            return
        argv, cwd = [str(argument) for argument in message["argv"]], message.get("cwd")
        cores = [int(core) for core in message.get("cores") or ()]
        secrets = [env[key] for key in message.get("secrets") or () if key in env]
        plain = dict(env)
        beacon = self.beacons.prepare(self._count, env, secrets) if message.get("beacon") else None
        outputs = [self._output("", stream, secrets) for stream in ("stdout", "stderr")]
        self._count += 1
        standby = self._standbys[slot] = Standby(message, plain, outputs, beacon)
        try:
            standby.spawn(argv, env, cwd, lambda: _prepare_child(self._run, self._group, cores, [], lambda: None))
        finally:
            for output in outputs:
                output.start_reading()
        standby.call_when_ready(self._loop, lambda: self._emit({"kind": "standby"}))

    def _use_standby(self, name: str, message: frames.Message, env: dict[str, str]) -> bool:
        """Whether the standby of its slot has become this rank; one that can't is killed."""
        standby = self._standbys.pop(env.get(SLOT, ""), None)
        if standby is None:
            return False
        await_port = int(message.get("await_port") or 0)
        child = {} if standby.beacon is None else self.beacons.name_rank(name, standby.beacon, await_port)
        is_used = standby.hand_over(message, env, child)
        standby.close(self._loop, kill=not is_used)
        if is_used:
            for output in standby.outputs:
                output.name = (name, output.name[1])
            self.outputs += standby.outputs
            self._pids[standby.pid] = name
            self.states[name] = {"state": "running", "pid": standby.pid}
            self._emit({"kind": "started", "child": name, "pid": standby.pid, "standby": True})
        return is_used

    def signal(self, name: str, number: int) -> None:
        """Signals the child's whole group, as a terminal would."""
        state = self.states.get(name, {})
        if state.get("state") in ("starting", "running"):
            if self._containers is None:
                os.killpg(state["pid"], number)
            else:
                process_tree.send_signal(self._containers.list_group(name, state["pid"]), number)

    def roots(self) -> dict[str, int]:
        """The first process of each child that runs; in a container the first one inside, once there is one."""
        clients = {name: state["pid"] for name, state in self.states.items() if state["state"] == "running"}
        return clients if self._containers is None else self._containers.find_ranks(clients)

    def alive(self) -> set[int]:
        return process_tree.list_descendants(os.getpid()) | process_tree.find_run_processes(self._run)

    def list_own(self) -> set[int]:
        """The run's processes on this node, also those inside a container of another user."""
        senders = {beacon.pid for beacon in self.beacons.states.values() if beacon.pid}
        return self.alive() | set(self.roots().values()) | senders

    def terminate(self) -> None:
        """Asks all processes to terminate; a container's runtime exits after its rank."""
        targets = self.alive()
        if self._containers is not None:
            clients = {name: pid for pid, name in self._pids.items()}
            begun = {name for name, beacon in self.beacons.states.items() if beacon.phase >= 0}
            targets = self._containers.select_targets(targets, clients, begun)
        # Parents first: a script must not go on to its next line because its command has ended.
        process_tree.send_signal(sorted(targets), signal.SIGTERM)
        # A stopped process would not notice until the grace is over.
        process_tree.send_signal(targets, signal.SIGCONT)

    def reap(self) -> None:
        for pid, returned in process_tree.reap_children():
            # One that exited before the loop saw its start: report the start first.
            self._check_start(pid)
            name = self._pids.pop(pid, None)
            if name is not None and self.states[name]["state"] == "running":
                code, exited_at = returned, None
                if self._containers is not None:
                    code, exited_at = self._containers.finish(name, returned)
                last_words = self.beacons.read_last_reports(name, code)
                self.states[name] = {"state": "exited", "code": code}
                self._emit({"kind": "exited", "child": name, "code": code, **last_words}, exited_at)
            elif name is None and self._drop_standby(pid):
                continue
            elif name is None and self._unpacks is not None:
                self._start_waiting(self._unpacks.reap(pid, returned))

    def _drop_standby(self, pid: int) -> bool:
        """Whether it was a standby: nobody waits for it, and its rank starts without."""
        slot = next((slot for slot, standby in self._standbys.items() if standby.pid == pid), None)
        if slot is not None:
            self._standbys.pop(slot).close(self._loop, kill=True)
        return slot is not None

    def drop_waiting(self) -> None:
        """Starts none of those that wait for their image any more, and captures no launcher."""
        if self._unpacks is not None:
            self._unpacks.drop()
        if self._captures is not None:
            self._captures.refuse_others()

    def open_captures(self) -> LauncherCaptures:
        """The launchers that scripts have started."""
        from aboard.agent.capture.launcher_captures import LauncherCaptures  # noqa: PLC0415 - most runs need none

        if self._captures is None:
            self._captures = LauncherCaptures(self._loop, self._directory, self._emit, self.roots)
        return self._captures

    def close(self) -> None:
        self.beacons.close()
        if self._captures is not None:
            self._captures.close()

    def _wait_for_image(self, name: str, message: frames.Message) -> bool:
        """Whether the image must be unpacked first, once for all children, or could not be."""
        from aboard.agent.container.image_unpack import ImageUnpacks  # noqa: PLC0415 - most runs need none

        if self._unpacks is None:
            self._unpacks = ImageUnpacks(self._run, self._directory, self._unpacked)
        why = self._unpacks.find_failure(message)
        if why:
            self._report_failure(name, why)
            return True
        if not self._unpacks.hold(message):
            return False
        self.states[name] = {"state": "unpacking"}
        self._emit({"kind": "unpacking", "child": name})
        return True

    def _start_waiting(self, starts: list[tuple[frames.Message, str]]) -> None:
        for message, why in starts:
            name = str(message["child"])
            del self.states[name]
            if why:
                self._report_failure(name, why)
                continue
            try:
                self.start(message)
            except Exception as error:  # noqa: BLE001 - nobody waits for a reply; the other ranks need their supervisor
                self._report_failure(name, "%s: %s" % (type(error).__name__, error))

    def _prepare_container(
        self, name: str, argv: list[str], env: dict[str, str], message: frames.Message
    ) -> Callable[[], None]:
        """Returns what turns argv and env, in the child, into the command that runs them in a container."""
        from aboard.agent.container import (  # noqa: PLC0415 - most runs need none
            container_cleanup,
            container_command,
            container_processes,
        )

        spec = container_command.ContainerSpec(message["container"])
        spec.image = self._unpacks.resolve(spec.image)
        self._containers = self._containers or container_processes.ContainerProcesses(self._loop, self._run)
        self._containers.add(name, spec.runtime, env)
        given = {*(message.get("env") or {}), process_tree.RUN_ID, container_processes.MARK}
        given |= {key for key in env if env[key] != os.environ.get(key)}
        setup = [str(word) for word in message.get("setup") or ()]

        def enter() -> None:
            words, outer = container_command.wrap_command(
                spec, argv, dict(env), given, run=self._run, directory=self._directory, cwd=message.get("cwd")
            )
            container_cleanup.record_runtime(self._directory, spec.runtime, setup, outer)
            argv[:] = container_command.run_after_setup(setup, words)
            env.clear()
            env.update(outer)

        return enter

    def _build_env(self, message: frames.Message) -> dict[str, str]:
        """A child's environment, without the beacon's variables."""
        env = dict(os.environ)
        if message.get("container"):
            # What the node's login sets for its own Python is not for the one inside.
            env.pop("PYTHONPATH", None)
        env.update(message.get("env") or {})
        env[process_tree.RUN_ID] = self._run
        if message.get("code"):
            code = os.path.join(self._directory, CODE)
            env["PYTHONPATH"] = os.pathsep.join(part for part in (code, env.get("PYTHONPATH", "")) if part)
        return env

    def _output(self, name: str, stream: str, secrets: list[str]) -> RankOutput:
        path = os.path.join(self._directory, "%d.%s" % (self._count, stream))
        return RankOutput(self._loop, (name, stream), OutputSpool(path, SPOOL_LIMIT), secrets, self._on_output)

    def _name_pipes(self, outputs: list[RankOutput]) -> dict[str, str]:
        """Tells the launchers of a script where its own output goes."""
        pipes = " ".join(str(os.fstat(output.write_end).st_ino) for output in outputs)
        return {} if self._captures is None else {self._captures.PIPES: pipes}

    def _open_lines(self, name: str, beacon: BeaconState) -> int:
        """Metrics go to the head as a third output does: each line once, also after a disconnect."""
        if self.states.get(name, {}).get("state") != "running":
            raise ValueError("metrics of a child that does not run")
        spool = OutputSpool(beacon.stacks.rpartition(".")[0] + ".metrics", METRICS_LIMIT)
        output = RankOutput(self._loop, (name, "metrics"), spool, (), self._on_output)
        write_end = os.dup(output.write_end)
        os.set_blocking(write_end, False)
        output.start_reading()
        self.outputs.append(output)
        return write_end

    def _check_start(self, pid: int) -> None:
        error_fd = self._starting.get(pid)
        why = None if error_fd is None else read_start_failure(error_fd)
        if error_fd is None or why is None:
            return
        self._loop.remove_fd(error_fd)
        os.close(error_fd)
        del self._starting[pid]
        name = self._pids[pid]
        if why:
            self._report_failure(name, why)
        else:
            self.states[name] = {"state": "running", "pid": pid}
            self._emit({"kind": "started", "child": name, "pid": pid})

    def _report_failure(self, name: str, why: str) -> None:
        self.states[name] = {"state": "failed"}
        self._emit({"kind": "failed", "child": name, "why": why})
