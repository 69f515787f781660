"""The section `train` of aboard.yaml. Names from Hugging Face's TrainingArguments have the same meaning here."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import Line, Lines, OrText, refuse_value
from aboard.core.plan.training_settings import Attention, Checkpointing, Optim, Schedule, Sharding, Tracker
from aboard.diagnoses.usage import configuration


def _check_limit(limit: int) -> int:
    if limit == 0:
        refuse_value("0 would keep no checkpoint", configuration.CONFIG.fix("kept"))
    return limit


def _split_trackers(value: object) -> object:
    """A single name is a list of one, and Hugging Face's `none` an empty list."""
    names = value if isinstance(value, list) else [value]
    if "all" in names:
        refuse_value(
            "Aboard reports to trackers that are named, not to all that happen to be installed",
            configuration.CONFIG.fix("train-write", line="report_to: [wandb, mlflow, tensorboard]"),
        )
    return [] if names == ["none"] else list(dict.fromkeys(map(str, names)))


def _read_optim(name: object) -> object:
    """Accepts transformers' names for the same optimizer; the last two are from torchao and bitsandbytes."""
    names = {"adamw_torch": "adamw", "adamw_torch_fused": "adamw"}
    return {**names, "adamw_torch_8bit": "adamw_8bit", "adamw_bnb_8bit": "adamw_8bit"}.get(str(name), name)


def _read_schedule(name: object) -> object:
    """Accepts transformers' names for the same schedule; refuses those that need more than a name."""
    if name in ("cosine_with_min_lr", "cosine_warmup_with_min_lr"):
        seen = f"'{name}' has a different name in Aboard"
        refuse_value(
            seen, configuration.CONFIG.fix("train-write", line="lr_scheduler_type: cosine, and min_lr_ratio: …")
        )
    if name == "reduce_lr_on_plateau":
        refuse_value(
            "'reduce_lr_on_plateau' is not supported: the learning rate would depend on evaluations instead of the step"
            " alone, so a resume could not be exact",
            configuration.CONFIG.fix("train-write", line="lr_scheduler_type: cosine, or wsd"),
        )
    return {"constant_with_warmup": "constant", "warmup_stable_decay": "wsd"}.get(str(name), name)


def _check_steps(steps: int) -> int | None:
    """-1 is HF's default: not set."""
    if steps == 0:
        refuse_value("0 would train nothing", configuration.CONFIG.fix("steps"))
    return None if steps == -1 else steps


Count = Annotated[int, Field(ge=1, le=10**12)]
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Epochs = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]
Steps = Annotated[int, Field(ge=-1, le=10**12), AfterValidator(_check_steps)]
Trackers = Annotated[list[Tracker], BeforeValidator(_split_trackers), OrText()]
CheckpointLimit = Annotated[int, Field(ge=0, le=10**6), AfterValidator(_check_limit)]


def _check_adapter_type(value: object) -> object:
    """Names of variants that other tools have as kinds of adapters."""
    keys = {"rslora": "use_rslora", "dora": "use_dora", "qlora": "load_in_4bit"}
    if isinstance(value, str) and value.lower() in keys:
        key = keys[value.lower()]
        refuse_value(
            f"{value.lower()} is an option of lora", configuration.CONFIG.fix("train-write", line=f"{key}: true")
        )
    return value


class AdapterSection(Section):
    """LoRA: trains small matrices beside the model's frozen weights."""

    type: Annotated[Literal["lora"] | None, BeforeValidator(_check_adapter_type)] = None
    """The kind of adapter; rsLoRA and DoRA are options of lora."""
    r: Annotated[int, Field(ge=1, le=65536)] | None = None
    """The rank of the matrices."""
    alpha: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] | None = None
    """The adapter's output is scaled by alpha / r. Default: twice r."""
    dropout: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)] | None = None
    """Dropout of the adapter's input, drawn per sample: losses don't depend on the number of ranks."""
    target_modules: Line | list[Line] | None = None
    """all-linear, a list of module names such as q_proj, or a regular expression for their full names."""
    modules_to_save: Lines | None = None
    """Modules that are trained in full and saved with the adapter, such as lm_head."""
    use_rslora: bool | None = None
    """Scale by alpha / √r instead, which keeps large ranks stable."""
    use_dora: bool | None = None
    """Train magnitudes and directions of weights separately (DoRA)."""
    base_dtype: Literal["auto", "float32", "bfloat16", "float16"] | None = None
    """The type of the frozen weights; auto is the type that the run computes in."""
    load_in_4bit: bool | None = None
    """Keep the frozen linear layers in 4 bits (QLoRA, NF4 with double quantization); only with replicas."""
    path: Line | None = None
    """A directory with a LoRA adapter to continue from, as PEFT saves it; it sets the keys above."""


class TrainSection(Section):
    """Training settings. `aboard train --print-config` shows the defaults."""

    model: Line | None = None
    """A model directory, or a Hugging Face Hub name (hub:NAME if it looks like a path), which is downloaded once."""
    from_scratch: bool | None = None
    """Use only the model's config.json, and start with new weights."""
    trust_remote_code: bool | None = None
    """Run Python code that comes with the model or the tokenizer, here and on every node."""
    output_dir: Line | None = None
    """The directory of checkpoints and metrics.jsonl, the same on every node. Relative paths start at this file."""
    num_train_epochs: Epochs | None = None
    """Number of passes over the data."""
    max_steps: Steps | None = None
    """Number of steps; overrides num_train_epochs. -1: not set."""
    per_device_train_batch_size: Count | None = None
    """Sequences per rank and micro-batch."""
    per_device_eval_batch_size: Count | None = None
    """Sequences per rank and micro-batch in an evaluation."""
    gradient_accumulation_steps: Count | None = None
    """Micro-batches per step on each rank."""
    global_batch_size: Count | None = None
    """Sequences per step across all ranks, for any number of ranks; sets the accumulation steps."""
    adapter: AdapterSection | None = None
    """Train a LoRA adapter instead of all weights."""
    optim: Annotated[Optim, BeforeValidator(_read_optim)] | None = None
    """The optimizer; muon uses AdamW for embeddings, the head, norms and biases."""
    learning_rate: Rate | None = None
    """The peak learning rate."""
    weight_decay: Rate | None = None
    """Weight decay of all weights except norms and biases."""
    adam_beta1: Beta | None = None
    """AdamW's decay rate of the first moment."""
    adam_beta2: Beta | None = None
    """AdamW's decay rate of the second moment."""
    adam_epsilon: Rate | None = None
    """AdamW's epsilon."""
    max_grad_norm: Rate | None = None
    """Gradients are clipped to this norm across all ranks; 0 disables clipping."""
    lr_scheduler_type: Annotated[Schedule, BeforeValidator(_read_schedule)] | None = None
    """The learning rate schedule after the warmup; wsd is constant, then decays to the end."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Steps over which the learning rate rises from 0."""
    warmup_ratio: Share | None = None
    """The warmup as a fraction of all steps."""
    min_lr_ratio: Share | None = None
    """The final learning rate as a fraction of the peak."""
    decay_ratio: Share | None = None
    """The fraction of all steps, at the end, over which wsd decays."""
    num_cycles: Count | None = None
    """How often cosine_with_restarts decays from the peak."""
    power: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    """The exponent of polynomial; 1 is linear."""
    gradient_checkpointing: Checkpointing | None = None
    """Recompute activations instead of storing them: less memory, a third more time; selective: only cheap ones."""
    chunked_loss: bool | None = None
    """Compute the output layer and the loss for some positions at a time: logits never exist as a whole."""
    bf16: bool | None = None
    """Compute in bfloat16; weights and sums stay in float32. Default: true on GPUs that support it, false on CPUs."""
    fp16: bool | None = None
    """Compute in float16 with a dynamic loss scale, for GPUs without bfloat16 such as V100 and T4."""
    attn_implementation: Attention | None = None
    """The attention implementation of transformers; auto uses the best available."""
    torch_compile: bool | None = None
    """Compile each decoder layer; the first step takes minutes. GPUs need Triton, CPUs a C++ compiler."""
    sharding: Sharding | None = None
    """full: across all ranks; hybrid: within a node; none: replicated on every rank; auto: the fastest that fits."""
    cpu_offload: bool | None = None
    """Keep weights, gradients and optimizer states in host memory, and step there; needs sharding other than none."""
    logging_steps: Count | None = None
    """Steps between lines of metrics."""
    eval_steps: Count | None = None
    """Steps between evaluations; there is always one at the end."""
    save_steps: Count | None = None
    """Steps between checkpoints; there is always one at the end."""
    save_total_limit: CheckpointLimit | None = None
    """How many checkpoints to keep; the newest valid one is always kept."""
    save_async: bool | None = None
    """Write checkpoints in the background while training continues."""
    load_best_model_at_end: bool | None = None
    """Save and keep the checkpoint with the lowest eval_loss; `aboard export RUN` exports it instead of the newest."""
    early_stopping_patience: Count | None = None
    """Stop after this many evaluations without a lower eval_loss."""
    early_stopping_threshold: Rate | None = None
    """An eval_loss must be lower by more than this to count as an improvement, for early stopping."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """The seed of the data order, new weights and dropout."""
    on_nonfinite: Literal["stop", "skip"] | None = None
    """When a loss or gradient is not finite: stop, or skip that step; it is reported in both cases."""
    resume: Line | None = None
    """auto: from the newest valid checkpoint in output_dir; none: from the start; or a checkpoint directory."""
    report_to: Trackers | None = None
    """Trackers that get the metrics: wandb, mlflow, tensorboard. Nothing of a run waits for them."""
    run_name: Line | None = None
    """The run's name in trackers. Default: the name of output_dir."""
    project: Line | None = None
    """W&B's project and MLflow's experiment. Default: the name of the model."""
