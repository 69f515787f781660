"""A reference training: one process, a document in each row, none of our code except the data order."""

from math import cos, pi, sqrt
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from aboard.core.plan.training_settings import Adapter, DataPart, Training
from aboard.trainer.data.sampling.packed_sequences import PackedSequences
from aboard.trainer.data.sampling.source_mixing import mix_sources
from aboard.trainer.data.store.token_shards import TokenShards
from aboard.trainer.weights.scratch_weights import seed_generator


def reference(training: Training, size: int) -> list[tuple[float, float]]:
    """Loss and gradient norm of each step of `size` bins, to `max_steps`."""
    return reference_of(training, [size] * (training.max_steps or 0))


def reference_of(training: Training, sizes: list[int], *, alone: bool = False) -> list[tuple[float, float]]:
    """Steps of so many bins each; one whose gradient isn't finite changes nothing.

    All documents of a step are rows of one batch, padded at their ends, which no token before them sees. With `alone`,
    the model gets one document at a time: the same numbers, but it takes six times as long.
    """
    attention = None if training.attn_implementation == "auto" else training.attn_implementation
    quantization = None
    if training.load_in_4bit:
        quantization = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
    model = AutoModelForCausalLM.from_pretrained(
        training.model, dtype=torch.float32, attn_implementation=attention, quantization_config=quantization
    )
    if training.adapter is not None:
        model = add_lora(model, training.adapter, training.seed)
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    decayed = [each for each in trained if each.ndim > 1]
    others = [each for each in trained if each.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": training.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(training.adam_beta1, training.adam_beta2),
        eps=training.adam_epsilon,
        foreach=False,
    )
    steps, at = len(sizes), 0
    found = []
    for step, size in enumerate(sizes):
        documents = documents_of(training.data, training.seed, range(at, at + size))
        at += size
        count = sum(int(mask.sum()) for _, mask in documents)
        total = 0.0
        for ids, mask in map(pad_documents, [[each] for each in documents] if alone else [documents]):
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            labels = ids.masked_fill(~mask, -100)[:, 1:]
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss / count).backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = training.learning_rate * 0.5 * (1 + cos(pi * step / steps))
        if norm.isfinite():
            optimizer.step()
        optimizer.zero_grad()
        found.append((total / count, norm.item()))
    return found


def add_lora(model: Any, adapter: Adapter, seed: int) -> Any:
    """PEFT's own model, with the first weights of our trainer."""
    from peft import LoraConfig, PeftModel, get_peft_model  # noqa: PLC0415 - it takes seconds

    if adapter.path is not None:
        return PeftModel.from_pretrained(model, adapter.path, is_trainable=True)
    targets = adapter.target_modules
    config = LoraConfig(
        r=adapter.r,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]  # PEFT divides it
        target_modules=targets if isinstance(targets, str) else list(targets),
        modules_to_save=list(adapter.modules_to_save) or None,
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(model, config)
    for name, weight in model.named_parameters():
        if ".lora_A." in name:
            generator = seed_generator(seed, name.removeprefix("base_model.model."))
            torch.nn.init.kaiming_uniform_(weight, a=sqrt(5), generator=generator)
    return model


def save_adapter(training: Training, folder: Path) -> None:
    """An adapter as PEFT saves it, with random weights in all of its tensors."""
    model = AutoModelForCausalLM.from_pretrained(training.model, dtype=torch.float32)
    assert training.adapter is not None
    model = add_lora(model, training.adapter, training.seed)
    generator = torch.Generator().manual_seed(3)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
    model.save_pretrained(folder)


def documents_of(parts: tuple[DataPart, ...], seed: int, indices: range) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The documents of the bins at these places, each with its mask."""
    sources = {part.name: PackedSequences(Path(part.bins), TokenShards(Path(part.shards))) for part in parts}
    order = mix_sources({name: len(bins) for name, bins in sources.items()}, seed)
    found = []
    for index in indices:
        draw = order(index)
        found += _documents(sources[draw.source], draw.bin)
    return found


def _documents(bins: PackedSequences, number: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    one = bins.bin(number)
    ids, mask = torch.from_numpy(one.ids.astype("int64")), torch.from_numpy(one.mask)
    return list(zip(ids.split(list(one.lengths)), mask.split(list(one.lengths)), strict=True))


def pad_documents(documents: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """A row for each document; what follows it is not supervised."""
    rows = zip(*documents, strict=True)
    ids, mask = (torch.nn.utils.rnn.pad_sequence(list(each), batch_first=True) for each in rows)
    return ids, mask


def loss_of(folder: str, part: DataPart) -> float:
    """The mean loss over the supervised tokens of all bins."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    bins = PackedSequences(Path(part.bins), TokenShards(Path(part.shards)))
    total, count = 0.0, 0
    with torch.no_grad():
        for number in range(len(bins)):
            ids, mask = pad_documents(_documents(bins, number))
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
            labels = ids.masked_fill(~mask, -100)[:, 1:]
            total += cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").item()
            count += int(mask.sum())
    return total / count


def references(asked: list[tuple[Training, int]]) -> list[list[tuple[float, float]]]:
    """Many of them, shared out among the ranks of a job: those of each rank."""
    import os  # noqa: PLC0415 - beside its only use

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return [reference(*each) for each in asked[rank::world]]
