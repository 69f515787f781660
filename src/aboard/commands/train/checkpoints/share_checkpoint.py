"""Before a training run resumes without a shared disk, copies the parts that nodes lack from those that have them."""

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from aboard.agent.private_folders import make_private_folder
from aboard.commands.sync.download import OnDownload, run_locally
from aboard.commands.sync.sync_directory import SyncDirectory
from aboard.commands.sync.sync_files import sync_files
from aboard.commands.train.checkpoints.checkpoint_survey import CheckpointOffer, CheckpointSurvey, describe_parts
from aboard.commands.train.checkpoints.pass_parts import PartWish
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedTraining
from aboard.core.cluster.file_sync import OnProgress
from aboard.core.cluster.node import Node
from aboard.core.plan.plan import Plan
from aboard.core.plan.training_settings import Training
from aboard.core.run.saved_markers import describe_unknown
from aboard.core.text.input_text import format_list
from aboard.diagnoses import AboardError
from aboard.durable_files import FileEntry
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.checkpoint_parts import Slice, list_needed_slices, list_slices, select_parts
from aboard.trainer.checkpoint.commit_marker import NAME, CheckpointFile, CommitMarker
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.transport.node_dialer import NodeDialer


@dataclass(frozen=True, kw_only=True)
class ShareRequest:
    """A training run that may resume: its settings as the ranks get them, and what the records of earlier runs say."""

    plan: Plan
    training: Training
    recorded: RecordedTraining
    cache: Path

    @property
    def folder(self) -> str:
        resume = self.training.resume
        return self.training.output_dir if resume == "auto" else resume.rstrip("/").rpartition("/")[0]

    @property
    def name(self) -> str | None:
        """The one checkpoint that `resume` names."""
        return None if self.training.resume == "auto" else self.training.resume.rstrip("/").rpartition("/")[2]

    @property
    def ranks(self) -> dict[int, str]:
        return {rank: node for rank, (node, _start) in enumerate(self.plan.starts())}


@dataclass(frozen=True, kw_only=True)
class ShareProgress:
    """The views of both halves of a copy: from the nodes to the head, and from the head to the nodes."""

    receiving: Callable[[], AbstractContextManager[OnDownload]]
    sending: Callable[[], AbstractContextManager[OnProgress]]


@dataclass(frozen=True, kw_only=True)
class ShareResult:
    """The checkpoint to resume from, the bytes sent to nodes, and why newer checkpoints are not used."""

    name: str
    sent: int
    # Bytes that nodes got from each other.
    passed: int
    nodes: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Choice:
    offer: CheckpointOffer
    # In brief: the slices of its files are groups of slices.
    marker: CommitMarker
    marker_file: FileEntry


async def share_checkpoint(request: ShareRequest, dialer: NodeDialer, progress: ShareProgress) -> ShareResult | None:
    """Gives every node the parts that its ranks need; None if there is nothing to resume from."""
    nodes = {part.node.name: part.node for part in request.plan.parts}
    if len(nodes) == 1 and {node.name for node in request.recorded.nodes} <= nodes.keys():
        # One disk has everything that there is.
        return None
    with progress.receiving() as on_progress:
        survey = CheckpointSurvey(request.folder, dialer, on_progress)
        try:
            sharing = _Sharing(request, survey)
            await survey.ask(nodes.values())
            choice, needs = await sharing.choose(), None
            while choice is not None and (needs := await sharing.fetch(choice)) is None:
                choice = await sharing.choose()
            await survey.leave(nodes)
        finally:
            await survey.close()
    if choice is None or needs is None:
        return None
    sent = 0
    if needs:
        with progress.sending() as on_upload:
            sent = await _send_parts(request, choice, needs, dialer, on_upload)
        await run_locally(request.cache, shutil.rmtree, sharing.locate_cache(choice).parent)
    got = tuple({**{node: 0 for node, size in sharing.passed.items() if size}, **dict.fromkeys(needs, 0)})
    passed = sum(sharing.passed.values())
    return ShareResult(name=choice.offer.name, sent=sent, passed=passed, nodes=got, notes=tuple(sharing.notes))


class _Sharing:
    """Chooses the newest checkpoint that is complete on the nodes that answer, and fetches what some of them lack."""

    def __init__(self, request: ShareRequest, survey: CheckpointSurvey) -> None:
        self.notes: list[str] = []
        # The bytes that nodes got from each other.
        self.passed: dict[str, int] = {}
        self._request = request
        self._survey = survey
        self._asked_all = False
        # The keys of markers that nodes have summarized, but don't send as they were.
        self._unreadable: set[str] = set()

    async def choose(self) -> _Choice | None:
        """Asks the nodes of earlier runs only if the nodes of this one don't have the newest checkpoint completely."""
        while True:
            self.notes.clear()
            offers = [offer for offer in self._survey.list_offers() if self._request.name in (None, offer.name)]
            newest, markers = self._request.recorded.newest, self._request.recorded.markers
            known = self._select_known(offers)
            # What nobody vouches for must not stop the search for what a record knows.
            seen = known if markers and self._request.name is None else offers
            behind = newest is not None and newest.serial > max((offer.serial for offer in seen), default=0)
            choice = await self._find_complete(known or offers)
            if self._asked_all or (choice is not None and not self.notes and not behind) or not (offers or behind):
                break
            self._asked_all = True
            await self._survey.ask(self._request.recorded.nodes)
        if choice is None or behind:
            self._note_unreachable()
        if markers and offers and not known and self._request.name is None:
            self._refuse_substitutes(offers)
        keys = {offer.key for offer in known}
        unknown = sorted({offer.name for offer in offers if offer.key not in keys})
        if known and unknown:
            self.notes.append(describe_unknown(unknown, self._request.folder))
        elif choice is not None and not known and self._request.name is None:
            self.notes.append(f"no record of a run vouches for {choice.offer.name}")
        if choice is None and self.notes:
            raise self._build_error()
        return choice

    def _select_known(self, offers: Sequence[CheckpointOffer]) -> list[CheckpointOffer]:
        """Those that a record vouches for, if the resume is automatic, the newest by the record first."""
        by_key = {(offer.name, offer.key): offer for offer in offers if self._request.name is None}
        known = [(each.serial, by_key.get((each.name, each.sha256))) for each in self._request.recorded.markers]
        return [replace(offer, serial=serial) for serial, offer in known if offer is not None]

    def _refuse_substitutes(self, offers: Sequence[CheckpointOffer]) -> None:
        """What no record knows must not take the place of what can't be reached, or of what somebody has changed."""
        names = {each.name for each in self._request.recorded.markers}
        altered = sorted(names & {name for held in self._survey.held.values() for name in held})
        if altered or self._survey.unreachable:
            self.notes += [f"{name} has no {NAME} that a record knows" for name in altered]
            self.notes.append(describe_unknown(sorted({offer.name for offer in offers}), self._request.folder))
            raise self._build_error()

    async def fetch(self, choice: _Choice) -> dict[str, tuple[str, ...]] | None:
        """Fetches what nodes lack to this machine; returns the names of those files by node, the marker last.

        None if a part turns out to be damaged: then another checkpoint is the newest complete one.
        """
        offer, marker = choice.offer, choice.marker
        await self._pass_on(choice)
        wanted = self._list_wanted(choice)
        target = self.locate_cache(choice)
        fetched: Sequence[str] = ()
        if any(wanted.values()):
            await run_locally(target, make_private_folder, target)
            slices = {each for slices in wanted.values() for each in slices}
            gathered = await self._survey.gather(offer, marker, slices, target)
            if gathered.lacking:
                return None
            fetched = [file.name for file in gathered.files]
        needs: dict[str, tuple[str, ...]] = {}
        for node, slices in wanted.items():
            names = [file.name for file in select_parts(marker, slices, available=fetched).files]
            held = self._survey.held.get(node, {}).get(offer.name)
            if names or held is None or held.marker is None:
                needs[node] = (*names, NAME)
        if needs:
            read = await self._survey.read_marker(offer)
            if read is None:
                self._unreadable.add(offer.key)
                return None
            await run_locally(target, make_private_folder, target)
            await run_locally(target, (target / NAME).write_bytes, read[1])
        return needs

    async def _pass_on(self, choice: _Choice) -> None:
        """Lets nodes fetch what they lack from each other; what that doesn't bring goes by way of this machine."""
        offer = choice.offer
        available = self._survey.list_available(offer, choice.marker)
        entries = list_entries(choice)
        holders = [node for node in offer.nodes if self._survey.held[node][offer.name].marker is not None]
        wishes: dict[str, list[PartWish]] = {}
        for node, slices in self._list_wanted(choice).items():
            files = select_parts(choice.marker, slices, available=available).files
            names = [file.name for file in files]
            wishes[node] = [PartWish(file=entries[name], sources=available[name]) for name in names]
            if names or node not in holders:
                wishes[node].append(PartWish(file=entries[NAME], sources=holders))
        passed = await self._survey.pass_on(offer, wishes, self._request.ranks[0])
        self.passed = {node: sum(entries[name].bytes for name in got) for node, got in passed.items()}

    def locate_cache(self, choice: _Choice) -> Path:
        return self._request.cache / choice.offer.key[:32] / choice.offer.name

    async def _find_complete(self, offers: Sequence[CheckpointOffer]) -> _Choice | None:
        for offer in offers:
            read = None if offer.key in self._unreadable else await self._survey.read_summary(offer)
            if read is None:
                self.notes.append(f"{offer.name} is skipped: its {NAME} on {format_list(offer.nodes)} is damaged")
                continue
            choice = _Choice(offer=offer, marker=read[0], marker_file=read[1])
            available = self._survey.list_available(offer, choice.marker)
            lacking = select_parts(choice.marker, list_slices(choice.marker.files), available=available).lacking
            if not lacking:
                return choice
            self._note_incomplete(choice, lacking)
        return None

    def _list_wanted(self, choice: _Choice) -> dict[str, set[Slice]]:
        """By node, the slices that its ranks need and its disk lacks."""
        needed = list_needed_slices(choice.marker, self._request.ranks, sharding=self._request.training.sharding)
        available = self._survey.list_available(choice.offer, choice.marker)
        return {
            node: slices - list_slices(file for file in choice.marker.files if node in available.get(file.name, ()))
            for node, slices in needed.items()
        }

    def _note_incomplete(self, choice: _Choice, lacking: Sequence[CheckpointFile]) -> None:
        offer, marker = choice.offer, choice.marker
        parts = [
            self._survey.explain(offer, file, self._request.recorded.find_node(offer.name, marker, file))
            for file in lacking
        ]
        self.notes.append(f"{offer.name} is not complete: it needs {describe_parts(parts)}")

    def _note_unreachable(self) -> None:
        """That a newer checkpoint is in the record, and nodes that had it don't answer."""
        newest = self._request.recorded.newest
        nodes = set() if newest is None else {node for nodes in newest.nodes.values() for node in nodes}
        gone = sorted(nodes & self._survey.unreachable.keys())
        if newest is not None and gone:
            why = "; ".join(self._survey.unreachable[node].seen for node in gone)
            self.notes.append(f"{newest.name} was last on {format_list(gone)}: {why}")

    def _build_error(self) -> AboardError:
        gone = [*self._survey.unreachable] or [*self._request.ranks.values()]
        seen = f"no checkpoint of {self._request.folder} is complete: {'; '.join(self.notes)}"
        return AboardError(checkpoints.PARTS_LOST, seen, node=gone[0])


def list_entries(choice: _Choice) -> dict[str, FileEntry]:
    """The files of the checkpoint, and its marker, by name."""
    files = choice.marker.files
    entries = {file.name: FileEntry(name=file.name, bytes=file.bytes, sha256=file.sha256) for file in files}
    return {**entries, NAME: choice.marker_file}


async def _send_parts(
    request: ShareRequest,
    choice: _Choice,
    needs: Mapping[str, tuple[str, ...]],
    dialer: NodeDialer,
    on_progress: OnProgress,
) -> int:
    """Nodes that lack the same files get them together."""
    folder = request.cache / choice.offer.key[:32] / choice.offer.name
    entries = list_entries(choice)
    groups: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    for part in request.plan.parts:
        if part.node.name in needs:
            groups[needs[part.node.name]].append(part.node)
    sent = 0
    for names, nodes in groups.items():
        files = tuple(entries[name] for name in names)
        to = f"{request.folder}/{choice.offer.name}"
        # The cache can be filled again.
        directory = SyncDirectory(folder=folder, files=files, to=to, peers=True, prepared=True)
        sent += (await sync_files(nodes, [directory], dialer, on_progress=on_progress)).sent
    return sent
