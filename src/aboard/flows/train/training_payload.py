"""`aboard train`: what is ready on the head becomes a training that is settled, brought to the nodes and started."""

import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import aboard
from aboard.checks.gpu.nvidia_smi import DRIVER
from aboard.checks.host.memory import MEMORY, MEMORY_CGROUPS
from aboard.checks.software.node_software import SOFTWARE
from aboard.checks.train import TRAIN
from aboard.checks.train.gpu_specs import BF16_SINCE, GPU_SPECS, GpuSpec
from aboard.checks.train.training_rules import (
    ModelLimits,
    RankMemoryNeeds,
    TrainingPreflight,
    compute_rank_memory,
    judge_training,
)
from aboard.config.training.train_settings import TrainSettings
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.plan.plan import NodePlan, Plan
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.training_settings import DataPart, Training
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Shell
from aboard.flows.train.check_resume import TypedTrainCommand, build_resume_probe, find_resume, judge_resume
from aboard.flows.train.prepare_data import PreparedDataset
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer

TRAINING = "ABOARD_TRAINING"
MODULE = "aboard.train"
# Ranks fetch nothing: all that they need was brought to their node. And a directory of the user's that is called as one
# of Python's own modules stays out of the way.
ENV: Mapping[str, str] = MappingProxyType(
    {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}
)

UploadInputs = Callable[[Plan, NodeDialer, Sequence[Path]], Awaitable[None]]
EstimateMemory = Callable[[Training, Mapping[str, int], int | None], Awaitable[RankMemoryNeeds | None]]


@dataclass(frozen=True, kw_only=True)
class TrainingInputs:
    """What the head has made ready: paths are this machine's."""

    words: TrainSettings
    model: Path
    tokenizer: Path
    facts: ModelLimits
    data: tuple[PreparedDataset, ...]
    # A hash of what `data` holds, as checkpoints keep it.
    identity: str
    validation: PreparedDataset | None = None
    vocabulary: int | None = None

    @property
    def folders(self) -> list[Path]:
        """All that ranks read."""
        parts = [part for part in (*self.data, self.validation) if part is not None]
        data_folders = [folder for part in parts for folder in (part.shards, part.bins)]
        return list(dict.fromkeys([self.model, self.tokenizer, *data_folders]))

    def training(self, *, bf16: bool) -> Training:
        """As ranks are told it: what is in this user's home is in theirs."""
        training = self.words.training(
            model=abbreviate_home(self.model),
            tokenizer=abbreviate_home(self.tokenizer),
            data=[_build_data_part(part) for part in self.data],
            validation=[] if self.validation is None else [_build_data_part(self.validation)],
            bf16=bf16,
        )
        resume = training.resume if training.resume in ("auto", "none") else abbreviate_home(Path(training.resume))
        return replace(training, output_dir=abbreviate_home(Path(training.output_dir)), resume=resume)


def build_request(extra: Mapping[str, str] = MappingProxyType({})) -> LaunchRequest:
    """Every rank runs our trainer, from the code that is brought along; `extra` is the user's environment."""
    program = Program(kind=ProgramKind.MODULE, target=MODULE)
    return LaunchRequest(program=program, env={**ENV, **extra}, code=build_code_archive())


@dataclass(frozen=True, kw_only=True)
class TrainingPayload:
    """A training on its way: settled when the nodes are known, then its files are brought to those that lack them."""

    provisions: TrainingInputs
    command: Shell
    bring: UploadInputs
    needs_of: EstimateMemory
    on_settled: Callable[[TrainingPreflight, Sequence[Finding]], None] = lambda _boarding, _findings: None

    @property
    def subject(self) -> Subject:
        """What nodes are asked for it: also for the checkpoints that it would resume from."""
        training = self.provisions.training(bf16=False)
        return (
            TRAIN if training.resume == "none" else replace(TRAIN, probes=(*TRAIN.probes, build_resume_probe(training)))
        )

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        """The plan with the training in each rank's environment; raises TrainingFinished where nothing is left."""
        words = self.provisions.words
        ranks = {part.node.name: len(part.starts) for part in plan.parts}
        cards = list_cards(facts, list(ranks))
        bf16 = words.bf16 if words.bf16 is not None else has_bf16(cards, list(ranks))
        training = self.provisions.training(bf16=bf16)
        refused = self._resume(plan, facts, training)
        if refused:
            return plan, refused
        boarding = TrainingPreflight(
            training=training,
            ranks=ranks,
            given=words.given,
            cards=cards,
            packages={name: each.packages for name, each in facts.of(SOFTWARE).items() if name in ranks},
            memory=_collect_memory(facts),
            model=self.provisions.facts,
            tokens=self.provisions.vocabulary,
            packed=words.packing,
        )
        least = min(compute_rank_memory(boarding).values(), default=None)
        boarding = replace(boarding, needs=await self.needs_of(training, ranks, least))
        findings = judge_training(boarding)
        self.on_settled(boarding, findings)
        return add_rank_env(plan, {TRAINING: json.dumps(asdict(training))}), findings

    def _resume(self, plan: Plan, facts: Facts, training: Training) -> list[Finding]:
        resume = find_resume(facts, training)
        if resume is None:
            return []
        findings = judge_resume(
            resume,
            training,
            world=plan.world,
            data=self.provisions.identity,
            sequences=sum(part.sequences for part in self.provisions.data),
            typed=TypedTrainCommand(command=self.command, output_dir=self.provisions.words.output_dir),
        )
        return list(findings)

    async def load(self, plan: Plan, fleet: NodeDialer) -> None:
        await self.bring(plan, fleet, self.provisions.folders)


def abbreviate_home(path: Path) -> str:
    """Below this user's home it is told as `~/…`, since another node may have its homes elsewhere."""
    path = path.absolute()
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


def list_cards(facts: Facts, nodes: Sequence[str]) -> dict[str, tuple[GpuSpec, ...]]:
    """Of the nodes that told; where the kernel has no driver loaded, that there are none is certain."""
    cards = dict(facts.of(GPU_SPECS))
    for name, driver in facts.of(DRIVER).items():
        if not driver.cards and name not in cards:
            cards[name] = ()
    return {name: cards[name] for name in nodes if name in cards}


def has_bf16(cards: Mapping[str, tuple[GpuSpec, ...]], nodes: Sequence[str]) -> bool:
    """True where every node has GPUs that can; a CPU computes float32 faster."""
    return all(cards.get(name) and all(card.capability >= BF16_SINCE for card in cards[name]) for name in nodes)


def add_rank_env(plan: Plan, env: Mapping[str, str]) -> Plan:
    """The plan with further variables for every rank."""
    parts = [
        NodePlan(node=part.node, starts=tuple(replace(start, env={**start.env, **env}) for start in part.starts))
        for part in plan.parts
    ]
    return replace(plan, parts=tuple(parts))


def _build_data_part(part: PreparedDataset) -> DataPart:
    return DataPart(
        name=part.name, shards=abbreviate_home(part.shards), bins=abbreviate_home(part.bins), weight=part.weight
    )


def _collect_memory(facts: Facts) -> dict[str, int]:
    """What the processes of a node may have together: the machine's, or what a control group leaves of it."""
    limits = {
        name: [group.limit for group in groups if group.limit is not None]
        for name, groups in facts.of(MEMORY_CGROUPS).items()
    }
    return {name: min([total, *limits.get(name, ())]) for name, total in facts.of(MEMORY).items()}


# What the trainer imports of us.
SHIPPED_PACKAGES = ("diagnoses", "core", "data", "train")
# Zip files know no earlier time: equal code gives equal bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)


def build_code_archive() -> bytes:
    """The rooms that ranks need; a Python on a node imports them from it as from a directory."""
    home = Path(aboard.__file__).parent
    files = [
        home / "__init__.py",
        home / "lazy_dataclass.py",
        *(file for package in SHIPPED_PACKAGES for file in sorted((home / package).rglob("*.py"))),
    ]
    buffer = io.BytesIO()
    with ZipFile(buffer, "w", ZIP_DEFLATED) as archive:
        for file in files:
            info = ZipInfo(f"aboard/{file.relative_to(home).as_posix()}", _WHEN)
            info.compress_type = ZIP_DEFLATED
            archive.writestr(info, file.read_bytes())
    return buffer.getvalue()
