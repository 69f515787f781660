"""Rules on what slurmctld reports of the job and its nodes."""

from collections.abc import Iterator

from aboard.core.cluster.contact import ReachedNode
from aboard.core.probes.facts import Facts
from aboard.core.slurm.slurm_facts import SlurmFacts, count_srun_ports
from aboard.core.text.durations import format_duration
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.slurm import jobs, steps
from aboard.doctor.host import diagnoses as host

SUBJECT = "slurm"
# The batch script's signal comes this long before the limit, and Aboard then stops the run.
_SHORTEST = 120.0
_SHORT = 600.0


def find_lost_nodes(facts: Facts) -> Iterator[Finding]:
    """Nodes without slurmd: no step starts there, and Slurm soon ends the job or continues without them."""
    for name, node in get_slurm_facts(facts).nodes.items():
        if node.is_down:
            reached = isinstance(facts.contacts.get(name), ReachedNode)
            yield jobs.NODE_DOWN.finding(
                nodes=(name,),
                seen=f"Slurm reports it as {'+'.join(sorted(node.states))}"
                + (f": {node.reason.visible(200)}" if node.reason else ""),
                fix=jobs.NODE_DOWN.fix(node=name),
                severity=Severity.WARN if reached else Severity.BLOCK,
            )


def find_drained_nodes(facts: Facts) -> Iterator[Finding]:
    """Nodes that get no further jobs: somebody, a health check or a failed prolog had a reason."""
    for name, node in get_slurm_facts(facts).nodes.items():
        if node.is_drained and not node.is_down:
            diagnosis = steps.PROLOG if "rolog" in node.reason else jobs.NODE_DRAINED
            yield diagnosis.finding(
                nodes=(name,),
                seen=f"the node is drained: {node.reason.visible(200) or 'no reason was given'}",
                fix=diagnosis.fix(node=name),
                severity=Severity.WARN,
            )


def find_suspended_job(facts: Facts) -> Iterator[Finding]:
    """A job that Slurm has stopped: its steps wait without a word."""
    slurm = get_slurm_facts(facts)
    if slurm.is_suspended:
        yield jobs.SUSPENDED.finding(
            nodes=tuple(node.name for node in facts.cluster),
            seen=f"job {slurm.job} is suspended",
            fix=jobs.SUSPENDED.fix(job=slurm.job),
        )


def find_wrong_clocks(facts: Facts) -> Iterator[Finding]:
    """Clocks that are so far off that munge rejects all credentials, and slurmd all steps."""
    wrong = {name: reply for name, reply in get_slurm_facts(facts).munge.items() if reply.shows_wrong_clock}
    if len(wrong) == len(facts.cluster) > 1:
        ahead = -max(reply.ahead for reply in wrong.values())
        yield host.CLOCK.finding(
            nodes=tuple(wrong),
            seen=f"munge on all {len(wrong)} nodes rejects credentials of this machine: this machine's clock is"
            f" {_format_offset(ahead)} theirs",
            fix=host.CLOCK.fix(node="localhost"),
        )
        return
    for name, reply in wrong.items():
        yield host.CLOCK.finding(
            nodes=(name,),
            seen=f"munge there rejects credentials of this machine ({reply.status.visible()}): its clock is"
            f" {_format_offset(reply.ahead)} this machine's",
            fix=host.CLOCK.fix(node=name),
        )


def find_short_time(facts: Facts) -> Iterator[Finding]:
    """A job that reaches its time limit in minutes, or in the last tenth of its time."""
    slurm = get_slurm_facts(facts)
    left, limit = slurm.seconds_left, slurm.limit_seconds
    if left is not None and limit is not None and left < max(_SHORTEST, min(_SHORT, limit / 10)):
        yield jobs.TIME_LEFT.finding(
            nodes=tuple(node.name for node in facts.cluster),
            seen=f"job {slurm.job} reaches its time limit of {format_duration(limit)} in {format_duration(left)}",
            fix=jobs.TIME_LEFT.fix(job=slurm.job),
        )


def find_few_ports(facts: Facts) -> Iterator[Finding]:
    """A range of ports that sruns to this many nodes can use up."""
    ports, needed = get_slurm_facts(facts).srun_ports, count_srun_ports(len(facts.cluster))
    if ports is not None and ports[1] - ports[0] + 1 < needed:
        yield jobs.PORT_RANGE.finding(
            nodes=tuple(node.name for node in facts.cluster),
            seen=f"SrunPortRange={ports[0]}-{ports[1]} has {ports[1] - ports[0] + 1} ports; sruns to"
            f" {len(facts.cluster)} nodes may need {needed}",
            fix=jobs.PORT_RANGE.fix(ports=needed),
        )


def _format_offset(ahead: float) -> str:
    return f"{format_duration(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"


def get_slurm_facts(facts: Facts) -> SlurmFacts:
    found = facts.outcomes.get(SUBJECT)
    return found if isinstance(found, SlurmFacts) else SlurmFacts(job=0)
