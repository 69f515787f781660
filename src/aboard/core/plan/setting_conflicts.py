"""The rules between settings of `train`: which has no effect, or can't be, because of another one."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class SettingConflict(NamedTuple):
    """A setting that has no effect: it is refused if it is set, else printed as not used.

    `fix` is one of the diagnosis `train-config`. Without `seen` it is not refused, without `unused` not printed so.
    """

    key: str
    seen: str = ""
    fix: str = "keep-one"
    values: Mapping[str, str | int] = MappingProxyType({})
    unused: str = ""


def find_conflicts(given: Any, *, has_validation: bool) -> Iterator[SettingConflict]:
    """All that don't depend on the number of ranks; `given` has the settings of the file, None where not set."""
    yield from _find_alternatives(given)
    yield from _find_optimizer_conflicts(given)
    yield from _find_schedule_conflicts(given)
    yield from _find_evaluation_conflicts(given, has_validation=has_validation)
    yield from _find_model_conflicts(given)
    if given.adapter is not None and given.adapter.load_in_4bit:
        yield from _find_quantization_conflicts(given)
    yield from _find_tracker_conflicts(given)


def _find_alternatives(given: Any) -> Iterator[SettingConflict]:
    """Two keys that set the same thing."""
    if given.max_steps is not None:
        yield SettingConflict("num_train_epochs", unused="not used: max_steps is set")
    if given.global_batch_size is not None:
        unused = "derived from global_batch_size and the number of ranks"
        yield SettingConflict("gradient_accumulation_steps", unused=unused)
    other_warmup = "not used: the other warmup key is used"
    yield SettingConflict("warmup_steps" if given.warmup_ratio is not None else "warmup_ratio", unused=other_warmup)
    if given.warmup_steps is not None:
        yield SettingConflict("warmup_ratio", "train.warmup_steps and train.warmup_ratio both set the warmup")
    if given.bf16:
        yield SettingConflict("fp16", "train.bf16 and train.fp16 both set the precision", "one-precision")
    if given.fp16:
        yield SettingConflict("bf16", unused="not used: fp16 is set")
        seen = "train.chunked_loss computes gradients before fp16's loss scale is applied, so small ones would vanish"
        yield SettingConflict("chunked_loss", seen, "chunks-precision")


def _find_optimizer_conflicts(given: Any) -> Iterator[SettingConflict]:
    adamw = {"optim": "adamw"}
    for key in ("adam_beta1", "adam_beta2", "adam_epsilon") if given.optim == "adafactor" else ():
        seen = f"train.{key} is a setting of AdamW, and the optimizer is adafactor"
        yield SettingConflict(key, seen, "optimizer", adamw, "not used: the optimizer is adafactor")
    if given.optim == "muon" and given.adapter is not None:
        seen = "train.optim is muon, which orthogonalizes updates of whole matrices; an adapter trains factors of them"
        yield SettingConflict("optim", seen, "adapter-optimizer")
    if given.optim == "muon":
        seen = "train.cpu_offload runs the optimizer on the CPU, where the matrix products of muon would take too long"
        yield SettingConflict("cpu_offload", seen, "optimizer", adamw)


def _find_schedule_conflicts(given: Any) -> Iterator[SettingConflict]:
    kind = given.lr_scheduler_type or "cosine"
    only_for = {"decay_ratio": "wsd", "num_cycles": "cosine_with_restarts", "power": "polynomial"}
    for key, only in only_for.items():
        if kind != only:
            seen = f"train.{key} only applies to {only}, and the schedule is {kind}"
            unused = f"not used: the schedule is not {only}"
            yield SettingConflict(key, seen, "schedule", {"schedule": only}, unused)
    if kind in ("constant", "inverse_sqrt"):
        seen = f"train.min_lr_ratio sets the final learning rate, but the schedule is {kind}"
        unused = f"not used: the schedule is {kind}"
        yield SettingConflict("min_lr_ratio", seen, "schedule", {"schedule": "cosine"}, unused)
    if given.warmup_steps is not None and given.max_steps is not None and given.warmup_steps >= given.max_steps:
        seen = f"train.warmup_steps is {given.warmup_steps}, but there are only {given.max_steps} steps"
        yield SettingConflict("warmup_steps", seen, "below", {"most": given.max_steps})
    ratios = (given.warmup_ratio or 0.0) + (given.decay_ratio or 0.0)
    if kind == "wsd" and ratios > 1:
        seen = f"the sum of train.warmup_ratio and train.decay_ratio is {ratios:g}, more than 1"
        yield SettingConflict("decay_ratio", seen, "parts")
    if given.warmup_ratio == 1:
        yield SettingConflict("warmup_ratio", "train.warmup_ratio is 1, so training would end after the warmup", "part")


def _find_evaluation_conflicts(given: Any, *, has_validation: bool) -> Iterator[SettingConflict]:
    lack = "train.eval_steps is not set" if has_validation else "there is no data.validation"
    for key in ("eval_steps", "per_device_eval_batch_size") if not has_validation else ():
        yield SettingConflict(key, f"train.{key} is set, but {lack}", "validation", {"key": key}, f"not used: {lack}")
    for key in ("load_best_model_at_end", "early_stopping_patience"):
        if not has_validation or given.eval_steps is None:
            yield SettingConflict(key, f"train.{key} compares evaluations, but {lack}", "evaluations", {"key": key})
    if given.early_stopping_patience is None:
        lack = "there is no early_stopping_patience"
        seen = f"train.early_stopping_threshold only applies to early stopping, and {lack}"
        yield SettingConflict("early_stopping_threshold", seen, "patience", unused=f"not used: {lack}")


def _find_model_conflicts(given: Any) -> Iterator[SettingConflict]:
    if given.sharding == "none":
        seen = "train.cpu_offload moves the shards of the model to host memory, but train.sharding is none"
        yield SettingConflict("cpu_offload", seen, "offload")
    if given.from_scratch and given.resume not in ("auto", "none"):
        seen = "train.from_scratch starts with new weights, but train.resume specifies a checkpoint"
        yield SettingConflict("resume", seen, "resume")
    if given.from_scratch:
        seen = "train.from_scratch starts with random weights, which an adapter would leave frozen"
        yield SettingConflict("adapter", seen, "one-of-them")


def _find_quantization_conflicts(given: Any) -> Iterator[SettingConflict]:
    if given.sharding in ("full", "hybrid"):
        seen = f"train.sharding is {given.sharding}, but weights of adapter.load_in_4bit can't be sharded: they are"
        yield SettingConflict("sharding", f"{seen} packed bytes with scales beside them", "quantized-sharding")
    seen = "train.cpu_offload moves shards to host memory, but weights of adapter.load_in_4bit can't be sharded"
    yield SettingConflict("cpu_offload", seen, "quantized", {"key": "cpu_offload"})
    seen = "train.torch_compile has not been proven with the kernels of adapter.load_in_4bit"
    yield SettingConflict("torch_compile", seen, "quantized", {"key": "torch_compile"})


def _find_tracker_conflicts(given: Any) -> Iterator[SettingConflict]:
    trackers = given.report_to or ()
    for key in ("run_name", "project") if "wandb" not in trackers and "mlflow" not in trackers else ():
        seen = f"train.{key} is set, but train.report_to has neither wandb nor mlflow"
        yield SettingConflict(key, seen, "tracker", {"key": key})
    forbidden = "/\\#?%:"
    if "wandb" in trackers and set(given.project or "").intersection(forbidden):
        seen = f"train.project has one of {' '.join(forbidden)}, which W&B does not allow"
        yield SettingConflict("project", seen, "project")
