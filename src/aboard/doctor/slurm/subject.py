"""Slurm: the state of the job and its nodes, as slurmctld reports it."""

from collections.abc import Mapping

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import TransportKind
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.slurm import jobs
from aboard.doctor.slurm import rules


def applies_to(cluster: Cluster) -> bool:
    """Whether srun reaches any of the nodes."""
    return any(node.transport is TransportKind.SLURM for node in cluster)


def _list_untested(facts: Facts) -> Mapping[str, str]:
    problem = rules.get_slurm_facts(facts).problem
    return {node.name: problem for node in facts.cluster} if problem else {}


SUBJECT = Subject(
    name=rules.SUBJECT,
    title="the Slurm job and its nodes are in order",
    probes=(),
    rules=(
        rules.find_suspended_job,
        rules.find_wrong_clocks,
        rules.find_lost_nodes,
        rules.find_drained_nodes,
        rules.find_short_time,
        rules.find_few_ports,
    ),
    diagnoses=list_diagnoses(jobs),
    untested=_list_untested,
    applies=applies_to,
)
