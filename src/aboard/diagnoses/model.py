"""Models that ranks can't load."""

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice

_FITTING = "Name a directory whose weights belong to its config.json: `train.model`. "

MISSING = Diagnosis(
    code="model-missing",
    title="there is no model that transformers knows",
    symptoms=(
        "OSError: DIR does not appear to have a file named config.json",
        "ValueError: The checkpoint you are trying to load has model type `x` but Transformers does not recognize",
    ),
    explanation="The directory has no config.json on this node, or it names an architecture that this version of"
    " transformers doesn't have. Code that comes with a model is not run.",
    remedy="`ls -l DIR` on the node. For a newer architecture: `pip install -U transformers` in the Python that"
    " ranks get, on every node.",
    fixes="ls {folder}   # on this node; it must be a directory that transformers can load",
)

NOT_BUILT = Diagnosis(
    code="model-not-built",
    title="the model can't be built as it is asked for",
    symptoms=(
        "ImportError: FlashAttention2 has been toggled on, but it cannot be used",
        "does not support an attention implementation through torch.nn.functional.scaled_dot_product_attention",
    ),
    explanation="Most often it has no attention of the kind that `attn_implementation` names, or the package"
    " behind it is missing.",
    remedy="`--set train.attn_implementation=auto` takes what the model can do; `eager` is what every model has.",
    fixes=Advice("train:\n  attn_implementation: auto   # what every model can do"),
)

NO_WEIGHTS = Diagnosis(
    code="model-no-weights",
    title="there are no weights beside config.json",
    symptoms=(
        "has no model.safetensors, nor its index",
        "OSError: no file named pytorch_model.bin, model.safetensors",
    ),
    explanation="A model has model.safetensors, or its index and the files that it names; they are not in this"
    " directory.",
    remedy="Name the directory that has them, or `--set train.from_scratch=true` to begin with new weights.",
    fixes=Advice("train:\n  from_scratch: true   # to begin with new weights; or give the directory that has them"),
)

DAMAGED = Diagnosis(
    code="model-damaged",
    title="a file of the model is not whole",
    symptoms=(
        "SafetensorError: Error while deserializing header: InvalidHeaderDeserialization",
        "MetadataIncompleteBuffer",
    ),
    explanation="A download or a copy broke off, or git left a pointer instead of the file (git-lfs).",
    remedy="Fetch it again: `hf download ORG/NAME`, or `git lfs pull` in a clone. `ls -l` shows a pointer by its"
    " size of about 130 bytes.",
    fixes="rm {path}   # then fetch the model again",
)

QUANTIZED = Diagnosis(
    code="model-quantized",
    title="the model is quantized",
    symptoms=(
        "You cannot perform fine-tuning on purely quantized models",
        "is quantized, and a quantized model can't be",
    ),
    explanation="Weights of 8 or 4 bits can't take the small steps of a training in full.",
    remedy="Name the same model with bf16 or fp32 weights, of which the quantized one was made.",
    fixes=Advice("train:\n  model: …   # the same model with bf16 or fp32 weights"),
)

NAMES = Diagnosis(
    code="model-names",
    title="the weights are those of another architecture",
    symptoms=(
        "Some weights of X were not initialized from the model checkpoint",
        "Unexpected key(s) in state_dict",
    ),
    explanation="Tensors that the model needs aren't in the files, or the files have others. An ordinary load"
    " warns and fills in random numbers, and the training then starts from those.",
    remedy=_FITTING + "Weights of an adapter alone have to be merged first: `model.merge_and_unload()`.",
    fixes=Advice("train:\n  model: …   # a directory whose weights belong to its config.json"),
)

SHAPES = Diagnosis(
    code="model-shapes",
    title="the weights have other shapes than config.json says",
    symptoms=("size mismatch for lm_head.weight: copying a param with shape", "ignore_mismatched_sizes"),
    explanation="config.json was edited, or tokens were added to a tokenizer and not to the embedding.",
    remedy=_FITTING + "For added tokens: `model.resize_token_embeddings(len(tokenizer))`, then `save_pretrained`.",
    fixes=Advice("train:\n  model: …   # a directory whose weights belong to its config.json"),
)

DIFFERS = Diagnosis(
    code="model-differs",
    title="nodes have different files of the model",
    symptoms=("isn't the same everywhere: rank 3 has other files than most", "losses differ between ranks"),
    explanation="Each rank reads its own node's files. With other weights on one of them, ranks would train a mixture.",
    remedy="`sha256sum DIR/*` on each node shows which; copy the right files there: `rsync -a DIR/ NODE:DIR/`.",
    fixes="sha256sum {folder}/*   # on each node; then copy the right files there",
)

NO_START = Diagnosis(
    code="model-no-start",
    title="the model doesn't say how its weights begin",
    symptoms=("doesn't say how these begin",),
    explanation="`from_scratch` draws each tensor as the model's own code does, rank by rank. Some models leave"
    " tensors out of it, or make one of another.",
    remedy="Save it once with weights, `AutoModelForCausalLM.from_config(config).save_pretrained(DIR)`, and train"
    " that with `from_scratch: false`.",
    fixes=Advice("train:\n  from_scratch: false   # and give a model that has weights"),
)
