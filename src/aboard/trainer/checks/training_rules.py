"""Whether a training run fits these nodes, judged from preflight facts before anything starts."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace

from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.plan.training_settings import Training
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.byte_sizes import format_size
from aboard.core.text.input_text import agree, format_count
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, Shell, format_shell, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.shared.majority import group_by_value
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checks.node_gpus import BF16_SINCE, GpuSpec
from aboard.trainer.diagnoses import adapter, training

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
# The distributions that have a tracker's client; the last one is the smallest.
TRACKER_PACKAGES = {"wandb": ("wandb",), "mlflow": ("mlflow", "mlflow-skinny"), "tensorboard": ("tensorboard",)}
# What a standby takes of the host: its imports, 280 MB where it was measured, and room for larger ones.
STANDBY_MEMORY = 320 * 1024**2
_WANDB_WITHOUT_LOGIN = ("offline", "dryrun", "disabled")
_FLASH = ("flash_attention_2", "flash_attention_3")
_SETTING = r"--set [a-z]\w*(?:\.\w+)+=[\w.+-]+"
# A line of `Needs.fits`.
_FIT = re.compile(
    rf"(?P<settings>(?:{_SETTING}(?: {_SETTING})*)?) *"
    r"(?:# (?:and (?P<nodes>\d{1,9}) nodes like these; )?"
    r"then (?P<amount>[\d.,]{1,20}) (?P<unit>[A-Za-z]{1,9}) per rank)?"
)


@dataclass(frozen=True, kw_only=True)
class RankMemoryNeeds:
    """The memory that one rank needs, in bytes: `states` are weights, gradients and optimizer states, known exactly."""

    states: int
    total: int
    says: Untrusted = NO_TEXT
    fits: tuple[Untrusted, ...] = ()
    # Why this model can't isolate the documents of one sequence, if it can't.
    why_not_apart: Untrusted | None = None
    # Why chunked_loss can't be used with it, if it is set.
    why_not_chunked: Untrusted | None = None


@dataclass(frozen=True, kw_only=True)
class ModelLimits:
    """Limits from a model's config.json; None where it has none."""

    vocabulary: int | None = None
    positions: int | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingPreflight:
    """A training run and its nodes. `ranks` are counted by node; the other mappings hold only nodes with known values.

    `given` are the settings that the user set; `tokens` is the size of the tokenizer's vocabulary. `packed` data has
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
    # By node, why torch there can't use the GPUs.
    unusable_gpus: Mapping[str, Finding] = field(default_factory=dict)
    packed: bool = False
    # Whether each rank has a standby beside it.
    standbys: bool = False
    # The trackers' variables that rank 0 will have; None if not yet known.
    tracker_variables: Mapping[str, str] | None = field(default=None, repr=False)
    # Secrets of the user's shell, with the name and value of a file's variable that would send them elsewhere.
    withheld_secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def world(self) -> int:
        return sum(self.ranks.values())

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(name for name, count in self.ranks.items() if count)


def judge_training(preflight: TrainingPreflight) -> list[Finding]:
    """All findings."""
    return [finding for rule in RULES for finding in rule(preflight)]


def _suggest_fewer_nodes(preflight: TrainingPreflight, most: int) -> str:
    """The first nodes with at most this many ranks in total, for `--include`; empty where the first has more."""
    names = [name for at, name in enumerate(preflight.nodes) if sum(list(preflight.ranks.values())[: at + 1]) <= most]
    return "@".join(names)


def find_batch_conflict(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A step needs a sequence for each rank, and the batch settings must agree."""
    settings, world = preflight.training, preflight.world
    size = settings.global_batch_size
    if size is None or not world:
        return
    if size < world:
        fewer = _suggest_fewer_nodes(preflight, size)
        yield training.BATCH.finding(
            nodes=(),
            seen=f"global_batch_size is {size}, but there are {world} ranks",
            why="A rank without a sequence would idle in every step.",
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
                f" micro-batch {each} × {format_count(times, 'accumulation step')}"
                f" is {world * each * times}",
                "The settings contradict each other, and neither takes precedence.",
                training.BATCH.fix("one"),
            )


def find_hybrid_mismatch(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Sharding within nodes and replication across them need nodes of equal size."""
    counts = {name: count for name, count in preflight.ranks.items() if count}
    if preflight.training.sharding != "hybrid" or not counts:
        return
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{name} has {count}" for name, count in list(counts.items())[:4])
        yield _build_blocking_finding(
            training.HYBRID,
            f"sharding is hybrid, but nodes have different numbers of ranks: {counts_text}",
            "Hybrid sharding replicates each shard on the same local rank of every other node, so all nodes need"
            " the same number of ranks.",
            training.HYBRID.fix("unequal"),
        )
    elif set(counts.values()) == {1} and len(counts) > 1:
        yield _build_blocking_finding(
            training.HYBRID,
            f"sharding is hybrid, but each of the {len(counts)} nodes has one rank",
            "A node with one rank has nothing to shard.",
            training.HYBRID.fix("single"),
        )


def find_unusable_gpus(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Ranks would silently train on CPUs, or wait for ranks that do."""
    if preflight.training.device == "cpu":
        return
    for name in preflight.nodes:
        if name in preflight.unusable_gpus:
            yield replace(preflight.unusable_gpus[name], severity=Severity.BLOCK)
    bare = [name for name in preflight.nodes if preflight.cards.get(name) == ()]
    if bare and preflight.training.device == "cuda":
        yield _build_blocking_finding(
            training.DEVICE,
            f"{fold_names(bare)} {agree(bare, 'has', 'have')} no GPU"
            + (", but other nodes of this run have GPUs" if len(bare) < len(preflight.nodes) else ""),
            "Ranks on GPUs and ranks on CPUs can't train together.",
            training.DEVICE.fix(),
            *bare,
        )


def find_unsupported_attention(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Flash attention has kernels for GPUs since Ampere only."""
    if preflight.training.attn_implementation not in _FLASH:
        return
    bare = [name for name in preflight.nodes if preflight.cards.get(name) == ()]
    for names, what in ((bare, "no GPU"), (_list_old_nodes(preflight), "GPUs older than Ampere")):
        if names:
            yield _build_blocking_finding(
                training.ATTENTION,
                f"attn_implementation is {preflight.training.attn_implementation}, but {fold_names(names)}"
                f" {agree(names, 'has', 'have')} {what}",
                "Flash attention runs only on GPUs of the Ampere generation and newer.",
                training.ATTENTION.fix(),
                *names,
            )


def find_emulated_bfloat16(preflight: TrainingPreflight) -> Iterator[Finding]:
    """GPUs before Ampere emulate bfloat16, slower than float32."""
    old = _list_old_nodes(preflight)
    if preflight.training.precision == "bfloat16" and old:
        yield training.BF16.finding(
            nodes=tuple(old),
            seen=f"bf16 is true, but the GPUs on {fold_names(old)} are older than Ampere",
            why="GPUs older than Ampere emulate bfloat16, which is slower than float32, or can't run it at all.",
            fix=training.BF16.fix(),
        )


def find_base_type_mismatch(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Frozen weights in a third type would be rounded twice."""
    settings = preflight.training
    if settings.base_dtype not in ("float32", settings.precision):
        yield _build_blocking_finding(
            adapter.BASE_TYPE,
            f"adapter.base_dtype is {settings.base_dtype}, but the run computes in {settings.precision}",
            "Frozen weights are kept in float32 or in the type that the run computes in.",
            adapter.BASE_TYPE.fix(),
        )


def _list_old_nodes(preflight: TrainingPreflight) -> list[str]:
    """Nodes with a GPU older than Ampere."""
    return [
        name for name in preflight.nodes if any(card.capability < BF16_SINCE for card in preflight.cards.get(name, ()))
    ]


def find_missing_packages(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Aboard copies its own code to the nodes, but not its dependencies."""
    adapted, quantized = preflight.training.adapter is not None, preflight.training.load_in_4bit
    needed = (*PACKAGES, *["peft"] * adapted, *["bitsandbytes"] * quantized)
    known = {name: preflight.packages[name] for name in preflight.nodes if name in preflight.packages}
    lacking = {name: tuple(package for package in needed if package not in there) for name, there in known.items()}
    for missing, names in group_by_value({name: missing for name, missing in lacking.items() if missing}).items():
        yield _build_blocking_finding(
            training.PACKAGES,
            f"Python on {fold_names(names)} doesn't have"
            f" {', '.join(missing[:-1])}{' or ' * (len(missing) > 1)}{missing[-1]}",
            "The trainer imports these packages in every rank.",
            training.PACKAGES.fix(packages=missing, where=quote_folded_names(names)),
            *names,
        )


def find_missing_trackers(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Only rank 0 reports to trackers."""
    node = next(iter(preflight.nodes), "")
    if node not in preflight.packages:
        return
    for tracker in preflight.training.report_to:
        names = TRACKER_PACKAGES[tracker]
        if not any(name in preflight.packages[node] for name in names):
            yield _build_blocking_finding(
                training.TRACKER_PACKAGE,
                f"train.report_to has {tracker}, but Python on {node} doesn't have {' or '.join(names)}",
                "The node of rank 0 sends the metrics with the tracker's own client.",
                training.TRACKER_PACKAGE.fix(package=names[-1], where=quote_folded_names([node])),
                node,
            )


def find_missing_login(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A tracker without a server would get nothing; whether a node has a login of its own is not known here."""
    variables, node = preflight.tracker_variables, next(iter(preflight.nodes), "")
    if variables is None:
        return
    if "mlflow" in preflight.training.report_to and not variables.get("MLFLOW_TRACKING_URI"):
        yield _build_blocking_finding(
            training.TRACKER_SERVER,
            "train.report_to has mlflow, but MLFLOW_TRACKING_URI is not set",
            "MLflow's client has no server by default, and its file store is no longer supported.",
            training.TRACKER_SERVER.fix("mlflow"),
            node,
        )
    offline = variables.get("WANDB_MODE") in _WANDB_WITHOUT_LOGIN
    keyless = not variables.get("WANDB_API_KEY") and "WANDB_API_KEY" not in preflight.withheld_secrets
    if "wandb" in preflight.training.report_to and not offline and keyless:
        yield training.TRACKER_SERVER.finding(
            severity=Severity.WARN,
            nodes=(node,),
            seen="train.report_to has wandb, but WANDB_API_KEY is not set in this shell or for rank 0",
            why=f"Unless ~/.netrc on {node} has a login, W&B gets nothing during the run; the metrics are sent later.",
            fix=training.TRACKER_SERVER.fix("wandb"),
        )


def find_withheld_secrets(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A file decides where the tracker's library would send a secret of the user."""
    for secret, (variable, value) in sorted(preflight.withheld_secrets.items()):
        shown = escape_text(SecretScrubber().text(value), 120)
        yield training.TRACKER_ADDRESS.finding(
            nodes=preflight.nodes[:1],
            seen=f"{secret} is yours, but `env` of a file sets {variable}={shown}",
            why=f"Rank 0 gets no {secret}: a file must not decide where your secrets are sent.",
            fix=training.TRACKER_ADDRESS.fix(variable=variable),
        )


def find_excessive_length(preflight: TrainingPreflight) -> Iterator[Finding]:
    """Positions beyond the model's maximum."""
    most, max_length = preflight.model.positions, preflight.training.max_length
    if most is not None and max_length > most:
        yield _build_blocking_finding(
            training.LENGTH,
            f"data.max_length is {max_length:,}, but the model has {most:,} positions",
            "The model was never trained on longer sequences; models with learned positions crash on them.",
            training.LENGTH.fix(most=most),
        )


def find_small_vocabulary(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A token without a row in the embedding crashes the first step that contains it."""
    rows, tokens = preflight.model.vocabulary, preflight.tokens
    if rows is not None and tokens is not None and tokens > rows:
        yield _build_blocking_finding(
            training.VOCABULARY,
            f"the tokenizer has {tokens:,} tokens, but the model's embedding has {rows:,} rows",
            "A token ID beyond the last row raises an index error on a CPU and a device-side assert on a GPU.",
            training.VOCABULARY.fix(),
        )


def find_memory_shortage(preflight: TrainingPreflight) -> Iterator[Finding]:
    """A training run that can't fit is refused now, not after loading the model."""
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
        seen=f"a rank needs {format_size(needs.total)}{says}, but {_describe_memory(preflight, short)}",
        why="Weights, gradients and optimizer states alone exceed the available memory."
        if certain
        else "Weights, gradients and optimizer states alone fit, but not together with the estimated activations and"
        " buffers.",
        fix=join_fixes(*filter(None, map(_parse_memory_fix, needs.fits))) or training.MEMORY.fix("twice"),
    )


def _parse_memory_fix(line: Untrusted) -> Fix | None:
    """A line of the trainer's advice; None for any other line, since its process also runs the model's code."""
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
    """Packed documents would attend to each other, or crash the first step."""
    why = None if preflight.needs is None else preflight.needs.why_not_apart
    if preflight.packed and why is not None:
        reason = why.visible(400)
        yield _build_blocking_finding(
            training.PACKING_UNKNOWN,
            "data.packing is true, but this model can't isolate the documents in one sequence from each other",
            f"{reason[:1].upper()}{reason[1:]}.",
            training.PACKING_UNKNOWN.fix(),
        )


def find_unsupported_chunked_loss(preflight: TrainingPreflight) -> Iterator[Finding]:
    """The loss would be a different one, or the first step would stop."""
    if preflight.needs is not None and preflight.needs.why_not_chunked is not None:
        yield _build_blocking_finding(
            training.CHUNKED_LOSS,
            preflight.needs.why_not_chunked.visible(400),
            "Only logits of one linear layer, scaled or capped element by element, can be computed in chunks.",
            training.CHUNKED_LOSS.fix(),
        )


def compute_rank_memory(preflight: TrainingPreflight) -> dict[str, int]:
    """Bytes per rank on each node where it is known."""
    found = {name: _compute_node_rank_memory(preflight, name) for name in preflight.nodes}
    return {name: room for name, room in found.items() if room is not None}


def _describe_memory(preflight: TrainingPreflight, names: Iterable[str]) -> str:
    """The memory of these nodes or their GPUs, with equal nodes grouped."""
    texts = {}
    for name in names:
        room, ranks = _compute_node_rank_memory(preflight, name) or 0, preflight.ranks[name]
        if preflight.cards.get(name):
            texts[name] = f"{format_size(room)} per GPU"
        else:
            each = f" for {ranks} ranks, {format_size(room)} each" if ranks > 1 else ""
            if preflight.standbys:
                each += f" without {format_size(STANDBY_MEMORY)} for a standby"
            texts[name] = f"{format_size(preflight.memory[name])}{each}"
    alike = group_by_value(texts).items()
    return "; ".join(f"{fold_names(same)} {agree(same, 'has', 'have')} {text}" for text, same in alike)


def _compute_node_rank_memory(preflight: TrainingPreflight, name: str) -> int | None:
    """Bytes for one rank: its GPU's memory, or its share of the host's."""
    cards = preflight.cards.get(name)
    if cards:
        return min(card.memory for card in cards)
    if cards == () and name in preflight.memory:
        share = preflight.memory[name] // preflight.ranks[name]
        return share - STANDBY_MEMORY if preflight.standbys else share
    return None


def _build_blocking_finding(diagnosis: Diagnosis, seen: str, why: str, fix: Fix, *nodes: str) -> Finding:
    return diagnosis.finding(nodes=nodes, seen=seen, why=why, fix=fix)


RULES: tuple[Callable[[TrainingPreflight], Iterator[Finding]], ...] = (
    find_batch_conflict,
    find_hybrid_mismatch,
    find_unusable_gpus,
    find_unsupported_attention,
    find_emulated_bfloat16,
    find_base_type_mismatch,
    find_missing_packages,
    find_missing_trackers,
    find_missing_login,
    find_withheld_secrets,
    find_excessive_length,
    find_small_vocabulary,
    find_memory_shortage,
    find_unsupported_packing,
    find_unsupported_chunked_loss,
)
