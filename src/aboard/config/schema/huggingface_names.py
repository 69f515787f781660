"""Keys of Hugging Face's TrainingArguments and of TRL that Aboard doesn't have, with the reason or the key to use."""

from collections.abc import Iterator

from aboard.core.plan.training_settings import ADAPTER_SETTINGS, TRAIN_SETTINGS, Adapter, Training
from aboard.diagnoses import Fix
from aboard.diagnoses.usage import configuration

# Names of keys of the section `data`, by the line to write there.
_DATA_NAMES = {
    "tokenizer: …": "tokenizer",
    "max_length: …": "max_seq_length sequence_len",
    "packing: true": "packing sample_packing",
    "text_column: …": "dataset_text_field",
    "template: FILE": "chat_template_path",
    "loss_on: answers": "completion_only_loss assistant_only_loss",
    "loss_on: all": "train_on_inputs",
    "files: …": "train_file dataset",
    "files: OWNER/NAME": "dataset_name",
    "files: [{path: OWNER/NAME, subset: …}]": "dataset_config dataset_config_name",
    "files: [{path: OWNER/NAME, split: …}]": "dataset_split dataset_train_split",
    "validation: [{path: OWNER/NAME, split: …}]": "dataset_test_split",
    "files: [{path: OWNER/NAME, revision: …}]": "dataset_revision",
    "validation: …": "validation_file",
}
_MIX_NAMES = ("datasets", "dataset_mixture", "dataset_mixer", "interleave_probs")

# Keys that are not supported.
_UNSUPPORTED = """
fp16_full_eval fp16_opt_level half_precision_backend fp16_backend
  because weights stay in float32, PyTorch's mixed precision computes, and evaluation uses the precision of training
  write fp16: true

bf16_full_eval
  because weights stay in float32, and evaluation uses the same precision as training
  write bf16: true

deepspeed
  because Aboard shards with PyTorch's FSDP2, which works like ZeRO, and has no other engine yet
  write sharding: full (ZeRO-3) or none, cpu_offload: true; run your own script with: aboard launch -- deepspeed …

optim_args optim_target_modules
  because optimizers have no settings but learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon
  remove

average_tokens_across_devices
  because the loss is always averaged over all ranks' supervised tokens
  remove

label_smoothing_factor neftune_noise_alpha loss_type router_aux_loss_coef
  because the loss is only the cross entropy of the supervised tokens
  remove

gradient_checkpointing_kwargs
  because gradient checkpointing always uses the non-reentrant variant
  write gradient_checkpointing: true, or selective

torch_compile_backend torch_compile_mode
  because layers are compiled by Inductor in its default mode
  write torch_compile: true

use_liger_kernel liger_kernel_config
  because Aboard has no Liger kernels, but the one that saves most memory, the fused cross entropy, has a counterpart
  write chunked_loss: true

activation_offloading
  because activations are not offloaded
  write gradient_checkpointing: true

init_lora_weights layers_to_transform lora_layers_to_transform lora_layers_pattern rank_pattern alpha_pattern
exclude_modules target_parameters lora_target_parameters lora_bias lora_fan_in_fan_out loraplus_lr_ratio
loraplus_lr_embedding relora trainable_token_indices lora_mlp_kernel lora_qkv_kernel lora_o_kernel
  because an adapter is LoRA, rsLoRA or DoRA with one rank and one learning rate for all of its modules
  write adapter: {target_modules: …}; a regular expression selects layers, too

load_in_8bit quantization_config quantization_bit bnb_4bit_quant_type bnb_4bit_compute_dtype bnb_4bit_use_double_quant
use_bnb_nested_quant bnb_4bit_quant_storage
  because a base model is quantized in one way: QLoRA's NF4 with double quantization, computed in the run's precision
  write adapter: {load_in_4bit: true}

use_cache
  because training never caches keys and values
  remove

torch_empty_cache_steps
  because each step reuses the memory of the previous one
  remove

auto_find_batch_size
  because memory is estimated before the launch; if a run can't fit, Aboard refuses it and suggests settings that fit
  write per_device_train_batch_size: …

logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level log_level_replica
disable_tqdm debug skip_memory_metrics
  because all metrics are in metrics.jsonl, including values that are not finite
  write logging_steps: N

trackio_space_id trackio_bucket_id trackio_static_space_id
  because Trackio is not among the trackers
  write report_to: [wandb, mlflow, tensorboard]

eval_delay prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
include_for_metrics batch_eval_metrics eval_packing
  because an evaluation is the loss over all of data.validation, every eval_steps
  write eval_steps: N

save_only_model save_on_each_node save_safetensors enable_jit_checkpoint overwrite_output_dir
  because a checkpoint is complete, is never overwritten, and is also written on SIGTERM
  write save_steps: N; `aboard export` writes safetensors

push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
  because a run uploads nothing
  remove then: aboard export RUN --to DIR, and hf upload NAME DIR

metric_for_best_model greater_is_better
  because the best checkpoint is always the one with the lowest eval_loss, the only metric of an evaluation
  write load_best_model_at_end: true, without it

ignore_data_skip restore_callback_states_from_checkpoint
  because a resume continues at the next sample, on any number of ranks
  write resume: auto

full_determinism
  because the order of data and sums is always the same on the same ranks
  remove

local_rank ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph
ddp_backend ddp_timeout
  because ranks, devices and process groups are derived from the nodes
  remove the `cluster` section sets nodes and slots

dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names
train_sampling_strategy group_by_length length_column_name dataset_kwargs dataset_num_proc shuffle_dataset
truncation_mode packing_strategy padding_free pad_to_multiple_of pad_token eos_token
  because data is tokenized and packed before the launch, and read from token shards in Aboard's own order
  remove the `data` section sets what is read: docs/data.md

do_train do_eval do_predict
  because Aboard always trains, and evaluates if data.validation is set
  remove

model_init_kwargs
  because the keys of the `train` section set how the model is built
  remove
"""


def explain_foreign_key(key: str) -> tuple[str, Fix] | None:
    """The message and the fix for a known key of Hugging Face; None for an unknown key."""
    renamed = dict((*_list_other_names(), *_list_declared_names()))
    if key in renamed:
        return f"'{key}' has a different name in Aboard", renamed[key]
    for block in _UNSUPPORTED.split("\n\n"):
        names, _, explanation = block.partition("\n  because ")
        if key in names.split():
            why, _, what = explanation.rpartition("\n  ")
            return f"'{key}' is not supported: {why}", _build_fix(*what.strip().split(maxsplit=1))
    return None


def _build_fix(verb: str, text: str = "") -> Fix:
    if verb == "write":
        return configuration.CONFIG.fix("train-write", line=text)
    return configuration.CONFIG.fix("train-leave-then", then=text) if text else configuration.CONFIG.fix("train-leave")


def _list_other_names() -> Iterator[tuple[str, Fix]]:
    """Names of what is set in another section, or not at all."""
    for line, names in _DATA_NAMES.items():
        yield from ((name, configuration.CONFIG.fix("train-data", line=line)) for name in names.split())
    yield from ((name, configuration.CONFIG.fix("train-mix")) for name in _MIX_NAMES)
    yield "max_length", configuration.CONFIG.fix("train-length")
    yield "lora_task_type", configuration.CONFIG.fix("train-leave")


def _list_declared_names() -> Iterator[tuple[str, Fix]]:
    """Names that settings are declared to have elsewhere."""
    for owner, settings, form in ((Training, TRAIN_SETTINGS, "{}"), (Adapter, ADAPTER_SETTINGS, "adapter: {{{}}}")):
        for ours, setting in settings.items():
            example = "true" if owner.__annotations__[ours] is bool else "…"
            lines = {**dict.fromkeys(setting.theirs.split(), f"{ours}: {example}"), **setting.hints}
            yield from ((name, _build_fix("write", form.format(line))) for name, line in lines.items())
