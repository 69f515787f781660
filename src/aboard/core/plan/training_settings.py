"""The settings of a training run, named as in HF's TrainingArguments: each is declared here, and nowhere else.

A field with its type and default is what ranks get. Its declaration (`declared_setting.py`) is what the schema,
validation, `--print-config`, resumes, consent and the memory advice know about it; `setting_conflicts.py` beside this
file has the rules between settings.
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from aboard.core.plan.declared_setting import RefusedValue, collect_settings, declare_setting, setting
from aboard.lazy_dataclass import dataclass

Sharding = Literal["auto", "full", "hybrid", "none"]
Schedule = Literal["cosine", "cosine_with_restarts", "linear", "polynomial", "inverse_sqrt", "constant", "wsd"]
Optim = Literal["adamw", "adafactor", "muon", "adamw_8bit"]
Precision = Literal["float32", "bfloat16", "float16"]
Checkpointing = bool | Literal["selective"]
SaveSteps = int | Literal["auto"] | None
Tracker = Literal["wandb", "mlflow", "tensorboard"]
# The head turns `auto` into `cuda` where nodes have GPUs.
Device = Literal["auto", "cpu", "cuda"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]

DEFAULT_OUTPUT_DIR = "output"


@dataclass(frozen=True, kw_only=True)
class DataPart:
    """One prepared data source: its directories of token shards and packed sequences; `weight` None mixes by size."""

    name: str
    shards: str
    bins: str
    weight: float | None = None


COUNT = {"ge": 1, "le": 10**12}
RATE = {"ge": 0, "le": 1e6}
SHARE = {"ge": 0, "le": 1}
BETA = {"ge": 0, "lt": 1}

_OTHER_ADAPTER = "an adapter of different tensors would make it a different run"
_SCALE = "it scales the adapter's output, so the model would suddenly compute something else"


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """LoRA's settings: only the adapter is trained, and the base model's weights are frozen.

    `target_modules` is "all-linear", a pattern for whole module names, or a list of their last parts. `path` is an
    adapter to continue from. `base_dtype` "auto" is the type that the run computes in. `load_in_4bit` quantizes the
    linear modules of the layers (QLoRA).
    """

    r: int = setting(
        "The rank of the matrices.",
        default=16,
        within={"ge": 1, "le": 65536},
        theirs="lora_r lora_rank rank",
        at_resume=_OTHER_ADAPTER,
    )
    alpha: float = setting(
        "The adapter's output is scaled by alpha / r. Default: twice r.",
        default=32.0,
        within={"gt": 0, "le": 1e6},
        theirs="lora_alpha",
        at_resume=_SCALE,
    )
    dropout: float = setting(
        "Dropout of the adapter's input, drawn per sample: losses don't depend on the number of ranks.",
        default=0.0,
        within=BETA,
        theirs="lora_dropout",
    )
    target_modules: str | tuple[str, ...] = setting(
        "all-linear, a list of module names such as q_proj, or a regular expression for their full names.",
        default="all-linear",
        theirs="lora_target lora_target_modules",
        hints={"lora_target_linear": "target_modules: all-linear"},
        at_resume=_OTHER_ADAPTER,
        consent="label",
    )
    modules_to_save: tuple[str, ...] = setting(
        "Modules that are trained in full and saved with the adapter, such as lm_head.",
        default=(),
        theirs="lora_modules_to_save additional_target",
        at_resume=_OTHER_ADAPTER,
        consent="label",
    )
    use_rslora: bool = setting(
        "Scale by alpha / √r instead, which keeps large ranks stable.",
        default=False,
        theirs="use_rslora peft_use_rslora",
        at_resume=_SCALE,
        consent="harmless",
    )
    use_dora: bool = setting(
        "Train magnitudes and directions of weights separately (DoRA).",
        default=False,
        theirs="use_dora peft_use_dora",
        at_resume=_OTHER_ADAPTER,
        consent="harmless",
    )
    base_dtype: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "The type of the frozen weights; auto is the type that the run computes in.", default="auto", consent="harmless"
    )
    load_in_4bit: bool = setting(
        "Keep the frozen linear layers in 4 bits (QLoRA, NF4 with double quantization); only with replicas.",
        default=False,
        theirs="load_in_4bit",
        at_resume="its weights are rounded differently, so it is an adapter of another model",
        consent="harmless",
    )
    path: str | None = setting(
        "A directory with a LoRA adapter to continue from, as PEFT saves it; it sets the keys above.",
        default=None,
        hints=dict.fromkeys(("lora_model_dir", "adapter_name_or_path"), "path: DIR"),
        consent="path",
    )

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> "Adapter":
        """From the decoded JSON of `dataclasses.asdict`."""
        lists = {name: tuple(value) for name, value in content.items() if isinstance(value, list)}
        return cls(**{**content, **lists})


ADAPTER_SETTINGS = collect_settings(Adapter)
_ADAPTER_LINE = "adapter: {r: 16, alpha: 32}"
_SHARDING_LINE = "sharding: full, hybrid, none or auto"


@dataclass(frozen=True, kw_only=True)
class Training:
    """One fine-tuning or pre-training run; paths are those on the node that reads them.

    A step takes `per_device_train_batch_size` × `gradient_accumulation_steps` packed sequences per rank, or
    `global_batch_size` of all ranks together, from which accumulation then follows. `max_grad_norm` 0 disables
    clipping. Without `eval_steps` or `save_steps` it evaluates and saves only at the end. `tokenizer` goes into
    exports; None means the one next to the model. With `trust_remote_code`, code that comes with the model runs.
    """

    model: str = field(
        metadata=declare_setting(
            "A model directory, or a Hugging Face Hub name (hub:NAME if it looks like a path), which is downloaded"
            " once.",
            theirs="model_name_or_path base_model",
            at_resume=None,
            consent="path",
        )
    )
    from_scratch: bool = setting(
        "Use only the model's config.json, and start with new weights.", default=False, consent="harmless"
    )
    trust_remote_code: bool = setting(
        "Run Python code that comes with the model or the tokenizer, here and on every node.",
        default=False,
        consent="model code",
    )
    tokenizer: str | None = setting(default=None, section="data", at_resume=None)
    data: tuple[DataPart, ...] = field(metadata=declare_setting(section="data", at_resume=None))
    validation: tuple[DataPart, ...] = setting(default=(), section="data")
    output_dir: str = field(
        metadata=declare_setting(
            "The directory of checkpoints and metrics.jsonl, the same on every node. Relative paths start at this"
            " file.",
            hints={"logging_dir": "output_dir: …; TensorBoard files go there"},
            at_resume=None,
            consent="output",
            origin="default, next to the file",
        )
    )
    max_length: int = field(
        metadata=declare_setting(
            section="data",
            at_resume="sequences were packed for a different length, so the data position would be wrong",
        )
    )
    num_train_epochs: float = setting(
        "Number of passes over the data.", default=1.0, within={"ge": 1e-9, "le": 1e6}, theirs="epochs"
    )
    max_steps: int | None = setting(
        "Number of steps; overrides num_train_epochs. -1: not set.",
        default=None,
        within={"ge": -1, "le": 10**12},
        their_values={-1: None},
        refused_values={0: RefusedValue("0 would train nothing", "steps")},
        alternative="num_train_epochs",
    )
    per_device_train_batch_size: int = setting(
        "Sequences per rank and micro-batch.",
        default=1,
        within=COUNT,
        theirs="micro_batch_size",
        hints={"batch_size": "per_device_train_batch_size: …, or global_batch_size: … across all ranks"},
    )
    per_device_eval_batch_size: int = setting(
        "Sequences per rank and micro-batch in an evaluation.", default=1, within=COUNT
    )
    gradient_accumulation_steps: int = setting("Micro-batches per step on each rank.", default=1, within=COUNT)
    global_batch_size: int | None = setting(
        "Sequences per step across all ranks, for any number of ranks; sets the accumulation steps.",
        default=None,
        within=COUNT,
        alternative="gradient_accumulation_steps",
    )
    adapter: Adapter | None = setting(
        "Train a LoRA adapter instead of all weights.",
        default=None,
        hints={
            **dict.fromkeys(("lora", "peft", "lora_config", "peft_config", "use_peft"), _ADAPTER_LINE),
            "qlora": "adapter: {r: 16, alpha: 32, load_in_4bit: true}",
            "finetuning_type": f"{_ADAPTER_LINE}; without `adapter`, all weights are trained",
        },
        at_resume=None,
    )
    optim: Optim = setting(
        "The optimizer; muon uses AdamW for embeddings, the head, norms and biases.",
        consent="harmless",
        default="adamw",
        hints={"adafactor": "optim: adafactor"},
        # The last two are from torchao and bitsandbytes.
        their_values={
            **dict.fromkeys(("adamw_torch", "adamw_torch_fused"), "adamw"),
            **dict.fromkeys(("adamw_torch_8bit", "adamw_bnb_8bit"), "adamw_8bit"),
        },
        at_resume="the checkpoint has the state of another optimizer, and without one training would start over",
    )
    learning_rate: float = setting("The peak learning rate.", default=2e-5, within=RATE, theirs="lr")
    weight_decay: float = setting("Weight decay of all weights except norms and biases.", default=0.0, within=RATE)
    adam_beta1: float = setting("AdamW's decay rate of the first moment.", default=0.9, within=BETA)
    adam_beta2: float = setting("AdamW's decay rate of the second moment.", default=0.95, within=BETA)
    adam_epsilon: float = setting("AdamW's epsilon.", default=1e-8, within=RATE)
    max_grad_norm: float = setting(
        "Gradients are clipped to this norm across all ranks; 0 disables clipping.", default=1.0, within=RATE
    )
    lr_scheduler_type: Schedule = setting(
        "The learning rate schedule after the warmup; wsd is constant, then decays to the end.",
        consent="harmless",
        default="cosine",
        hints={
            "lr_scheduler_kwargs": "min_lr_ratio: … (for min_lr, min_lr_rate, lr_end), num_cycles: …"
            " (cosine_with_restarts), power: … (polynomial) or decay_ratio: … (for num_decay_steps of wsd)"
        },
        their_values={"constant_with_warmup": "constant", "warmup_stable_decay": "wsd"},
        refused_values={
            **{
                name: RefusedValue(
                    f"'{name}' has a different name in Aboard", line="lr_scheduler_type: cosine, and min_lr_ratio: …"
                )
                for name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr")
            },
            "reduce_lr_on_plateau": RefusedValue(
                "'reduce_lr_on_plateau' is not supported: the learning rate would depend on evaluations instead of the"
                " step alone, so a resume could not be exact",
                line="lr_scheduler_type: cosine, or wsd",
            ),
        },
    )
    warmup_steps: int = setting(
        "Steps over which the learning rate rises from 0.", default=0, within={"ge": 0, "le": 10**12}
    )
    warmup_ratio: float = setting(
        "The warmup as a fraction of all steps.", default=0.0, within=SHARE, alternative="warmup_steps"
    )
    min_lr_ratio: float = setting("The final learning rate as a fraction of the peak.", default=0.0, within=SHARE)
    decay_ratio: float = setting(
        "The fraction of all steps, at the end, over which wsd decays.", default=0.1, within=SHARE
    )
    num_cycles: int = setting("How often cosine_with_restarts decays from the peak.", default=1, within=COUNT)
    power: float = setting("The exponent of polynomial; 1 is linear.", default=1.0, within={"gt": 0, "le": 100})
    gradient_checkpointing: Checkpointing = setting(
        "Recompute activations instead of storing them: less memory, a third more time; selective: only cheap ones.",
        default=False,
        consent="harmless",
    )
    chunked_loss: bool = setting(
        "Compute the output layer and the loss for some positions at a time: logits never exist as a whole.",
        default=False,
        consent="harmless",
    )
    device: Device = setting(
        "auto: GPUs if the nodes have any, and then all must work; cpu: CPUs in any case; cuda: GPUs or nothing.",
        default="auto",
        hints=dict.fromkeys(("use_cpu", "no_cuda"), "device: cpu"),
        consent="harmless",
    )
    bf16: bool = setting(
        "Compute in bfloat16; weights and sums stay in float32. Default: true on GPUs that support it, false on CPUs.",
        default=True,
        hints=dict.fromkeys(("torch_dtype", "dtype"), "bf16: true, fp16: true, or bf16: false for float32"),
        consent="harmless",
        origin="default: true on GPUs that support it, false on CPUs",
    )
    fp16: bool = setting(
        "Compute in float16 with a dynamic loss scale, for GPUs without bfloat16 such as V100 and T4.",
        default=False,
        consent="harmless",
    )
    tf32: bool = setting(
        "Round the factors of float32 matrix products to TF32 on GPUs: faster and less exact. bf16 doesn't need it.",
        default=False,
        consent="harmless",
    )
    attn_implementation: Attention = setting(
        "The attention implementation of transformers; auto uses the best available.",
        default="auto",
        consent="harmless",
    )
    torch_compile: bool = setting(
        "Compile each decoder layer; the first step takes minutes. GPUs need Triton, CPUs a C++ compiler.",
        default=False,
        consent="harmless",
    )
    sharding: Sharding = setting(
        "full: across all ranks; hybrid: within a node; none: replicated on every rank; auto: the fastest that fits.",
        consent="harmless",
        default="auto",
        hints={
            **dict.fromkeys(("fsdp", "fsdp_config"), f"{_SHARDING_LINE}; cpu_offload: true for offload"),
            **dict.fromkeys(("parallelism_config", "accelerator_config"), _SHARDING_LINE),
        },
    )
    reduce_dtype: Literal["float32", "bfloat16"] = setting(
        "How sharded gradients are sent and summed; bfloat16 halves the traffic, and rounds every sum.",
        default="float32",
        consent="harmless",
    )
    prefetch_layers: int = setting(
        "With sharding, how many layers are gathered ahead; more hides a slow network and takes more memory.",
        default=1,
        within={"ge": 1, "le": 8},
        consent="harmless",
    )
    cpu_offload: bool = setting(
        "Keep weights, gradients and optimizer states in host memory, and step there; needs sharding other than none.",
        default=False,
        consent="harmless",
    )
    logging_steps: int = setting(
        "Steps between lines of metrics.", default=10, within=COUNT, hints={"logging_strategy": "logging_steps: N"}
    )
    eval_steps: int | None = setting(
        "Steps between evaluations; there is always one at the end.",
        default=None,
        within=COUNT,
        hints=dict.fromkeys(
            ("eval_strategy", "evaluation_strategy"), "eval_steps: N; without it there is one evaluation, at the end"
        ),
        origin="default: at the end",
    )
    save_steps: SaveSteps = setting(
        "Steps between checkpoints; there is always one at the end. auto: by the cost of a save and the failures.",
        default=None,
        within=COUNT,
        hints={"save_strategy": "save_steps: N; without it there is one checkpoint, at the end"},
        origin="default: at the end",
    )
    save_total_limit: int | None = setting(
        "How many checkpoints to keep; the newest valid one is always kept.",
        default=None,
        within={"ge": 0, "le": 10**6},
        refused_values={0: RefusedValue("0 would keep no checkpoint", "kept")},
        origin="default: keep all",
    )
    save_async: bool = setting(
        "Write checkpoints in the background while training continues.", default=True, consent="harmless"
    )
    checkpoint_copies: int = setting(
        "Where a part of a checkpoint is on one disk only, copy it to this many other disks; 0 copies nothing.",
        default=1,
        within={"ge": 0, "le": 1},
    )
    checkpoint_copy_rate: float = setting(
        "How fast each node copies parts of checkpoints to another, at most, in MB per second.",
        default=200.0,
        within={"ge": 0.1, "le": 1e6},
    )
    load_best_model_at_end: bool = setting(
        "Save and keep the checkpoint with the lowest eval_loss; `aboard export RUN` exports it instead of the newest.",
        default=False,
        consent="harmless",
    )
    early_stopping_patience: int | None = setting(
        "Stop after this many evaluations without a lower eval_loss.", default=None, within=COUNT
    )
    early_stopping_threshold: float = setting(
        "An eval_loss must be lower by more than this to count as an improvement, for early stopping.",
        default=0.0,
        within=RATE,
    )
    seed: int = setting(
        "The seed of the data order, new weights and dropout.",
        default=42,
        within={"ge": 0, "lt": 2**32},
        hints={"data_seed": "seed: …, which also sets the data order"},
        at_resume="it determines the data order: some samples would repeat, others would be skipped",
    )
    on_nonfinite: Literal["stop", "skip"] = setting(
        "When a loss or gradient is not finite: stop, or skip that step; it is reported in both cases.",
        default="stop",
        consent="harmless",
    )
    resume: str = setting(
        "auto: from the newest valid checkpoint in output_dir; none: from the start; or a checkpoint directory.",
        default="auto",
        hints={"resume_from_checkpoint": "resume: auto, none, or a checkpoint directory"},
        at_resume=None,
        consent="path",
    )
    report_to: tuple[Tracker, ...] = setting(
        "Trackers that get the metrics: wandb, mlflow, tensorboard. Nothing of a run waits for them.",
        consent="harmless",
        default=(),
        hints={"tensorboard": "report_to: tensorboard"},
        refused_values={
            "all": RefusedValue(
                "Aboard reports to trackers that are named, not to all that happen to be installed",
                line="report_to: [wandb, mlflow, tensorboard]",
            )
        },
    )
    run_name: str | None = setting(
        "The run's name in trackers. Default: the name of output_dir.", default=None, consent="tracker"
    )
    project: str | None = setting(
        "W&B's project and MLflow's experiment. Default: the name of the model.",
        default=None,
        theirs="wandb_project",
        consent="tracker",
    )

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

    @property
    def copy_bytes_per_second(self) -> float:
        return self.checkpoint_copy_rate * 1e6

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


SETTINGS = collect_settings(Training)
# Those of the section `train`.
TRAIN_SETTINGS = {name: each for name, each in SETTINGS.items() if each.section == "train"}
