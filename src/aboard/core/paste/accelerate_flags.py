"""Every flag of `accelerate launch` 1.15, and every key of the config file that `accelerate config` writes.

A flag's default is the launcher's own, for it is what ends up in the environment when nothing else was said.
"""

from aboard.core.paste.deepspeed import OTHER_LAUNCHER
from aboard.core.paste.flags import Flag, Takes, help_of, obeyed, ours, refused, switch
from aboard.core.paste.torchrun import NO_RENDEZVOUS, NO_ROLES, OWN_LOGS, restarts
from aboard.core.paste.typed import Grammar
from aboard.diagnoses import paste

NAME = "accelerate launch"

_NUMBER, _DECIMAL = Takes.NUMBER, Takes.DECIMAL
_TPU = "TPUs are not reached by Aboard"
_NO_TPU = paste.FLAG.fix("accelerate")
_SAGEMAKER = "Amazon SageMaker is not reached by Aboard"


def _tpu(name: str, takes: Takes = Takes.NOTHING) -> Flag:
    return refused(name, takes=takes, says=_TPU, fix=_NO_TPU)


WHERE = (
    obeyed("--config_file"),
    obeyed("--num_processes", takes=_NUMBER),
    obeyed("--num_machines", takes=_NUMBER),
    obeyed("--main_process_ip"),
    obeyed("--main_process_port", takes=_NUMBER),
    obeyed("--num_cpu_threads_per_process", takes=_NUMBER),
    obeyed("--gpu_ids"),
    switch("--module", "-m"),
    switch("--no_python"),
    ours("--role", says=NO_ROLES, fine=("default",)),
    obeyed("--rdzv_backend"),
    ours("--machine_rank", says="is not needed: each node is told its own"),
    ours("--same_network", takes=Takes.NOTHING, says=NO_RENDEZVOUS),
    ours("--rdzv_conf", says=NO_RENDEZVOUS),
    ours("--monitor_interval", says="is not needed: a rank's end is seen when it happens"),
    ours("--tee", "-t", says=OWN_LOGS),
    ours("--log_dir", says=OWN_LOGS),
    ours("--quiet", "-q", takes=Takes.NOTHING, says="is not needed: Aboard has messages of its own"),
    restarts("--max_restarts"),
    refused("--mpirun_hostfile", says="Aboard doesn't use mpirun", fix=paste.FLAG.fix("mpirun-hostfile")),
)

HOW = (
    switch("--cpu"),
    switch("--multi_gpu"),
    switch("--use_deepspeed"),
    switch("--use_fsdp"),
    switch("--use_megatron_lm"),
    switch("--use_parallelism_config"),
    switch("--enable_cpu_affinity"),
    switch("--debug"),
    obeyed("--mixed_precision"),
    obeyed("--dynamo_backend"),
    obeyed("--dynamo_mode", default="default"),
    switch("--dynamo_use_fullgraph"),
    switch("--dynamo_use_dynamic"),
    switch("--dynamo_use_regional_compilation"),
)

DEEPSPEED = (
    obeyed("--deepspeed_config_file"),
    obeyed("--zero_stage", takes=_NUMBER),
    obeyed("--offload_optimizer_device"),
    obeyed("--offload_param_device"),
    obeyed("--offload_optimizer_nvme_path"),
    obeyed("--offload_param_nvme_path"),
    obeyed("--gradient_accumulation_steps", takes=_NUMBER),
    obeyed("--gradient_clipping", takes=_DECIMAL),
    obeyed("--zero3_init_flag"),
    obeyed("--zero3_save_16bit_model"),
    obeyed("--deepspeed_moe_layer_cls_names"),
    obeyed("--deepspeed_hostfile"),
    obeyed("--deepspeed_inclusion_filter"),
    obeyed("--deepspeed_exclusion_filter"),
    obeyed("--deepspeed_multinode_launcher"),
)

FSDP = (
    obeyed("--fsdp_version", default="1"),
    obeyed("--fsdp_sharding_strategy", default="FULL_SHARD"),
    obeyed("--fsdp_reshard_after_forward", default="true"),
    obeyed("--fsdp_offload_params", default="false"),
    obeyed("--fsdp_min_num_params", takes=_NUMBER, default=100_000_000),
    obeyed("--fsdp_auto_wrap_policy"),
    obeyed("--fsdp_transformer_layer_cls_to_wrap"),
    obeyed("--fsdp_backward_prefetch"),
    obeyed("--fsdp_state_dict_type"),
    obeyed("--fsdp_forward_prefetch", default="false"),
    obeyed("--fsdp_use_orig_params", default="true"),
    obeyed("--fsdp_cpu_ram_efficient_loading", default="true"),
    obeyed("--fsdp_sync_module_states", default="true"),
    obeyed("--fsdp_activation_checkpointing", default="false"),
    obeyed("--fsdp_activation_checkpointing_offload", default="false"),
)

MEGATRON = (
    obeyed("--megatron_lm_tp_degree", takes=_NUMBER, default=1),
    obeyed("--megatron_lm_use_custom_fsdp", default=False),
    obeyed("--megatron_lm_no_load_optim", default=False),
    obeyed("--megatron_lm_eod_mask_loss", default=False),
    obeyed("--megatron_lm_no_save_optim", default=False),
    obeyed("--megatron_lm_optimizer_cpu_offload", default=False),
    obeyed("--megatron_lm_use_precision_aware_optimizer", default=False),
    obeyed("--megatron_lm_overlap_cpu_optimizer_d2h_h2d", default=False),
    obeyed("--megatron_lm_decoder_last_pipeline_num_layers", takes=_NUMBER),
    obeyed("--megatron_lm_pp_degree", takes=_NUMBER, default=1),
    obeyed("--megatron_lm_gradient_clipping", takes=_DECIMAL, default=1.0),
    obeyed("--megatron_lm_num_micro_batches", takes=_NUMBER),
    obeyed("--megatron_lm_sequence_parallelism"),
    obeyed("--megatron_lm_recompute_activations"),
    obeyed("--megatron_lm_use_distributed_optimizer"),
    obeyed("--megatron_lm_recompute_granularity"),
    obeyed("--megatron_lm_recompute_method"),
    obeyed("--megatron_lm_recompute_num_layers", takes=_NUMBER),
    obeyed("--megatron_lm_attention_backend"),
    obeyed("--megatron_lm_expert_model_parallel_size", takes=_NUMBER),
    obeyed("--megatron_lm_context_parallel_size", takes=_NUMBER),
    obeyed("--megatron_lm_attention_dropout", takes=_DECIMAL),
    obeyed("--megatron_lm_hidden_dropout", takes=_DECIMAL),
    obeyed("--megatron_lm_attention_softmax_in_fp32"),
    obeyed("--megatron_lm_expert_tensor_parallel_size", takes=_NUMBER),
    obeyed("--megatron_lm_calculate_per_token_loss"),
    obeyed("--megatron_lm_use_rotary_position_embeddings"),
)

PARALLELISM = (
    obeyed("--parallelism_config_dp_replicate_size", takes=_NUMBER, default=1),
    obeyed("--parallelism_config_dp_shard_size", takes=_NUMBER, default=1),
    obeyed("--parallelism_config_tp_size", takes=_NUMBER, default=1),
    obeyed("--parallelism_config_cp_size", takes=_NUMBER, default=1),
    obeyed("--parallelism_config_cp_backend", default="torch"),
    obeyed("--parallelism_config_cp_comm_strategy", default="allgather"),
    obeyed("--parallelism_config_sp_size", takes=_NUMBER, default=1),
    obeyed("--parallelism_config_sp_backend", default="deepspeed"),
    obeyed("--parallelism_config_sp_seq_length"),
    obeyed("--parallelism_config_sp_seq_length_is_variable", default=True),
    obeyed("--parallelism_config_sp_attn_implementation", default="sdpa"),
)

FP8 = (
    obeyed("--fp8_backend"),
    switch("--fp8_use_autocast_during_eval"),
    obeyed("--fp8_margin", takes=_NUMBER, default=0),
    obeyed("--fp8_interval", takes=_NUMBER, default=1),
    obeyed("--fp8_format", default="HYBRID"),
    obeyed("--fp8_amax_history_len", takes=_NUMBER, default=1024),
    obeyed("--fp8_amax_compute_algo", default="most_recent"),
    obeyed("--fp8_override_linear_precision", default="False,False,False"),
    obeyed("--fp8_opt_level", default="O2"),
    obeyed("--fp8_enable_fsdp_float8_all_gather", default="1"),
    obeyed("--fp8_pad_inner_dim", default="1"),
)

ELSEWHERE = (
    _tpu("--tpu"),
    _tpu("--tpu_cluster"),
    ours("--no_tpu_cluster", takes=Takes.NOTHING, says="is not needed: TPUs are not used"),
    _tpu("--tpu_use_sudo"),
    _tpu("--vm", Takes.TEXT),
    _tpu("--env", Takes.TEXT),
    _tpu("--main_training_function", Takes.TEXT),
    _tpu("--downcast_bf16"),
    refused("--aws_access_key_id", says=_SAGEMAKER, fix=_NO_TPU),
    refused("--aws_secret_access_key", says=_SAGEMAKER, fix=_NO_TPU),
)

GRAMMAR = Grammar(
    launcher=NAME,
    flags=(help_of(NAME), *WHERE, *HOW, *DEEPSPEED, *FSDP, *MEGATRON, *PARALLELISM, *FP8, *ELSEWHERE),
    either_dash=True,
    short_forms=False,
)

# Sections of the config file, and what accelerate puts before a key that lacks it.
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
OURS_LAUNCHERS = frozenset({"pdsh", "standard", "nossh"})
NOT_OURS = OTHER_LAUNCHER
