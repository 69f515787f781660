"""Every flag of `accelerate launch` 1.15, and every key of the config file that `accelerate config` writes.

A flag has the launcher's default, since that is what reaches the environment if the user sets nothing.
"""

from aboard.core.launchers.deepspeed import OTHER_LAUNCHER
from aboard.core.launchers.flag_parser import FlagGrammar
from aboard.core.launchers.flag_table import (
    FlagValueKind,
    LauncherFlag,
    obey_flag,
    obey_switch,
    refuse_flag,
    refuse_help,
    skip_flag,
)
from aboard.core.launchers.torchrun import NO_RENDEZVOUS, NO_ROLES, OWN_LOGS, refuse_restarts
from aboard.diagnoses.usage import pasted_commands

NAME = "accelerate launch"

_NUMBER, _DECIMAL = FlagValueKind.NUMBER, FlagValueKind.DECIMAL
_TPU = "Aboard does not support TPUs"
_NO_TPU = pasted_commands.FLAG.fix("accelerate")
_SAGEMAKER = "Aboard does not support Amazon SageMaker"


def _refuse_tpu_flag(name: str, takes: FlagValueKind = FlagValueKind.NOTHING) -> LauncherFlag:
    return refuse_flag(name, takes=takes, note=_TPU, fix=_NO_TPU)


PLACEMENT_FLAGS = (
    obey_flag("--config_file"),
    obey_flag("--num_processes", takes=_NUMBER),
    obey_flag("--num_machines", takes=_NUMBER),
    obey_flag("--main_process_ip"),
    obey_flag("--main_process_port", takes=FlagValueKind.PORT),
    obey_flag("--num_cpu_threads_per_process", takes=_NUMBER),
    obey_flag("--gpu_ids"),
    obey_switch("--module", "-m"),
    obey_switch("--no_python"),
    skip_flag("--role", note=NO_ROLES, accepted=("default",)),
    obey_flag("--rdzv_backend"),
    skip_flag("--machine_rank", note="is not needed: Aboard assigns it to each node"),
    skip_flag("--same_network", takes=FlagValueKind.NOTHING, note=NO_RENDEZVOUS),
    skip_flag("--rdzv_conf", note=NO_RENDEZVOUS),
    skip_flag("--monitor_interval", note="is not needed: Aboard sees at once when a rank exits"),
    skip_flag("--tee", "-t", note=OWN_LOGS),
    skip_flag("--log_dir", note=OWN_LOGS),
    skip_flag("--quiet", "-q", takes=FlagValueKind.NOTHING, note="is not needed: Aboard prints its own messages"),
    refuse_restarts("--max_restarts"),
    refuse_flag("--mpirun_hostfile", note="Aboard doesn't use mpirun", fix=pasted_commands.FLAG.fix("mpirun-hostfile")),
)

TRAINING_FLAGS = (
    obey_switch("--cpu"),
    obey_switch("--multi_gpu"),
    obey_switch("--use_deepspeed"),
    obey_switch("--use_fsdp"),
    obey_switch("--use_megatron_lm"),
    obey_switch("--use_parallelism_config"),
    obey_switch("--enable_cpu_affinity"),
    obey_switch("--debug"),
    obey_flag("--mixed_precision"),
    obey_flag("--dynamo_backend"),
    obey_flag("--dynamo_mode", default="default"),
    obey_switch("--dynamo_use_fullgraph"),
    obey_switch("--dynamo_use_dynamic"),
    obey_switch("--dynamo_use_regional_compilation"),
)

DEEPSPEED_FLAGS = (
    obey_flag("--deepspeed_config_file"),
    obey_flag("--zero_stage", takes=_NUMBER),
    obey_flag("--offload_optimizer_device"),
    obey_flag("--offload_param_device"),
    obey_flag("--offload_optimizer_nvme_path"),
    obey_flag("--offload_param_nvme_path"),
    obey_flag("--gradient_accumulation_steps", takes=_NUMBER),
    obey_flag("--gradient_clipping", takes=_DECIMAL),
    obey_flag("--zero3_init_flag"),
    obey_flag("--zero3_save_16bit_model"),
    obey_flag("--deepspeed_moe_layer_cls_names"),
    obey_flag("--deepspeed_hostfile"),
    obey_flag("--deepspeed_inclusion_filter"),
    obey_flag("--deepspeed_exclusion_filter"),
    obey_flag("--deepspeed_multinode_launcher"),
)

FSDP_FLAGS = (
    obey_flag("--fsdp_version", default="1"),
    obey_flag("--fsdp_sharding_strategy", default="FULL_SHARD"),
    obey_flag("--fsdp_reshard_after_forward", default="true"),
    obey_flag("--fsdp_offload_params", default="false"),
    obey_flag("--fsdp_min_num_params", takes=_NUMBER, default=100_000_000),
    obey_flag("--fsdp_auto_wrap_policy"),
    obey_flag("--fsdp_transformer_layer_cls_to_wrap"),
    obey_flag("--fsdp_backward_prefetch"),
    obey_flag("--fsdp_state_dict_type"),
    obey_flag("--fsdp_forward_prefetch", default="false"),
    obey_flag("--fsdp_use_orig_params", default="true"),
    obey_flag("--fsdp_cpu_ram_efficient_loading", default="true"),
    obey_flag("--fsdp_sync_module_states", default="true"),
    obey_flag("--fsdp_activation_checkpointing", default="false"),
    obey_flag("--fsdp_activation_checkpointing_offload", default="false"),
)

MEGATRON_FLAGS = (
    obey_flag("--megatron_lm_tp_degree", takes=_NUMBER, default=1),
    obey_flag("--megatron_lm_use_custom_fsdp", default=False),
    obey_flag("--megatron_lm_no_load_optim", default=False),
    obey_flag("--megatron_lm_eod_mask_loss", default=False),
    obey_flag("--megatron_lm_no_save_optim", default=False),
    obey_flag("--megatron_lm_optimizer_cpu_offload", default=False),
    obey_flag("--megatron_lm_use_precision_aware_optimizer", default=False),
    obey_flag("--megatron_lm_overlap_cpu_optimizer_d2h_h2d", default=False),
    obey_flag("--megatron_lm_decoder_last_pipeline_num_layers", takes=_NUMBER),
    obey_flag("--megatron_lm_pp_degree", takes=_NUMBER, default=1),
    obey_flag("--megatron_lm_gradient_clipping", takes=_DECIMAL, default=1.0),
    obey_flag("--megatron_lm_num_micro_batches", takes=_NUMBER),
    obey_flag("--megatron_lm_sequence_parallelism"),
    obey_flag("--megatron_lm_recompute_activations"),
    obey_flag("--megatron_lm_use_distributed_optimizer"),
    obey_flag("--megatron_lm_recompute_granularity"),
    obey_flag("--megatron_lm_recompute_method"),
    obey_flag("--megatron_lm_recompute_num_layers", takes=_NUMBER),
    obey_flag("--megatron_lm_attention_backend"),
    obey_flag("--megatron_lm_expert_model_parallel_size", takes=_NUMBER),
    obey_flag("--megatron_lm_context_parallel_size", takes=_NUMBER),
    obey_flag("--megatron_lm_attention_dropout", takes=_DECIMAL),
    obey_flag("--megatron_lm_hidden_dropout", takes=_DECIMAL),
    obey_flag("--megatron_lm_attention_softmax_in_fp32"),
    obey_flag("--megatron_lm_expert_tensor_parallel_size", takes=_NUMBER),
    obey_flag("--megatron_lm_calculate_per_token_loss"),
    obey_flag("--megatron_lm_use_rotary_position_embeddings"),
)

PARALLELISM_FLAGS = (
    obey_flag("--parallelism_config_dp_replicate_size", takes=_NUMBER, default=1),
    obey_flag("--parallelism_config_dp_shard_size", takes=_NUMBER, default=1),
    obey_flag("--parallelism_config_tp_size", takes=_NUMBER, default=1),
    obey_flag("--parallelism_config_cp_size", takes=_NUMBER, default=1),
    obey_flag("--parallelism_config_cp_backend", default="torch"),
    obey_flag("--parallelism_config_cp_comm_strategy", default="allgather"),
    obey_flag("--parallelism_config_sp_size", takes=_NUMBER, default=1),
    obey_flag("--parallelism_config_sp_backend", default="deepspeed"),
    obey_flag("--parallelism_config_sp_seq_length"),
    obey_flag("--parallelism_config_sp_seq_length_is_variable", default=True),
    obey_flag("--parallelism_config_sp_attn_implementation", default="sdpa"),
)

FP8_FLAGS = (
    obey_flag("--fp8_backend"),
    obey_switch("--fp8_use_autocast_during_eval"),
    obey_flag("--fp8_margin", takes=_NUMBER, default=0),
    obey_flag("--fp8_interval", takes=_NUMBER, default=1),
    obey_flag("--fp8_format", default="HYBRID"),
    obey_flag("--fp8_amax_history_len", takes=_NUMBER, default=1024),
    obey_flag("--fp8_amax_compute_algo", default="most_recent"),
    obey_flag("--fp8_override_linear_precision", default="False,False,False"),
    obey_flag("--fp8_opt_level", default="O2"),
    obey_flag("--fp8_enable_fsdp_float8_all_gather", default="1"),
    obey_flag("--fp8_pad_inner_dim", default="1"),
)

UNSUPPORTED_FLAGS = (
    _refuse_tpu_flag("--tpu"),
    _refuse_tpu_flag("--tpu_cluster"),
    skip_flag("--no_tpu_cluster", takes=FlagValueKind.NOTHING, note="is not needed: TPUs are not used"),
    _refuse_tpu_flag("--tpu_use_sudo"),
    _refuse_tpu_flag("--vm", FlagValueKind.TEXT),
    _refuse_tpu_flag("--env", FlagValueKind.TEXT),
    _refuse_tpu_flag("--main_training_function", FlagValueKind.TEXT),
    _refuse_tpu_flag("--downcast_bf16"),
    refuse_flag("--aws_access_key_id", note=_SAGEMAKER, fix=_NO_TPU),
    refuse_flag("--aws_secret_access_key", note=_SAGEMAKER, fix=_NO_TPU),
)

GRAMMAR = FlagGrammar(
    launcher=NAME,
    flags=(
        refuse_help(NAME),
        *PLACEMENT_FLAGS,
        *TRAINING_FLAGS,
        *DEEPSPEED_FLAGS,
        *FSDP_FLAGS,
        *MEGATRON_FLAGS,
        *PARALLELISM_FLAGS,
        *FP8_FLAGS,
        *UNSUPPORTED_FLAGS,
    ),
    either_dash=True,
    short_forms=False,
)

# Sections of the config file, and the prefix that accelerate adds to keys without it.
SECTIONS = {
    "deepspeed_config": "",
    "fsdp_config": "fsdp_",
    "megatron_lm_config": "",
    "parallelism_config": "",
    "dynamo_config": "dynamo_",
    "fp8_config": "fp8_",
    "mpirun_config": "",
}
KEYS = frozenset({
    *SECTIONS, "compute_environment", "distributed_type", "mixed_precision", "fp16", "use_cpu", "debug",
    "num_processes", "machine_rank", "num_machines", "gpu_ids", "main_process_ip", "main_process_port",
    "rdzv_backend", "same_network", "main_training_function", "enable_cpu_affinity", "dynamo_backend",
    "downcast_bf16", "tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "command_file", "commands",
    "tpu_vm", "tpu_env",
})  # fmt: skip
NUMBERS = frozenset({"num_processes", "num_machines", "main_process_port"})
FSDP_ONLY_IN_FILE = "fsdp_ignored_modules"
SUPPORTED_LAUNCHERS = frozenset({"pdsh", "standard", "nossh"})
NOT_OURS = OTHER_LAUNCHER
