"""`aboard train`: turns the prepared inputs into a launch payload: settings, preflight, uploads, trainer code."""

import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import aboard
from aboard.commands.shared.check_resume import build_resume_probe, find_resume, judge_resume
from aboard.commands.train.checkpoints.recorded_checkpoints import RecordedTraining
from aboard.commands.train.prepare_data import PreparedDataset
from aboard.commands.train.tracker_inputs import add_tracker_inputs, list_tracker_variables, list_withheld_secrets
from aboard.config.this_machine import abbreviate_home, locate_on_nodes
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import Plan, add_rank_env, bind_directories
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.training_settings import DataPart, Training
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.core.run.saved_markers import MARKERS, SavedMarker, format_markers
from aboard.core.slurm.job_nodes import NO_GPUS_OPTION
from aboard.diagnoses import Finding, Shell
from aboard.diagnoses.catalogue import list_declaring_files
from aboard.doctor.gpu.cuda_support import find_unusable_gpus
from aboard.doctor.gpu.nvidia_smi import DRIVER
from aboard.doctor.host.memory import MEMORY, MEMORY_CGROUPS
from aboard.doctor.software.node_software import SOFTWARE
from aboard.engine.recovery.checkpoint_copies import CopySettings
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checks.node_gpus import BF16_SINCE, GPU_SPECS, GpuSpec
from aboard.trainer.checks.subject import TRAIN
from aboard.trainer.checks.training_rules import (
    ModelLimits,
    RankMemoryNeeds,
    TrainingPreflight,
    compute_rank_memory,
    judge_training,
)
from aboard.trainer.settings.train_settings import TrainSettings
from aboard.trainer.weights.model_files import identify_weights
from aboard.transport.node_dialer import NodeDialer

TRAINING = "ABOARD_TRAINING"
MODULE = "aboard.trainer"
# Ranks download nothing: all inputs were uploaded to their node. PYTHONSAFEPATH keeps a user's directory from shadowing
# a standard module.
ENV: Mapping[str, str] = MappingProxyType(
    {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}
)

ReadRecorded = Callable[[Training], Awaitable[RecordedTraining]]
ShareCheckpoint = Callable[[Plan, NodeDialer, Training, RecordedTraining], Awaitable[None]]
EstimateMemory = Callable[[Training, Mapping[str, int], int | None, bool], Awaitable[RankMemoryNeeds | None]]


async def _read_nothing(_training: Training) -> RecordedTraining:
    return RecordedTraining(plans=(), checkpoints={})


class UploadInputs(Protocol):
    """Uploads directories to nodes that lack them; `quiet`, while the run is shown."""

    async def __call__(
        self, nodes: Sequence[Node], dialer: NodeDialer, folders: Sequence[Path], /, *, quiet: bool = False
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TrainingInputs:
    """The inputs prepared on the head; paths are those of this machine."""

    settings: TrainSettings
    model: Path
    tokenizer: Path
    facts: ModelLimits
    data: tuple[PreparedDataset, ...]
    # A hash of the content of `data`, as stored in checkpoints.
    identity: str
    validation: PreparedDataset | None = None
    vocabulary: int | None = None

    @property
    def folders(self) -> list[Path]:
        """All directories that ranks read."""
        parts = [part for part in (*self.data, self.validation) if part is not None]
        data_folders = [folder for part in parts for folder in (part.shards, part.bins)]
        adapter = self.settings.settings["adapter"]
        adapter_folders = [] if adapter is None or adapter.path is None else [Path(adapter.path)]
        return list(dict.fromkeys([self.model, self.tokenizer, *adapter_folders, *data_folders]))

    def training(self, *, bf16: bool) -> Training:
        """The settings for the ranks; paths below the user's home are relative to the home on each node."""
        training = self.settings.training(
            model=locate_on_nodes(self.model),
            tokenizer=locate_on_nodes(self.tokenizer),
            data=[_build_data_part(part) for part in self.data],
            validation=[] if self.validation is None else [_build_data_part(self.validation)],
            bf16=bf16,
        )
        resume = training.resume if training.resume in ("auto", "none") else abbreviate_home(Path(training.resume))
        adapter = training.adapter
        if adapter is not None and adapter.path is not None:
            adapter = replace(adapter, path=locate_on_nodes(Path(adapter.path)))
        output_dir = abbreviate_home(Path(training.output_dir))
        return replace(training, adapter=adapter, output_dir=output_dir, resume=resume)


def build_request(extra: Mapping[str, str] = MappingProxyType({}), ranks: int | None = None) -> LaunchRequest:
    """Every rank runs the trainer from the uploaded code archive; `extra` is the user's environment."""
    program = Program(kind=ProgramKind.MODULE, target=MODULE, options=("-P",))
    return LaunchRequest(program=program, env={**ENV, **extra}, ranks=ranks, code=build_code_archive())


@dataclass(frozen=True, kw_only=True)
class TrainingPayload:
    """A training run as payload: settled once the nodes are known, then its files are sent where they are missing."""

    inputs: TrainingInputs
    command: Shell
    upload: UploadInputs
    estimate_memory: EstimateMemory
    # What this head's records say of the output directory.
    read_recorded: ReadRecorded = _read_nothing
    share_checkpoint: ShareCheckpoint | None = None
    # The environment and directory of the user's shell, and the variables of `--env`.
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    typed: Mapping[str, str] = field(default_factory=dict, repr=False)
    here: Path = Path()
    standbys: bool = False
    on_settled: Callable[[TrainingPreflight, Sequence[Finding]], None] = lambda _preflight, _findings: None

    @property
    def subject(self) -> Subject:
        """The preflight subject, including the probe for checkpoints to resume from."""
        training = self.inputs.training(bf16=False)
        return (
            TRAIN if training.resume == "none" else replace(TRAIN, probes=(*TRAIN.probes, build_resume_probe(training)))
        )

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        """The plan with the settings in each rank's environment; raises TrainingFinished if no steps remain."""
        settings = self.inputs.settings
        ranks = {part.node.name: len(part.starts) for part in plan.parts}
        device = settings.settings["device"]
        cards = dict.fromkeys(ranks, ()) if device == "cpu" else list_cards(facts, list(ranks))
        bf16 = settings.bf16 if settings.bf16 is not None else has_bf16(cards, list(ranks))
        training = self.inputs.training(bf16=bf16)
        if device == "auto" and _has_gpus(plan, facts, cards):
            training = replace(training, device="cuda")
        markers = (await self.read_recorded(training)).markers
        refused = self._resume(plan, facts, training, markers)
        if refused:
            return plan, refused
        withheld = list_withheld_secrets(training, plan, self.environ, self.typed)
        preflight = TrainingPreflight(
            training=training,
            ranks=ranks,
            given=settings.given,
            cards=cards,
            packages={name: each.packages for name, each in facts.of(SOFTWARE).items() if name in ranks},
            memory=_collect_memory(facts),
            model=self.inputs.facts,
            tokens=self.inputs.vocabulary,
            unusable_gpus=find_unusable_gpus(facts),
            packed=settings.packing,
            standbys=self.standbys,
            tracker_variables=list_tracker_variables(training, plan, self.environ, withheld),
            withheld_secrets=withheld,
        )
        least = min(compute_rank_memory(preflight).values(), default=None)
        gpus = all(cards.get(name) for name in ranks)
        preflight = replace(preflight, needs=await self.estimate_memory(training, ranks, least, gpus))
        findings = judge_training(preflight)
        self.on_settled(preflight, findings)
        plan = bind_directories(plan, training.list_directories())
        plan = add_tracker_inputs(plan, preflight, preflight.tracker_variables or {}, self.here)
        env = {TRAINING: json.dumps(asdict(training)), MARKERS: format_markers(markers)}
        return add_rank_env(plan, env), findings

    def _resume(self, plan: Plan, facts: Facts, training: Training, markers: Sequence[SavedMarker]) -> list[Finding]:
        resume = find_resume(facts, training, markers)
        if resume is None:
            return []
        findings = judge_resume(
            resume,
            training,
            world=plan.world,
            data=self.inputs.identity,
            base=identify_weights(self.inputs.model) if training.adapter and resume.marker.base else "",
            sequences=sum(part.sequences for part in self.inputs.data),
            command=self.command,
            output_dir=self.inputs.settings.output_dir,
        )
        return list(findings)

    @property
    def copies(self) -> CopySettings | None:
        training = self.inputs.training(bf16=False)
        settings = CopySettings(folder=training.output_dir, rate=training.copy_bytes_per_second)
        return settings if training.checkpoint_copies else None

    async def load(self, plan: Plan, dialer: NodeDialer, *, resume: bool = False) -> None:
        await self.upload([part.node for part in plan.parts], dialer, self.inputs.folders)
        training = self.inputs.training(bf16=False)
        if resume:
            training = replace(training, resume="auto")
        if self.share_checkpoint is not None and training.resume != "none":
            await self.share_checkpoint(plan, dialer, training, await self.read_recorded(training))

    async def load_spare(self, node: Node, dialer: NodeDialer) -> None:
        await self.upload([node], dialer, self.inputs.folders, quiet=True)

    def resume(self, plan: Plan) -> Plan:
        """The plan whose ranks continue from the newest checkpoint in the output directory, whatever was asked for."""
        settings = next(json.loads(start.env[TRAINING]) for _node, start in plan.starts())
        return add_rank_env(plan, {TRAINING: json.dumps({**settings, "resume": "auto"})})


def list_cards(facts: Facts, nodes: Sequence[str]) -> dict[str, tuple[GpuSpec, ...]]:
    """The GPUs of the nodes that reported them; without a loaded driver there are certainly none."""
    cards = dict(facts.of(GPU_SPECS))
    for name, driver in facts.of(DRIVER).items():
        if not driver.cards and name not in cards:
            cards[name] = ()
    return {name: cards[name] for name in nodes if name in cards}


def _has_gpus(plan: Plan, facts: Facts, cards: Mapping[str, tuple[GpuSpec, ...]]) -> bool:
    """Whether slots are GPUs on any node: a Slurm job without GPUs uses CPUs on purpose."""
    drivers = facts.of(DRIVER)
    nodes = [part.node for part in plan.parts if NO_GPUS_OPTION not in part.node.step_options]
    return any(cards.get(node.name) or (node.name in drivers and drivers[node.name].cards) for node in nodes)


def has_bf16(cards: Mapping[str, tuple[GpuSpec, ...]], nodes: Sequence[str]) -> bool:
    """True if every node's GPUs support bf16; a CPU computes float32 faster."""
    return all(cards.get(name) and all(card.capability >= BF16_SINCE for card in cards[name]) for name in nodes)


def _build_data_part(dataset: PreparedDataset) -> DataPart:
    return DataPart(
        name=dataset.name,
        shards=locate_on_nodes(dataset.shards),
        bins=locate_on_nodes(dataset.bins),
        weight=dataset.weight,
    )


def _collect_memory(facts: Facts) -> dict[str, int]:
    """The memory for all processes of a node: the machine's, or less if a control group limits it."""
    limits = {
        name: [group.limit for group in groups if group.limit is not None]
        for name, groups in facts.of(MEMORY_CGROUPS).items()
    }
    return {name: min([total, *limits.get(name, ())]) for name, total in facts.of(MEMORY).items()}


# The packages that ranks import, and what of the trainer only this machine does.
_SHIPPED = ("diagnoses", "core", "trainer")
_NOT_SHIPPED = ("trainer/settings/", "trainer/checks/")
# The earliest time in a zip file, fixed so that equal code gives equal bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)


def build_code_archive() -> bytes:
    """A zip file of the packages that ranks need; Python imports directly from it."""
    home = Path(aboard.__file__).parent
    names = [
        *(path.relative_to(home).as_posix() for path in sorted(home.glob("*.py"))),
        *(path.relative_to(home).as_posix() for part in _SHIPPED for path in sorted((home / part).rglob("*.py"))),
        *list_declaring_files(),
    ]
    files = [home / name for name in dict.fromkeys(names) if not name.startswith(_NOT_SHIPPED)]
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for file in files:
            info = ZipInfo(f"aboard/{file.relative_to(home).as_posix()}", _WHEN)
            info.compress_type = ZIP_DEFLATED
            archive.writestr(info, file.read_bytes())
    return buffer.getvalue()
