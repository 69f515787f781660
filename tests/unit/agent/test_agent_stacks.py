"""Asking ranks for their stacks while they end: nobody else may be hit, and nobody is waited for in vain."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# A process of its own session: a signal to the whole group would reach nobody but it.
ASKS = r"""
import json, os, signal, subprocess, sys, tempfile, time
from aboard.agent.inspect import rank_stacks
from aboard.agent.beacon.report_receiver import (STACKS_SIGNAL, BeaconState)
from aboard.agent.event_loop import EventLoop

hits = []
signal.signal(STACKS_SIGNAL, lambda number, frame: hits.append(number))
folder = tempfile.mkdtemp()
heard = BeaconState(0, folder, [])
open(heard.stacks, "w").close()
code = "import signal, sys; keep = open(sys.argv[1], 'a'); signal.signal(int(sys.argv[2]), lambda *_: None);"
code += "signal.signal(signal.SIGUSR1, lambda *_: signal.signal(int(sys.argv[2]), signal.SIG_DFL));"
code += "print('ready', flush=True)\nwhile True: pass"
rank = subprocess.Popen([sys.executable, "-c", code, heard.stacks, str(int(STACKS_SIGNAL))], stdout=subprocess.PIPE)
rank.stdout.readline()
heard.pid, heard.phase = rank.pid, rank_stacks.GROUP_PHASE
loop, found = EventLoop(), []

def told(answer):
    found.append(answer)
    loop.stop()

began = time.monotonic()
rank_stacks.collect_stacks(loop, {"0": (rank.pid, heard)}, 8.0, told)

def end():
    if sys.argv[1] == "leaving":
        rank.send_signal(signal.SIGUSR1)
        return
    rank.kill()
    rank.wait()
    heard.pid = 0 if sys.argv[1] == "forgotten" else heard.pid

loop.later(0.1, end)
loop.run()
lives = rank.poll() is None
rank.kill()
print(json.dumps({"hits": len(hits), "found": found[0], "seconds": time.monotonic() - began, "lives": lives}))
"""


def _asked(how: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", ASKS, how],
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    told: dict[str, object] = json.loads(done.stdout)
    return told


def test_a_rank_that_ended_meanwhile_costs_its_supervisor_nothing() -> None:
    """Its number is forgotten, and 0 would be the supervisor's own group: no signal is sent at all."""
    told = _asked("forgotten")
    assert told["hits"] == 0
    assert told["found"] == {"0": {"why": "it has exited"}}


def test_a_number_that_nobody_has_any_more_is_not_signalled() -> None:
    """It is known to have ended by the kernel's word too, long before the time that there was."""
    told = _asked("still known")
    assert (told["hits"], told["found"]) == (0, {"0": {"why": "it has exited"}})


@pytest.mark.ci
def test_a_rank_that_takes_its_handler_away_meanwhile_is_not_killed() -> None:
    """Python does so when it ends: a rank that finishes well must not die of being asked where it is."""
    told = _asked("leaving")
    assert told["lives"]
    assert "does not listen" in str(told["found"])


def test_what_stands_below_the_beacons_handler_kills_nobody(tmp_path: Path) -> None:
    """The signal may come in the very moment in which Python takes the handler away."""
    code = (
        "import contextlib, faulthandler, os, sys\n"
        "from aboard.agent.beacon.aboard_beacon import _show_stacks\n"
        "from aboard.agent.beacon.report_receiver import STACKS_SIGNAL\n"
        "with contextlib.suppress(FileNotFoundError):\n"
        "    _show_stacks(str(int(STACKS_SIGNAL)), str(os.getppid()), sys.argv[1])\n"
        "faulthandler.unregister(STACKS_SIGNAL)\n"
        "os.kill(os.getpid(), STACKS_SIGNAL)\n"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "stacks")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
