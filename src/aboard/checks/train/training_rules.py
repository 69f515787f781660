"""Whether a training can be carried by these nodes, judged when they are known and before anything is started."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field

from aboard.checks.train.gpu_specs import BF16_SINCE, GpuSpec
from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.plan.training_settings import Training
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import format_count
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, Shell, format_shell, join_fixes
from aboard.diagnoses.trainer import training
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
_FLASH = ("flash_attention_2", "flash_attention_3")
_SETTING = r"--set [a-z]\w*(?:\.\w+)+=[\w.+-]+"
# A line of `Needs.fits`.
_FIT = re.compile(
    rf"(?P<settings>(?:{_SETTING}(?: {_SETTING})*)?) *"
    r"(?:# (?:and (?P<nodes>\d{1,9}) such nodes; )?then (?P<amount>[\d.,]{1,20}) (?P<unit>[A-Za-z]{1,9}) per rank)?"
)


@dataclass(frozen=True, kw_only=True)
class RankMemoryNeeds:
    """What one rank needs, in bytes: `states` are weights, gradients and optimizer, which is plain arithmetic."""

    states: int
    total: int
    says: Untrusted = NO_TEXT
    fits: tuple[Untrusted, ...] = ()
    # What keeps documents of one sequence from being kept apart in this model.
    why_not_apart: Untrusted | None = None


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """What a model's config.json says; None where it says nothing."""

    vocabulary: int | None = None
    positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingPreflight:
    """A training and its nodes. `ranks` are those of each node; a node is in the others only where it is known.

    `given` are the settings that the user wrote; `tokens` is the size of the tokenizer's vocabulary. `packed` data has
    several documents in a sequence.
    """

    training: Training
    ranks: Mapping[str, int]
    given: frozenset[str] = frozenset()
    cards: Mapping[str, tuple[GpuSpec, ...]] = field(default_factory=dict)
    packages: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    model: ModelLimits = field(default_factory=ModelLimits)
    tokens: int | None = None
    needs: RankMemoryNeeds | None = None
    packed: bool = False

    @property
    def world(self) -> int:
        return sum(self.ranks.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for name, count in self.ranks.items() if count)


def judge_training(preflight: TrainingPreflight) -> list[Finding]:
    """Everything that is in the way."""
    return [finding for rule in RULES for finding in rule(preflight)]


def _suggest_fewer_nodes(preflight: TrainingPreflight, most: int) -> str:
    """The first nodes that have together no more ranks than this, for `--include`; none where even one has more."""
    names = [name for at, name in enumerate(preflight.nodes) if sum(list(preflight.ranks.values())[: at + 1]) <= most]
    return "@".join(names)


def find_batch_conflict(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A step has a sequence for each rank, and is as large as was asked for."""
    settings, world = preflight.training, preflight.world
    size = settings.global_batch_size
    if size is None or not world:
        return
    if size < world:
        fewer = _suggest_fewer_nodes(preflight, size)
        yield training.BATCH.finding(
            nodes=(),
            seen=f"global_batch_size is {size}, and there are {world} ranks",
            why="A rank without a sequence would wait in every step for the others, and do nothing.",
            fix=training.BATCH.fix("larger-or-fewer", size=world, nodes=fewer)
            if fewer
            else training.BATCH.fix("larger", size=world),
        )
    elif "gradient_accumulation_steps" in preflight.given:
        each, times = settings.per_device_train_batch_size, settings.gradient_accumulation_steps
        if each * times * world != size:
            yield _build_blocking_finding(
                training.BATCH,
                f"global_batch_size is {size}, but {format_count(world, 'rank')} ×"
                f" {format_count(each, 'sequence')} × {times}"
                f" accumulated are {world * each * times}",
                "The three together say two different things, and neither is more right.",
                training.BATCH.fix("one"),
            )


def find_hybrid_mismatch(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Sharding within a node and copies across nodes need nodes of one size."""
    counts = {name: count for name, count in preflight.ranks.items() if count}
    if preflight.training.sharding != "hybrid" or not counts:
        return
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{name} has {count}" for name, count in list(counts.items())[:4])
        yield _build_blocking_finding(
            training.HYBRID,
            f"sharding is hybrid, and nodes have different numbers of ranks: {counts_text}",
            "Each rank keeps its shard equal to that of the same place on every other node: there must be one.",
            training.HYBRID.fix("unequal"),
        )
    elif set(counts.values()) == {1} and len(counts) > 1:
        yield _build_blocking_finding(
            training.HYBRID,
            f"sharding is hybrid, and each of the {len(counts)} nodes has one rank",
            "Within a node of one rank there is nothing to shard.",
            training.HYBRID.fix("single"),
        )


def find_unsupported_attention(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Flash attention's kernels are for GPUs."""
    bare = [name for name in preflight.nodes if preflight.cards.get(name) == ()]
    if preflight.training.attn_implementation in _FLASH and bare:
        yield _build_blocking_finding(
            training.ATTENTION,
            f"attn_implementation is {preflight.training.attn_implementation}, and {fold_names(bare)} has no GPU",
            "Its kernels run on GPUs only.",
            training.ATTENTION.fix(),
            *bare,
        )


def find_emulated_bfloat16(preflight: TrainingPreflight) -> Iterator[Finding]:
    """GPUs before Ampere emulate bfloat16, slower than float32."""
    old = [
        name for name in preflight.nodes if any(card.capability < BF16_SINCE for card in preflight.cards.get(name, ()))
    ]
    if preflight.training.bf16 and old:
        yield training.BF16.finding(
            nodes=tuple(old),
            seen=f"bf16 is true, and GPUs of {fold_names(old)} are older than Ampere",
            why="They emulate bfloat16, which is slower than float32 and may not run at all.",
            fix=training.BF16.fix(),
        )


def find_missing_packages(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Aboard brings its own code to the nodes, and not what it stands on."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in preflight.nodes:
        if name in preflight.packages:
            there = preflight.packages[name]
            missing = tuple(package for package in PACKAGES if package not in there)
            if missing:
                lacking.setdefault(missing, []).append(name)
    for missing, names in lacking.items():
        yield _build_blocking_finding(
            training.PACKAGES,
            f"the Python of {fold_names(names)} has no {' and no '.join(missing)}",
            "The trainer imports them in every rank.",
            training.PACKAGES.fix(packages=missing, where=quote_folded_names(names)),
            *names,
        )


def find_excessive_length(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Positions that the model has never seen, or hasn't got."""
    most, max_length = preflight.model.positions, preflight.training.max_length
    if most is not None and max_length > most:
        yield _build_blocking_finding(
            training.LENGTH,
            f"data.max_length is {max_length:,}, and the model has {most:,} positions",
            "Beyond them it was never trained; models with learned positions have none there and crash.",
            training.LENGTH.fix(most=most),
        )


def find_small_vocabulary(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A token that the model has no row for crashes the first step that meets it."""
    rows, tokens = preflight.model.vocabulary, preflight.tokens
    if rows is not None and tokens is not None and tokens > rows:
        yield _build_blocking_finding(
            training.VOCABULARY,
            f"the tokenizer has {tokens:,} tokens, and the model's embedding {rows:,} rows",
            "A token past the last row is an index error on a CPU, and a device-side assert on a GPU.",
            training.VOCABULARY.fix(),
        )


def find_memory_shortage(preflight: TrainingPreflight) -> Iterator[Finding]:
    """What can't fit is refused now, not after the model was loaded."""
    needs = preflight.needs
    if needs is None:
        return
    short = {name: have for name, have in compute_rank_memory(preflight).items() if have < needs.total}
    if not short:
        return
    least = min(short.values())
    certain = needs.states > least
    says = f" ({needs.says.visible(400)})" if needs.says else ""
    yield training.MEMORY.finding(
        severity=Severity.BLOCK if certain else Severity.WARN,
        nodes=tuple(short),
        seen=f"a rank needs {format_size(needs.total)}{says}, and {_describe_memory(preflight, short)}",
        why="Weights, gradients and optimizer alone are more than there is."
        if certain
        else "Weights, gradients and optimizer fit; the estimate of activations and buffers beside them doesn't.",
        fix=join_fixes(*filter(None, map(_parse_memory_fix, needs.fits))) or training.MEMORY.fix("twice"),
    )


def _parse_memory_fix(line: Untrusted) -> Fix | None:
    """A line of the trainer's advice; None for what it doesn't say, since its process ran more than our own code."""
    found = _FIT.fullmatch(line.raw())
    if found is None:
        return None
    settings = Shell(
        " ".join(format_shell("--set {to}", to=to) for to in re.findall(r"--set (\S+)", found["settings"]))
    )
    size = {"amount": found["amount"], "unit": found["unit"]}
    if found["nodes"]:
        if settings:
            return training.MEMORY.fix("grown", settings=settings, nodes=found["nodes"], **size)
        return training.MEMORY.fix("nodes", nodes=found["nodes"], **size)
    if found["amount"]:
        return training.MEMORY.fix("smaller", settings=settings, **size)
    return training.MEMORY.fix("settings", settings=settings)


def find_unsupported_packing(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Documents of one sequence would see each other, or crash the first step."""
    why = None if preflight.needs is None else preflight.needs.why_not_apart
    if preflight.packed and why is not None:
        reason = why.visible(400)
        yield _build_blocking_finding(
            training.PACKING_UNKNOWN,
            "data.packing is true, and this model can't keep the documents of one sequence apart",
            f"{reason[:1].upper()}{reason[1:]}.",
            training.PACKING_UNKNOWN.fix(),
        )


def compute_rank_memory(preflight: TrainingPreflight) -> dict[str, int]:
    """Bytes that one rank has on each node of which that is known."""
    found = {name: _compute_node_rank_memory(preflight, name) for name in preflight.nodes}
    return {name: room for name, room in found.items() if room is not None}


def _describe_memory(preflight: TrainingPreflight, names: Iterable[str]) -> str:
    """What there is on these nodes, those that are alike together: the memory of the node, or of its GPUs."""
    alike: dict[str, list[str]] = {}
    for name in names:
        room, ranks = _compute_node_rank_memory(preflight, name) or 0, preflight.ranks[name]
        if preflight.cards.get(name):
            text = f"{format_size(room)} on each GPU"
        else:
            text = f"{format_size(preflight.memory[name])}" + (
                f" for {ranks} ranks, {format_size(room)} each" if ranks > 1 else ""
            )
        alike.setdefault(text, []).append(name)
    return "; ".join(f"{fold_names(same)} {'has' if len(same) == 1 else 'have'} {text}" for text, same in alike.items())


def _compute_node_rank_memory(preflight: TrainingPreflight, name: str) -> int | None:
    """Bytes for one rank: of its GPU, or its part of the host's."""
    cards = preflight.cards.get(name)
    if cards:
        return min(card.memory for card in cards)
    if cards == () and name in preflight.memory:
        return preflight.memory[name] // preflight.ranks[name]
    return None


def _build_blocking_finding(diagnosis: Diagnosis, seen: str, why: str, fix: Fix, *nodes: str) -> Finding:
    return diagnosis.finding(nodes=nodes, seen=seen, why=why, fix=fix)


RULES: tuple[Callable[[TrainingPreflight], Iterator[Finding]], ...] = (
    find_batch_conflict,
    find_hybrid_mismatch,
    find_unsupported_attention,
    find_emulated_bfloat16,
    find_missing_packages,
    find_excessive_length,
    find_small_vocabulary,
    find_memory_shortage,
    find_unsupported_packing,
)
