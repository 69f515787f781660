"""Waiting from outside until Slurm has taken all nodes in."""

import subprocess
import time
from collections.abc import Mapping

from aboard.diagnoses import SandboxError, sandbox
from aboard.sandbox import running
from aboard.sandbox.layout import HEAD, Layout
from aboard.sandbox.process import Process
from aboard.sandbox.running import Command
from aboard.sandbox.slurm import conf

_COMMAND_TIMEOUT = 30.0
_PAUSE = 0.1
_LOG_LINES = 5
_IDLE = "idle"


def wait(layout: Layout, hosts: Mapping[str, Process], *, crew_id: int, timeout: float) -> None:
    """Return when `sinfo`, asked as `crew` on the head, shows every node idle; else say which isn't, and its log."""
    deadline = time.monotonic() + timeout
    while True:
        answer = _run(hosts[HEAD], ["sinfo", "--noheader", "--Node", "--format=%N %T"], uid=crew_id)
        states = node_states(answer.stdout) if answer.returncode == 0 else {}
        late = {name: states.get(name, "unknown") for name in layout.places if name != HEAD}
        late = {name: state for name, state in late.items() if state != _IDLE}
        if not late:
            return
        if time.monotonic() > deadline:
            raise _trouble(layout, hosts, answer, late, timeout)
        time.sleep(_PAUSE)


def node_states(sinfo: str) -> dict[str, str]:
    """What `sinfo --Node --format='%N %T'` printed: a state by node, with Slurm's marks (`idle*`)."""
    return dict(line.split(maxsplit=1) for line in sinfo.splitlines() if len(line.split()) > 1)


def _trouble(
    layout: Layout,
    hosts: Mapping[str, Process],
    answer: subprocess.CompletedProcess[str],
    late: Mapping[str, str],
    timeout: float,
) -> SandboxError:
    if answer.returncode != 0:
        node, program, seen = conf.CONTROLLER, "slurmctld", f"sinfo gets no answer: {answer.stderr.strip()}"
    else:
        node, program = next(iter(late)), "slurmd"
        seen = "not idle: " + ", ".join(f"{name} is {state}" for name, state in late.items())
    log = _run(hosts[node], ["tail", "-n", str(_LOG_LINES), f"{conf.LOGS}/{program}.log"], uid=0)
    lines = (log.stdout or log.stderr).strip()
    return SandboxError(
        sandbox.SLURM,
        f"Slurm isn't ready after {timeout:.0f} s: {seen}. The last lines of {program}'s log on {node}:\n{lines}",
        "late",
        nodes=layout.nodes,
        name=layout.name,
    )


def _run(host: Process, argv: list[str], *, uid: int) -> subprocess.CompletedProcess[str]:
    try:
        return running.run(host, Command(argv=argv, uid=uid, env={}), text=None, timeout=_COMMAND_TIMEOUT)
    except subprocess.TimeoutExpired:
        # As timeout(1) ends: a program that hangs is one that failed.
        return subprocess.CompletedProcess(argv, 124, "", f"it still runs after {_COMMAND_TIMEOUT:.0f} s")
