"""Messages about runs: none is missing, late or sent twice, and a receiver that hangs delays no run.

    python bench/notify.py [--quick] [--json FILE]

The real conductor on simulated nodes, and the real senders to a real web hook on loopback. Ranks raise exceptions or
are killed, in runs with and without restarts, and nodes fall silent. Then conductors of real runs on this machine get
SIGKILL, in the middle of a run and while a message is being sent.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "kit"))
from deadlines import wait_until
from simulated_runs import EventList, conduct_simulated
from webhook_server import WebhookServer, serve_webhook

from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.run.lease import Lease
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import run_simulator
from figures import Figures, main

TOGETHER = 4
LEASE = Lease(seconds=4.0, grace=0.2, beat=0.5)
SCRIPT = "import os, sys, time\ntime.sleep(float(sys.argv[1]))\nos._exit(7 if os.environ['RANK'] == '1' else 0)\n"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A run whose second node fails this often, by one kind of fault."""

    name: str
    faults: FakeNodeFaults
    count: int = 1


def list_trials(*, quick: bool) -> list[Trial]:
    """20 faults, or 8 of them."""
    singles = [Trial(name=f"raised{number}", faults=FakeNodeFaults(dies={"3": 0.4})) for number in range(6)]
    silent = [Trial(name=f"silent{number}", faults=FakeNodeFaults(silent=1.0)) for number in range(4)]
    kills = FakeNodeFaults(kills={"1/2": 0.6, "2/3": 0.6})
    restarted = [Trial(name=f"killed{number}", faults=kills, count=2) for number in range(5)]
    return [*singles[:3], *silent[:1], *restarted[:2]] if quick else [*singles, *silent, *restarted]


async def run_trials(trials: list[Trial], folder: Path) -> list[tuple[Trial, str, list[float]]]:
    """Each with its run, and when its verdicts were final."""
    limit = asyncio.Semaphore(TOGETHER)
    async with run_simulator() as socket:

        async def run(trial: Trial) -> tuple[Trial, str, list[float]]:
            observer = EventList()
            own = folder / trial.name
            own.mkdir()
            nodes = (f"{trial.name}a", f"{trial.name}b")
            async with limit:
                await conduct_simulated(
                    *(own, socket, nodes, {nodes[1]: trial.faults}, NotifySettings(env="HOOK"), observer),
                    recovery=RecoverySettings(restarts=trial.count - 1),
                    lease=LEASE,
                )
            (record,) = Runs(own).all()
            # The last one is told with the end of the run.
            kinds = [*["recovering"] * (trial.count - 1), "finished"]
            times = {kind: [event.at for event in observer.events if event.kind == kind] for kind in set(kinds)}
            return trial, record.id, [times[kind].pop(0) for kind in kinds]

        return await asyncio.gather(*map(run, trials))


def measure_faults(figures: Figures, server: WebhookServer, *, quick: bool) -> None:
    trials = list_trials(quick=quick)
    with TemporaryDirectory() as folder:
        results = asyncio.run(run_trials(trials, Path(folder)))
    expected = sum(trial.count for trial in trials)
    # A sender may still be trying.
    with suppress(AssertionError):
        wait_until(lambda: sum(body["event"] == "failure" for _at, body in server.posts) == expected, 20)
    wrong, delays = [], []
    for trial, run, verdicts in results:
        posts = [(at, body) for at, body in server.posts if body["run"] == run]
        failures = [at for at, body in posts if body["event"] == "failure"]
        if len(failures) != trial.count:
            wrong.append(f"{trial.name}: {len(failures)} of {trial.count}")
        delays += [posted - verdict for posted, verdict in zip(failures, verdicts, strict=False)]
    figures.add(f"of {expected} faults, runs with missing or more messages", len(wrong), 0, note=", ".join(wrong))
    figures.add("messages with an id that came before", sum(count - 1 for count in Counter(server.ids).values()), 0)
    figures.add("seconds from the verdict to the message, worst", max(delays), 2, unit="s")
    figures.add("the same, median", sorted(delays)[len(delays) // 2], 1, unit="s")


def measure_hang(figures: Figures, server: WebhookServer) -> None:
    """The same run with a receiver that takes messages, and with one that never answers, in turns."""
    ends: dict[str, list[float]] = {"takes": [], "hangs": []}
    for turn in range(2):
        for how, seconds in ends.items():
            server.answer = "hang" if how == "hangs" else 200
            trial = Trial(name=f"{how}{turn}", faults=FakeNodeFaults(dies={"3": 0.4}))
            with TemporaryDirectory() as folder:
                ((_, _, (verdict,)),) = asyncio.run(run_trials([trial], Path(folder)))
                seconds.append(time.time() - verdict)
    delay = min(ends["hangs"]) - min(ends["takes"])
    note = f"{min(ends['hangs']):.1f} s from the verdict to the end, {min(ends['takes']):.1f} s otherwise"
    figures.add("seconds by which a receiver that hangs delays the end", delay, 2, unit="s", note=note)


def start_launch(folder: Path, seconds: float) -> "subprocess.Popen[bytes]":
    (folder / "wait.py").write_text(SCRIPT)
    (folder / "aboard.yaml").write_text(
        "cluster: {nodes: localhost slots=2}\nnotify: {webhook: {env: HOOK}, on: [failure, end]}\n"
    )
    words = ("launch", "--allow-file", "--lease", "4", "--check", "none", "--", "wait.py", str(seconds))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "aboard", *words],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def measure_kills(figures: Figures, server: WebhookServer, *, quick: bool) -> None:
    rounds = 1 if quick else 3
    unheard = repeated = 0
    for while_sending in (False, True) * rounds:
        server.posts.clear()
        with TemporaryDirectory() as folder:
            kill_conductor(server, Path(folder), while_sending=while_sending)
        unheard += not while_sending and not any("lost its conductor" in body["text"] for _, body in server.posts)
        repeated += sum(count - 1 for count in Counter(server.ids).values())
    figures.add(f"of {rounds} conductors that were killed, those that nobody heard of", unheard, 0)
    figures.add(f"messages sent twice after {2 * rounds} kills of conductors", repeated, 0)


def kill_conductor(server: WebhookServer, folder: Path, *, while_sending: bool) -> None:
    """Until its sender and its ranks are gone, too."""
    server.answer = "hang" if while_sending else 200
    process = start_launch(folder, 1.0 if while_sending else 30.0)
    runs = folder / "state" / "aboard" / "runs"

    def has_started() -> bool:
        return any(b"started" in path.read_bytes() for path in runs.glob("*/events.jsonl"))

    wait_until(lambda: server.posts if while_sending else has_started(), 30, "the moment to kill it")
    process.kill()
    process.wait()
    wait_until(lambda: server.posts, 20, "a message")
    wait_until(lambda: not list_users(str(folder)), 60, "the end of all processes")


def list_users(folder: str) -> list[str]:
    """The processes whose directory or environment has this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if folder.encode() in (path / "environ").read_bytes():
                found.append(path.name)
        except OSError:
            continue
    return found


def measure(figures: Figures, quick: bool) -> None:  # noqa: FBT001 - the bench's only option
    """Measures messages about runs that fail."""
    with serve_webhook() as server:
        os.environ["HOOK"] = server.address
        measure_faults(figures, server, quick=quick)
        measure_hang(figures, server)
        measure_kills(figures, server, quick=quick)


if __name__ == "__main__":
    main("notify", measure)
