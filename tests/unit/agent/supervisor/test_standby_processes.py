"""Standbys of a real supervisor on this machine: one becomes a rank, or its rank starts without it."""

import asyncio
import os
import signal
import sys
from dataclasses import replace

import pytest
from deadlines import until, wait_until
from made_events import list_fields
from supervisor_runs import SHORT, Run, held

from aboard.agent import process_tree
from aboard.agent.procfs import read_kernel_file
from aboard.core.plan.plan import Start
from aboard.core.plan.rank_variables import STANDBY
from aboard.transport.node_session import NodeSession

pytestmark = pytest.mark.ci  # each test starts a supervisor and its ranks

# What aboard.trainer.standby does, without the imports.
PROGRAM = """
import json, os, sys, time
warm = os.environ.pop("ABOARD_STANDBY", None)
if warm is not None:
    print("imported", flush=True)
    assert os.environ["ABOARD_SETTINGS"] == "old" and "RANK" not in os.environ and "LOCAL_RANK" not in os.environ
    if warm == "slow":
        time.sleep(300)
    os.write(0, b"ready\\n")
    given = json.loads(os.fdopen(os.dup(0)).readline() or sys.exit(0))
    os.environ.update(given["env"])
    sys.modules["aboard_beacon"].armed.become_rank(given["ABOARD_CHILD"], given.get("ABOARD_AWAIT", ""))
words = [os.environ[name] for name in ("RANK", "TORCHELASTIC_RESTART_COUNT", "ABOARD_SETTINGS")]
print("rank", *words, flush=True)
time.sleep(300)
"""
HANDED = ("RANK", "LOCAL_RANK", "TORCHELASTIC_RESTART_COUNT")
RANK = Start(
    child="5",
    argv=(sys.executable, "-c", PROGRAM),
    env={
        "RANK": "5",
        "LOCAL_RANK": "1",
        "TORCHELASTIC_RESTART_COUNT": "1",
        "OMP_NUM_THREADS": "2",
        "ABOARD_SETTINGS": "new",
    },
    beacon=True,
)


async def start_standby(hold: NodeSession, warm: str = "fast") -> None:
    env = {**RANK.env, "RANK": "4", "TORCHELASTIC_RESTART_COUNT": "0", "ABOARD_SETTINGS": "old", STANDBY: warm}
    await hold.start_standby(replace(RANK, env=env), HANDED)


def find_standby(run: Run) -> int:
    """The pid of the only process of the run; 0 before its exec."""
    programs = [pid for pid in run.alive() if PROGRAM.encode() in read_kernel_file(f"/proc/{pid}/cmdline")]
    return programs[0] if programs else 0


def test_a_standby_becomes_the_rank_of_its_slot(clean: list[Run]) -> None:
    """The same process, silent until then, with the variables, the output and the reports of that rank."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await start_standby(hold)
        await until(lambda: "standby" in run.kinds())
        assert run.kinds("5") == []
        assert run.pieces == []
        pid = find_standby(run)
        await hold.start(RANK)
        await until(lambda: b"rank" in run.output("5") and "phase" in run.kinds("5"))
        started = next(event for event in run.events if event.kind == "started")
        assert list_fields(started) == {"pid": pid, "standby": True}
        await hold.signal("5", signal.SIGTERM)
        await until(lambda: "exited" in run.kinds("5") and run.finished("5"))

    held(run, story)
    assert run.output("5") == b"imported\nrank 5 1 new\n"
    assert run.kinds("5") == ["started", "phase", "exited"]


@pytest.mark.parametrize("how", ["killed", "stopped", "importing", "other variable", "other program"])
def test_a_rank_whose_standby_is_of_no_use_starts_without_it(clean: list[Run], how: str) -> None:
    """Whatever happened to the standby; and the standby ends then."""
    run = Run()
    clean.append(run)
    rank = RANK
    if how == "other variable":
        rank = replace(RANK, env={**RANK.env, "OMP_NUM_THREADS": "4"})
    elif how == "other program":
        rank = replace(RANK, argv=(sys.executable, "-Wignore", "-c", PROGRAM))

    async def story(hold: NodeSession) -> None:
        await start_standby(hold, "slow" if how == "importing" else "fast")
        if how == "importing":
            await until(lambda: bool(find_standby(run)))
        else:
            await until(lambda: "standby" in run.kinds())
        pid = find_standby(run)
        if how in ("killed", "stopped"):
            os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
            await until(lambda: process_tree.read_state(pid) in ("", "T"))
        await hold.start(rank)
        await until(lambda: b"rank" in run.output("5"))
        started = next(event for event in run.events if event.kind == "started")
        assert list_fields(started)["pid"] != pid
        assert "standby" not in list_fields(started)
        await until(lambda: process_tree.read_state(pid) == "")

    held(run, story)
    assert run.output("5") == b"rank 5 1 new\n"


def test_standbys_end_with_the_lease_of_their_supervisor(clean: list[Run]) -> None:
    """When the head is gone, nothing is left."""
    run = Run(SHORT)
    clean.append(run)

    async def story() -> None:
        hold = run.hold()
        await hold.begin()
        await start_standby(hold)
        await until(lambda: "standby" in run.kinds())
        await hold.leave()
        await until(run.gone)

    asyncio.run(story())


def test_standbys_end_with_their_supervisor_at_the_end_of_a_run(clean: list[Run]) -> None:
    """A run that needed no further generation ends them at once."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await start_standby(hold)
        await until(lambda: "standby" in run.kinds())

    held(run, story)
    wait_until(run.gone, 5)
    assert run.kinds() == ["standby", "ending", "ended"]
