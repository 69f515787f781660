"""The environment variables that `accelerate launch` sets for `Accelerator()`.

As in utils/launch.py of accelerate 1.15, in its spelling: `true` in some, `True` in others.
"""

from collections.abc import Iterable

from aboard.core.launchers.accelerate.accelerate_flags import FP8_FLAGS, MEGATRON_FLAGS, NAME
from aboard.core.launchers.accelerate.accelerate_settings import AccelerateMode, AccelerateSettings
from aboard.diagnoses import InputError
from aboard.diagnoses.usage import pasted_commands

# variable: name of the setting, and whether its value is lower-cased. A setting without a value is not set.
_FSDP = (
    ("FSDP_VERSION", "fsdp_version", False),
    ("FSDP_SHARDING_STRATEGY", "fsdp_sharding_strategy", False),
    ("FSDP_RESHARD_AFTER_FORWARD", "fsdp_reshard_after_forward", True),
    ("FSDP_OFFLOAD_PARAMS", "fsdp_offload_params", True),
    ("FSDP_MIN_NUM_PARAMS", "fsdp_min_num_params", False),
    ("FSDP_AUTO_WRAP_POLICY", "fsdp_auto_wrap_policy", False),
    ("FSDP_TRANSFORMER_CLS_TO_WRAP", "fsdp_transformer_layer_cls_to_wrap", False),
    ("FSDP_BACKWARD_PREFETCH", "fsdp_backward_prefetch", False),
    ("FSDP_STATE_DICT_TYPE", "fsdp_state_dict_type", False),
    ("FSDP_FORWARD_PREFETCH", "fsdp_forward_prefetch", True),
    ("FSDP_USE_ORIG_PARAMS", "fsdp_use_orig_params", True),
    ("FSDP_CPU_RAM_EFFICIENT_LOADING", "fsdp_cpu_ram_efficient_loading", True),
    ("FSDP_SYNC_MODULE_STATES", "fsdp_sync_module_states", True),
    ("FSDP_ACTIVATION_CHECKPOINTING", "fsdp_activation_checkpointing", True),
    ("FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "fsdp_activation_checkpointing_offload", True),
    ("FSDP_IGNORED_MODULES", "fsdp_ignored_modules", False),
)
_DEEPSPEED = (
    ("ACCELERATE_DEEPSPEED_ZERO_STAGE", "zero_stage", False),
    ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "gradient_accumulation_steps", False),
    ("ACCELERATE_GRADIENT_CLIPPING", "gradient_clipping", True),
    ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "offload_optimizer_device", True),
    ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "offload_param_device", True),
    # Accelerate's launcher doesn't set these two, which its DeepSpeedPlugin reads.
    ("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "offload_optimizer_nvme_path", False),
    ("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "offload_param_nvme_path", False),
    ("ACCELERATE_DEEPSPEED_ZERO3_INIT", "zero3_init_flag", True),
    ("ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "zero3_save_16bit_model", True),
    ("ACCELERATE_DEEPSPEED_CONFIG_FILE", "deepspeed_config_file", False),
    ("ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES", "deepspeed_moe_layer_cls_names", False),
)
_DYNAMO = (
    ("ACCELERATE_DYNAMO_MODE", "dynamo_mode", False),
    ("ACCELERATE_DYNAMO_USE_FULLGRAPH", "dynamo_use_fullgraph", False),
    ("ACCELERATE_DYNAMO_USE_DYNAMIC", "dynamo_use_dynamic", False),
    ("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", "dynamo_use_regional_compilation", False),
)
_PARALLELISM = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "cp_backend", "sp_size", "sp_backend")
_IF_CP = ("cp_comm_strategy",)
_IF_SP = ("sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation")
# As flags, these become a number; in the config file they stay `True`.
_TYPED_AS_BIT = ("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "ACCELERATE_FP8_PAD_INNER_DIM")
_WHOLE = frozenset({"fsdp_min_num_params", "zero_stage", "gradient_accumulation_steps"})


def build_accelerate_env(settings: AccelerateSettings) -> dict[str, str]:
    """The variables of every rank, besides torch's own and the number of threads."""
    env = {"ACCELERATE_MIXED_PRECISION": str(settings.values["mixed_precision"]).lower()}
    if settings.on("debug"):
        env["ACCELERATE_DEBUG_MODE"] = "true"
    if env["ACCELERATE_MIXED_PRECISION"] == "fp8":
        env |= _build_fp8_env(settings)
    if settings.mode is AccelerateMode.DEEPSPEED:
        env |= _build_deepspeed_env(settings)
    else:
        env["ACCELERATE_DYNAMO_BACKEND"] = str(settings.values["dynamo_backend"]).upper()
        env |= _fill_table(settings, _DYNAMO)
    if settings.mode is AccelerateMode.FSDP:
        env |= _build_fsdp_env(settings)
    if settings.mode is AccelerateMode.MEGATRON:
        env |= {"ACCELERATE_USE_MEGATRON_LM": "true"} | _uppercase_names(
            settings, [flag.dest for flag in MEGATRON_FLAGS]
        )
    if settings.mode is AccelerateMode.PLAIN:
        env |= _build_plain_env(settings)
    elif settings.parallelism:
        env |= _build_parallelism_env(settings)
    if settings.on("enable_cpu_affinity"):
        env["ACCELERATE_CPU_AFFINITY"] = "1"
    return env


def _build_fsdp_env(settings: AccelerateSettings) -> dict[str, str]:
    if settings.values["fsdp_cpu_ram_efficient_loading"] and not settings.values["fsdp_sync_module_states"]:
        seen = "fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: true; accelerate refuses it too"
        raise InputError.of(pasted_commands.CONFIG, NAME, seen, "fsdp")
    return {"ACCELERATE_USE_FSDP": "true"} | _fill_table(settings, _FSDP)


def _build_deepspeed_env(settings: AccelerateSettings) -> dict[str, str]:
    fields = ",".join(settings.from_file).lower()
    return {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_CONFIG_DS_FIELDS": fields} | _fill_table(
        settings, _DEEPSPEED
    )


def _build_plain_env(settings: AccelerateSettings) -> dict[str, str]:
    if not (settings.on("cpu") or settings.on("use_cpu")):
        return {"ACCELERATE_USE_CPU": "False"}
    return {"ACCELERATE_USE_CPU": "True", "KMP_AFFINITY": "granularity=fine,compact,1,0", "KMP_BLOCKTIME": "1"}


def _build_parallelism_env(settings: AccelerateSettings) -> dict[str, str]:
    names = list(_PARALLELISM)
    for size, more in (("cp_size", _IF_CP), ("sp_size", _IF_SP)):
        if (settings.count(f"parallelism_config_{size}") or 1) > 1:
            names += more
    chosen = {name: settings.values[f"parallelism_config_{name}"] for name in names}
    return {"ACCELERATE_USE_PARALLELISM_CONFIG": "true"} | {
        f"PARALLELISM_CONFIG_{name.upper()}": str(value) for name, value in chosen.items()
    }


def _build_fp8_env(settings: AccelerateSettings) -> dict[str, str]:
    override = settings.values["fp8_override_linear_precision"]
    parts = override.strip("()[]").split(",") if isinstance(override, str) else override
    env = _uppercase_names(settings, [flag.dest for flag in FP8_FLAGS if flag.dest != "fp8_override_linear_precision"])
    env = {f"ACCELERATE_{name}": value for name, value in env.items()}
    for name in _TYPED_AS_BIT:
        env[name] = {"true": "1", "false": "0"}.get(env[name], env[name])
    if isinstance(parts, Iterable):
        for gemm, part in zip(("FPROP", "DGRAD", "WGRAD"), parts, strict=False):
            env[f"ACCELERATE_FP8_OVERRIDE_{gemm}"] = str(part).strip()
    return env


def _fill_table(settings: AccelerateSettings, table: Iterable[tuple[str, str, bool]]) -> dict[str, str]:
    env = {}
    for variable, name, lower in table:
        value = settings.values.get(name)
        if value is not None:
            if name in _WHOLE and isinstance(value, float) and value.is_integer():
                value = int(value)  # in the file, `1e8` is a number whose text int() would refuse
            env[variable] = str(value).lower() if lower else str(value)
    return env


def _uppercase_names(settings: AccelerateSettings, names: Iterable[str]) -> dict[str, str]:
    return {name.upper(): str(value) for name in names if (value := settings.values.get(name)) is not None}
