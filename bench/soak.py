"""Kills or stops Aboard's processes at random while launches run, and looks for what is left and what `why` says.

    python bench/soak.py [--quick] [--launches N] [--seed N] [--first N] [--workers N] [--json FILE]

Each launch has 2 ranks on 2 sandbox hosts; each rank also starts a double fork in a new session with an emptied
environment. Then one or two of these get SIGKILL or SIGSTOP: the head (the `aboard` process), and on a random node the
bridge, the supervisor, its guard or the rank. A stopped head is continued, or killed, after the lease has expired.
Nothing else that is stopped is continued by the bench. The run ends by itself, or the bench tells the ranks to finish.

Afterwards no process may be left that the launch brought to a host (by run id, by mark, or just new there), and no file
in /tmp, /var/tmp, /dev/shm or the home directory of a node. `aboard why RUN` must name what happened:

    what was done            ends the run   what counts as named
    head killed              yes            the conductor died
    head stopped, continued  yes            the conductor did not run for a while (run-head-paused)
    head stopped, killed     yes            the conductor died
    bridge killed, stopped   no             that the bridge on that node was killed, or stopped and continued
    supervisor killed        yes            that the supervisor on that node was killed
    supervisor stopped       no             that it was stopped and continued
    guard killed             yes            that the guard on that node was killed
    guard stopped            no             that it was stopped and continued
    rank killed, stopped     yes            that the rank was killed by SIGKILL, or stopped

Of a pair, one that ended the run must be named; if neither ended it, both. After a killed head nobody records what
happens, so a pair with it is named by the head's death.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from aboard.agent import process_tree
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.host_setup.system_files import CREW_HOME
from figures import Figures

FOLDER = "/shared/soak"
LEASE = 6.0
# Until a node has ended its ranks without a head: the lease, a beat, and the ranks' last moments.
LEASE_OVER = LEASE + 2.0 + 2.0
# Within a second a stopped process is continued; a head whose bridge is gone connects again a little later.
RECOVERY = 4.0
PATIENCE = 90.0
POLL = 0.25
WATCHED = ("tmp", "var/tmp", "dev/shm", str(CREW_HOME).lstrip("/"))
JOB = """
import os, sys, time
folder, token = sys.argv[1:]
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execve(sys.executable, [sys.executable, "-Sc", "import time; time.sleep(600)", token], {})
os.wait()
print("ready", flush=True)
while not os.path.exists(f"{folder}/{token}"):
    time.sleep(0.1)
"""
AGENTS = ("bridge", "supervisor", "guard")
FATAL = {
    ("head", "kill"),
    ("head", "stop"),
    ("supervisor", "kill"),
    ("guard", "kill"),
    ("rank", "kill"),
    ("rank", "stop"),
}
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


@dataclass(frozen=True)
class Injection:
    """One process that is killed or stopped."""

    victim: str
    action: str
    node: str = ""

    def __str__(self) -> str:
        return f"{self.action} {self.victim}{f' on {self.node}' if self.node else ''}"

    @property
    def fatal(self) -> bool:
        return (self.victim, self.action) in FATAL


@dataclass(kw_only=True)
class Trial:
    """One launch: what is done to it, and what came of it."""

    number: int
    injections: tuple[Injection, ...]
    delay: float
    gap: float
    end_head: str
    orphans: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    named: bool = False
    said: str = ""
    error: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        end = (
            f", then {self.end_head}"
            if any(injection == Injection("head", "stop") for injection in self.injections)
            else ""
        )
        return f"{' and '.join(map(str, self.injections))}{end}"


def draw_trial(seed: int, number: int) -> Trial:
    draw = random.Random(f"{seed}-{number}")  # noqa: S311 - no secrets
    places = [("head", ""), *((victim, node) for victim in (*AGENTS, "rank") for node in ("n1", "n2"))]
    # The head as often as any other kind.
    weights = [2, *([1] * (len(places) - 1))]
    count = draw.choice((1, 2))
    chosen: list[tuple[str, str]] = []
    while len(chosen) < count:
        place = draw.choices(places, weights)[0]
        if place not in chosen:
            chosen.append(place)
    injections = tuple(Injection(victim, draw.choice(("kill", "stop")), node) for victim, node in chosen)
    return Trial(
        number=number,
        injections=injections,
        delay=draw.uniform(0.0, 1.0),
        gap=draw.choice((0.0, draw.uniform(0.0, 0.5))),
        end_head=draw.choice(("continue", "kill")),
    )


class Stage:
    """Two hosts and a head; one launch at a time."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box
        script = f"mkdir -p {FOLDER} && cat > {FOLDER}/job.py"
        box.head.run(["sh", "-c", script], input=JOB).check_returncode()
        cluster = f"cluster:\n  python: {sys.executable}\n  nodes: ['n[1-2] slots=1']\n"
        box.head.run(["sh", "-c", f"cat > {FOLDER}/aboard.yaml"], input=cluster).check_returncode()
        # The first command of a user may write caches.
        box.head.run(["aboard", "check", "--only", "host"], cwd=FOLDER, timeout=PATIENCE)

    def run(self, trial: Trial) -> None:
        began = time.monotonic()
        token = f"soak-{os.getpid()}-{trial.number}"
        before, files = self._list_processes(), self._list_files()
        with tempfile.TemporaryFile("w+") as output, self._launch(token, output) as process:
            try:
                self._inject(trial, token, process)
            except TimeoutError as error:
                output.seek(0)
                trial.error = f"{error}; the launch printed: {output.read()[-2000:]}"
            # Whatever the bench stopped and Aboard could not know of: its own terminal's process.
            self._signal_head(token, signal.SIGCONT)
        run = self._find_run(token)
        self._collect_orphans(trial, before, run)
        trial.files = sorted(self._list_files() - files)
        self._remove(trial.files)
        trial.said = self.box.head.run(["aboard", "why", run], cwd=FOLDER, timeout=PATIENCE).stdout if run else ""
        trial.named = is_named(trial)
        trial.seconds = time.monotonic() - began

    @contextmanager
    def _launch(self, token: str, output: IO[str]) -> Iterator["subprocess.Popen[Any]"]:
        process = self.box.head.popen(
            ["aboard", "launch", "--allow-file", "--lease", f"{LEASE:g}", "--", "job.py", FOLDER, token],
            cwd=FOLDER,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _inject(self, trial: Trial, token: str, process: "subprocess.Popen[Any]") -> None:
        self._wait(lambda: len(self._find_ready(token)) == len(self.box.nodes), "both ranks are ready")
        time.sleep(trial.delay)
        victims = [(self._find(injection, token), injection) for injection in trial.injections]
        for place, (pid, injection) in enumerate(victims):
            if place:
                time.sleep(trial.gap)
            # The second may have died of the first.
            process_tree.send_signal([pid], SIGNALS[injection.action])
        if any(injection == Injection("head", "stop") for injection in trial.injections):
            time.sleep(LEASE_OVER)
            self._signal_head(token, signal.SIGCONT if trial.end_head == "continue" else signal.SIGKILL)
        elif not any(injection.fatal for injection in trial.injections):
            time.sleep(RECOVERY)
            self.box.head.run(["touch", f"{FOLDER}/{token}"])
        self._wait(lambda: process.poll() is not None, "the launch ends")

    def _find(self, injection: Injection, token: str) -> int:
        if injection.victim == "head":
            return self._find_head(token)
        host = self.box.host(injection.node)
        rank = self._find_ready(token)[host.name]
        parents = process_tree.read_parents()
        supervisor = parents[rank]
        guard = parents[supervisor]
        if injection.victim == "bridge":
            agents = [pid for pid in host.pids() if "\0-ISc\0" in read_command(pid)]
            return next(pid for pid in agents if pid not in (supervisor, guard))
        return {"rank": rank, "supervisor": supervisor, "guard": guard}[injection.victim]

    def _find_head(self, token: str) -> int:
        words = [(pid, read_command(pid).split("\0")) for pid in self.box.head.pids()]
        return next((pid for pid, each in words if token in each and "launch" in each), 0)

    def _signal_head(self, token: str, number: int) -> None:
        if pid := self._find_head(token):
            process_tree.send_signal([pid], number)

    def _find_ready(self, token: str) -> dict[str, int]:
        """Each node's rank, if it has started its double fork."""
        ranks = {}
        for host in self.box.nodes:
            commands = {pid: read_command(pid) for pid in host.pids()}
            escaped = any(text.endswith(f"time.sleep(600)\0{token}\0") for text in commands.values())
            found = [pid for pid, text in commands.items() if text.endswith(f"job.py\0{FOLDER}\0{token}\0")]
            if escaped and len(found) == 1:
                ranks[host.name] = found[0]
        return ranks

    def _find_run(self, token: str) -> str:
        runs = Path(f"/proc/{self.box.head.pid}/root{CREW_HOME}/.local/state/aboard/runs")
        for plan in sorted(runs.glob("*/plan.json"), key=lambda path: path.stat().st_mtime, reverse=True):
            if token in plan.read_text():
                return plan.parent.name
        return ""

    def _list_processes(self) -> dict[str, set[int]]:
        return {host.name: set(host.pids()) for host in self._list_hosts()}

    def _list_hosts(self) -> list[Host]:
        return [self.box.head, *self.box.nodes]

    def _list_files(self) -> set[str]:
        return {
            f"{host.name}:/{folder}/{path.name}"
            for host in self.box.nodes
            for folder in WATCHED
            for path in Path(f"/proc/{host.pid}/root/{folder}").iterdir()
        }

    def _remove(self, names: list[str]) -> None:
        for name in names:
            host, _, path = name.partition(":")
            self.box.host(host).run(["rm", "-rf", path], root=True)

    def _collect_orphans(self, trial: Trial, before: dict[str, set[int]], run: str) -> None:
        """Waits for what may still be ending, then names what is left, and removes it for the next launch."""

        def left() -> dict[int, str]:
            new = {pid: name for name, pids in self._list_processes().items() for pid in pids - before[name]}
            new = {pid: name for pid, name in new.items() if process_tree.read_state(pid)}
            # By run id and mark, on whichever host.
            return {**dict.fromkeys(process_tree.find_run_processes(run) if run else (), "marked"), **new}

        deadline = time.monotonic() + LEASE_OVER + PATIENCE / 3
        while (found := left()) and time.monotonic() < deadline:
            time.sleep(POLL)
        trial.orphans = [
            f"{name}: {process_tree.read_state(pid)} {read_command(pid)[:60]!r} {read_command(pid)[-60:]!r}"
            for pid, name in found.items()
        ]
        process_tree.send_signal(found, signal.SIGKILL)

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {PATIENCE:g} s: {what}")
            time.sleep(POLL)


def is_named(trial: Trial) -> bool:
    text = " ".join(trial.said.split())
    named = [re.search(build_pattern(injection, trial.end_head), text) is not None for injection in trial.injections]
    fatal = [found for injection, found in zip(trial.injections, named, strict=True) if injection.fatal]
    return any(fatal) if fatal else all(named)


def build_pattern(injection: Injection, end_head: str) -> str:
    node = re.escape(injection.node)
    if injection == Injection("head", "stop") and end_head == "continue":
        return r"conductor \(the `aboard` process on this machine\) did not run for"
    verb = "killed" if injection.action == "kill" else "stopped"
    return {
        "head": r"the conductor \(process \d+\) died",
        "rank": rf"rank \d on {node}(, [^,]*,)? was {verb}",
        "bridge": rf"bridge process\) on {node} was {verb}",
        "supervisor": rf"the supervisor (and its guard process )?on {node} (was|were) {verb}",
        "guard": rf"guard process on {node} (was|were) {verb}",
    }[injection.victim]


def read_command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""


def soak(figures: Figures, trials: list[Trial], workers: int) -> None:
    """Runs the launches on one sandbox per worker, and counts."""
    stages: SimpleQueue[Stage] = SimpleQueue()
    printing = threading.Lock()
    done = 0

    def run(trial: Trial) -> None:
        nonlocal done
        stage = stages.get()
        try:
            stage.run(trial)
        except Exception as error:  # noqa: BLE001 - a launch that the bench can't judge is a miss, not the end
            trial.error = f"{type(error).__name__}: {error}"
        finally:
            stages.put(stage)
        with printing:
            done += 1
            print_trial(trial, f"{done}/{len(trials)}")

    boxes = [
        Sandbox.up(f"bench-soak-{os.getpid()}-{worker}", nodes=2, slots=1, temporary=True) for worker in range(workers)
    ]
    try:
        for box in boxes:
            stages.put(Stage(box))
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, trials))
    finally:
        for box in boxes:
            box.down()
    orphans = sum(len(trial.orphans) for trial in trials)
    files = sum(len(trial.files) for trial in trials)
    unnamed = [trial.number for trial in trials if not trial.named or trial.error]
    note = f"of {len(trials)} launches"
    figures.add("processes left after a launch in which some were killed", orphans, 0, note=note)
    figures.add("files left outside the run directory", files, 0, note=note)
    share = 100 * len(unnamed) / len(trials)
    figures.add("launches whose `why` does not name what was killed", share, 2.0, unit="%", note=f"{note}: {unnamed}")


def print_trial(trial: Trial, progress: str) -> None:
    good = trial.named and not (trial.orphans or trial.files or trial.error)
    mark = "ok" if good else "MISS"
    print(f"{progress} launch {trial.number}: {trial.text}: {mark}, {trial.seconds:.1f} s", flush=True)
    if not good:
        details = {"orphans": trial.orphans, "files": trial.files, "error": trial.error, "named": trial.named}
        print(f"    {json.dumps(details)}\n    why said:\n{trial.said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 launches; takes about a minute")
    parser.add_argument("--launches", type=int, help="how many launches (500)")
    parser.add_argument("--seed", type=int, default=20, help="another seed draws other signals and processes")
    parser.add_argument("--first", type=int, default=0, help="the number of the first launch, to repeat a single one")
    parser.add_argument("--workers", type=int, default=2, help="how many sandboxes run launches side by side")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args()
    count = options.launches or (10 if options.quick else 500)
    trials = [draw_trial(options.seed, options.first + number) for number in range(count)]
    figures = Figures("soak")
    soak(figures, trials, min(options.workers, count))
    sys.exit(figures.finish(options.json))


if __name__ == "__main__":
    main()
