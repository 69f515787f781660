"""Keys of Hugging Face's TrainingArguments and of TRL that Aboard doesn't have, with the reason or the key to use."""

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

# These have another name or are in another section.
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
        "dataset_config": _suggest_data_line("files: [{path: OWNER/NAME, subset: …}]"),
        "dataset_config_name": _suggest_data_line("files: [{path: OWNER/NAME, subset: …}]"),
        "dataset_split": _suggest_data_line("files: [{path: OWNER/NAME, split: …}]"),
        "dataset_train_split": _suggest_data_line("files: [{path: OWNER/NAME, split: …}]"),
        "dataset_test_split": _suggest_data_line("validation: [{path: OWNER/NAME, split: …}]"),
        "dataset_revision": _suggest_data_line("files: [{path: OWNER/NAME, revision: …}]"),
        "datasets": _MIX,
        "dataset_mixture": _MIX,
        "dataset_mixer": _MIX,
        "interleave_probs": _MIX,
        "validation_file": _suggest_data_line("validation: …"),
        **dict.fromkeys(("lora", "peft", "lora_config"), _suggest_line("adapter: {r: 16, alpha: 32}")),
        "qlora": _suggest_line("adapter: {r: 16, alpha: 32, load_in_4bit: true}"),
        "lora_r": _suggest_line("adapter: {r: …}"),
        "lora_rank": _suggest_line("adapter: {r: …}"),
        "rank": _suggest_line("adapter: {r: …}"),
        "lora_alpha": _suggest_line("adapter: {alpha: …}"),
        "lora_dropout": _suggest_line("adapter: {dropout: …}"),
        "lora_target": _suggest_line("adapter: {target_modules: …}"),
        "lora_target_modules": _suggest_line("adapter: {target_modules: …}"),
        "lora_target_linear": _suggest_line("adapter: {target_modules: all-linear}"),
        "lora_modules_to_save": _suggest_line("adapter: {modules_to_save: …}"),
        "additional_target": _suggest_line("adapter: {modules_to_save: …}"),
        "use_dora": _suggest_line("adapter: {use_dora: true}"),
        "peft_use_dora": _suggest_line("adapter: {use_dora: true}"),
        "load_in_4bit": _suggest_line("adapter: {load_in_4bit: true}"),
        "use_rslora": _suggest_line("adapter: {use_rslora: true}"),
        "peft_use_rslora": _suggest_line("adapter: {use_rslora: true}"),
        "peft_config": _suggest_line("adapter: {r: 16, alpha: 32}"),
        "use_peft": _suggest_line("adapter: {r: 16, alpha: 32}"),
        "lora_task_type": _LEAVE,
        "finetuning_type": _suggest_line("adapter: {r: 16, alpha: 32}; without `adapter`, all weights are trained"),
        "lora_model_dir": _suggest_line("adapter: {path: DIR}"),
        "adapter_name_or_path": _suggest_line("adapter: {path: DIR}"),
        "adafactor": _suggest_line("optim: adafactor"),
        "lr": _suggest_line("learning_rate: …"),
        "epochs": _suggest_line("num_train_epochs: …"),
        "batch_size": _suggest_line("per_device_train_batch_size: …, or global_batch_size: … across all ranks"),
        "micro_batch_size": _suggest_line("per_device_train_batch_size: …"),
        "data_seed": _suggest_line("seed: …, which also sets the data order"),
        "resume_from_checkpoint": _suggest_line("resume: auto, none, or a checkpoint directory"),
        "eval_strategy": _suggest_line("eval_steps: N; without it there is one evaluation, at the end"),
        "evaluation_strategy": _suggest_line("eval_steps: N; without it there is one evaluation, at the end"),
        "save_strategy": _suggest_line("save_steps: N; without it there is one checkpoint, at the end"),
        "logging_strategy": _suggest_line("logging_steps: N"),
        "tensorboard": _suggest_line("report_to: tensorboard"),
        "logging_dir": _suggest_line("output_dir: …; TensorBoard files go there"),
        "wandb_project": _suggest_line("project: …"),
        "fsdp": _suggest_line("sharding: full, hybrid, none or auto; cpu_offload: true for offload"),
        "fsdp_config": _suggest_line("sharding: full, hybrid, none or auto; cpu_offload: true for offload"),
        "parallelism_config": _suggest_line("sharding: full, hybrid, none or auto"),
        "accelerator_config": _suggest_line("sharding: full, hybrid, none or auto"),
        "lr_scheduler_kwargs": _suggest_line(
            "min_lr_ratio: … (for min_lr, min_lr_rate, lr_end), num_cycles: … (cosine_with_restarts), power: …"
            " (polynomial) or decay_ratio: … (for num_decay_steps of wsd)"
        ),
        "torch_dtype": _suggest_line("bf16: true, fp16: true, or bf16: false for float32"),
        "dtype": _suggest_line("bf16: true, fp16: true, or bf16: false for float32"),
    }
)

# These are not supported, each with the reason.
_UNSUPPORTED: tuple[tuple[str, str, Fix], ...] = (
    (
        "fp16_full_eval fp16_opt_level half_precision_backend fp16_backend",
        "weights stay in float32, PyTorch's mixed precision computes, and evaluation uses the precision of training",
        _suggest_line("fp16: true"),
    ),
    (
        "bf16_full_eval tf32",
        "weights stay in float32, and evaluation uses the same precision as training",
        _suggest_line("bf16: true"),
    ),
    (
        "deepspeed",
        "Aboard shards with PyTorch's FSDP2, which works like ZeRO, and has no other engine yet",
        _suggest_line(
            "sharding: full (ZeRO-3) or none, cpu_offload: true; run your own script with: aboard launch -- deepspeed …"
        ),
    ),
    (
        "optim_args optim_target_modules",
        "optimizers have no settings but learning_rate, weight_decay, adam_beta1, adam_beta2 and adam_epsilon",
        _LEAVE,
    ),
    ("average_tokens_across_devices", "the loss is always averaged over all ranks' supervised tokens", _LEAVE),
    (
        "label_smoothing_factor neftune_noise_alpha loss_type router_aux_loss_coef",
        "the loss is only the cross entropy of the supervised tokens",
        _LEAVE,
    ),
    (
        "gradient_checkpointing_kwargs",
        "gradient checkpointing always uses the non-reentrant variant",
        _suggest_line("gradient_checkpointing: true, or selective"),
    ),
    (
        "torch_compile_backend torch_compile_mode",
        "layers are compiled by Inductor in its default mode",
        _suggest_line("torch_compile: true"),
    ),
    (
        "use_liger_kernel liger_kernel_config",
        "Aboard has no Liger kernels, but the one that saves most memory, the fused cross entropy, has a counterpart",
        _suggest_line("chunked_loss: true"),
    ),
    ("activation_offloading", "activations are not offloaded", _suggest_line("gradient_checkpointing: true")),
    (
        (
            "init_lora_weights layers_to_transform lora_layers_to_transform lora_layers_pattern rank_pattern"
            " alpha_pattern exclude_modules target_parameters lora_target_parameters lora_bias lora_fan_in_fan_out"
            " loraplus_lr_ratio loraplus_lr_embedding relora trainable_token_indices lora_mlp_kernel lora_qkv_kernel"
            " lora_o_kernel"
        ),
        "an adapter is LoRA, rsLoRA or DoRA with one rank and one learning rate for all of its modules",
        _suggest_line("adapter: {target_modules: …}; a regular expression selects layers, too"),
    ),
    (
        (
            "load_in_8bit quantization_config quantization_bit bnb_4bit_quant_type bnb_4bit_compute_dtype"
            " bnb_4bit_use_double_quant use_bnb_nested_quant bnb_4bit_quant_storage"
        ),
        "a base model is quantized in one way: QLoRA's NF4 with double quantization, computed in the run's precision",
        _suggest_line("adapter: {load_in_4bit: true}"),
    ),
    ("use_cache", "training never caches keys and values", _LEAVE),
    ("torch_empty_cache_steps", "each step reuses the memory of the previous one", _LEAVE),
    (
        "auto_find_batch_size",
        "memory is estimated before the launch; if a run can't fit, Aboard refuses it and suggests settings that fit",
        _suggest_line("per_device_train_batch_size: …"),
    ),
    (
        (
            "logging_first_step log_on_each_node logging_nan_inf_filter include_num_input_tokens_seen log_level"
            " log_level_replica disable_tqdm debug skip_memory_metrics"
        ),
        "all metrics are in metrics.jsonl, including values that are not finite",
        _suggest_line("logging_steps: N"),
    ),
    (
        "trackio_space_id trackio_bucket_id trackio_static_space_id",
        "Trackio is not among the trackers",
        _suggest_line("report_to: [wandb, mlflow, tensorboard]"),
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
        "a checkpoint is complete, is never overwritten, and is also written on SIGTERM",
        _suggest_line("save_steps: N; `aboard export` writes safetensors"),
    ),
    (
        "push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision",
        "a run uploads nothing",
        _suggest_removal("then: aboard export RUN --to DIR, and hf upload NAME DIR"),
    ),
    (
        "metric_for_best_model greater_is_better",
        "the best checkpoint is always the one with the lowest eval_loss, the only metric of an evaluation",
        _suggest_line("load_best_model_at_end: true, without it"),
    ),
    (
        "ignore_data_skip restore_callback_states_from_checkpoint",
        "a resume continues at the next sample, on any number of ranks",
        _suggest_line("resume: auto"),
    ),
    ("full_determinism", "the order of data and sums is always the same on the same ranks", _LEAVE),
    (
        (
            "use_cpu no_cuda local_rank ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers"
            " ddp_static_graph ddp_backend ddp_timeout"
        ),
        "ranks, devices and process groups are derived from the nodes",
        _suggest_removal("the `cluster` section sets nodes and slots"),
    ),
    (
        (
            "dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers"
            " dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order remove_unused_columns"
            " label_names train_sampling_strategy group_by_length length_column_name dataset_kwargs dataset_num_proc"
            " shuffle_dataset truncation_mode packing_strategy padding_free pad_to_multiple_of pad_token eos_token"
        ),
        "data is tokenized and packed before the launch, and read from token shards in Aboard's own order",
        _suggest_removal("the `data` section sets what is read: docs/data.md"),
    ),
    ("do_train do_eval do_predict", "Aboard always trains, and evaluates if data.validation is set", _LEAVE),
    (
        "model_init_kwargs",
        "the keys of the `train` section set how the model is built",
        _LEAVE,
    ),
)
_REASONS: Mapping[str, tuple[str, Fix]] = MappingProxyType(
    {name: (why, fix) for names, why, fix in _UNSUPPORTED for name in names.split()}
)


def explain_foreign_key(key: str) -> tuple[str, Fix] | None:
    """The message and the fix for a known key of Hugging Face; None for an unknown key."""
    if key in _RENAMED:
        return f"'{key}' has a different name in Aboard", _RENAMED[key]
    if key in _REASONS:
        why, fix = _REASONS[key]
        return f"'{key}' is not supported: {why}", fix
    return None
