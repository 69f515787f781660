"""The section `train` of aboard.yaml. A name that is also one of HF's TrainingArguments means the same here."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import Line, refuse_value
from aboard.core.plan.training_settings import Attention, Schedule, Sharding
from aboard.diagnoses.usage import configuration


def _check_limit(limit: int) -> int:
    if limit == 0:
        refuse_value("0 would keep no checkpoint at all", configuration.CONFIG.fix("kept"))
    return limit


Count = Annotated[int, Field(ge=1, le=10**12)]
Rate = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Beta = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Epochs = Annotated[float, Field(ge=1e-9, le=1e6, allow_inf_nan=False)]
CheckpointLimit = Annotated[int, Field(ge=0, le=10**6), AfterValidator(_check_limit)]


class TrainSection(Section):
    """How a model is trained. What is left out has a default: `aboard train --print-config` shows all of them."""

    model: Line | None = None
    """A directory with a model, or a name of the hub, which is fetched once, before ranks exist."""
    from_scratch: bool | None = None
    """Take the model's config.json only, and begin with new weights."""
    output_dir: Line | None = None
    """Where checkpoints and metrics.jsonl go: the same path on every node. A relative one starts at this file."""
    num_train_epochs: Epochs | None = None
    """How often all of the data is gone through."""
    max_steps: Count | None = None
    """How many steps, instead of epochs."""
    per_device_train_batch_size: Count | None = None
    """Sequences that one rank takes at once."""
    per_device_eval_batch_size: Count | None = None
    """The same, of an evaluation."""
    gradient_accumulation_steps: Count | None = None
    """How many such batches make one step of a rank."""
    global_batch_size: Count | None = None
    """Sequences of one step over all ranks, however many there are; accumulation then follows from it."""
    learning_rate: Rate | None = None
    """The highest learning rate, of AdamW."""
    weight_decay: Rate | None = None
    """Of all weights but norms and biases."""
    adam_beta1: Beta | None = None
    """AdamW's decay of the mean of gradients."""
    adam_beta2: Beta | None = None
    """AdamW's decay of the mean of their squares."""
    adam_epsilon: Rate | None = None
    """AdamW's epsilon."""
    max_grad_norm: Rate | None = None
    """Gradients whose norm over all ranks is larger are scaled down to it; 0 leaves them alone."""
    lr_scheduler_type: Schedule | None = None
    """How the learning rate goes on after the warmup; wsd stays, then decays to the end."""
    warmup_steps: Annotated[int, Field(ge=0, le=10**12)] | None = None
    """Steps in which the learning rate rises from 0."""
    warmup_ratio: Share | None = None
    """The same, as a part of all steps."""
    min_lr_ratio: Share | None = None
    """Where the learning rate ends, as a part of the highest."""
    decay_ratio: Share | None = None
    """The last part of all steps, in which wsd decays."""
    gradient_checkpointing: bool | None = None
    """Compute activations twice instead of keeping them: less memory, a third more time."""
    bf16: bool | None = None
    """Compute in bfloat16; weights and sums stay in float32. Without it, true on GPUs that can and false on CPUs."""
    attn_implementation: Attention | None = None
    """The attention of transformers; auto takes the best that is there."""
    sharding: Sharding | None = None
    """full: over all ranks; hybrid: within a node; none: each rank has all; auto: the fastest that fits."""
    logging_steps: Count | None = None
    """A line of metrics every so many steps."""
    eval_steps: Count | None = None
    """An evaluation every so many steps, and one at the end."""
    save_steps: Count | None = None
    """A checkpoint every so many steps, and one at the end."""
    save_total_limit: CheckpointLimit | None = None
    """How many checkpoints are kept; the newest good one always is."""
    save_async: bool | None = None
    """Write checkpoints while training goes on."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    """Of the order of the data, of new weights and of dropout."""
    on_nonfinite: Literal["stop", "skip"] | None = None
    """When a loss or gradient is not finite: stop, or leave that step out; it is named in both cases."""
    resume: Line | None = None
    """auto: from the newest good checkpoint of output_dir; none: from the start; or a checkpoint's directory."""
    tensorboard: bool | None = None
    """Write TensorBoard's files beside metrics.jsonl."""
