"""The nodes of a Slurm job, with its CPUs and GPUs on each: from the job's environment and `scontrol show job -d`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest

from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.text.shell_quoting import join_argv
from aboard.diagnoses import AboardError, InputError
from aboard.diagnoses.slurm import allocation
from aboard.lazy_dataclass import dataclass

# The resources of some nodes: `Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:2(IDX:0,3)`.
_DETAIL = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)", re.MULTILINE)
_NODE_LIST = re.compile(r"^\s+NodeList=(\S+)", re.MULTILINE)
_STATE = re.compile(r"^\s+JobState=(\S+)", re.MULTILINE)
_GPUS = re.compile(r"(?:^|,)(?:gres[:/])?gpu(?::[^:(),]+)?:([0-9]{1,5})(?=[(,]|$)")
_GPU_TYPES = re.compile(r"(?:^|,)(?:[^:,]+:)?([0-9]{1,5})(?=,|$)")
_REPEATED = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,6})\))?")
_GRES_TYPES = re.compile(r"^GresTypes\s*=\s*(\S+)", re.MULTILINE)
# Step ids from here up are reserved by Slurm, such as for batch scripts and interactive shells (slurm.h).
_FIRST_SPECIAL_STEP = 0xFFFF_FFF0
# SLURM_BATCH_SCRIPT in slurm.h.
_BATCH_STEP = str(0xFFFF_FFFB)
# States in which the nodes of a job are its own.
_ACTIVE = {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING"}


@dataclass(frozen=True, kw_only=True)
class AllocatedNode:
    """A node of a job. None means that Slurm did not say how much of it the job has.

    `group` is the node's component of a heterogeneous job, which srun needs as `--het-group`.
    """

    name: str
    cpus: int | None = None
    gpus: int | None = None
    group: int | None = None


@dataclass(frozen=True, kw_only=True)
class SlurmAllocation:
    """The nodes of a running job; `restarts` counts how often Slurm requeued it."""

    job: int
    nodes: tuple[AllocatedNode, ...]
    restarts: int = 0

    @property
    def has_gpus(self) -> bool:
        return any(node.gpus for node in self.nodes)

    def find_node(self, host: str) -> AllocatedNode | None:
        """The node that a host name means: Slurm's name for it, or that with a domain."""
        return self._by_name.get(host) or self._by_name.get(host.partition(".")[0])

    def has_even_gpus(self, group: int | None) -> bool:
        """Whether all nodes of a component have the same number of GPUs."""
        return len(self._gpus_by_group[group]) == 1

    # Cached: a cluster of a thousand nodes asks for each of them.
    @cached_property
    def _by_name(self) -> dict[str, AllocatedNode]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _gpus_by_group(self) -> dict[int | None, set[int | None]]:
        gpus: dict[int | None, set[int | None]] = {}
        for node in self.nodes:
            gpus.setdefault(node.group, set()).add(node.gpus)
        return gpus


def parse_job_id(env: Mapping[str, str]) -> int | None:
    """The id of the job that this process runs in; the leader's for a heterogeneous job."""
    text = env.get("SLURM_JOB_ID", "")
    return int(text) if text.isdecimal() else None


def is_batch_script(env: Mapping[str, str]) -> bool:
    """Whether this process belongs to the batch script of a job: newer versions of Slurm give that a step id, too."""
    return "SLURMD_NODENAME" in env and env.get("SLURM_STEP_ID", _BATCH_STEP) == _BATCH_STEP


def is_job_over(shown: str) -> bool:
    """Whether the output of `scontrol show job` says that the job no longer runs."""
    states = _STATE.findall(shown)
    return bool(states) and not _ACTIVE.intersection(states)


def parse_allocation(env: Mapping[str, str], shown: str = "") -> SlurmAllocation | None:
    """The nodes of the job in this environment; `shown` is the output of `scontrol show job -d`, "" without it.

    None outside a job, and if neither lists its nodes.
    """
    job = parse_job_id(env)
    if job is None:
        return None
    by_name: dict[str, AllocatedNode] = {}
    for suffix, group in _list_components(env):
        for node in _parse_component(env, suffix, group):
            by_name.setdefault(node.name, node)
    if not by_name:
        names = (name for text in _NODE_LIST.findall(shown) for name in _expand_names(text))
        by_name = {name: AllocatedNode(name=name) for name in names}
    gpus = _parse_shown_gpus(shown) or _read_gpu_variables(env, list(by_name))
    if not by_name:
        return None
    nodes = tuple(replace(node, gpus=gpus.get(node.name)) for node in by_name.values())
    restarts = env.get("SLURM_RESTART_COUNT", "")
    return SlurmAllocation(job=job, nodes=nodes, restarts=int(restarts) if restarts.isdecimal() else 0)


def manages_gpus(config: str) -> bool:
    """Whether the output of `scontrol show config` says that Slurm allocates GPUs."""
    found = _GRES_TYPES.search(config)
    return found is not None and "gpu" in found[1].split(",")


def _list_components(env: Mapping[str, str]) -> list[tuple[str, int | None]]:
    """The suffixes of the variables of each component; a job that is not heterogeneous has one, without a suffix."""
    size = env.get("SLURM_HET_SIZE", "")
    return [(f"_HET_GROUP_{group}", group) for group in range(int(size))] if size.isdecimal() else [("", None)]


def _parse_component(env: Mapping[str, str], suffix: str, group: int | None) -> list[AllocatedNode]:
    names = _expand_names(env.get(f"SLURM_JOB_NODELIST{suffix}") or env.get(f"SLURM_NODELIST{suffix}", ""))
    cpus = expand_counts(env.get(f"SLURM_JOB_CPUS_PER_NODE{suffix}", ""))
    if len(cpus) != len(names):
        cpus = ()
    return [AllocatedNode(name=name, cpus=count, group=group) for name, count in zip_longest(names, cpus)]


def expand_counts(text: str) -> tuple[int, ...]:
    """Slurm's short form of a number for each node: `64(x2),32` is 64 64 32; empty if it is not that."""
    matches = [_REPEATED.fullmatch(part) for part in text.split(",")]
    found = [match for match in matches if match]
    if len(found) < len(matches):
        return ()
    return tuple(int(match[1]) for match in found for _ in range(int(match[2] or 1)))


def _expand_names(text: str) -> tuple[str, ...]:
    try:
        return expand_node_set(text) if text and text != "(null)" else ()
    except InputError:
        return ()


def _parse_shown_gpus(shown: str) -> dict[str, int]:
    """The GPUs of the job on each node: of all types, 0 where it has none."""
    gpus: dict[str, int] = {}
    for names, text in _DETAIL.findall(shown):
        count = sum(map(int, _GPUS.findall(text)))
        for name in _expand_names(names):
            gpus.setdefault(name, count)
    return gpus


def _read_gpu_variables(env: Mapping[str, str], names: Sequence[str]) -> dict[str, int]:
    """The same from the variables of the job: what was requested per node, and what this node got."""
    requested = sum(map(int, _GPU_TYPES.findall(env.get("SLURM_GPUS_PER_NODE", ""))))
    gpus = dict.fromkeys(names, requested) if requested else {}
    here, on_node = env.get("SLURMD_NODENAME", ""), env.get("SLURM_GPUS_ON_NODE", "")
    if here in names and on_node.isdecimal():
        gpus[here] = int(on_node)
    return gpus


def refuse_srun_copies(env: Mapping[str, str], argv: Sequence[str]) -> None:
    """Refuses to run as one of several copies that `srun` started: each would start the whole run."""
    step = _read_number(env, "SLURM_STEP_ID")
    copies = _read_number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    # With --pty, only the first task has a terminal, which is interactive.
    if step is None or step >= _FIRST_SPECIAL_STEP or copies is None or copies <= 1 or "SLURM_PTY_PORT" in env:
        return
    seen = f"srun started {copies} copies of aboard; start only one, because it starts the ranks on all nodes itself"
    raise AboardError(allocation.COPIES, seen, command=join_argv(["aboard", *argv]))


def _read_number(env: Mapping[str, str], *names: str) -> int | None:
    """The first of these variables that is a number."""
    return next((int(env[name]) for name in names if env.get(name, "").isdecimal()), None)
