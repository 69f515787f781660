"""Diagnoses of models that ranks can't load."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_FITTING = Advice("train:\n  model: …   # a directory whose weights match its config.json")

MISSING = Diagnosis(
    code="model-missing",
    title="transformers can't load the model",
    symptoms=(
        "OSError: DIR does not appear to have a file named config.json",
        "ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize",
    ),
    explanation="The directory has no config.json on this node, or this version of transformers does not support the"
    " architecture (`pip install -U transformers` on every node). Code that comes with a model is not executed.",
    fixes="ls {folder}   # on this node; it must be a directory that transformers can load",
)

NOT_BUILT = Diagnosis(
    code="model-not-built",
    title="the model can't be built with these settings",
    symptoms=(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used",
        "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention",
    ),
    explanation="Usually it does not support the attention that `attn_implementation` names, or a package is missing.",
    fixes=Advice("train:\n  attn_implementation: auto   # uses what the model supports; every model supports eager"),
)

NO_WEIGHTS = Diagnosis(
    code="model-no-weights",
    title="there are no weights next to config.json",
    symptoms=(
        "has neither model.safetensors nor its index",
        "OSError: no file named pytorch_model.bin, model.safetensors",
    ),
    explanation="This directory has neither model.safetensors nor an index with the files that it lists.",
    fixes=Advice("train:\n  from_scratch: true   # to start with new weights; or name the directory that has them"),
)

DAMAGED = Diagnosis(
    code="model-damaged",
    title="a model file is incomplete",
    symptoms=(
        "SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "MetadataIncompleteBuffer",
    ),
    explanation="A download or a copy was interrupted, or git-lfs left a pointer of about 130 bytes instead of the"
    " file.",
    fixes="rm {path}   # then download the model again: hf download ORG/NAME, or git lfs pull in a clone",
)

QUANTIZED = Diagnosis(
    code="model-quantized",
    title="the model is quantized",
    symptoms=(
        "You cannot perform fine-tuning on purely quantized models",
        "is quantized, and full training of a quantized model",
    ),
    explanation="8-bit or 4-bit weights can't represent the small updates of full training.",
    fixes=Advice("train:\n  model: …   # the same model with bf16 or fp32 weights"),
)

NAMES = Diagnosis(
    code="model-names",
    title="the weights belong to another architecture",
    symptoms=("Some weights of X were not initialized from the model checkpoint", "Unexpected key(s) in state_dict"),
    explanation="Tensors that the model needs are not in the files, or the files have others; a plain"
    " `from_pretrained` would fill them with random values. Merge adapter weights first: `model.merge_and_unload()`.",
    fixes=_FITTING,
)

SHAPES = Diagnosis(
    code="model-shapes",
    title="the weights don't match the shapes in config.json",
    symptoms=("size mismatch for lm_head.weight: copying a param with shape", "ignore_mismatched_sizes"),
    explanation="config.json was edited, or tokens were added to the tokenizer but not to the embedding:"
    " `model.resize_token_embeddings(len(tokenizer))`, then `save_pretrained`.",
    fixes=_FITTING,
)

DIFFERS = Diagnosis(
    code="model-differs",
    title="nodes have different model files",
    symptoms=("is not the same on all ranks: rank 3 has different files than most", "losses differ between ranks"),
    explanation="Each rank reads the files of its own node. With different weights on one node, ranks would train a"
    " mixture.",
    fixes="sha256sum {folder}/*   # on each node; then copy the right files there, with rsync -a",
)

NO_START = Diagnosis(
    code="model-no-start",
    title="the model does not initialise all of its weights",
    symptoms=("doesn't initialize",),
    explanation="`from_scratch` initialises each tensor with the model's own code, and some models leave tensors out.",
    fixes=Advice("train:\n  from_scratch: false   # and a model with weights: from_config(…).save_pretrained(DIR)"),
)
