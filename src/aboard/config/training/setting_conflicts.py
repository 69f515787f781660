"""Finds training settings that contradict each other, with the line and the reason."""

from collections.abc import Iterator

from aboard.config.config_loader import LoadedConfig
from aboard.config.schema.train_section import TrainSection
from aboard.config.training.data_settings import DataSettings
from aboard.diagnoses import Fix, Problem
from aboard.diagnoses.trainer import training

# Keys that belong to one schedule, and schedules that don't end at a learning rate of their own.
SCHEDULE_KEYS = {"decay_ratio": "wsd", "num_cycles": "cosine_with_restarts", "power": "polynomial"}
ENDLESS_SCHEDULES = ("constant", "inverse_sqrt")
ADAM_KEYS = ("adam_beta1", "adam_beta2", "adam_epsilon")


def find_conflicts(config: LoadedConfig, section: TrainSection, data: DataSettings) -> list[Problem]:
    """All conflicts that don't depend on the number of ranks; those are checked once the nodes are known."""
    conflicts = (
        *_check_alternatives(section),
        *_check_optimizer(section),
        *_check_schedule(section),
        *_check_evaluation(section, data),
        *_check_model(section),
        *_check_quantization(section),
        *_check_trackers(section),
    )
    return [Problem(where=config.where("train", key), seen=seen, fix=fix) for key, seen, fix in conflicts]


_Conflict = tuple[str, str, Fix]


def _check_alternatives(section: TrainSection) -> Iterator[_Conflict]:
    """Two keys that set the same thing."""
    if section.warmup_steps is not None and section.warmup_ratio is not None:
        seen = "train.warmup_steps and train.warmup_ratio both set the warmup"
        yield "warmup_ratio", seen, training.CONFIG.fix("one-warmup")
    if section.bf16 and section.fp16:
        yield "fp16", "train.bf16 and train.fp16 both set the precision", training.CONFIG.fix("one-precision")
    if section.chunked_loss and section.fp16:
        seen = "train.chunked_loss computes gradients before fp16's loss scale is applied, so small ones would vanish"
        yield "chunked_loss", seen, training.CONFIG.fix("chunks-precision")


def _check_optimizer(section: TrainSection) -> Iterator[_Conflict]:
    for key in ADAM_KEYS:
        if section.optim == "adafactor" and getattr(section, key) is not None:
            seen = f"train.{key} is a setting of AdamW, and the optimizer is adafactor"
            yield key, seen, training.CONFIG.fix("optimizer", optim="adamw")
    if section.optim == "muon" and section.adapter is not None:
        seen = "train.optim is muon, which orthogonalizes updates of whole matrices; an adapter trains factors of them"
        yield "optim", seen, training.CONFIG.fix("adapter-optimizer")
    if section.optim == "muon" and section.cpu_offload:
        seen = "train.cpu_offload runs the optimizer on the CPU, where the matrix products of muon would take too long"
        yield "cpu_offload", seen, training.CONFIG.fix("optimizer", optim="adamw")


def _check_schedule(section: TrainSection) -> Iterator[_Conflict]:
    kind = section.lr_scheduler_type or "cosine"
    for key, only in SCHEDULE_KEYS.items():
        if getattr(section, key) is not None and kind != only:
            seen = f"train.{key} only applies to {only}, and the schedule is {kind}"
            yield key, seen, training.CONFIG.fix("schedule", schedule=only)
    if section.min_lr_ratio is not None and kind in ENDLESS_SCHEDULES:
        seen = f"train.min_lr_ratio sets the final learning rate, but the schedule is {kind}"
        yield "min_lr_ratio", seen, training.CONFIG.fix("schedule", schedule="cosine")
    if section.warmup_steps is not None and section.max_steps is not None and section.warmup_steps >= section.max_steps:
        seen = f"train.warmup_steps is {section.warmup_steps}, but there are only {section.max_steps} steps"
        yield "warmup_steps", seen, training.CONFIG.fix("below", most=section.max_steps)
    warm, last = section.warmup_ratio or 0.0, section.decay_ratio or 0.0
    if kind == "wsd" and warm + last > 1:
        seen = f"the sum of train.warmup_ratio and train.decay_ratio is {warm + last:g}, more than 1"
        yield "decay_ratio", seen, training.CONFIG.fix("parts")
    if section.warmup_ratio == 1:
        seen = "train.warmup_ratio is 1, so training would end after the warmup"
        yield "warmup_ratio", seen, training.CONFIG.fix("part")


def _check_evaluation(section: TrainSection, data: DataSettings) -> Iterator[_Conflict]:
    for key in ("eval_steps", "per_device_eval_batch_size"):
        if getattr(section, key) is not None and not data.has_validation:
            fix = training.CONFIG.fix("validation", key=key)
            yield key, f"train.{key} is set, but there is no data.validation", fix
    for key in ("load_best_model_at_end", "early_stopping_patience"):
        if getattr(section, key) and (not data.has_validation or section.eval_steps is None):
            lack = "train.eval_steps is not set" if data.has_validation else "there is no data.validation"
            yield key, f"train.{key} compares evaluations, but {lack}", training.CONFIG.fix("evaluations", key=key)
    if section.early_stopping_threshold is not None and section.early_stopping_patience is None:
        seen = "train.early_stopping_threshold only applies to early stopping, and there is no early_stopping_patience"
        yield "early_stopping_threshold", seen, training.CONFIG.fix("patience")


def _check_model(section: TrainSection) -> Iterator[_Conflict]:
    if section.cpu_offload and section.sharding == "none":
        seen = "train.cpu_offload moves the shards of the model to host memory, but train.sharding is none"
        yield "cpu_offload", seen, training.CONFIG.fix("offload")
    if section.gradient_checkpointing == "selective" and section.torch_compile:
        seen = "train.gradient_checkpointing: selective chooses operations, which compiled layers no longer have"
        yield "gradient_checkpointing", seen, training.CONFIG.fix("selective")
    if section.from_scratch and section.resume not in (None, "auto", "none"):
        seen = "train.from_scratch starts with new weights, but train.resume specifies a checkpoint"
        yield "resume", seen, training.CONFIG.fix("resume")
    if section.from_scratch and section.adapter is not None:
        seen = "train.from_scratch starts with random weights, which an adapter would leave frozen"
        yield "adapter", seen, training.CONFIG.fix("adapter")


def _check_quantization(section: TrainSection) -> Iterator[_Conflict]:
    if section.adapter is None or not section.adapter.load_in_4bit:
        return
    if section.sharding in ("full", "hybrid"):
        seen = f"train.sharding is {section.sharding}, but weights of adapter.load_in_4bit can't be sharded: they are"
        yield "sharding", f"{seen} packed bytes with scales beside them", training.CONFIG.fix("quantized-sharding")
    if section.cpu_offload:
        seen = "train.cpu_offload moves shards to host memory, but weights of adapter.load_in_4bit can't be sharded"
        yield "cpu_offload", seen, training.CONFIG.fix("quantized", key="cpu_offload")
    if section.torch_compile:
        seen = "train.torch_compile has not been proven with the kernels of adapter.load_in_4bit"
        yield "torch_compile", seen, training.CONFIG.fix("quantized", key="torch_compile")


def _check_trackers(section: TrainSection) -> Iterator[_Conflict]:
    trackers = section.report_to or []
    for key, uses in (("run_name", ("wandb", "mlflow")), ("project", ("wandb", "mlflow"))):
        if getattr(section, key) is not None and not set(uses) & set(trackers):
            seen = f"train.{key} is set, but train.report_to has neither wandb nor mlflow"
            yield key, seen, training.CONFIG.fix("tracker", key=key)
    if "wandb" in trackers and set(section.project or "") & set(_WANDB_FORBIDDEN):
        seen = f"train.project has one of {' '.join(_WANDB_FORBIDDEN)}, which W&B does not allow"
        yield "project", seen, training.CONFIG.fix("project")


_WANDB_FORBIDDEN = "/\\#?%:"
