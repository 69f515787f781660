"""Asking ranks for their stacks while they end: nobody else may be hit, and nobody is waited for in vain."""

import json
import subprocess
import sys

# A process of its own session: a signal to the whole group would reach nobody but it.
ASKS = r"""
import json, os, signal, subprocess, sys, tempfile, time
from aboard.agent import stacks
from aboard.agent.beacons import STACKS_SIGNAL, Heard
from aboard.agent.loop import Loop

hits = []
signal.signal(STACKS_SIGNAL, lambda number, frame: hits.append(number))
folder = tempfile.mkdtemp()
heard = Heard(0, folder, [])
open(heard.stacks, "w").close()
code = "import signal, sys; keep = open(sys.argv[1], 'a'); signal.signal(int(sys.argv[2]), lambda *_: None);"
code += "print('ready', flush=True)\nwhile True: pass"
rank = subprocess.Popen([sys.executable, "-c", code, heard.stacks, str(int(STACKS_SIGNAL))], stdout=subprocess.PIPE)
rank.stdout.readline()
heard.pid, heard.phase = rank.pid, stacks.MET
loop, found = Loop(), []

def told(answer):
    found.append(answer)
    loop.stop()

began = time.monotonic()
stacks.take(loop, {"0": (rank.pid, heard)}, 8.0, told)

def end():
    rank.kill()
    rank.wait()
    heard.pid = 0 if sys.argv[1] == "forgotten" else heard.pid

loop.later(0.1, end)
loop.run()
print(json.dumps({"hits": len(hits), "found": found[0], "seconds": time.monotonic() - began}))
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


def test_a_rank_that_ended_meanwhile_costs_its_keeper_nothing() -> None:
    """Its number is forgotten, and 0 would be the keeper's own group: no signal is sent at all."""
    told = _asked("forgotten")
    assert told["hits"] == 0
    assert told["found"] == {"0": {"why": "it has ended"}}


def test_a_number_that_nobody_has_any_more_is_not_signalled() -> None:
    """It is known to have ended by the kernel's word too, long before the time that there was."""
    told = _asked("still known")
    assert (told["hits"], told["found"]) == (0, {"0": {"why": "it has ended"}})
