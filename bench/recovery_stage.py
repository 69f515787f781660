"""Sandbox hosts on which runs fail and recover: starts `aboard`, finds ranks and agents, reads records and metrics."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from aboard.agent import process_tree
from aboard.core.run.run_state import Run
from aboard.record.event_log import read_events
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME

FOLDER = "/shared/recovery"
EXAMPLE = Path(__file__).parents[1] / "examples" / "finetune"
ENV = {"OMP_NUM_THREADS": "1"}
POLL = 0.05
PATIENCE = 240.0
SEED = 33


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Seconds from the command to the first step, from the failure to its detection, and to the next step."""

    cold: float
    detection: float
    total: float


class Stage:
    """A head and N hosts, with a shared directory that has aboard.yaml, and programs as the bench puts them there."""

    def __init__(self, label: str, nodes: int) -> None:
        self.box = Sandbox.up(f"bench-{label}-{os.getpid()}", nodes=nodes, slots=1, temporary=True)
        config = ["tee", "/etc/ssh/ssh_config.d/50-bench.conf"]
        self.box.head.run(config, root=True, input="KexAlgorithms curve25519-sha256\n").check_returncode()
        self.put("aboard.yaml", f"cluster:\n  python: {sys.executable}\n  nodes: ['n[1-{nodes}] slots=1']\n")
        self.box.head.run(["aboard", "allow"], cwd=FOLDER).check_returncode()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.box.down()

    def put(self, name: str, text: str) -> None:
        path = f"{FOLDER}/{name}"
        self.box.head.run(["sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}"], input=text).check_returncode()

    def put_training(self) -> None:
        """The data and the tiny model of examples/finetune."""
        for file in ("make_data.py", "make_model.py", "aboard.yaml"):
            self.put(file, (EXAMPLE / file).read_text("utf-8"))
        for file in ("make_data.py", "make_model.py"):
            self.box.head.run([sys.executable, file], cwd=FOLDER, env=ENV, timeout=600).check_returncode()
        self.box.head.run(["aboard", "allow"], cwd=FOLDER).check_returncode()

    @contextmanager
    def run(self, *argv: str, host: Host | None = None) -> Iterator["Running"]:
        """A running command; it is killed when the block is left."""
        with tempfile.TemporaryFile("w+") as output:
            process = (host or self.box.head).popen(
                argv, cwd=FOLDER, env=ENV, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            try:
                yield Running(process, output)
            finally:
                process.kill()
                process.wait()

    def train(self, nodes: str, out: str, *words: str, **settings: object) -> tuple[str, ...]:
        """The command of a training of the tiny model, which saves and logs often."""
        given = {"eval_steps": "null", "logging_steps": 1, "output_dir": f"{FOLDER}/{out}", **settings}
        sets = [f"cluster.python={sys.executable}", *(f"train.{name}={value}" for name, value in given.items())]
        return ("aboard", "train", nodes, *words, *(word for each in sets for word in ("--set", each)))

    def find_rank(self, host: Host) -> int:
        """The process of the rank on this host, whoever launched it; 0 if there is none."""
        pids = set(host.pids())
        marked = {pid for pid in pids if any(word.startswith(b"RANK=") for word in read_environ(pid))}
        parents = process_tree.read_parents()
        # What was a standby has no RANK in the environment that it was started with.
        started = [
            each["data"]["pid"]
            for each in self.read_events()
            if each["kind"] == "started" and each["node"] == host.name
        ]
        former = [pid for pid in pids if started and read_own_pid(pid) == started[-1]]
        return min((pid for pid in marked if parents.get(pid) not in marked), default=max(former, default=0))

    def favor_standbys(self) -> None:
        """Two cores have ranks that never wait; on GPUs, the cores of a node are mostly idle."""
        for host in self.box.nodes:
            rank = self.find_rank(host) if host.on else 0
            for thread in Path(f"/proc/{rank}/task").iterdir() if rank else ():
                with suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)

    def count_standbys(self) -> int:
        """The nodes of the newest run on which standbys wait."""
        ready = [event["data"]["nodes"] for event in self.read_events() if event["kind"] == "standbys"]
        return len(ready[-1]) if ready else 0

    def find_agent(self, host: Host, which: str) -> int:
        """The supervisor, guard or bridge on this host."""
        parents = process_tree.read_parents()
        agents = [pid for pid in host.pids() if b"\0-ISc\0" in read_proc(pid, "cmdline")]
        supervisor = parents.get(self.find_rank(host), 0)
        guard = parents.get(supervisor, 0)
        others = [pid for pid in agents if pid not in (supervisor, guard)]
        return {"supervisor": supervisor, "guard": guard, "bridge": min(others, default=0)}[which]

    @property
    def runs(self) -> Path:
        return Path(f"/proc/{self.box.head.pid}/root{CREW_HOME}/.local/state/aboard/runs")

    def find_run(self) -> Path:
        """The newest run's record; an empty path if there is none yet."""
        found = self.runs.iterdir() if self.runs.exists() else ()
        return max(found, key=lambda run: run.stat().st_mtime, default=Path())

    def stop(self) -> None:
        """Stops the newest run at once."""
        self.box.head.run(["aboard", "stop", "--now", self.find_run().name], cwd=FOLDER, timeout=120)

    def read_events(self) -> list[dict[str, Any]]:
        """The events of the newest run; the last line may be under way."""
        with suppress(FileNotFoundError, ValueError):
            text = (self.find_run() / "events.jsonl").read_text().rpartition("\n")[0]
            return [json.loads(line) for line in text.splitlines()]
        return []

    def find_event(self, kind: str, after: float = 0.0) -> float:
        """When the newest run had the first such event after this time; 0 if it had none."""
        return next((each["at"] for each in self.read_events() if each["kind"] == kind and each["at"] > after), 0.0)

    def read_lines(self, path: str) -> list[dict[str, Any]]:
        """The complete lines of a file of JSON lines on the shared disk."""
        file = Path(f"/proc/{self.box.head.pid}/root{FOLDER}/{path}")
        text = file.read_text() if file.exists() else ""
        return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]

    def list_orphans(self) -> list[str]:
        """What is left on the hosts of the newest run: processes with its id or that of one of its attempts."""
        run, left = self.find_run().name, []
        for name in (run, *(f"{run}.{number}" for number in range(2, 60))):
            marked = process_tree.find_run_processes(name)
            left += [f"{host.name}: {pid}" for host in self.box.nodes if host.on for pid in marked & set(host.pids())]
        return left


class Running:
    """A running command and what it printed so far."""

    def __init__(self, process: "subprocess.Popen[Any]", output: IO[str]) -> None:
        self._process = process
        self._output = output

    @property
    def code(self) -> int | None:
        code = self._process.poll()
        return None if code is None else int(code)

    @property
    def said(self) -> str:
        # Opened anew: seeking would move the position at which the command writes next.
        return Path(f"/proc/self/fd/{self._output.fileno()}").read_text("utf-8", "replace")

    def wait(self, what: str, condition: Callable[[], Any], seconds: float) -> Any:
        """The first true value; fails with the output after the deadline, or if the command has ended."""
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            if time.monotonic() > deadline or self.code not in (None, 0):
                raise TimeoutError(f"{what} (exit code {self.code}): {self.said[-3000:]}")
            time.sleep(POLL)
        return found

    def wait_end(self, seconds: float) -> int:
        deadline = time.monotonic() + seconds
        while self.code is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"its end: {self.said[-3000:]}")
            time.sleep(POLL)
        return int(self.code)


def kill(pid: int, number: int = signal.SIGKILL) -> float:
    """Sends the signal; returns when."""
    at = time.time()
    if pid:
        process_tree.send_signal([pid], number)
    return at


def read_proc(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def read_environ(pid: int) -> list[bytes]:
    return read_proc(pid, "environ").split(b"\0")


def read_own_pid(pid: int) -> int:
    """The process's id in its host; 0 if it is gone."""
    words = read_proc(pid, "status").partition(b"NSpid:")[2].partition(b"\n")[0].split()
    return int(words[-1]) if words else 0


def measure_ledger(run: Path) -> tuple[dict[str, float], float]:
    """The classes of a recorded run, folded from its events alone, and its wall time."""
    events = list(read_events(run / "events.jsonl"))
    folded = Run.replay(run.name, events)
    return folded.ledger.measure(events[-1].at), events[-1].at - folded.began
