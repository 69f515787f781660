"""Quotas of control groups: how many cores' time and how many processes all ranks together may use."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeParseError
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Finding
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.host import diagnoses as host
from aboard.doctor.host.cpu_cores import CORES
from aboard.doctor.shared.answer_text import extract_stdout
from aboard.doctor.shared.control_groups import read_group_files
from aboard.lazy_dataclass import dataclass

# A rank with its data loaders and their threads has a few hundred.
FEW_TASKS = 1024


@dataclass(frozen=True, kw_only=True)
class CgroupQuota:
    """The lowest limits and the groups that set them; None is no limit."""

    cores: float | None = None
    cores_by: Untrusted = NO_TEXT
    tasks: int | None = None
    tasks_by: Untrusted = NO_TEXT


def parse_quota(answer: ProbeAnswer) -> CgroupQuota:
    """The quotas; no limits where control groups aren't in use."""
    files: dict[tuple[str, str], str] = {}
    for line in extract_stdout(answer).splitlines():
        found = re.fullmatch(r"(/.*)/((?:cpu|pids)\.[a-z_]+):(-?[0-9]{1,18}|max|(?:max|[0-9]{1,18}) [0-9]{1,18})", line)
        if found is None:
            raise ProbeParseError(f"unreadable control group: {escape_text(line)}")
        files[found[1], found[2]] = found[3]
    cores: list[tuple[float, str]] = []
    tasks: list[tuple[int, str]] = []
    for (path, file), value in files.items():
        quota, _, period = value.partition(" ")
        if file == "cpu.cfs_quota_us":
            period = files.get((path, "cpu.cfs_period_us"), "")
        if file in ("cpu.max", "cpu.cfs_quota_us") and quota.isdecimal() and period.isdecimal() and int(period):
            cores.append((int(quota) / int(period), path))
        elif file == "pids.max" and quota.isdecimal():
            tasks.append((int(quota), path))
    least, by = min(cores, default=(None, ""))
    fewest, whose = min(tasks, default=(None, ""))
    return CgroupQuota(cores=least, cores_by=Untrusted(by), tasks=fewest, tasks_by=Untrusted(whose))


QUOTA = Probe(
    name="quota",
    question=read_group_files("cpu pids", "cpu.max cpu.cfs_quota_us cpu.cfs_period_us pids.max", "^[0-9a-z -]*$"),
    parse=parse_quota,
)


def find_low_cpu_quota(facts: Facts) -> Iterator[Finding]:
    """With a quota, processes see every core but are all stopped for most of each 100 ms."""
    allowed = facts.of(CORES)
    for name, quota in facts.of(QUOTA).items():
        ranks = facts.cluster.node(name).slots or 1
        if quota.cores is not None and quota.cores < min(max(2, ranks), allowed.get(name, 0)):
            yield host.CPU_QUOTA.finding(
                nodes=(name,),
                seen=f"{format_count(ranks, 'rank')} can use {quota.cores:g} of"
                f" {allowed[name]} cores, limited by {quota.cores_by.visible()}",
                fix=host.CPU_QUOTA.fix(group=quota.cores_by, node=name),
            )


def find_low_task_quota(facts: Facts) -> Iterator[Finding]:
    """Threads count as processes here too, whatever `ulimit -u` shows."""
    for name, quota in facts.of(QUOTA).items():
        if quota.tasks is not None and quota.tasks < FEW_TASKS:
            yield host.TASKS.finding(
                nodes=(name,),
                seen=f"all ranks together can have {quota.tasks} processes and threads, limited by"
                f" {quota.tasks_by.visible()}",
                fix=host.TASKS.fix(group=quota.tasks_by, node=name),
            )


PROBES = (QUOTA,)
RULES = (find_low_cpu_quota, find_low_task_quota)
