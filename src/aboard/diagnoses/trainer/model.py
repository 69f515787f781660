"""Models that ranks can't load."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_FITTING = Advice("train:\n  model: …   # a directory whose weights belong to its config.json")

MISSING = Diagnosis(
    code="model-missing",
    title="there is no model that transformers knows",
    symptoms=(
        "OSError: DIR does not appear to have a file named config.json",
        "ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize",
    ),
    explanation="The directory has no config.json on this node, or this version of transformers lacks the architecture"
    " (`pip install -U transformers` on every node). Code that comes with a model is not run.",
    fixes="ls {folder}   # on this node; it must be a directory that transformers can load",
)

NOT_BUILT = Diagnosis(
    code="model-not-built",
    title="the model can't be built as it is asked for",
    symptoms=(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used",
        "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention",
    ),
    explanation="Most often it lacks the attention that `attn_implementation` names, or a package is missing.",
    fixes=Advice("train:\n  attn_implementation: auto   # takes what the model can do; every model has eager"),
)

NO_WEIGHTS = Diagnosis(
    code="model-no-weights",
    title="there are no weights beside config.json",
    symptoms=(
        "has neither model.safetensors nor its index",
        "OSError: no file named pytorch_model.bin, model.safetensors",
    ),
    explanation="This directory has neither model.safetensors nor its index with the files that it names.",
    fixes=Advice("train:\n  from_scratch: true   # to begin with new weights; or give the directory that has them"),
)

DAMAGED = Diagnosis(
    code="model-damaged",
    title="a file of the model is not whole",
    symptoms=(
        "SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "MetadataIncompleteBuffer",
    ),
    explanation="A download or a copy broke off, or git-lfs left a pointer of about 130 bytes instead of the file.",
    fixes="rm {path}   # then fetch the model again: hf download ORG/NAME, or git lfs pull in a clone",
)

QUANTIZED = Diagnosis(
    code="model-quantized",
    title="the model is quantized",
    symptoms=(
        "You cannot perform fine-tuning on purely quantized models",
        "is quantized, and full training of a quantized model",
    ),
    explanation="Weights of 8 or 4 bits can't take the small steps of a training in full.",
    fixes=Advice("train:\n  model: …   # the same model with bf16 or fp32 weights"),
)

NAMES = Diagnosis(
    code="model-names",
    title="the weights are those of another architecture",
    symptoms=("Some weights of X were not initialized from the model checkpoint", "Unexpected key(s) in state_dict"),
    explanation="Tensors that the model needs aren't in the files, or the files have others; an ordinary load would"
    " fill in random numbers. Weights of an adapter have to be merged first: `model.merge_and_unload()`.",
    fixes=_FITTING,
)

SHAPES = Diagnosis(
    code="model-shapes",
    title="the weights have other shapes than config.json says",
    symptoms=("size mismatch for lm_head.weight: copying a param with shape", "ignore_mismatched_sizes"),
    explanation="config.json was edited, or tokens were added to a tokenizer and not to the embedding:"
    " `model.resize_token_embeddings(len(tokenizer))`, then `save_pretrained`.",
    fixes=_FITTING,
)

DIFFERS = Diagnosis(
    code="model-differs",
    title="nodes have different files of the model",
    symptoms=("is not the same on all ranks: rank 3 has different files than most", "losses differ between ranks"),
    explanation="Each rank reads its own node's files; with other weights on one node, ranks would train a mixture.",
    fixes="sha256sum {folder}/*   # on each node; then copy the right files there, with rsync -a",
)

NO_START = Diagnosis(
    code="model-no-start",
    title="the model doesn't say how its weights begin",
    symptoms=("doesn't initialize",),
    explanation="`from_scratch` draws each tensor as the model's own code does; some models leave tensors out.",
    fixes=Advice("train:\n  from_scratch: false   # and a model with weights: from_config(…).save_pretrained(DIR)"),
)
