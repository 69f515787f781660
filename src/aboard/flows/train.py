"""`aboard train`: what is ready on the head becomes a training that is settled, brought to the nodes and started."""

import io
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import aboard
from aboard.checks.gpu.smi import DRIVER
from aboard.checks.host.memory import GROUPS, MEMORY
from aboard.checks.software.facts import SOFTWARE
from aboard.checks.train import TRAIN
from aboard.checks.train.boarding import Boarding, Model, Needs, judged, rooms
from aboard.checks.train.cards import BF16_SINCE, CARDS, Card
from aboard.config.train import TrainWords
from aboard.core.facts import Facts
from aboard.core.plan import NodePlan, Plan
from aboard.core.program import Kind, Program
from aboard.core.request import Request
from aboard.core.rule import Subject
from aboard.core.training import DataPart, Training
from aboard.diagnoses import Finding, Shell
from aboard.flows.train_data import Part
from aboard.flows.train_resume import Typed, judge_resume, resume_of, resume_probe
from aboard.lazy import dataclass
from aboard.wires.fleet import Fleet

TRAINING = "ABOARD_TRAINING"
MODULE = "aboard.train"
# Ranks fetch nothing: all that they need was brought to their node. And a directory of the user's that is called as one
# of Python's own modules stays out of the way.
ENV: Mapping[str, str] = MappingProxyType(
    {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}
)

Bring = Callable[[Plan, Fleet, Sequence[Path]], Awaitable[None]]
NeedsOf = Callable[[Training, Mapping[str, int], int | None], Awaitable[Needs | None]]


@dataclass(frozen=True, kw_only=True)
class Provisions:
    """What the head has made ready: paths are this machine's."""

    words: TrainWords
    model: Path
    tokenizer: Path
    facts: Model
    data: tuple[Part, ...]
    # A hash of what `data` holds, as checkpoints keep it.
    identity: str
    validation: Part | None = None
    vocabulary: int | None = None

    @property
    def folders(self) -> list[Path]:
        """All that ranks read."""
        parts = [part for part in (*self.data, self.validation) if part is not None]
        read = [folder for part in parts for folder in (part.shards, part.bins)]
        return list(dict.fromkeys([self.model, self.tokenizer, *read]))

    def training(self, *, bf16: bool) -> Training:
        """As ranks are told it: what is in this user's home is in theirs."""
        found = self.words.training(
            model=told_path(self.model),
            tokenizer=told_path(self.tokenizer),
            data=[_part(part) for part in self.data],
            validation=[] if self.validation is None else [_part(self.validation)],
            bf16=bf16,
        )
        resume = found.resume if found.resume in ("auto", "none") else told_path(Path(found.resume))
        return replace(found, output_dir=told_path(Path(found.output_dir)), resume=resume)


def request(extra: Mapping[str, str] = MappingProxyType({})) -> Request:
    """Every rank runs our trainer, from the code that is brought along; `extra` is the user's environment."""
    program = Program(kind=Kind.MODULE, target=MODULE)
    return Request(program=program, env={**ENV, **extra}, code=code())


@dataclass(frozen=True, kw_only=True)
class TrainCargo:
    """A training on its way: settled when the nodes are known, then its files are brought to those that lack them."""

    provisions: Provisions
    command: Shell
    bring: Bring
    needs_of: NeedsOf
    on_settled: Callable[[Boarding, Sequence[Finding]], None] = lambda _boarding, _findings: None

    @property
    def subject(self) -> Subject:
        """What nodes are asked for it: also for the checkpoints that it would resume from."""
        training = self.provisions.training(bf16=False)
        return TRAIN if training.resume == "none" else replace(TRAIN, probes=(*TRAIN.probes, resume_probe(training)))

    async def settle(self, plan: Plan, facts: Facts) -> tuple[Plan, Sequence[Finding]]:
        """The plan with the training in each rank's environment; raises TrainingFinished where nothing is left."""
        words = self.provisions.words
        ranks = {part.node.name: len(part.starts) for part in plan.parts}
        cards = cards_of(facts, list(ranks))
        bf16 = words.bf16 if words.bf16 is not None else can_bf16(cards, list(ranks))
        training = self.provisions.training(bf16=bf16)
        refused = self._resume(plan, facts, training)
        if refused:
            return plan, refused
        boarding = Boarding(
            training=training,
            ranks=ranks,
            given=words.given,
            cards=cards,
            packages={name: each.packages for name, each in facts.of(SOFTWARE).items() if name in ranks},
            memory=_memory(facts),
            model=self.provisions.facts,
            tokens=self.provisions.vocabulary,
            packed=words.packing,
        )
        least = min(rooms(boarding).values(), default=None)
        boarding = replace(boarding, needs=await self.needs_of(training, ranks, least))
        findings = judged(boarding)
        self.on_settled(boarding, findings)
        return with_env(plan, {TRAINING: json.dumps(asdict(training))}), findings

    def _resume(self, plan: Plan, facts: Facts, training: Training) -> list[Finding]:
        resume = resume_of(facts, training)
        if resume is None:
            return []
        found = judge_resume(
            resume,
            training,
            world=plan.world,
            data=self.provisions.identity,
            sequences=sum(part.sequences for part in self.provisions.data),
            typed=Typed(command=self.command, output_dir=self.provisions.words.output_dir),
        )
        return list(found)

    async def load(self, plan: Plan, fleet: Fleet) -> None:
        await self.bring(plan, fleet, self.provisions.folders)


def told_path(path: Path) -> str:
    """Below this user's home it is told as `~/…`, since another node may have its homes elsewhere."""
    path = path.absolute()
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) and path != home else str(path)


def cards_of(facts: Facts, nodes: Sequence[str]) -> dict[str, tuple[Card, ...]]:
    """Of the nodes that told; where the kernel has no driver loaded, that there are none is certain."""
    found = dict(facts.of(CARDS))
    for name, driver in facts.of(DRIVER).items():
        if not driver.cards and name not in found:
            found[name] = ()
    return {name: found[name] for name in nodes if name in found}


def can_bf16(cards: Mapping[str, tuple[Card, ...]], nodes: Sequence[str]) -> bool:
    """True where every node has GPUs that can; a CPU computes float32 faster."""
    return all(cards.get(name) and all(card.capability >= BF16_SINCE for card in cards[name]) for name in nodes)


def with_env(plan: Plan, env: Mapping[str, str]) -> Plan:
    """The plan with further variables for every rank."""
    parts = [
        NodePlan(node=part.node, starts=tuple(replace(start, env={**start.env, **env}) for start in part.starts))
        for part in plan.parts
    ]
    return replace(plan, parts=tuple(parts))


def _part(part: Part) -> DataPart:
    return DataPart(name=part.name, shards=told_path(part.shards), bins=told_path(part.bins), weight=part.weight)


def _memory(facts: Facts) -> dict[str, int]:
    """What the processes of a node may have together: the machine's, or what a control group leaves of it."""
    limits = {
        name: [group.limit for group in groups if group.limit is not None] for name, groups in facts.of(GROUPS).items()
    }
    return {name: min([total, *limits.get(name, ())]) for name, total in facts.of(MEMORY).items()}


# What the trainer imports of us.
ROOMS = ("diagnoses", "core", "data", "train")
# Zip files know no earlier time: equal code gives equal bytes.
_WHEN = (1980, 1, 1, 0, 0, 0)


def code() -> bytes:
    """The rooms that ranks need; a Python on a node imports them from it as from a directory."""
    home = Path(aboard.__file__).parent
    files = [
        home / "__init__.py",
        home / "lazy.py",
        *(file for room in ROOMS for file in sorted((home / room).rglob("*.py"))),
    ]
    held = io.BytesIO()
    with ZipFile(held, "w", ZIP_DEFLATED) as archive:
        for file in files:
            info = ZipInfo(f"aboard/{file.relative_to(home).as_posix()}", _WHEN)
            info.compress_type = ZIP_DEFLATED
            archive.writestr(info, file.read_bytes())
    return held.getvalue()
