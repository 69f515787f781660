"""Gathers the weights of a run's checkpoint from the disks of its nodes, for an export."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from aboard.agent.private_folders import make_private_folder
from aboard.commands.shared.local_checkpoints import build_no_best_error
from aboard.commands.sync.download import OnDownload, run_locally
from aboard.commands.train.checkpoints.checkpoint_survey import CheckpointOffer, CheckpointSurvey, describe_parts
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedTraining
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.text.input_text import format_list
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.best_evaluation import BestEvaluation, find_best_checkpoint, get_wanted_best
from aboard.trainer.checkpoint.checkpoint_parts import MODEL_PREFIX, list_slices, select_parts
from aboard.trainer.checkpoint.commit_marker import NAME
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.transport.node_dialer import NodeDialer

THIS_MACHINE = Node(name="this machine", transport=TransportKind.LOCAL)


@dataclass(frozen=True, kw_only=True)
class GatherRequest:
    """Which checkpoint to gather: of this run, by name, the best or the newest; `to` is for messages."""

    run: str
    folder: str
    recorded: RecordedTraining
    cache: Path
    to: Path
    name: str | None = None


@dataclass(frozen=True, kw_only=True)
class GatheredCheckpoint:
    """A private copy of the checkpoint's weights on this machine, which the caller removes."""

    path: Path
    name: str
    nodes: tuple[str, ...]
    # The evaluation for which it was chosen instead of the newest.
    best: BestEvaluation | None = None

    def remove(self) -> None:
        shutil.rmtree(self.path.parent, ignore_errors=True)


async def gather_checkpoint(request: GatherRequest, dialer: NodeDialer, on_progress: OnDownload) -> GatheredCheckpoint:
    """Raises an error that names the lacking part and the newest checkpoint that is complete without it."""
    survey = CheckpointSurvey(request.folder, dialer, on_progress)
    try:
        nodes = request.recorded.plans[0].parts if request.recorded.plans else ()
        local = any(part.node.transport is TransportKind.LOCAL for part in nodes)
        await survey.ask([*(part.node for part in nodes), *(() if local else (THIS_MACHINE,))])
        return await _gather_chosen(request, survey)
    finally:
        await survey.close()


async def _gather_chosen(request: GatherRequest, survey: CheckpointSurvey) -> GatheredCheckpoint:
    every = _prefer_known(survey.list_offers(), request)
    offers = [offer for offer in every if request.name in (None, offer.name)]
    newest = request.recorded.newest
    if request.name is None and newest is not None and newest.serial > max((each.serial for each in every), default=0):
        gone = [
            node
            for node in dict.fromkeys(n for nodes in newest.nodes.values() for n in nodes)
            if node in survey.unreachable
        ]
        if gone:
            why = "; ".join(survey.unreachable[node].seen for node in gone)
            seen = f"{newest.name} was last on {format_list(gone)}: {why}"
            raise await _build_error(request, survey, seen, gone[0], every)
    for offer in offers:
        read = await survey.read_marker(offer)
        if read is None:
            continue
        best = None if request.name is not None else get_wanted_best(read[0].training, read[0].state)
        if best is not None and (chosen := _find_offer(best, every)) != offer:
            read = None if chosen is None else await survey.read_marker(chosen)
            if chosen is None or read is None:
                raise build_no_best_error(best, offer.name, what=request.run)
            offer = chosen  # noqa: PLW2901 - the newest one named it
        marker, content = read
        target = request.cache / offer.key[:32] / offer.name
        await run_locally(target, make_private_folder, target)
        slices = list_slices(marker.files, prefix=MODEL_PREFIX)
        lacking = (await survey.gather(offer, marker, slices, target)).lacking
        if lacking:
            parts = [
                survey.explain(offer, file, request.recorded.find_node(offer.name, marker, file)) for file in lacking
            ]
            seen = f"{offer.name} needs {describe_parts(parts)}, and no other node has a copy"
            others = [each for each in every if each != offer]
            raise await _build_error(request, survey, seen, parts[0].node, others)
        await run_locally(target, (target / NAME).write_bytes, content)
        sources = sorted(survey.sources - {THIS_MACHINE.name})
        return GatheredCheckpoint(path=target, name=offer.name, nodes=tuple(sources), best=best)
    raise _build_none_error(request, survey)


def _prefer_known(offers: Sequence[CheckpointOffer], request: GatherRequest) -> Sequence[CheckpointOffer]:
    """Those that the record of the run vouches for, unless it knows none of them, or the user names one."""
    keys = {(each.name, each.sha256) for each in request.recorded.markers}
    return [each for each in offers if (each.name, each.key) in keys and request.name is None] or offers


def _find_offer(best: BestEvaluation, offers: Sequence[CheckpointOffer]) -> CheckpointOffer | None:
    name = find_best_checkpoint(best, {offer.name: offer.serial for offer in reversed(offers)})
    return next((offer for offer in offers if offer.name == name), None)


async def _find_complete(survey: CheckpointSurvey, offers: Sequence[CheckpointOffer]) -> str | None:
    """The newest checkpoint whose weights are all on nodes that answer, by the names and sizes of files."""
    for offer in offers:
        read = await survey.read_marker(offer)
        if read is not None:
            marker = read[0]
            slices = list_slices(marker.files, prefix=MODEL_PREFIX)
            if not select_parts(marker, slices, available=survey.list_available(offer, marker)).lacking:
                return offer.name
    return None


async def _build_error(
    request: GatherRequest, survey: CheckpointSurvey, seen: str, node: str, others: Sequence[CheckpointOffer]
) -> AboardError:
    name = await _find_complete(survey, others)
    if name is None:
        seen = f"{seen}; no other checkpoint of {request.run} is complete on the nodes that can be reached"
        return AboardError(checkpoints.EXPORT_PART, seen, "wait", run=request.run, to=request.to, node=node)
    seen = f"{seen}; the newest checkpoint that is complete without it is {name}"
    return AboardError(checkpoints.EXPORT_PART, seen, "older", run=request.run, name=name, to=request.to)


def _build_none_error(request: GatherRequest, survey: CheckpointSurvey) -> AboardError:
    what = "complete checkpoint" if request.name is None else f"checkpoint {escape_text(request.name)}"
    asked = sorted(node for node in survey.held if node != THIS_MACHINE.name)
    seen = f"there is no {what} in {request.folder} on this machine"
    if asked:
        seen += f" or on {format_list(asked)}"
    if survey.unreachable:
        why = "; ".join(error.seen for error in survey.unreachable.values())
        seen += f", and {format_list(list(survey.unreachable))} can't be reached: {why}"
    return AboardError(checkpoints.EXPORT_NONE, seen, "run", run=request.run)
