"""A training on sandbox hosts that troubles are put into, and the verdicts that its conductor comes to by itself."""

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
# A file system whose server never answers: mounted by a process that holds its end, and reads nothing.
DEAD_MOUNT = """
import ctypes, os, sys, time
os.makedirs("/mnt/dead", exist_ok=True)
server = os.open("/dev/fuse", os.O_RDWR)
options = "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other" % server
done = ctypes.CDLL(None, use_errno=True).mount(b"dead", b"/mnt/dead", b"fuse", 0, options.encode())
print("mounted" if done == 0 else "not mounted", flush=True)
time.sleep(3600)
"""
# Where a network of its own carries the training, so that it can be broken while the nodes are still reached.
FABRIC = "eth1"


class Training:
    """A launch of the job, under way. Seconds are counted from when a trouble was put in."""

    def __init__(self, launches: Launches, going: Going, run: str) -> None:
        self.launches = launches
        self.going = going
        self.run = run
        self._troubles = 0

    def trouble(self, kind: str, rank: int | str, seconds: float = 600) -> float:
        """Puts a trouble into a rank that runs, until it is released or the seconds are over; returns when."""
        self._troubles += 1
        self.launches.put("trouble.new", f"{self._troubles} {kind} {rank} {seconds}")
        # At once: ranks read it in every step.
        folder = self.launches.folder
        self.launches.box.head.run(["mv", f"{folder}/trouble.new", f"{folder}/trouble"])
        return time.time()

    def release(self) -> None:
        """Ends the trouble that was put in last."""
        self.trouble("none", "none", 0)

    def verdicts(self, since: float) -> list[tuple[float, dict[str, Any]]]:
        """What the conductor said by itself since then: seconds after, and the finding ({} when it moved again)."""
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
        """Waits until steps are made again, and no verdict stands."""
        before = self.step()
        wait_until(lambda: self.step() >= before + 3, within, lambda: f"it goes on: {self.going.said[-3000:]}")

    def step(self) -> int:
        last = self.launches.read(self.run, "samples.jsonl").rpartition('"step":')[2]
        digits = last.partition(",")[0].partition("}")[0]
        return int(digits) if digits.isdigit() else 0


@contextmanager
def training(launches: Launches, *words: str, env: dict[str, str] | None = None) -> Iterator[Training]:
    """Over the second network of the hosts; it is stopped at the end of the block."""
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
    """While it is open, /mnt/dead of the host never answers."""
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
