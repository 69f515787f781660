"""The resolved settings of a training run as plain data, named as in HF's TrainingArguments."""

from collections.abc import Mapping
from typing import Any, Literal

from aboard.lazy_dataclass import dataclass

Sharding = Literal["auto", "full", "hybrid", "none"]
Schedule = Literal["cosine", "cosine_with_restarts", "linear", "polynomial", "inverse_sqrt", "constant", "wsd"]
Optim = Literal["adamw", "adafactor", "muon", "adamw_8bit"]
Precision = Literal["float32", "bfloat16", "float16"]
Checkpointing = bool | Literal["selective"]
Tracker = Literal["wandb", "mlflow", "tensorboard"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """One prepared data source: its directories of token shards and packed sequences; `weight` None mixes by size."""

    name: str
    shards: str
    bins: str
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA's settings: only the adapter is trained, and the base model's weights are frozen.

    `target_modules` is "all-linear", a pattern for whole module names, or a list of their last parts. `path` is an
    adapter to continue from. `base_dtype` "auto" is the type that the run computes in. `load_in_4bit` quantizes the
    linear modules of the layers (QLoRA).
    """

    r: int = 16
    alpha: float = 32.0
    dropout: float = 0.0
    target_modules: str | tuple[str, ...] = "all-linear"
    modules_to_save: tuple[str, ...] = ()
    use_rslora: bool = False
    use_dora: bool = False
    base_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    load_in_4bit: bool = False
    path: str | None = None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Adapter":
        """From the decoded JSON of `dataclasses.asdict`."""
        lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **lists})


@dataclass(frozen=True, kw_only=True)
class Training:
    """One fine-tuning or pre-training run; paths are those on the node that reads them.

    A step takes `per_device_train_batch_size` × `gradient_accumulation_steps` packed sequences per rank, or
    `global_batch_size` of all ranks together, from which accumulation then follows. `max_grad_norm` 0 disables
    clipping. Without `eval_steps` or `save_steps` it evaluates and saves only at the end. `tokenizer` goes into
    exports; None means the one next to the model. With `trust_remote_code`, code that comes with the model runs.
    """

    model: str
    from_scratch: bool = False
    trust_remote_code: bool = False
    tokenizer: str | None = None
    data: tuple[DataPart, ...]
    validation: tuple[DataPart, ...] = ()
    output_dir: str
    max_length: int
    num_train_epochs: float = 1.0
    max_steps: int | None = None
    per_device_train_batch_size: int = 1
    per_device_eval_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    global_batch_size: int | None = None
    adapter: Adapter | None = None
    optim: Optim = "adamw"
    learning_rate: float = 2e-5
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    lr_scheduler_type: Schedule = "cosine"
    warmup_steps: int = 0
    warmup_ratio: float = 0.0
    min_lr_ratio: float = 0.0
    decay_ratio: float = 0.1
    num_cycles: int = 1
    power: float = 1.0
    gradient_checkpointing: Checkpointing = False
    chunked_loss: bool = False
    bf16: bool = True
    fp16: bool = False
    attn_implementation: Attention = "auto"
    torch_compile: bool = False
    sharding: Sharding = "auto"
    cpu_offload: bool = False
    logging_steps: int = 10
    eval_steps: int | None = None
    save_steps: int | None = None
    save_total_limit: int | None = None
    save_async: bool = True
    load_best_model_at_end: bool = False
    early_stopping_patience: int | None = None
    early_stopping_threshold: float = 0.0
    seed: int = 42
    on_nonfinite: Literal["stop", "skip"] = "stop"
    resume: str = "auto"
    report_to: tuple[Tracker, ...] = ()
    run_name: str | None = None
    project: str | None = None

    @property
    def precision(self) -> Precision:
        """The type that forward and backward compute in; weights that are trained stay in float32."""
        return "float16" if self.fp16 else "bfloat16" if self.bf16 else "float32"

    @property
    def base_dtype(self) -> Precision:
        """The type that frozen weights are kept in."""
        if self.adapter is None:
            return "float32"
        return self.precision if self.adapter.base_dtype == "auto" else self.adapter.base_dtype

    @property
    def load_in_4bit(self) -> bool:
        """Whether the frozen linear layers are quantized; quantized weights can't be sharded."""
        return self.adapter is not None and self.adapter.load_in_4bit

    def list_directories(self) -> list[str]:
        """All directories that a rank reads and writes."""
        data = [path for part in (*self.data, *self.validation) for path in (part.shards, part.bins)]
        resume = [] if self.resume in ("auto", "none") else [self.resume]
        tokenizer = [] if self.tokenizer is None else [self.tokenizer]
        adapter = [] if self.adapter is None or self.adapter.path is None else [self.adapter.path]
        return list(dict.fromkeys([self.model, *tokenizer, *adapter, *data, self.output_dir, *resume]))

    def step_size(self, world: int) -> int:
        """The packed sequences of one step over all ranks."""
        return self.global_batch_size or self.per_device_train_batch_size * self.gradient_accumulation_steps * world

    def total_sequences(self, world: int, sequences: int) -> int:
        """The sequences of the whole run, given those of an epoch; a final half epoch counts half."""
        if self.max_steps is not None:
            return self.max_steps * self.step_size(world)
        return max(1, round(self.num_train_epochs * sequences))

    def micro_batches(self, world: int) -> int:
        """The micro-batches of a rank in one step; the last may be smaller, or empty."""
        return -(-self.step_size(world) // (self.per_device_train_batch_size * world))

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Training":
        """From the decoded JSON of `dataclasses.asdict`."""
        parts = {name: tuple(DataPart(**each) for each in content[name]) for name in ("data", "validation")}
        adapter = content.get("adapter")
        trackers = tuple(content.get("report_to", ()))
        return cls(**{**content, **parts, "adapter": adapter and Adapter.of(adapter), "report_to": trackers})
