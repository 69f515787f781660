"""Every flag of `accelerate launch` 1.15, and every key of the config file that `accelerate config` writes.

A flag has the launcher's default, since that is what reaches the environment if the user sets nothing.
"""

from collections.abc import Iterator
from typing import Any

from aboard.core.launchers.deepspeed import OTHER_LAUNCHER
from aboard.core.launchers.flag_parser import FlagGrammar
from aboard.core.launchers.flag_table import (
    FlagValueKind,
    LauncherFlag,
    list_flags,
    obey_flag,
    obey_switch,
    refuse_flag,
    refuse_help,
    skip_flag,
)
from aboard.core.launchers.torchrun import NO_RENDEZVOUS, NO_ROLES, OWN_LOGS
from aboard.diagnoses.usage import pasted_commands

NAME = "accelerate launch"

_NOTHING, _NUMBER, _DECIMAL = FlagValueKind.NOTHING, FlagValueKind.NUMBER, FlagValueKind.DECIMAL
_TPU = "Aboard does not support TPUs"
_NO_TPU = pasted_commands.FLAG.fix("accelerate")
_SAGEMAKER = "Aboard does not support Amazon SageMaker"


def _list_megatron_flags(names: str, **settings: Any) -> Iterator[LauncherFlag]:
    return (obey_flag(f"--megatron_lm_{name}", **settings) for name in names.split())


PLACEMENT_FLAGS = (
    *list_flags(obey_flag, "--config_file --main_process_ip --gpu_ids --rdzv_backend"),
    *list_flags(
        obey_flag, "--num_processes --num_machines --num_cpu_threads_per_process --max_restarts", takes=_NUMBER
    ),
    obey_flag("--main_process_port", takes=FlagValueKind.NUMBER),
    *list_flags(obey_switch, "--module|-m --no_python"),
    skip_flag("--role", note=NO_ROLES, accepted=("default",)),
    skip_flag("--machine_rank", note="is not needed: Aboard assigns it to each node"),
    skip_flag("--same_network", takes=_NOTHING, note=NO_RENDEZVOUS),
    skip_flag("--rdzv_conf", note=NO_RENDEZVOUS),
    skip_flag("--monitor_interval", note="is not needed: Aboard sees at once when a rank exits"),
    *list_flags(skip_flag, "--tee|-t --log_dir", note=OWN_LOGS),
    skip_flag("--quiet", "-q", takes=_NOTHING, note="is not needed: Aboard prints its own messages"),
    refuse_flag("--mpirun_hostfile", note="Aboard doesn't use mpirun", fix=pasted_commands.FLAG.fix("mpirun-hostfile")),
)

TRAINING_FLAGS = (
    *list_flags(obey_flag, "--mixed_precision --dynamo_backend"),
    obey_flag("--dynamo_mode", default="default"),
    *list_flags(
        obey_switch,
        """--cpu --multi_gpu --use_deepspeed --use_fsdp --use_megatron_lm --use_parallelism_config --enable_cpu_affinity
        --debug --dynamo_use_fullgraph --dynamo_use_dynamic --dynamo_use_regional_compilation""",
    ),
)

DEEPSPEED_FLAGS = (
    *list_flags(
        obey_flag,
        """--deepspeed_config_file --offload_optimizer_device --offload_param_device --offload_optimizer_nvme_path
        --offload_param_nvme_path --zero3_init_flag --zero3_save_16bit_model --deepspeed_moe_layer_cls_names
        --deepspeed_hostfile --deepspeed_inclusion_filter --deepspeed_exclusion_filter
        --deepspeed_multinode_launcher""",
    ),
    *list_flags(obey_flag, "--zero_stage --gradient_accumulation_steps", takes=_NUMBER),
    obey_flag("--gradient_clipping", takes=_DECIMAL),
)

FSDP_FLAGS = (
    obey_flag("--fsdp_version", default="1"),
    obey_flag("--fsdp_sharding_strategy", default="FULL_SHARD"),
    obey_flag("--fsdp_min_num_params", takes=_NUMBER, default=100_000_000),
    *list_flags(
        obey_flag,
        """--fsdp_auto_wrap_policy --fsdp_transformer_layer_cls_to_wrap --fsdp_backward_prefetch
        --fsdp_state_dict_type""",
    ),
    *list_flags(
        obey_flag,
        """--fsdp_reshard_after_forward --fsdp_use_orig_params --fsdp_cpu_ram_efficient_loading
        --fsdp_sync_module_states""",
        default="true",
    ),
    *list_flags(
        obey_flag,
        """--fsdp_offload_params --fsdp_forward_prefetch --fsdp_activation_checkpointing
        --fsdp_activation_checkpointing_offload""",
        default="false",
    ),
)

# In accelerate's order, which the variables of ranks have too.
MEGATRON_FLAGS = (
    *_list_megatron_flags("tp_degree", takes=_NUMBER, default=1),
    *_list_megatron_flags(
        """use_custom_fsdp no_load_optim eod_mask_loss no_save_optim optimizer_cpu_offload
        use_precision_aware_optimizer overlap_cpu_optimizer_d2h_h2d""",
        default=False,
    ),
    *_list_megatron_flags("decoder_last_pipeline_num_layers", takes=_NUMBER),
    *_list_megatron_flags("pp_degree", takes=_NUMBER, default=1),
    *_list_megatron_flags("gradient_clipping", takes=_DECIMAL, default=1.0),
    *_list_megatron_flags("num_micro_batches", takes=_NUMBER),
    *_list_megatron_flags(
        "sequence_parallelism recompute_activations use_distributed_optimizer recompute_granularity recompute_method"
    ),
    *_list_megatron_flags("recompute_num_layers", takes=_NUMBER),
    *_list_megatron_flags("attention_backend"),
    *_list_megatron_flags("expert_model_parallel_size context_parallel_size", takes=_NUMBER),
    *_list_megatron_flags("attention_dropout hidden_dropout", takes=_DECIMAL),
    *_list_megatron_flags("attention_softmax_in_fp32"),
    *_list_megatron_flags("expert_tensor_parallel_size", takes=_NUMBER),
    *_list_megatron_flags("calculate_per_token_loss use_rotary_position_embeddings"),
)

PARALLELISM_FLAGS = (
    *list_flags(
        obey_flag,
        """--parallelism_config_dp_replicate_size --parallelism_config_dp_shard_size --parallelism_config_tp_size
        --parallelism_config_cp_size --parallelism_config_sp_size""",
        takes=_NUMBER,
        default=1,
    ),
    obey_flag("--parallelism_config_cp_backend", default="torch"),
    obey_flag("--parallelism_config_cp_comm_strategy", default="allgather"),
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
    *list_flags(obey_flag, "--fp8_enable_fsdp_float8_all_gather --fp8_pad_inner_dim", default="1"),
)

UNSUPPORTED_FLAGS = (
    *list_flags(
        refuse_flag, "--tpu --tpu_cluster --tpu_use_sudo --downcast_bf16", takes=_NOTHING, note=_TPU, fix=_NO_TPU
    ),
    skip_flag("--no_tpu_cluster", takes=_NOTHING, note="is not needed: TPUs are not used"),
    *list_flags(refuse_flag, "--vm --env --main_training_function", note=_TPU, fix=_NO_TPU),
    *list_flags(refuse_flag, "--aws_access_key_id --aws_secret_access_key", note=_SAGEMAKER, fix=_NO_TPU),
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
