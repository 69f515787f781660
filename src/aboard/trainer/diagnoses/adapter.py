"""Diagnoses of LoRA adapters that can't be added to a model or continued."""

from aboard.diagnoses.diagnosis import RunFailure
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.fixes import Advice

DROPOUT = RunFailure(
    code="adapter-dropout",
    restart=FailureClass.PROGRAM,
    title="dropout can't be drawn per sample in this module",
    symptoms=("gets 12 inputs, not one for each token",),
    explanation="`adapter.dropout` is drawn per sample and position, so that losses don't depend on the number of"
    " ranks. A module that gets only some tokens, such as an expert, doesn't say which ones.",
    fixes="--set train.adapter.dropout=0    # or list target_modules without this module",
)

TARGETS = RunFailure(
    code="adapter-targets",
    restart=FailureClass.PROGRAM,
    title="the adapter's modules are not in the model",
    symptoms=(
        "adapter.target_modules: the model has no module query_key_value",
        "ValueError: Target modules {'c_attn'} not found in the base model",
    ),
    explanation="`target_modules` is `all-linear`, a list of module names, or one regular expression for their full"
    " names; `modules_to_save` is a list. Every entry must match a module that PEFT has an adapter for.",
    fixes=Advice("target_modules: all-linear    # or some of: {names}"),
)

TIED = RunFailure(
    code="adapter-tied",
    restart=FailureClass.PROGRAM,
    title="an adapter can't change a tied weight",
    symptoms=("lm_head shares its weights with the embedding",),
    explanation="The output layer and the embedding are one tensor in this model. Training one of them alone unties"
    " them: the merged model could not be saved in its own format, and other tools would load something else.",
    fixes=Advice("remove it from adapter.target_modules and adapter.modules_to_save; all-linear doesn't include it"),
)

BASE_TYPE = RunFailure(
    code="adapter-base-type",
    restart=FailureClass.PROGRAM,
    title="frozen weights have a different type than the run computes in",
    symptoms=("adapter.base_dtype is bfloat16, but the run computes in float32",),
    explanation="Frozen weights are kept in float32 or in the type that the run computes in. Any other type would round"
    " them twice.",
    fixes="--set train.adapter.base_dtype=auto    # the type that the run computes in: bf16: true for bfloat16",
)

QUANTIZED = RunFailure(
    code="adapter-4bit",
    restart=FailureClass.PROGRAM,
    title="this model has nothing to quantize",
    symptoms=("have no linear modules that could be quantized",),
    explanation="`adapter.load_in_4bit` quantizes the linear modules of the layers. Models that have other modules"
    " there, such as GPT-2's Conv1D, would stay as they are.",
    fixes="--set train.adapter.load_in_4bit=false",
)

FILES = RunFailure(
    code="adapter-files",
    restart=FailureClass.PROGRAM,
    title="the adapter to continue from can't be used",
    symptoms=("has no adapter_config.json", "has no adapter_model.safetensors", "the adapter's files lack"),
    explanation="`adapter.path` is a directory as PEFT's save_pretrained writes it: adapter_config.json of a LoRA"
    " adapter and adapter_model.safetensors with its weights for this base model. Pickled weights (adapter_model.bin)"
    " are not read, since loading them can run code.",
    fixes=Advice("use a LoRA adapter that PEFT saved as safetensors for this base model"),
)
