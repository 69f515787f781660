"""Launches in a sandbox: runs `aboard`, reads its records and finds leftover processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from deadlines import slowness, wait_until

from aboard.agent import process_tree
from aboard.sandbox import Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
DRIVERS = Path(__file__).parents[1] / "ground" / "drivers"
RUNS = ".local/state/aboard/runs"


@contextmanager
def build_sandbox(label: str, **shape: Any) -> Iterator[Sandbox]:
    """Hosts that are removed after the block, or with this process; a label once per module.

    The head's ssh uses the cheapest key exchange: OpenSSH's default takes 0.2 s of a core for each login, which is
    most of what many tests would do.
    """
    with Sandbox.up(f"test-{os.getpid()}-{label}", **shape, temporary=True) as box:
        config = ["tee", "/etc/ssh/ssh_config.d/50-test.conf"]
        box.head.run(config, root=True, input="KexAlgorithms curve25519-sha256\n").check_returncode()
        yield box


class Launches:
    """A shared directory with a cluster file and jobs, in which `aboard` runs as crew on the head."""

    def __init__(self, box: Sandbox, *, slots: int = 1, folder: str = "/shared/job") -> None:
        self.box = box
        self.folder = folder
        self.put("aboard.yaml", f"cluster:\n  python: {PYTHON}\n  nodes: ['n[1-{len(box.nodes)}] slots={slots}']\n")
        self.put("job.py", (DRIVERS / "gloo_job.py").read_text())

    def put(self, name: str, text: str) -> None:
        """Writes a file; an aboard.yaml is allowed, as its author would."""
        script = f"mkdir -p {self.folder} && cat > {self.folder}/{name}"
        if name == "aboard.yaml":
            script += f" && cd {self.folder} && aboard allow"
        assert self.box.head.run(["sh", "-c", script], input=text).returncode == 0

    def aboard(self, *words: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return self.box.head.run(["aboard", *words], cwd=self.folder, timeout=timeout * slowness())

    @contextmanager
    def going(self, *words: str) -> Iterator["Going"]:
        """A running command; leaving the block kills it."""
        with tempfile.TemporaryFile("w+") as said:
            process = self.box.head.popen(
                ["aboard", *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT
            )
            try:
                yield Going(process, said)
            finally:
                process.kill()
                process.wait()

    def launch(self, *words: str, env: Sequence[str] = (), timeout: float = 120) -> "Ran":
        given = [word for each in env for word in ("--env", each)]
        done = self.aboard("launch", *given, *words, timeout=timeout)
        return Ran(self, self.newest(), done.returncode, done.stdout + done.stderr)

    @property
    def runs(self) -> Path:
        """The head's runs, read as this machine's root, without a process in the host."""
        return Path(f"/proc/{self.box.head.pid}/root{CREW_HOME}/{RUNS}")

    def newest(self) -> str:
        runs = self.runs
        found = sorted(runs.iterdir(), key=lambda run: run.stat().st_mtime) if runs.exists() else []
        return found[-1].name if found else "none"

    def read(self, run: str, name: str) -> str:
        path = self.runs / run / name
        return path.read_text() if path.exists() else ""

    def events(self, run: str) -> list[dict[str, Any]]:
        # The last line may be under way.
        return [json.loads(line) for line in self.read(run, "events.jsonl").rpartition("\n")[0].splitlines()]

    def orphans(self, run: str) -> dict[str, set[int]]:
        """Processes that carry the run's id, by node."""
        marked = process_tree.find_run_processes(run)
        found = {host.name: marked.intersection(host.pids()) for host in self.box.nodes if marked and host.on}
        return {name: pids for name, pids in found.items() if pids}


def count_ranks(said: str, word: str) -> int:
    """How many ranks printed a line that begins with this word; equal lines are one line if they came together."""
    found = re.findall(rf"\[rank \d+\] {word}|\[ranks [\d,-]+ ×(\d+)\] {word}", said)
    return sum(int(count or 1) for count in found)


class Going:
    """A running command and its output so far."""

    def __init__(self, process: "subprocess.Popen[Any]", said: IO[str]) -> None:
        self._process = process
        self._said = said

    def wait(self, seconds: float) -> int:
        """Its exit code; fails with its output if it is still running after the deadline."""
        wait_until(lambda: self._process.poll() is not None, seconds, lambda: f"its end: {self.said}")
        return int(self._process.returncode)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def said(self) -> str:
        # Opened anew: the position of the command's own file is where it writes next, and seeking would move it.
        return Path(f"/proc/self/fd/{self._said.fileno()}").read_text("utf-8", "replace")


class Ran:
    """A finished launch."""

    def __init__(self, launches: Launches, run: str, code: int, said: str) -> None:
        self.launches = launches
        self.run = run
        self.code = code
        self.said = said

    @property
    def findings(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.launches.read(self.run, "findings.json"))
        return found

    @property
    def verdict(self) -> dict[str, Any]:
        return self.findings[0]

    @property
    def last_seconds(self) -> float:
        """From the first death to the end of the run."""
        events = self.launches.events(self.run)
        deaths = [each["at"] for each in events if each["kind"] in ("failed", "raised", "gone", "stopped")]
        deaths += [each["at"] for each in events if each["kind"] == "exited" and each["data"]["code"] != 0]
        return float(events[-1]["at"] - min(deaths))
