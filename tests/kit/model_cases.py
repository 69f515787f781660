"""Jobs of ranks for tests of model loading, sharding and memory: each function is one job and returns plain data."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from live_bytes import LiveByteCounter
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, AutoModelForCausalLM

from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.diagnoses.catalogue import read_error, unpack_error
from aboard.trainer.adapter.sample_dropout import compute_token_keys
from aboard.trainer.checkpoint.manager import CheckpointManager
from aboard.trainer.collate import MicroBatch
from aboard.trainer.data.sampling.packed_sequences import PackedSequence
from aboard.trainer.data.sampling.source_mixing import SequenceDraw
from aboard.trainer.distributed.auto_sharding import find_best_layout
from aboard.trainer.distributed.rank_context import RankContext, join_process_group, leave_process_group
from aboard.trainer.memory.activations import Precision
from aboard.trainer.memory.advice import list_changes
from aboard.trainer.memory.estimate import estimate_memory, estimate_model_activations, profile_model
from aboard.trainer.memory.out_of_memory import explain_out_of_memory
from aboard.trainer.memory.worker import answer_request
from aboard.trainer.model import chunked_loss
from aboard.trainer.model.attention_masks import AttentionMasks, build_masks
from aboard.trainer.model.build_model import build_engine, count_flops_per_token
from aboard.trainer.model.engine import Engine
from aboard.trainer.model.export import export_model, main
from aboard.trainer.model.meta_model import build_on_meta
from aboard.trainer.optimizer.build_optimizer import build_optimizer, clip_and_update_weights
from aboard.trainer.progress import TrainingProgress
from aboard.trainer.step import forward_micro_batch
from aboard.trainer.weights.weight_files import open_weights

LENGTH = 24
MICRO = 2
LAYOUTS = ("full", "hybrid", "none")
# Models whose memory is told and measured: tied, untied, and one that norms twice.
SHAPE: dict[str, Any] = {
    "vocab_size": 3000,
    "hidden_size": 128,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False, "num_hidden_layers": 5},
    "gemma2": {"head_dim": 32, "vocab_size": 1501},
}


def training(folder: Path, **changed: Any) -> Training:
    usual: dict[str, Any] = {"model": str(folder), "data": (), "output_dir": "/nowhere", "max_length": LENGTH}
    return Training(**{**usual, "bf16": False, "gradient_accumulation_steps": MICRO, **changed})


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One family in one layout, on one rank."""

    family: str
    sharding: str
    wrong: list[str]
    wrong_buffers: list[str]
    dtypes: set[str]
    one_tied: bool
    parameters: int
    read: int
    # Relative differences to one process that has all micro-batches.
    norm: float
    gradients: float
    # With recomputed activations, and as where there is no room to keep or to hold anything.
    norm_thrifty: float
    scratch: str
    half: set[str]


def seen(shelf: Path, families: Sequence[str]) -> list[Seen]:
    """Observes each family in each layout that this world size allows."""
    found = [_seen(shelf / family, sharding) for family in families for sharding in LAYOUTS]
    leave_process_group(join_process_group(training(shelf / families[0], sharding="none")))
    return found


def _seen(folder: Path, sharding: Any) -> Seen:
    its = training(folder, sharding=sharding)
    world = join_process_group(its)
    engine = build_engine(its, world)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wrong = [name for name, value in plain.state_dict().items() if not torch.equal(whole(engine, name), value)]
    buffers = dict(engine.module.named_buffers())
    wrong_buffers = [
        name
        for name, value in plain.named_buffers()
        if value.dtype != buffers[name].dtype or not torch.equal(value, buffers[name])
    ]
    dtypes = {str(each.dtype) for each in engine.module.parameters()}
    norm = _reference(plain, world)
    ours = _backward(engine)
    gradients = max(_apart(_full(each.grad), other.grad) for each, other in _pairs(engine, plain))
    optimizer = build_optimizer(its, engine.module)
    clip_and_update_weights(optimizer, norm=engine.norm(), max_norm=1.0, learning_rate=1e-3)
    thrifty = replace(its, gradient_checkpointing=True)
    return Seen(
        family=folder.name,
        sharding=world.sharding,
        wrong=wrong,
        wrong_buffers=wrong_buffers,
        dtypes=dtypes,
        one_tied=engine.module.get_output_embeddings().weight is engine.module.get_input_embeddings().weight,
        parameters=len(list(engine.module.parameters())),
        read=engine.bytes_read,
        norm=ours / norm - 1,
        gradients=gradients,
        norm_thrifty=_backward(build_engine(thrifty, replace(world, keep=False, hold=False))) / norm - 1,
        scratch=_scratch(its, world),
        half=_half(its, world),
    )


def whole(engine: Engine, name: str) -> Tensor:
    return _full(engine.module.state_dict()[name])


def _full(tensor: Any) -> Tensor:
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def _batch(rank: int, number: int, vocabulary: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randint(3, vocabulary, (1 + (rank + number) % 2, LENGTH), generator=generator)


def _loss(model: Any, ids: Tensor) -> Tensor:
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
    found: Tensor = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    return found / 100


def _backward(engine: Engine) -> float:
    """One step's gradients, in two micro-batches of which ranks have different sizes."""
    for number in range(MICRO):
        engine.micro(last=number == MICRO - 1)
        ids = _batch(engine.world.rank, number, engine.module.config.vocab_size)
        (_loss(engine.model, ids) * engine.loss_factor).backward()
    return float(engine.norm())


def _reference(plain: Any, world: RankContext) -> float:
    for rank in range(world.size):
        for number in range(MICRO):
            _loss(plain, _batch(rank, number, plain.config.vocab_size)).backward()
    return float(torch.nn.utils.get_total_norm([each.grad for each in plain.parameters()]))


def _pairs(engine: Engine, plain: Any) -> list[tuple[Any, Any]]:
    return list(zip(engine.module.parameters(), plain.parameters(), strict=True))


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / (other.norm() + 1e-12))


def _scratch(its: Training, world: RankContext) -> str:
    """A hash over all new weights, whatever part of them is here."""
    engine = build_engine(replace(its, from_scratch=True), world)
    found = hashlib.sha256()
    for name in sorted(engine.module.state_dict()):
        found.update(whole(engine, name).contiguous().numpy().tobytes())
    return found.hexdigest()


def _half(its: Training, world: RankContext) -> set[str]:
    """With bf16: the types of weights, gradients, and of what comes out."""
    engine = build_engine(replace(its, bf16=True), world)
    ids = _batch(world.rank, 0, engine.module.config.vocab_size)
    engine.micro(last=True)
    out = engine.model(input_ids=ids, use_cache=False).logits
    out.float().sum().backward()
    kinds = {f"weight {each.dtype}" for each in engine.module.parameters()}
    return (
        kinds
        | {f"gradient {each.grad.dtype}" for each in engine.module.parameters() if each.grad is not None}
        | {f"logits {out.dtype}"}
    )


def gathered_apart(folder: Path, **changed: Any) -> tuple[list[str], list[str]]:
    """The units that FSDP gathers, without layers; and what it gathers and reduces in a step, in order."""
    its = training(folder, sharding="full", from_scratch=True, **changed)
    world = replace(join_process_group(its), keep=False, hold=False)
    engine = build_engine(its, world)
    names = {name or "root": each for name, each in engine.module.named_modules() if isinstance(each, FSDPModule)}
    calls: list[str] = []
    for name, unit in names.items():
        group = unit._get_fsdp_state()._fsdp_param_group
        assert group is not None
        for what in ("unshard", "post_backward"):
            short = name.removeprefix("model.").removeprefix("layers.")
            setattr(group, what, partial(_note, calls, f"{what} {short}", getattr(group, what), group))
    masks = build_masks(engine.module, torch.float32)
    with patch.dict(chunked_loss._ELEMENTS, cpu=7 * int(engine.module.config.vocab_size)):
        forward_micro_batch(engine, masks, _full_length_batch(its, masks)).backward()
    leave_process_group(world)
    return [name for name in names if ".layers." not in name], calls


def _note(calls: list[str], words: str, act: Callable[..., Any], group: Any, *args: Any) -> None:
    """Notes what happens to a unit; gathering, only if it begins by this call."""
    before = group._all_gather_result
    act(*args)
    if not words.startswith("unshard") or (before is None and group._all_gather_result is not None):
        calls.append(words)


# -- bytes ------------------------------------------------------------------------------------------------------------


def bytes_read(folder: Path, sharding: Any) -> tuple[int, int]:
    """What the engine says that it read, and what the kernel says that this process did."""
    its = training(folder, sharding=sharding)
    world = join_process_group(its)
    build_engine(its, world)
    before = _kernel()
    engine = build_engine(its, world)
    told = (engine.bytes_read, _kernel() - before)
    leave_process_group(world)
    return told


def _kernel() -> int:
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


# -- refusals ---------------------------------------------------------------------------------------------------------


def refusal(folder: Path, *, uneven: bool = False, own: bool = False) -> str:
    """How building it ends: the error's code and text. Nodes may be uneven, and each rank may have its own folder."""
    rank = int(os.environ["RANK"])
    if uneven:
        os.environ["LOCAL_WORLD_SIZE"] = "1" if rank == 2 else "2"
    its = training(folder / f"rank-{rank}" if own else folder, sharding="hybrid" if uneven else "none")
    try:
        build_engine(its, join_process_group(its))
    except AboardError as error:
        return f"{error.code}: {error.seen}"
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    return ""


def loads_as_transformers(folder: Path) -> tuple[list[str], tuple[str, ...]]:
    """Names whose values differ from an ordinary load's, and the engine's notes."""
    engine = build_engine(training(folder), join_process_group(training(folder)))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    wrong = [name for name, value in plain.state_dict().items() if not torch.equal(whole(engine, name), value)]
    return wrong, engine.notes


def made(folder: Path, kind: str, **fields: Any) -> None:
    """A model's directory with bf16 weights."""
    torch.manual_seed(5)
    config = AutoConfig.for_model(kind, **fields)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder, max_shard_size="60KB")


def pickled(folder: Path) -> None:
    """Its weights as they were saved before there were safetensors."""
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    torch.save(loaded.state_dict(), folder / "pytorch_model.bin")


def without_weights(folder: Path, kind: str, **fields: Any) -> None:
    """Only the config: enough for new weights, and for an estimate."""
    AutoConfig.for_model(kind, **fields).save_pretrained(folder)


def first_weights(folder: Path) -> dict[str, tuple[float, float]]:
    """Mean and deviation of each new tensor."""
    engine = build_engine(training(folder, from_scratch=True), join_process_group(training(folder)))
    return {name: (float(each.mean()), float(each.std())) for name, each in engine.module.named_parameters()}


# -- memory -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """The most bytes of model states that were told, and that were there."""

    family: str
    layout: str
    told: int
    measured: int


def estimated_and_measured(
    folder: Path, families: Sequence[str], nodes: tuple[int, ...], *, ample: bool = True, **changed: Any
) -> list[Weighed]:
    """Each family in each layout that this world has; with little room nothing is kept or held."""
    layouts = LAYOUTS if sum(nodes) > 1 else ("none",)
    trainings = [
        training(folder / family, sharding=sharding, from_scratch=True, **changed)
        for family in families
        for sharding in layouts
    ]
    found = [_weighed(each, _world(each, ample=ample), nodes) for each in trainings]
    leave_process_group(join_process_group(trainings[0]))
    return found


def _world(its: Training, *, ample: bool) -> RankContext:
    world = join_process_group(its)
    return world if ample else replace(world, keep=False, hold=False)


def _weighed(its: Training, world: RankContext, nodes: tuple[int, ...]) -> Weighed:
    told = estimate_memory(profile_model(its), its, nodes, sharding=world.sharding, keep=world.keep, hold=world.hold)
    meter = LiveByteCounter()
    with meter:
        engine = build_engine(its, world)
        optimizer = build_optimizer(its, engine.module)
        meter.peak = 0
        micro = its.micro_batches(world.size)
        for number in range(2 * micro):
            engine.micro(last=number % micro == micro - 1)
            # Few tokens: what is measured is states, and hardly any activations.
            ids = torch.zeros(1, 4, dtype=torch.int64)
            engine.model(input_ids=ids, use_cache=False).logits.float().sum().backward()
            if number % micro == micro - 1:
                clip_and_update_weights(optimizer, norm=engine.norm(), max_norm=1.0, learning_rate=1e-4)
    layout = f"{world.sharding} keep={world.keep} hold={world.hold} micro={micro}"
    return Weighed(family=Path(its.model).name, layout=layout, told=told.states, measured=meter.peak)


def peak_told_and_measured(folder: Path, nodes: tuple[int, ...], sharding: Any, **changed: Any) -> Weighed:
    """Of whole steps on sequences of full length, in which every token is supervised: states, activations, logits."""
    its = training(folder, sharding=sharding, from_scratch="adapter" not in changed, **changed)
    world = join_process_group(its)
    told = estimate_memory(profile_model(its), its, nodes, sharding=world.sharding, keep=world.keep, hold=world.hold)
    meter = LiveByteCounter()
    with meter:
        engine = build_engine(its, world)
        optimizer = build_optimizer(its, engine.module)
        masks = build_masks(engine.module, torch.bfloat16 if its.bf16 else torch.float32)
        meter.peak = 0
        micro = its.micro_batches(world.size)
        for number in range(2 * micro):
            engine.micro(last=number % micro == micro - 1)
            forward_micro_batch(engine, masks, _full_length_batch(its, masks)).backward()
            if number % micro == micro - 1:
                clip_and_update_weights(optimizer, norm=engine.norm(), max_norm=1.0, learning_rate=1e-4)
    leave_process_group(world)
    layout = f"{world.sharding} keep={world.keep} hold={world.hold} micro={micro}"
    return Weighed(family=Path(its.model).name, layout=layout, told=told.peak, measured=meter.peak)


def _full_length_batch(its: Training, masks: AttentionMasks) -> MicroBatch:
    """Two documents in each row, all supervised but their first tokens."""
    ids = np.arange(its.max_length, dtype=np.uint32) % 100
    mask = np.ones(its.max_length, bool)
    mask[[0, its.max_length // 2]] = False
    half = its.max_length // 2
    row = PackedSequence(
        ids=ids, mask=mask, lengths=(half, its.max_length - half), documents=(0, 1), supervised=its.max_length - 2
    )
    count = its.per_device_train_batch_size
    draws = [SequenceDraw(source="made", bin=number, epoch=0) for number in range(count)]
    keys = [compute_token_keys(its.seed, draw, its.max_length) for draw in draws] if _drops(its) else None
    return masks.collate()([row] * count, keys)


def _drops(its: Training) -> bool:
    return its.adapter is not None and its.adapter.dropout > 0


def activations_told_and_kept(folder: Path, *, half: bool = False, **changed: Any) -> tuple[int, int]:
    """Of one forward on a packed row: what was told, and what autograd keeps. `half` computes in bf16, as FSDP does."""
    its = training(folder, from_scratch="adapter" not in changed, gradient_accumulation_steps=1, **changed)
    engine = build_engine(its, join_process_group(its))
    if half:
        engine.module.bfloat16()
    precision: Precision = "half" if half else "autocast" if its.bf16 else "full"
    profile = profile_model(its)
    told = estimate_model_activations(profile, its, precision)
    masks = build_masks(engine.module, torch.bfloat16 if its.bf16 else torch.float32)
    batch = _full_length_batch(its, masks)
    if engine.dropout_keys is not None and batch.dropout_keys is not None:
        engine.dropout_keys.set(batch.dropout_keys, batch.keep)
    meter = LiveByteCounter()
    held: list[int] = []
    with meter:
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                inputs = masks.inputs(batch)
                loss = (engine.module if half else engine.model)(**inputs).logits[:, :1].float().sum()
                held.append(meter.now())
        loss.backward()
    # Without gradients there are the mask and views of all weights, too; autocast's copies of these are states.
    kept = held[1] - held[0] - 2 * profile.sizes.copied * (precision == "autocast")
    assert told is not None
    return told.saved_bytes(checkpointing=its.gradient_checkpointing) - told.masks, kept


def saved_told_and_kept(its: Training) -> tuple[str, int, int]:
    """Of one forward of packed rows: the attention that was chosen, what was told, and what is there at its end.

    Without weights, those that are gathered, and the copies of weights that autocast keeps.
    """
    world = replace(join_process_group(its), keep=False, hold=False)
    profile = profile_model(its)
    precision: Precision = "half" if world.mesh is not None else "autocast"
    told = estimate_model_activations(profile, its, precision if its.bf16 else "full")
    assert told is not None
    engine = build_engine(its, world)
    chosen = its.attn_implementation != "auto"
    masks = build_masks(engine.module, torch.bfloat16 if its.bf16 else torch.float32, world.device, chosen=chosen)
    micro = _full_length_batch(its, masks)
    meter = LiveByteCounter()
    with meter:
        loss = engine.model(**masks.inputs(micro.to(world.device))).logits[:, :1].float().sum()
        kept = meter.now()
        loss.backward()
    if world.mesh is not None:
        kept -= sum(each.nbytes for each in engine.module.parameters() if not isinstance(each, DTensor))
    elif not its.gradient_checkpointing:
        kept -= profile.sizes.copied * (2 if its.bf16 else 4)
    leave_process_group(world)
    return masks.attention, told.saved_bytes(checkpointing=its.gradient_checkpointing), kept


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What `auto` came to with so much room."""

    sharding: str
    keep: bool
    fits: bool
    peak: int
    total: int


def chosen(folder: Path, nodes: tuple[int, ...], rooms: Sequence[int], **changed: Any) -> list[Choice]:
    usual: dict[str, Any] = {"sharding": "auto", "bf16": True, "gradient_checkpointing": True}
    its = training(folder, **{**usual, "gradient_accumulation_steps": 1, **changed})
    about = profile_model(its)
    found = [(find_best_layout(about, its, nodes, room=room), room) for room in rooms]
    return [
        Choice(sharding=each.sharding, keep=each.keep, fits=each.fits(room), peak=each.peak, total=each.total)
        for each, room in found
    ]


def ran_out(folder: Path) -> tuple[str, str]:
    """What is said of a rank that ran out of GPU memory, as another process reads it: what was seen, and the fix."""
    its = training(
        folder, bf16=True, device="cuda", per_device_train_batch_size=4, gradient_accumulation_steps=1, max_length=4096
    )
    context = RankContext(rank=0, size=1, local_rank=0, device=torch.device("cuda", 0), sharding="none")
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.02 GiB is"
        " free. Including non-PyTorch memory, this process has 78.08 GiB memory in use.\nSee documentation"
    )
    read = read_error(explain_out_of_memory(torch.OutOfMemoryError(text), its, context).packed)
    assert read is not None
    return read.seen, str(read.fix)


@dataclass(frozen=True, kw_only=True)
class Advised:
    """Whether it fitted, what was said, and whether it fits with each change that was advised."""

    fitted: bool
    words: str
    says: str
    lines: list[str]
    after: list[bool]


def advised(folder: Path, nodes: tuple[int, ...], room: int, **changed: Any) -> Advised:
    usual: dict[str, Any] = {"sharding": "auto", "bf16": True, "gradient_accumulation_steps": 1, "max_length": 4096}
    its = training(folder, **{**usual, **changed})
    told = answer_request({"training": asdict(its), "ranks": dict(enumerate(nodes)), "memory": room})
    about = profile_model(its)
    changes_of = {change.typed: change.training for change in list_changes(its)}
    after = [changes_of[line.split("   #")[0]] for line in told["fits"]]
    return Advised(
        fitted=told["enough"],
        words=told["words"],
        says=told["says"],
        lines=told["fits"],
        after=[find_best_layout(about, each, nodes, room=room).fits(room) for each in after],
    )


def advised_line(folder: Path, nodes: tuple[int, ...], room: int) -> Advised:
    """The last line of the advice, and the same run with an adapter."""
    its = training(folder, sharding="auto", bf16=True, gradient_accumulation_steps=1, max_length=2048)
    told = answer_request({"training": asdict(its), "ranks": dict(enumerate(nodes)), "memory": room})
    options = dict(word.split("=") for word in told["fits"][-1].partition("   #")[0].split() if "=" in word)
    adapted = replace(
        its,
        adapter=Adapter(r=int(options["train.adapter.r"])),
        gradient_checkpointing="train.gradient_checkpointing" in options,
        chunked_loss="train.chunked_loss" in options,
    )
    again = answer_request({"training": asdict(adapted), "ranks": dict(enumerate(nodes)), "memory": room})
    return Advised(
        fitted=told["enough"], words=again["words"], says=told["says"], lines=told["fits"], after=[again["enough"]]
    )


def flops(folder: Path, length: int) -> float:
    its = training(folder, max_length=length)
    return count_flops_per_token(build_on_meta(its, torch.device("cpu")), length)


# -- export -----------------------------------------------------------------------------------------------------------


def saved_after_a_step(folder: Path, out: Path, sharding: Any, adapter: Adapter | None = None) -> dict[str, Tensor]:
    """Trains one step and saves; every whole tensor as the model has it then."""
    its = training(folder, sharding=sharding, gradient_accumulation_steps=1, output_dir=str(out), adapter=adapter)
    world = join_process_group(its)
    engine = build_engine(its, world)
    optimizer = build_optimizer(its, engine.module)
    engine.micro(last=True)
    _loss(engine.model, _batch(world.rank, 0, engine.module.config.vocab_size)).backward()
    clip_and_update_weights(optimizer, norm=engine.norm(), max_norm=1.0, learning_rate=1e-2)
    checkpoints = CheckpointManager(out, world, its, None)
    checkpoints.save(engine, optimizer, TrainingProgress(), wait=True)
    checkpoints.close()
    found = {name: whole(engine, name).clone() for name in engine.module.state_dict()}
    leave_process_group(world)
    return found


def exported(checkpoint: Path, out: Path, dtype: str | None) -> tuple[dict[str, Tensor], bool, str]:
    """What transformers loads of it, whether its head is tied, and the type that its config names."""
    code = main([str(checkpoint), str(out), *(["--dtype", dtype] if dtype else [])])
    loaded = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    tied = loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    return loaded.state_dict() if code == 0 else {}, tied, str(loaded.config.dtype)


def not_exported(checkpoint: Path, out: Path) -> str:
    """The error's code."""
    try:
        export_model(checkpoint, Path("/nowhere"), out)
    except AboardError as error:
        return error.code
    return ""


@dataclass(frozen=True, kw_only=True)
class ExportedAdapter:
    """An exported adapter as PEFT loads it, beside the trained model and Aboard's merge; differences are relative."""

    # The trained model's logits, compared with the loaded adapter's, and PEFT's merge with Aboard's.
    loaded: float
    merged: float
    # How far training has moved them from the base model's.
    moved: float
    # Tensors that PEFT itself would save, by name: those that differ from the exported file.
    differing: list[str]
    config: dict[str, Any]
    expected_config: dict[str, Any]
    merged_names: set[str]
    base_names: set[str]


def exported_adapter(folder: Path, out: Path, adapter: Adapter) -> ExportedAdapter:
    """Trains an adapter for three steps on one rank, and exports it both ways, from a checkpoint."""
    from peft import PeftModel  # noqa: PLC0415 - takes seconds, which only this case needs
    from safetensors.torch import load_file  # noqa: PLC0415 - as above

    its = training(folder, adapter=adapter, output_dir=str(out / "runs"), sharding="none")
    world = join_process_group(its)
    engine = build_engine(its, world)
    optimizer = build_optimizer(its, engine.module)
    ids = _batch(0, 0, engine.module.config.vocab_size)
    for step in range(3):
        engine.micro(last=True)
        _loss(engine.model, _batch(0, step, engine.module.config.vocab_size)).backward()
        clip_and_update_weights(optimizer, norm=engine.norm(), max_norm=1.0, learning_rate=3e-2)
        optimizer.zero_grad()
    checkpoints = CheckpointManager(out / "runs", world, its, None)
    checkpoints.save(engine, optimizer, TrainingProgress(step=3), wait=True)
    checkpoints.close()
    leave_process_group(world)
    [checkpoint] = (out / "runs").glob("step-*")
    for name, options in (("adapter", []), ("merged", ["--merge", "--dtype", "float32"])):
        if main([str(checkpoint), str(out / name), *options]):
            raise AssertionError(name)

    def logits(model: Any) -> Tensor:
        with torch.no_grad():
            found: Tensor = model.eval()(input_ids=ids).logits
        return found

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    first = logits(base)
    trained = logits(engine.module)
    loaded = PeftModel.from_pretrained(base, str(out / "adapter"))
    from_adapter = logits(loaded)
    loaded.save_pretrained(str(out / "peft"))
    merged = AutoModelForCausalLM.from_pretrained(out / "merged", dtype=torch.float32)
    from_merged = logits(merged)
    whole = logits(loaded.merge_and_unload())
    mine, theirs = (load_file(out / name / "adapter_model.safetensors") for name in ("adapter", "peft"))
    return ExportedAdapter(
        loaded=_relative(from_adapter, trained),
        merged=_relative(from_merged, whole),
        moved=_relative(trained, first),
        differing=[
            name
            for name in {**mine, **theirs}
            if name not in mine or name not in theirs or not mine[name].equal(theirs[name])
        ],
        config=json.loads((out / "adapter" / "adapter_config.json").read_text()),
        expected_config=json.loads((out / "peft" / "adapter_config.json").read_text()),
        merged_names=set(load_file(out / "merged" / "model.safetensors")),
        base_names=set(open_weights(folder)),
    )


def _relative(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def refused_export(checkpoint: Path, out: Path, options: list[str]) -> tuple[str, str]:
    """The code and the text of the error, as a reader of its reply gets them."""
    with redirect_stdout(StringIO()) as text:
        main([str(checkpoint), str(out), *options])
    error = unpack_error(json.loads(text.getvalue().splitlines()[-1])["error"])
    return ("", "") if error is None else (error.code, error.seen)
