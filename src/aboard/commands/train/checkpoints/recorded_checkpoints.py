"""What the records of a training's runs say about its checkpoints: the nodes, and where each part was last."""

from collections.abc import Iterable, Mapping
from dataclasses import field, replace

from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Plan
from aboard.core.run.event_kinds import FilesSaved
from aboard.core.run.events import Event
from aboard.core.run.saved_markers import SavedMarker, choose_newest, find_saved_marker
from aboard.core.slurm.allocation import SlurmAllocation
from aboard.core.slurm.job_nodes import reassign_recorded_nodes
from aboard.engine.records.recorded_run import parse_recorded_plan
from aboard.lazy_dataclass import dataclass
from aboard.record.event_log import read_events
from aboard.record.json_documents import read_document, read_training
from aboard.record.run_directory import RunDirectory
from aboard.trainer.checkpoint.commit_marker import CheckpointFile, CommitMarker

# Of one directory: older runs have hardly a part that is still needed.
MOST_RUNS = 20
_CHECKPOINT = r"\Astep-\d{6,20}(?:-\d{1,6})?\Z"
_FILE = r"\A[\w.-]{1,100}\Z"


@dataclass(frozen=True, kw_only=True)
class RecordedCheckpoint:
    """A checkpoint by name; `nodes` has the nodes that got each file, the one whose rank wrote it first."""

    name: str
    serial: int
    nodes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RecordedTraining:
    """The runs that saved into one directory, the newest first; `checkpoints` by name; what they vouch for."""

    plans: tuple[Plan, ...]
    checkpoints: dict[str, RecordedCheckpoint]
    markers: tuple[SavedMarker, ...] = ()

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes of these runs, each as it was reached last."""
        nodes = {part.node.name: part.node for plan in reversed(self.plans) for part in plan.parts}
        return tuple(nodes.values())

    @property
    def newest(self) -> RecordedCheckpoint | None:
        """The newest that the record vouches for: any rank may say of any checkpoint that it is newer."""
        if self.markers:
            name, serial = self.markers[0].name, self.markers[0].serial
            found = self.checkpoints.get(name, RecordedCheckpoint(name=name, serial=serial))
            return replace(found, serial=serial)
        return max(self.checkpoints.values(), key=lambda each: each.serial, default=None)

    def find_node(self, name: str, marker: CommitMarker, file: CheckpointFile) -> str:
        """The node on which a file was last: by the events, by the rank that wrote it, or by the marker's host name."""
        recorded = self.checkpoints.get(name)
        if recorded is not None and file.name in recorded.nodes:
            return recorded.nodes[file.name][0]
        for plan in self.plans:
            ranks = [node for node, _start in plan.starts()]
            if len(ranks) == marker.world and file.rank < len(ranks):
                return ranks[file.rank]
        return file.node


def read_recorded_training(
    runs: Iterable[RunDirectory], output_dir: str, allocation: SlurmAllocation | None
) -> RecordedTraining:
    """Reads the newest of these runs that saved into the directory, as it is spelled in their plans.

    `job` is the Slurm job that this process runs in: nodes of an earlier job may not belong to it.
    """
    plans: list[Plan] = []
    checkpoints: dict[str, RecordedCheckpoint] = {}
    markers: list[SavedMarker] = []
    for run in runs:
        document = read_document(run.plan)
        training = read_training(document)
        if training is None or training["output_dir"] != output_dir or len(plans) == MOST_RUNS:
            continue
        plan = parse_recorded_plan(document, run.id)
        if plan is not None:
            plans.append(_reassign_nodes(plan, allocation))
        saved = [event for event in read_events(run.events) if isinstance(event.body, FilesSaved)]
        markers += [marker for event in reversed(saved) if (marker := find_saved_marker(event)) is not None]
        for name, found in collect_saved_parts(saved).items():
            checkpoints.setdefault(name, found)
    return RecordedTraining(plans=tuple(plans), checkpoints=checkpoints, markers=choose_newest(markers))


def _reassign_nodes(plan: Plan, allocation: SlurmAllocation | None) -> Plan:
    nodes = reassign_recorded_nodes([part.node for part in plan.parts], allocation)
    return replace(plan, parts=tuple(replace(part, node=node) for part, node in zip(plan.parts, nodes, strict=True)))


def collect_saved_parts(events: Iterable[Event]) -> dict[str, RecordedCheckpoint]:
    """The checkpoints that ranks saved or resumed from, by name; of a name that was used again, the last."""
    found: dict[str, tuple[int, dict[str, tuple[str, ...]]]] = {}
    for event in events:
        body = event.body
        match = body.checkpoint.match(_CHECKPOINT) if isinstance(body, FilesSaved) else None
        if not isinstance(body, FilesSaved) or match is None:
            continue
        serial, files = body.serial, [name[0] for file in body.files if (name := file.match(_FILE)) is not None]
        if match[0] not in found or found[match[0]][0] != serial:
            found[match[0]] = (serial, {})
        nodes = found[match[0]][1]
        for file in files:
            earlier = tuple(node for node in nodes.get(file, ()) if node != event.node)
            # Of copies, the newest is last; a rank's own report is about the node that it wrote to, or resumed on.
            nodes[file] = (*earlier, event.node) if body.copied else (event.node, *earlier)
    return {name: RecordedCheckpoint(name=name, serial=serial, nodes=nodes) for name, (serial, nodes) in found.items()}
