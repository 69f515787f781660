"""Asks slurmctld about the job and its nodes, while the nodes themselves are checked."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from shutil import which

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import Contact, UnreachedNode
from aboard.core.cluster.node import TransportKind
from aboard.core.slurm.job_state import parse_job_status
from aboard.core.slurm.slurm_facts import (
    MungeReply,
    SlurmFacts,
    parse_job_times,
    parse_node_states,
    parse_srun_ports,
    parse_unmunge,
)
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import escape_text
from aboard.transport.agent_bootstrap import find_last_line
from aboard.transport.slurm.slurm_commands import run_slurm_command
from aboard.transport.ssh_arguments import AS_CONFIGURED, build_ssh_argv

_SECONDS = 15.0
_LOGIN_SECONDS = 3.0
_SSH_SECONDS = 5
_MOST_LOGINS = 8
_SLURM_CONF = "/etc/slurm/slurm.conf"
# What a clock that is minutes off looks like: slurmd rejects steps, and slurmctld gets no sign of life.
_CLOCK_REASONS = (
    UnreachableReason.SLURMD_REFUSED,
    UnreachableReason.NOT_IN_JOB,
    UnreachableReason.NODE_FAILED,
    UnreachableReason.STEP_ABORTED,
)


async def inspect_slurm(cluster: Cluster, env: Mapping[str, str]) -> SlurmFacts:
    """The state of the job that this process runs in and of the cluster's nodes in it."""
    job = env.get("SLURM_JOB_ID", "")
    if not job.isdecimal():
        return SlurmFacts(job=0, problem="this is not a Slurm job")
    names = ",".join(node.name for node in cluster if node.transport is TransportKind.SLURM)
    questions = (("job", "-o", job), ("node", "-o", names), ("config",))
    shown = await asyncio.gather(
        *(run_slurm_command(("scontrol", "show", *words), env=env, seconds=_SECONDS) for words in questions)
    )
    if failed := next((each for each in shown if each.code), None):
        said = find_last_line(failed.stderr) or find_last_line(failed.stdout)
        return SlurmFacts(job=int(job), problem=escape_text(said or f"scontrol exited with code {failed.code}", 200))
    about_job, about_nodes, config = (each.stdout for each in shown)
    status = parse_job_status(about_job)
    left, limit = parse_job_times(about_job, datetime.now())  # noqa: DTZ005 - Slurm prints local times
    return SlurmFacts(
        job=int(job),
        is_suspended=status is not None and status.state == "SUSPENDED",
        seconds_left=left,
        limit_seconds=limit,
        nodes=parse_node_states(about_nodes),
        # srun reads the file here, which may be newer than what slurmctld has read.
        srun_ports=parse_srun_ports(_read_own_config(env)) or parse_srun_ports(config),
    )


async def find_login_node(cluster: Cluster, env: Mapping[str, str]) -> str:
    """The hostname of this machine if it is the only node, and slurmctld knows no such node; "" otherwise."""
    name = os.uname().nodename.partition(".")[0]
    if [node.transport for node in cluster] != [TransportKind.LOCAL] or env.get("SLURM_JOB_ID") or not which("sbatch"):
        return ""
    shown = await run_slurm_command(("scontrol", "show", "node", "-o", name), env=env, seconds=_LOGIN_SECONDS)
    return name if f"Node {name} not found" in shown.stdout + shown.stderr else ""


async def ask_munge(contacts: Mapping[str, Contact], env: Mapping[str, str]) -> dict[str, MungeReply]:
    """What munge says on nodes whose slurmd rejects steps, where ssh logs in without a question."""
    silent = [
        name
        for name, contact in contacts.items()
        if isinstance(contact, UnreachedNode) and contact.reason in _CLOCK_REASONS
    ]
    credential = await run_slurm_command(("munge", "-n"), env=env, seconds=_SSH_SECONDS) if silent else None
    if credential is None or credential.code:
        return {}
    replies = await asyncio.gather(*(_ask_node(name, credential.stdout, env) for name in silent[:_MOST_LOGINS]))
    return {name: reply for name, reply in zip(silent, replies, strict=False) if reply is not None}


async def _ask_node(name: str, credential: str, env: Mapping[str, str]) -> MungeReply | None:
    command = build_ssh_argv(name, "unmunge", {**AS_CONFIGURED, "ConnectTimeout": str(_SSH_SECONDS)})
    said = await run_slurm_command(command, stdin=credential, env=env, seconds=2 * _SSH_SECONDS)
    return parse_unmunge(said.stdout)


def _read_own_config(env: Mapping[str, str]) -> str:
    with suppress(OSError):
        return Path(env.get("SLURM_CONF") or _SLURM_CONF).read_text("utf-8", "replace")
    return ""
