"""The stage of the fault bench: four sandbox hosts with two ranks each, the job, its launches and their records."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import AboardError
from aboard.engine.records.bundle import Bundle, pack_run
from aboard.record.run_directory import RunDirectory
from aboard.sandbox import Sandbox
from aboard.sandbox.faults import heal_all_faults, list_active_faults
from faults_wheel import MISSING, build_empty_wheel

# Not resolved: a virtual environment's interpreter is a symlink.
PYTHON = sys.executable
HERE = Path(__file__).resolve().parent
FOLDER = "/shared/job"
# Two parts of the bench may run at once, each on its own hosts.
BOX = f"bench-faults-{os.getpid()}"
RUNS = "home/crew/.local/state/aboard/runs"
NODES, SLOTS = 4, 2
RANKS = NODES * SLOTS
_NODES = "".join(f"    - name: n{number}\n      slots: {SLOTS}\n" for number in range(1, NODES + 1))
# The ranks' environment belongs to their user, who can install into it what a fix says; the rest comes from ours.
_ENVIRONMENT = "/shared/environment"
_MAKE_ENVIRONMENT = f"""
{PYTHON} -m venv --without-pip {_ENVIRONMENT}
printf '%s\\n' "$@" > "$(echo {_ENVIRONMENT}/lib/python*/site-packages)/outer.pth"
"""
_CONFIG = f"cluster:\n  python: {_ENVIRONMENT}/bin/python\n  fabric_address: '{{name}}i'\n  nodes:\n{_NODES}"
# As a user would write it: the job's own data are on the nodes' disks.
_IMAGES = {"apptainer": "/opt/images/train.sif", "podman": "localhost/train"}
_CONTAINER = "  container: {{runtime: {runtime}, image: {image}, python: {python}, binds: [/private]}}\n"
_BLOCKED = 'from pathlib import Path\n\nPath("/private/data/pipe").open("rb").read(1)\n'
_PREPARE = """
mkdir -p /private/data /private/out /private/job; chmod 777 /private/data /private/out /private/job
head -c 65536 /dev/urandom > /private/data/shard.bin
echo '{}' > /private/data/tokenizer.json
chmod 666 /private/data/*
rm -f /private/data/pipe; mkfifo -m 666 /private/data/pipe
rm -f /dev/shm/batch-*
install -d -o crew /home/crew/.config /home/crew/.config/pip
printf '[global]\\nno-index = true\\nfind-links = %s\\n' "$1" > /home/crew/.config/pip/pip.conf
"""
# How long a training on two cores takes to start; the polling interval.
START_SECONDS = 150.0
LOOK_SECONDS = 0.1

# `✗ reach-refused  n3`, `! host-shm  n[2-3]`
_FINDING = re.compile(r"^([✗!]) ([a-z]+(?:-[a-z]+)+)  (\S+)", re.MULTILINE)
Finding = dict[str, Any]


class Stage:
    """The hosts and the job; hosts are reused for all cases, except after a typed fix changed them."""

    def __init__(self, name: str, container: str = "") -> None:
        self._orders = self._launches = 0
        # The newest launch, and its record if it has ended: a typed fix may replace the hosts that have it.
        self.last_run: Path | None = None
        self.last_record: Bundle | None = None
        self._container = container
        self._board(self._build(name))

    def renew(self) -> None:
        """Replaces the hosts with fresh ones: nothing undoes what a typed fix has changed."""
        self.box.down()
        self._board(self._build(self.box.name))

    def _build(self, name: str) -> Sandbox:
        containers = bool(self._container)
        return Sandbox.up(name, nodes=NODES, slots=SLOTS, fabric=True, temporary=True, containers=containers)

    def _board(self, box: Sandbox) -> None:
        self.box = box
        # As root of this machine we can read a host's files without a process there.
        self.root = Path(f"/proc/{box.head.pid}/root")
        self.folder = self.root / FOLDER.lstrip("/")
        assert box.head.run(["mkdir", "-p", FOLDER]).returncode == 0
        outer = [path for path in sys.path if path.endswith("site-packages")]
        made = box.head.run(["bash", "-euc", _MAKE_ENVIRONMENT, "environment", *outer])
        assert made.returncode == 0, made.stderr
        for name in ("fault_job.py", "faults_own.py", "faults_own_deaths.py", "faults_own_more.py"):
            self.put(name, (HERE / name).read_text())
        self.put("licensed_package.py", _BLOCKED)
        self.put("slow_package.py", "import time\n\ntime.sleep(15)\n")
        runtime = self._container
        inside = _CONTAINER.format(runtime=runtime, image=_IMAGES[runtime], python=PYTHON) if runtime else ""
        self.put("aboard.yaml", _CONFIG + inside)
        assert box.head.run(["aboard", "allow"], cwd=FOLDER).returncode == 0
        self.put(MISSING, build_empty_wheel(MISSING))
        self.restore()

    def prepare(self, *names: str) -> None:
        """Creates the job's files on the nodes' own disks."""
        for host in [self.box.host(name) for name in names] or self.box.nodes:
            done = host.run(["bash", "-euc", _PREPARE, "prepare", FOLDER], root=True)
            assert done.returncode == 0, done.stderr

    def put(self, name: str, content: str | bytes) -> None:
        """Writes a shared file atomically, writable for all users."""
        part = self.folder / f".{name}"
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.chmod(0o666)
        part.rename(self.folder / name)

    def clear(self) -> None:
        """Removes marks, orders and releases of an earlier run."""
        self.box.head.run(["sh", "-c", f"cd {FOLDER}; rm -rf marks order release; mkdir -m 777 marks"], root=True)

    def order(self, name: str, who: int | str) -> None:
        """Orders a rank of the running job to misbehave."""
        for mark in self.folder.glob("marks/effect.*"):
            mark.unlink()
        (self.folder / "release").unlink(missing_ok=True)
        self._orders += 1
        self.put("order", f"{self._orders} {name} {who}")

    def release(self, node: str) -> None:
        """Releases ranks that wait for the release file or for data from the pipe."""
        (self.folder / "release").touch()
        # Opened for reading and writing, a pipe does not block its writer.
        self.box.host(node).run(["timeout", "5", "sh", "-c", "printf xxxx 1<> /private/data/pipe"], root=True)

    def marks(self, name: str) -> dict[int, float]:
        """The time at which each rank reached a place."""
        found = {}
        for path in self.folder.glob(f"marks/{name}.*"):
            with contextlib.suppress(OSError, ValueError):
                found[int(path.suffix[1:])] = float(path.read_text())
        return found

    @contextlib.contextmanager
    def launch(self, *words: str, env: Mapping[str, str] | None = None, check: str = "none") -> Iterator["Running"]:
        """Launches the job with `aboard launch` over the fabric network; leaving the block terminates it."""
        self.clear()
        variables = {**self.env(), **(env or {})}
        envs = [word for name, value in variables.items() if value for word in ("--env", f"{name}={value}")]
        # A port outside the ephemeral range, which some cases' firewalls block.
        self._launches += 1
        port = str(29400 + self._launches % 500)
        where = ("--master-address", str(self.box.nodes[0].fabric_address), "--master-port", port)
        argv = ["aboard", "launch", "--check", check, *where, *envs, *words, "--", f"{FOLDER}/fault_job.py"]
        before = self._runs()
        with tempfile.TemporaryFile("w+") as output:
            process = self.box.head.popen(
                argv, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
            running = Running(self, process, output, before)
            try:
                yield running
            finally:
                running.end()

    def env(self) -> dict[str, str]:
        box = self.box
        return {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth1",
            "HEAD_ADDRESS": box.head.address,
            "OTHER_ADDRESS": str(box.nodes[-1].fabric_address),
            "NO_ADDRESS": str(box.nodes[0].fabric_address).rpartition(".")[0] + ".250",
        }

    def restore(self, *names: str) -> None:
        """Heals all injected faults and restores the job's files on all nodes, or on these."""
        try:
            for name in list_active_faults(self.box):
                heal_all_faults(self.box, self.box.host(name))
        except AboardError:
            # A fault that a typed fix has fixed cannot be healed.
            return self.renew()
        for host in self.box.nodes:
            host.power_on()
        return self.prepare(*names)

    def check(self, *words: str) -> list[Finding]:
        """The findings of a quick check now, above info."""
        done = self.box.head.run(["aboard", "check", "--quick", "--json", *words], cwd=FOLDER, timeout=120)
        findings = json.loads(done.stdout or '{"findings": []}')["findings"]
        return [finding for finding in findings if finding["severity"] != "info"]

    def _runs(self) -> set[str]:
        place = self.root / RUNS
        return {path.name for path in place.iterdir()} if place.exists() else set()

    def new_run(self, before: set[str]) -> Path | None:
        new = self._runs() - before
        return self.root / RUNS / max(new) if new else None


class Running:
    """One running launch, observed through its run record, as any user could."""

    def __init__(self, stage: Stage, process: "subprocess.Popen[Any]", output: Any, before: set[str]) -> None:
        self.stage = stage
        self.typed = time.time()
        self._process = process
        self._output = output
        self._before = before
        self._run: Path | None = None

    @property
    def run(self) -> Path | None:
        self._run = self.stage.last_run = self._run or self.stage.new_run(self._before)
        return self._run

    @property
    def output(self) -> str:
        # Opened anew: seeking would move the position at which the command writes next.
        return Path(f"/proc/self/fd/{self._output.fileno()}").read_text("utf-8", "replace")

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def events(self) -> list[dict[str, Any]]:
        try:
            lines = (self.run / "events.jsonl").read_text().splitlines() if self.run else []
        except OSError:
            return []
        # The last line may be half written.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def verdicts(self, since: float) -> list[tuple[float, Finding]]:
        """Time and first finding of each verdict since then, and of the end of the run."""
        events = self.events()
        told = [
            (event["at"], event["data"]["findings"][0])
            for event in events
            if event["kind"] == "verdict" and event["at"] >= since and event["data"]["findings"]
        ]
        end = next((event["at"] for event in events if event["kind"] == "finished"), None)
        ended = self._document("findings.json") if end is not None and self.over else []
        return [*told, *((end, finding) for finding in ended[:1] if end is not None)]

    def standing(self) -> Finding | None:
        """The current verdict."""
        last = [event for event in self.events() if event["kind"] == "verdict"][-1:]
        return next(iter(last[0]["data"]["findings"]), None) if last else None

    def preflight_findings(self) -> list[Finding]:
        """The preflight findings on the screen, above info."""
        found = _FINDING.finditer(self.output)
        return [
            {"code": each[2], "nodes": expand_node_set(each[3]), "ranks": [], "seen": each[0], "fix": ""}
            for each in found
        ]

    def step(self) -> int:
        try:
            last = (self.run / "samples.jsonl").read_text().rpartition('"step":')[2] if self.run else ""
        except OSError:
            return 0
        digits = last.partition(",")[0].partition("}")[0]
        return int(float(digits)) if digits.strip().replace(".", "").isdigit() else 0

    def end(self) -> None:
        if not self.over and self.run is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stage.box.head.run(["aboard", "stop", self.run.name, "--now"], cwd=FOLDER, timeout=40)
                self._process.wait(15)
        self._process.kill()
        self._process.wait()
        if self.run is not None:
            wait_until(lambda: not self._left(), 30)
            self.stage.last_record = pack_run(RunDirectory(self.run), SecretScrubber())

    def _left(self) -> list[str]:
        text = f"ABOARD_RUN_ID={self.run.name if self.run else ''}".encode()
        found = []
        for host in self.stage.box.nodes:
            for pid in host.pids() if host.on else ():
                with contextlib.suppress(OSError):
                    if text in Path(f"/proc/{pid}/environ").read_bytes():
                        found.append(f"{host.name}:{pid}")
        return found

    def _document(self, name: str) -> Any:
        try:
            return json.loads((self.run / name).read_text()) if self.run else []
        except (OSError, ValueError):
            return []


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def get_node(rank: int) -> str:
    return f"n{rank // SLOTS + 1}"


def list_ranks(nodes: Sequence[str]) -> list[int]:
    return [rank for rank in range(RANKS) if get_node(rank) in nodes]
