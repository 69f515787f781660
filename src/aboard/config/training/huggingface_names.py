"""Names that people know from HF's TrainingArguments and TRL, and that Aboard doesn't have: why, and what to write.

What is the same under another name is said first; what isn't there has its reason. Nothing is silently ignored.
"""

from collections.abc import Mapping
from types import MappingProxyType

from aboard.diagnoses import Fix
from aboard.diagnoses.usage import configuration


def _suggest_line(line: str) -> Fix:
    return configuration.CONFIG.fix("train-write", line=line)


def _suggest_data_line(line: str) -> Fix:
    return configuration.CONFIG.fix("train-data", line=line)


def _suggest_removal(then: str) -> Fix:
    return configuration.CONFIG.fix("train-leave-then", then=then)


_LEAVE = configuration.CONFIG.fix("train-leave")
_MIX = configuration.CONFIG.fix("train-mix")

# Under another name, or in another section.
_RENAMED: Mapping[str, Fix] = MappingProxyType(
    {
        "model_name_or_path": _suggest_line("model: …"),
        "base_model": _suggest_line("model: …"),
        "tokenizer": _suggest_data_line("tokenizer: …"),
        "max_length": configuration.CONFIG.fix("train-length"),
        "max_seq_length": _suggest_data_line("max_length: …"),
        "sequence_len": _suggest_data_line("max_length: …"),
        "packing": _suggest_data_line("packing: true"),
        "sample_packing": _suggest_data_line("packing: true"),
        "dataset_text_field": _suggest_data_line("text_column: …"),
        "chat_template_path": _suggest_data_line("template: FILE"),
        "completion_only_loss": _suggest_data_line("loss_on: answers"),
        "assistant_only_loss": _suggest_data_line("loss_on: answers"),
        "train_on_inputs": _suggest_data_line("loss_on: all"),
        "train_file": _suggest_data_line("files: …"),
        "dataset": _suggest_data_line("files: …"),
        "dataset_name": _suggest_data_line("files: OWNER/NAME"),
        "datasets": _MIX,
        "dataset_mixture": _MIX,
        "dataset_mixer": _MIX,
        "interleave_probs": _MIX,
        "validation_file": _suggest_data_line("validation: …"),
        "lr": _suggest_line("learning_rate: …"),
        "epochs": _suggest_line("num_train_epochs: …"),
        "batch_size": _suggest_line("per_device_train_batch_size: …, or global_batch_size: … over all ranks"),
        "micro_batch_size": _suggest_line("per_device_train_batch_size: …"),
        "data_seed": _suggest_line("seed: …, which the order of the data follows too"),
        "resume_from_checkpoint": _suggest_line("resume: auto, none, or a checkpoint's directory"),
        "eval_strategy": _suggest_line("eval_steps: N; without it there is one evaluation, at the end"),
        "evaluation_strategy": _suggest_line("eval_steps: N; without it there is one evaluation, at the end"),
        "save_strategy": _suggest_line("save_steps: N; without it there is one checkpoint, at the end"),
        "logging_strategy": _suggest_line("logging_steps: N"),
        "report_to": _suggest_line("tensorboard: true; metrics.jsonl is always written"),
        "logging_dir": _suggest_line("output_dir: …; TensorBoard's files go there"),
        "fsdp": _suggest_line("sharding: full, hybrid, none or auto"),
        "fsdp_config": _suggest_line("sharding: full, hybrid, none or auto"),
        "parallelism_config": _suggest_line("sharding: full, hybrid, none or auto"),
        "accelerator_config": _suggest_line("sharding: full, hybrid, none or auto"),
        "lr_scheduler_kwargs": _suggest_line("min_lr_ratio: … or, for wsd, decay_ratio: …"),
        "torch_dtype": _suggest_line("bf16: true, or false for float32"),
        "dtype": _suggest_line("bf16: true, or false for float32"),
    }
)

# Not there, for a reason.
_UNSUPPORTED: tuple[tuple[str, str, Fix], ...] = (
    (
        "fp16 fp16_full_eval fp16_opt_level half_precision_backend",
        "fp16 overflows without loss scaling; bf16 has the range of float32",
        _suggest_line("bf16: true; on GPUs older than Ampere leave it out, and float32 is used"),
    ),
    (
        "bf16_full_eval tf32",
        "weights stay in float32 and evaluation computes as training does",
        _suggest_line("bf16: true"),
    ),
    (
        "deepspeed",
        "FSDP2 of PyTorch shards as ZeRO does, and there is no second engine yet",
        _suggest_line("sharding: full (ZeRO-3) or none; a script of your own runs with: aboard launch -- deepspeed …"),
    ),
    ("optim optim_args optim_target_modules adafactor", "the optimizer is AdamW, fused", _LEAVE),
    ("average_tokens_across_devices", "the loss is always divided once, by the supervised tokens of all ranks", _LEAVE),
    (
        "label_smoothing_factor neftune_noise_alpha loss_type router_aux_loss_coef",
        "the loss is the cross entropy of the supervised tokens, and nothing else",
        _LEAVE,
    ),
    (
        "gradient_checkpointing_kwargs",
        "it is always the non-reentrant one",
        _suggest_line("gradient_checkpointing: true"),
    ),
    ("torch_compile torch_compile_backend torch_compile_mode", "models are not compiled yet", _LEAVE),
    ("use_liger_kernel liger_kernel_config", "its kernels are not used yet", _LEAVE),
    ("activation_offloading", "activations stay where they are", _suggest_line("gradient_checkpointing: true")),
    ("use_cache", "training never keeps keys and values", _LEAVE),
    ("torch_empty_cache_steps", "the allocator is left alone: a step takes what the one before took", _LEAVE),
    (
        "auto_find_batch_size",
        "memory is estimated before the start, and a run that can't fit is refused with what would",
        _suggest_line("per_device_train_batch_size: …"),
    ),
    (
        (
            "logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level"
            " log_level_replica disable_tqdm debug skip_memory_metrics"
        ),
        "every metric is in metrics.jsonl, and no value that isn't finite is hidden",
        _suggest_line("logging_steps: N"),
    ),
    (
        "run_name project trackio_space_id trackio_bucket_id trackio_static_space_id",
        "a run has its own name: aboard status",
        _LEAVE,
    ),
    (
        (
            "eval_delay prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object"
            " eval_accumulation_steps include_for_metrics batch_eval_metrics eval_packing"
        ),
        "an evaluation is the loss over all of data.validation, every eval_steps",
        _suggest_line("eval_steps: N"),
    ),
    (
        "save_only_model save_on_each_node save_safetensors enable_jit_checkpoint overwrite_output_dir",
        "a checkpoint is whole, is never overwritten, and is also written on SIGTERM",
        _suggest_line("save_steps: N; `aboard export` writes safetensors"),
    ),
    (
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        "a run pushes nothing anywhere",
        _suggest_removal("then: aboard export RUN --to DIR, and hf upload NAME DIR"),
    ),
    (
        "load_best_model_at_end metric_for_best_model greater_is_better",
        "no checkpoint is chosen for you; metrics.jsonl has the eval_loss of each",
        _suggest_removal("then: aboard export CHECKPOINT --to DIR"),
    ),
    (
        "ignore_data_skip restore_callback_states_from_checkpoint",
        "a resume is a seek to the next sample, on any number of ranks",
        _suggest_line("resume: auto"),
    ),
    ("full_determinism", "the order of the data and of sums is always the same on the same ranks", _LEAVE),
    (
        (
            "use_cpu no_cuda local_rank ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers"
            " ddp_static_graph ddp_backend ddp_timeout"
        ),
        "ranks, devices and groups follow from the nodes",
        _suggest_removal("the section `cluster` says which nodes and slots"),
    ),
    (
        (
            "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers"
            " dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns"
            " label_names train_sampling_strategy group_by_length length_column_name dataset_kwargs dataset_num_proc"
            " shuffle_dataset truncation_mode packing_strategy padding_free pad_to_multiple_of pad_token eos_token"
        ),
        "data is tokenized and packed before the start, and read from token shards in an order of its own",
        _suggest_removal("the section `data` says what is read: docs/data.md"),
    ),
    ("do_train do_eval do_predict", "it always trains, and evaluates where there is data.validation", _LEAVE),
    (
        "trust_remote_code model_init_kwargs",
        "code that comes with a model is not run; architectures are those of transformers",
        _LEAVE,
    ),
)
_REASONS: Mapping[str, tuple[str, Fix]] = MappingProxyType(
    {name: (why, fix) for names, why, fix in _UNSUPPORTED for name in names.split()}
)


def explain_foreign_key(key: str) -> tuple[str, Fix] | None:
    """What was seen and what to write, for a name of theirs; None for one that is nobody's."""
    if key in _RENAMED:
        return f"'{key}' is written otherwise in Aboard", _RENAMED[key]
    if key in _REASONS:
        why, fix = _REASONS[key]
        return f"'{key}' is not in Aboard: {why}", fix
    return None
