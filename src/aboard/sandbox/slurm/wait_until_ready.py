"""Waits from outside until Slurm has registered all nodes."""

import subprocess
import time
from collections.abc import Mapping

from aboard.diagnoses import SandboxError
from aboard.diagnoses.usage import sandbox
from aboard.sandbox.layout import HEAD, SandboxLayout
from aboard.sandbox.namespaces import host_commands
from aboard.sandbox.namespaces.host_commands import HostCommand
from aboard.sandbox.namespaces.process_identity import ProcessIdentity
from aboard.sandbox.slurm import config_files

_COMMAND_TIMEOUT = 30.0
_PAUSE = 0.1
_LOG_LINES = 5
_IDLE = "idle"


def wait_until_idle(
    layout: SandboxLayout, hosts: Mapping[str, ProcessIdentity], *, crew_id: int, timeout: float
) -> None:
    """Waits until `sinfo`, run as `crew` on the head, shows every node idle; else raises with states and log lines."""
    deadline = time.monotonic() + timeout
    while True:
        answer = _run_on_host(hosts[HEAD], ["sinfo", "--noheader", "--Node", "--format=%N %T"], uid=crew_id)
        states = parse_node_states(answer.stdout) if answer.returncode == 0 else {}
        late = {name: states.get(name, "unknown") for name in layout.places if name != HEAD}
        late = {name: state for name, state in late.items() if state != _IDLE}
        if not late:
            return
        if time.monotonic() > deadline:
            raise _build_late_error(layout, hosts, answer, late, timeout)
        time.sleep(_PAUSE)


def parse_node_states(sinfo: str) -> dict[str, str]:
    """Parses `sinfo --Node --format='%N %T'`: the state of each node, with Slurm's flags (`idle*`)."""
    return dict(line.split(maxsplit=1) for line in sinfo.splitlines() if len(line.split()) > 1)


def _build_late_error(
    layout: SandboxLayout,
    hosts: Mapping[str, ProcessIdentity],
    answer: subprocess.CompletedProcess[str],
    late: Mapping[str, str],
    timeout: float,
) -> SandboxError:
    if answer.returncode != 0:
        node, program, seen = config_files.CONTROLLER, "slurmctld", f"sinfo gets no reply: {answer.stderr.strip()}"
    else:
        node, program = next(iter(late)), "slurmd"
        seen = "not idle: " + ", ".join(f"{name} is {state}" for name, state in late.items())
    log = _run_on_host(hosts[node], ["tail", "-n", str(_LOG_LINES), f"{config_files.LOGS}/{program}.log"], uid=0)
    lines = (log.stdout or log.stderr).strip()
    return SandboxError(
        sandbox.SLURM,
        f"Slurm is not ready after {timeout:.0f} s: {seen}. The last lines of {program}'s log on {node}:\n{lines}",
        "late",
        nodes=layout.nodes,
        name=layout.name,
    )


def _run_on_host(host: ProcessIdentity, argv: list[str], *, uid: int) -> subprocess.CompletedProcess[str]:
    try:
        return host_commands.run_command(
            host, HostCommand(argv=argv, uid=uid, env={}), text=None, timeout=_COMMAND_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        # Exit code of timeout(1): a hanging program counts as failed.
        return subprocess.CompletedProcess(argv, 124, "", f"still running after {_COMMAND_TIMEOUT:.0f} s")
