"""The bridge: the agent's end of the transport. It handles requests and relays frames to and from the supervisor."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from aboard.agent import frames
from aboard.agent.channel import Channel
from aboard.agent.event_loop import EventLoop
from aboard.agent.procfs import resolve_user
from aboard.agent.requests import RequestRunner

TYPE_CHECKING = False  # typing itself costs each node 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aboard.agent.network.peer_listener import PeerListener
    from aboard.agent.supervisor.supervisor_watch import SupervisorWatch
    from aboard.agent.transfer.receiver_process import ReceiverProcess

# While the transport is slow, the supervisor's frames wait in its socket, not in our memory.
BACKLOG = 1024 * 1024
ALONE_SECONDS = 5.0
# How long a guard may take to clean up after its supervisor, how long a supervisor may still look alive after its
# connection closed, and how often we look.
GUARD_SECONDS = 6.0
EXIT_SECONDS = 1.0
LOOK_SECONDS = 0.05
# A guard needs less, unless processes can't be killed.
CLEANING_SECONDS = 1.5


def main(
    marker: bytes,
    silence: float,
    open_channel: Callable[..., Channel] = Channel,
    anchor: tuple[int, int] | None = None,
) -> None:
    """Serves the head over stdin and stdout; returns when the stream ends or after `silence` seconds without a frame.

    `anchor` is a pipe: supervisors get its read end, and end their ranks when this process is gone.
    """
    # The descriptors are ours alone: a stray print or a child of ours must not write into a frame.
    head_fds = (os.dup(0), os.dup(1))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    loop = EventLoop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # Slurm signals all of a job at once. The conductor decides what happens, and needs this task to tell its ranks.
        loop.on_signal(number, loop.stop if anchor is None else lambda: None)
    bridge = AgentBridge(loop, head_fds, silence, open_channel, anchor)
    bridge.open(marker)
    try:
        loop.run()
    finally:
        bridge.end()


class AgentBridge:
    """Handles node requests itself; relays those about a run to the run's supervisor, and its replies back."""

    def __init__(
        self,
        loop: EventLoop,
        head_fds: tuple[int, int],
        silence: float,
        open_channel: Callable[..., Channel] = Channel,
        anchor: tuple[int, int] | None = None,
    ) -> None:
        self._loop = loop
        self._head = open_channel(loop, head_fds, self._from_head, loop.stop)
        self._anchor = anchor
        self._requests = RequestRunner(loop)
        self._peers: PeerListener | None = None
        self._supervisor: Channel | None = None
        self._agents: SupervisorWatch | None = None
        # The children that transfer files, by the op of their requests.
        self._transfers: dict[str, ReceiverProcess] = {}
        self._silence = silence
        self._last_contact = time.monotonic()

    def open(self, marker: bytes) -> None:
        self._head.send_raw(marker)
        self._head.send(build_hello())
        self._watch()

    def end(self) -> None:
        """Leaves nothing behind but a supervisor that is alive, for which another bridge may come."""
        agents = self._agents
        if agents is not None:
            agents.continue_stopped()
        if self._supervisor is not None and self._supervisor.open:
            self._supervisor.send({"op": "leave"})
        elif agents is not None and not (agents.ended or agents.is_alive("supervisor") or agents.is_alive("guard")):
            # The head closed the stream before we were done.
            agents.clean_up(self._list_own_processes())
        self._requests.end()

    def _watch(self) -> None:
        left = self._last_contact + self._silence - time.monotonic()
        if left <= 0:
            self._loop.stop()
        else:
            self._loop.later(left, self._watch)

    def _from_head(self, body: bytes) -> None:
        self._last_contact = time.monotonic()
        try:
            if body[: len(frames.TAILED)] == frames.TAILED:
                self._forward_raw_bytes(body)
                return
            message = frames.unpack(body)
        except frames.FrameError:
            self._loop.stop()
            return
        own = {
            "ping": self._ping,
            "run": self._run_request,
            "read": self._run_request,
            "listen": self._listen,
            "connect": self._probe_peers,
            "push": self._probe_peers,
            **dict.fromkeys(("environment", "venv", "leftovers", "clear", "strangers"), self._inspect),
            **dict.fromkeys(("porter", "fetch", "peers", "copier"), self._forward_to_child),
            "hold": self._start_supervisor,
            "attach": self._attach,
        }
        handle = own.get(str(message.get("op")))
        if handle is None:
            self._to_supervisor(message, body)
            return
        try:
            handle(message)
        except Exception as error:  # noqa: BLE001 - whatever a frame contains, the bridge must reply and continue
            self._reply(message, error="%s: %s" % (type(error).__name__, error))

    def _reply(self, message: frames.Message, **fields: Any) -> None:
        fields["re"] = message.get("id")
        self._head.send(fields)

    def _ping(self, message: frames.Message) -> None:
        self._reply(message, wall=time.time())

    def _run_request(self, message: frames.Message) -> None:
        start = self._requests.run if message["op"] == "run" else self._requests.read
        start(message, lambda outcome: self._reply(message, **outcome))

    def _listen(self, message: frames.Message) -> None:
        from aboard.agent.network.peer_listener import PeerListener  # noqa: PLC0415 - only multi-node probes need it

        if self._peers is None:
            self._peers = PeerListener(self._loop)
        token = str(message.get("token", "")).encode()
        self._reply(message, **self._peers.listen([int(port) for port in message["ports"]], token))

    def _probe_peers(self, message: frames.Message) -> None:
        """Works in a child, since a name server or a peer may block."""
        if message["op"] == "connect":
            from aboard.agent.network.tcp_probe import connect_to_peers as probe  # noqa: PLC0415 - as above
        else:
            from aboard.agent.network.bandwidth_probe import measure_bandwidth as probe  # noqa: PLC0415 - as above

        def reply(outcome: frames.Message) -> None:
            if outcome["code"] == 0:
                self._reply(message, **json.loads(outcome["stdout"]))
            else:
                self._reply(message, error="%s timed out" % message["op"])

        self._requests.fork(message, lambda: json.dumps(probe(message)).encode(), reply)

    def _inspect(self, message: frames.Message) -> None:
        """Imports what the request needs: most bridges need none of it, or one."""
        if message["op"] == "environment":
            from aboard.agent.inspect.launch_environment import answer_environment_request as answer  # noqa: PLC0415 - as above
        elif message["op"] == "venv":
            from aboard.agent.packages.virtual_environment import answer_venv_request as answer  # noqa: PLC0415 - as above
        elif message["op"] == "strangers":
            from aboard.agent.inspect.external_jobs import answer_external_jobs_request as answer  # noqa: PLC0415 - as above
        else:
            from aboard.agent.inspect.leftover_runs import answer_leftovers_request as answer  # noqa: PLC0415 - as above
        answer(self._requests, message, lambda outcome: self._reply(message, **outcome))

    def _forward_to_child(self, message: frames.Message) -> None:
        """Forwards to the child that writes files, reads them or exchanges pieces; it exits after `leave`."""
        from aboard.agent.transfer.receiver_process import ReceiverProcess  # noqa: PLC0415 - only a file transfer needs it

        op, do = str(message["op"]), message["do"]
        listens = op in ("peers", "copier")
        if listens and do == "open" and op in self._transfers:
            self._transfers.pop(op).close()
        elif listens and do != "open" and op not in self._transfers:
            raise ValueError("no exchange of files is open")
        if op not in self._transfers:
            self._transfers[op] = ReceiverProcess(
                self._loop, self._head.send_body, lambda: self._head.send({"gone": op}), _choose_server(op)
            )
        self._transfers[op].send(frames.pack(message)[frames.HEADER :])
        if do == "leave":
            self._transfers.pop(op).expect_exit()

    def _forward_raw_bytes(self, body: bytes) -> None:
        """Relays bytes of a file, of which the head limits how many are in flight, or code for a supervisor's ranks."""
        if self._supervisor is not None:
            self._supervisor.send_body(body)
            return
        # What precedes the bytes is only read if there are two possible readers: for small files it is long.
        is_piece = "peers" in self._transfers and frames.unpack_tailed(body)[0].get("op") == "peer-piece"
        process = self._transfers.get("peers" if is_piece else "porter")
        if process is not None:
            process.send(body)

    def _start_supervisor(self, message: frames.Message) -> None:
        # Late: the supervisor's modules cost more than all the rest, and a check never starts one.
        from aboard.agent.supervisor.rank_processes import become_subreaper  # noqa: PLC0415 - as below
        from aboard.agent.supervisor.supervisor import start_supervisor  # noqa: PLC0415 - a check does not need it

        if self._peers is not None:
            self._peers.close()
        if self._anchor is None:
            # What loses both supervisor and guard comes to us. Not in a Slurm step: Slurm ends what is left there, and
            # where it tracks processes by their parents, its signals would reach the ranks before the head's decision.
            become_subreaper()
        start_supervisor({**message, "unpacked": self._requests.release_images()}, self._anchor)
        self._attach(message)

    def _attach(self, message: frames.Message) -> None:
        from aboard.agent.supervisor import supervisor_watch  # noqa: PLC0415 - a check does not need it
        from aboard.agent.supervisor.rank_processes import request_parent_death_signal  # noqa: PLC0415 - as above
        from aboard.agent.supervisor.supervisor import connect_to_supervisor  # noqa: PLC0415 - as above

        # If we are stopped after our supervisor has exited, the end of our ssh session lets us see it and end.
        request_parent_death_signal(signal.SIGCONT)

        if self._supervisor is not None:
            self._supervisor.close()
        if self._agents is not None:
            self._agents.reap()
        self._silence = float(message["silence"])
        run = str(message["run"])
        try:
            fd, pid = connect_to_supervisor(run)
        except (ConnectionRefusedError, FileNotFoundError) as error:
            self._report_lost_supervisor(message, "%s: %s" % (type(error).__name__, error), time.monotonic())
            return
        self._agents = supervisor_watch.SupervisorWatch(run, pid)
        self._supervisor = Channel(self._loop, (fd, fd), self._from_supervisor, self._supervisor_gone)
        self._supervisor.send(message)

    def _report_lost_supervisor(self, message: frames.Message, error: str, asked_at: float) -> None:
        """Lets a guard that is still at it finish; ends what is left without one, and replies."""
        from aboard.agent.supervisor import supervisor_watch  # noqa: PLC0415 - a check does not need it

        run = str(message["run"])
        abandoned = supervisor_watch.has_directory(run)
        if abandoned and time.monotonic() < asked_at + CLEANING_SECONDS:
            self._loop.later(LOOK_SECONDS, lambda: self._report_lost_supervisor(message, error, asked_at))
            return
        found = supervisor_watch.clean_up_run(run, self._list_own_processes())
        # Without a directory its guard has cleaned up, or the lease is over, which the head knows.
        guard = {"guard": 0} if found["killed"] or abandoned else {}
        self._head.send({"gone": "supervisor", "lost": {"supervisor": 0, **guard}, **found})
        self._reply(message, error=error)

    def _to_supervisor(self, message: frames.Message, body: bytes) -> None:
        if self._supervisor is None or not self._supervisor.open:
            if message.get("id") is not None:
                self._reply(message, error="no supervisor is attached")
            return
        self._supervisor.send_body(body)

    def _from_supervisor(self, body: bytes) -> None:
        if self._agents is not None:
            self._agents.note_frame(body)
        self._head.send_body(body)
        if self._supervisor is not None and self._head.unsent > BACKLOG:
            self._supervisor.pause()
            self._head.on_drained = self._resume_supervisor

    def _resume_supervisor(self) -> None:
        self._head.on_drained = None
        if self._supervisor is not None:
            self._supervisor.resume()

    def _supervisor_gone(self) -> None:
        """The supervisor has ended the run, was killed, or prefers another bridge."""
        if self._agents is None or self._agents.ended:
            self._report_gone({})
        else:
            self._wait_for_guard(self._agents, time.monotonic())

    def _wait_for_guard(self, watch: SupervisorWatch, lost_at: float) -> None:
        """Gives the guard of a killed supervisor the time to clean up, then does so itself."""
        if watch is not self._agents:
            return
        watch.continue_stopped()
        waited = time.monotonic() - lost_at
        if watch.is_alive("supervisor"):
            if waited < EXIT_SECONDS:
                self._loop.later(LOOK_SECONDS, lambda: self._wait_for_guard(watch, lost_at))
            else:
                # It closed this connection for another one.
                self._report_gone({})
        elif watch.is_alive("guard") and waited < GUARD_SECONDS:
            self._loop.later(LOOK_SECONDS, lambda: self._wait_for_guard(watch, lost_at))
        else:
            self._agents = None
            self._report_gone({"ago": waited, **watch.clean_up(self._list_own_processes())})

    def _list_own_processes(self) -> list[int]:
        return [*self._requests.pids, *(process.pid for process in self._transfers.values())]

    def _report_gone(self, found: frames.Message) -> None:
        self._head.send({"gone": "supervisor", **found})
        # A live head closes the stream or sends a request; one that was cut off does neither, so do not wait.
        self._silence = min(self._silence, ALONE_SECONDS)
        self._last_contact = time.monotonic()
        self._watch()


def _choose_server(op: str) -> Callable[[int], None]:
    """What the child for these requests runs, with its end of a socket."""
    if op == "peers":
        from aboard.agent.transfer.peer_process import serve_peers as serve  # noqa: PLC0415 - only large files need it
    elif op == "copier":
        from aboard.agent.copies.copier_process import serve_copies as serve  # noqa: PLC0415 - only a resume needs it
    else:
        from aboard.agent.transfer.receiver_process import serve_files  # noqa: PLC0415 - as above

        return lambda fd: serve_files(op, fd)
    return serve


def build_hello() -> frames.Message:
    """The first frame of an agent: the host, interpreter and user that it runs as."""
    # sshd reports the connection that it accepted: "client-ip client-port server-ip server-port", ssh(1).
    server, port = (os.environ.get("SSH_CONNECTION", "").split() + [""] * 4)[2:4]
    return {
        "hello": frames.VERSION,
        "hostname": os.uname().nodename,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "executable": sys.executable or "",
        "user": resolve_user(os.getuid()),
        "address": server,
        "port": int(port) if port.isdigit() else 0,
        "pid": os.getpid(),
        "wall": time.time(),
    }
