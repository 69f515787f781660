"""Diagnoses of models that ranks can't load."""

from aboard.diagnoses.diagnosis import RunFailure
from aboard.diagnoses.failure_class import Circumstance, FailureClass
from aboard.diagnoses.fixes import Advice

_FITTING = Advice("train:\n  model: …   # a directory whose weights match its config.json")

MISSING = RunFailure(
    code="model-missing",
    restart=FailureClass.PROGRAM,
    title="transformers can't load the model",
    symptoms=(
        "OSError: DIR does not appear to have a file named config.json",
        "ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize",
    ),
    explanation="The directory has no config.json on this node, or this version of transformers does not support the"
    " architecture (`pip install -U transformers` on every node).",
    fixes="ls {folder}   # on this node; it must be a directory that transformers can load",
)

CODE = RunFailure(
    code="model-code",
    restart=FailureClass.PROGRAM,
    title="the model or tokenizer needs Python code that comes with it",
    symptoms=(
        "Please pass the argument `trust_remote_code=True` to allow custom code to be run",
        "contains custom code which must be executed to correctly load the model",
    ),
    explanation="Its settings name classes in Python files next to them (`auto_map`). Such code runs with your rights"
    " here and on every node. Aboard runs it only if `train.trust_remote_code` is true.",
    fixes=Advice("train:\n  trust_remote_code: true   # after reading {file}"),
)

NOT_BUILT = RunFailure(
    code="model-not-built",
    restart=FailureClass.PROGRAM,
    title="the model can't be built with these settings",
    symptoms=(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used",
        "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention",
    ),
    explanation="Usually the model does not support the attention implementation that `attn_implementation` sets, or a"
    " package is missing.",
    fixes=Advice("train:\n  attn_implementation: auto   # uses what the model supports; every model supports eager"),
)

NO_WEIGHTS = RunFailure(
    code="model-no-weights",
    restart=FailureClass.PROGRAM,
    title="there are no weights next to config.json",
    symptoms=(
        "has neither model.safetensors nor its index",
        "OSError: no file named pytorch_model.bin, model.safetensors",
    ),
    explanation="The model's directory has neither model.safetensors nor a model.safetensors.index.json with all"
    " the files that it lists.",
    fixes=Advice(
        "train:\n  from_scratch: true   # to start with new weights; or set model to a directory that has them"
    ),
)

DAMAGED = RunFailure(
    code="model-damaged",
    restart=FailureClass.PROGRAM,
    title="a model file is incomplete",
    symptoms=(
        "SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "MetadataIncompleteBuffer",
    ),
    explanation="Usually a download or a copy was interrupted, or git-lfs left a pointer file of about 130 bytes"
    " instead of the model file.",
    fixes="rm {path}   # then download the model again: hf download ORG/NAME, or git lfs pull in a clone",
)

QUANTIZED = RunFailure(
    code="model-quantized",
    restart=FailureClass.PROGRAM,
    title="the model is quantized",
    symptoms=(
        "You cannot perform fine-tuning on purely quantized models",
        "is quantized, and full training of a quantized model",
    ),
    explanation="8-bit or 4-bit weights can't represent the small changes that each step of full training makes.",
    fixes=Advice("train:\n  model: …   # the same model with bf16 or fp32 weights"),
)

NAMES = RunFailure(
    code="model-names",
    restart=FailureClass.PROGRAM,
    title="the weights belong to a different architecture",
    symptoms=("Some weights of X were not initialized from the model checkpoint", "Unexpected key(s) in state_dict"),
    explanation="The files lack tensors that the model needs, or contain tensors that it does not have. A plain"
    " `from_pretrained` would fill the missing ones with random values. If the files contain an adapter, merge it"
    " into its model first: `model.merge_and_unload()`.",
    fixes=_FITTING,
)

SHAPES = RunFailure(
    code="model-shapes",
    restart=FailureClass.PROGRAM,
    title="the weights don't match the shapes in config.json",
    symptoms=("size mismatch for lm_head.weight: copying a param with shape", "ignore_mismatched_sizes"),
    explanation="Either config.json was edited, for example to raise `vocab_size` for added tokens, or the weights come"
    " from a different model. To add tokens, run `model.resize_token_embeddings(len(tokenizer))`, then"
    " `model.save_pretrained(DIR)`, which writes a matching config.json and weights.",
    fixes=_FITTING,
)

DIFFERS = RunFailure(
    code="model-differs",
    restart=Circumstance.BY_EXTENT,
    title="nodes have different model files",
    symptoms=(
        "is not the same on all ranks: rank 3 has different files than most ranks",
        "losses differ between ranks",
    ),
    explanation="Each rank reads its own node's files. If the weights on one node differ, the ranks would train a"
    " mixture of models.",
    fixes="sha256sum {folder}/*   # on each node; then copy the right files to the other nodes with rsync -a",
)

NO_START = RunFailure(
    code="model-no-start",
    restart=FailureClass.PROGRAM,
    title="the model does not initialize all of its weights",
    symptoms=("doesn't initialize",),
    explanation="`from_scratch` initializes each tensor with the model's own code, but some models' code skips"
    " some tensors.",
    fixes=Advice("train:\n  from_scratch: false   # and a model with weights: from_config(…).save_pretrained(DIR)"),
)
