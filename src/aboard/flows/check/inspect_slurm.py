"""Asks slurmctld about the job and its nodes, while the nodes themselves are checked."""

import asyncio
from collections.abc import Mapping
from datetime import datetime

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import TransportKind
from aboard.core.slurm.slurm_facts import SlurmFacts, parse_job_times, parse_node_states, parse_srun_ports
from aboard.diagnoses.untrusted import escape_text
from aboard.transport.agent_bootstrap import find_last_line
from aboard.transport.slurm.slurm_commands import run_slurm_command

_SECONDS = 15.0


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
    left, limit = parse_job_times(about_job, datetime.now())  # noqa: DTZ005 - Slurm prints local times
    return SlurmFacts(
        job=int(job),
        seconds_left=left,
        limit_seconds=limit,
        nodes=parse_node_states(about_nodes),
        srun_ports=parse_srun_ports(config),
    )
