"""A training on sandbox hosts with injected troubles, and the conductor's verdicts."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deadlines import wait_until
from launching import Going, Launches

from aboard.sandbox.host import Host

JOB = Path(__file__).parents[1] / "ground" / "drivers" / "why_job.py"
# A file system whose server never answers: its process holds the connection and reads nothing.
DEAD_MOUNT = """
import ctypes, os, sys, time
os.makedirs("/mnt/dead", exist_ok=True)
server = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % server
done = ctypes.CDLL(None, use_errno=True).mount(b"dead", b"/mnt/dead", b"fuse", 0, options.encode())
print("mounted" if done == 0 else "not mounted", flush=True)
time.sleep(3600)
"""
# The training uses its own network, which can be broken while the nodes stay reachable.
FABRIC = "eth1"


class Training:
    """A running launch of the job. Seconds count from the injection of a trouble."""

    def __init__(self, launches: Launches, going: Going, run: str) -> None:
        self.launches = launches
        self.going = going
        self.run = run
        self._troubles = 0

    def trouble(self, kind: str, rank: int | str, seconds: float = 600) -> float:
        """Injects a trouble into a running rank, until it is released or the seconds are over; returns the time."""
        self._troubles += 1
        self.launches.put("trouble.new", f"{self._troubles} {kind} {rank} {seconds}")
        # At once: ranks read it in every step.
        folder = self.launches.folder
        self.launches.box.head.run(["mv", f"{folder}/trouble.new", f"{folder}/trouble"])
        return time.time()

    def release(self) -> None:
        """Ends the last injected trouble."""
        self.trouble("none", "none", 0)

    def verdicts(self, since: float) -> list[tuple[float, dict[str, Any]]]:
        """The conductor's verdicts since then: seconds and finding ({} when the run moved again)."""
        events = self.launches.events(self.run)
        told = [event for event in events if event["kind"] == "verdict" and event["at"] >= since]
        return [(event["at"] - since, (event["data"]["findings"] or [{}])[0]) for event in told]

    def verdict(self, since: float, within: float) -> tuple[float, dict[str, Any]]:
        """The first finding since then."""

        def there() -> bool:
            return any(finding for _at, finding in self.verdicts(since))

        wait_until(there, within, lambda: f"a verdict: {self.going.said[-3000:]}")
        return next((at, finding) for at, finding in self.verdicts(since) if finding)

    def moves(self, within: float) -> None:
        """Waits until the run makes steps again and has no open verdict."""
        before = self.step()
        wait_until(lambda: self.step() >= before + 3, within, lambda: f"it goes on: {self.going.said[-3000:]}")

    def step(self) -> int:
        last = self.launches.read(self.run, "samples.jsonl").rpartition('"step":')[2]
        digits = last.partition(",")[0].partition("}")[0]
        return int(digits) if digits.isdigit() else 0


@contextmanager
def training(launches: Launches, *words: str, env: dict[str, str] | None = None) -> Iterator[Training]:
    """Launches the job over the fabric network; leaving the block stops it."""
    box = launches.box
    launches.put("why_job.py", JOB.read_text())
    launches.put("slow_module.py", "import time\ntime.sleep(15)\n")
    box.head.run(["rm", "-f", f"{launches.folder}/trouble"])
    given = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": FABRIC, **(env or {})}
    envs = [word for name, value in given.items() for word in ("--env", f"{name}={value}")]
    before = launches.newest()
    address = str(box.nodes[0].fabric_address)
    with launches.going("launch", "--master-address", address, *envs, *words, "--", "why_job.py") as going:

        def began() -> bool:
            run = launches.newest()
            return run != before and '"kind":"started"' in launches.read(run, "events.jsonl")

        wait_until(began, 60, lambda: f"ranks start: {going.said}")
        run = launches.newest()
        try:
            yield Training(launches, going, run)
        finally:
            launches.aboard("stop", run, "--now")
            wait_until(lambda: not launches.orphans(run), 30, "nothing is left")


@contextmanager
def dead_mount(host: Host) -> Iterator[None]:
    """Makes /mnt/dead on the host hang for the duration of the block."""
    server = host.popen([sys.executable, "-c", DEAD_MOUNT], root=True, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == "mounted\n"
        yield
    finally:
        server.kill()
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
        host.run(["umount", "-l", "/mnt/dead"], root=True)


def told(words: str) -> None:
    """For whoever looks at how long things took: pytest -s."""
    sys.stdout.write(f"{words}\n")
