"""What ends a training before its first step, or at one."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, FixCommand

CONFIG = Diagnosis(
    code="train-config",
    title="the training can't be as it is written",
    symptoms=("train.model is not given", "train.num_train_epochs and train.max_steps both say how long it trains"),
    explanation="Required keys are missing, or two keys contradict each other; all of it is reported at once.",
    remedy="`aboard train --print-config` shows each value that would be used, and where it comes from.",
    fixes={
        "model": Advice("write which one: `train: {{model: ./my-model}}`, a directory or a name of the hub"),
        "no-model": Advice("name a directory with config.json and safetensors, or a model of the hub as ORG/NAME"),
        "files": Advice("write which: `data: {{files: [train.jsonl]}}`, then look at them with: aboard data"),
        "one-length": Advice("keep one of them"),
        "one-warmup": Advice("keep one"),
        "schedule": Advice("leave it out, or write lr_scheduler_type: {schedule}"),
        "below": Advice("write a number below {most}"),
        "parts": Advice("write two parts whose sum is at most 1"),
        "part": Advice("write a part, as 0.03"),
        "validation": Advice("write `validation: [held.jsonl]` in the section `data`, or leave {key} out"),
        "resume": Advice("keep one of them; `resume: auto` goes on from what a run of its own has saved"),
    },
)

FILE = Diagnosis(
    code="train-file",
    title="no file says what to train",
    symptoms=("no file says what to train, and there is no ./aboard.yaml",),
    explanation="`aboard train` reads the sections `train` and `data` of the named file, or of ./aboard.yaml.",
    fixes=Advice("write `train:` and `data:` into aboard.yaml, see docs/train.md, or name one: aboard train FILE.yaml"),
)

MODEL = Diagnosis(
    code="train-model",
    title="the model can't be had",
    symptoms=(
        "has no config.json: it is no model that transformers could load",
        "there is no directory, and the hub doesn't give a model of that name",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "has no safetensors, only pytorch_model.bin",
    ),
    explanation="The model is fetched once, on the head; ranks are offline. A directory needs config.json and, unless"
    " `from_scratch` is set, safetensors, as `from_pretrained(DIR).save_pretrained(DIR)` writes them. A gated model of"
    " the hub needs a login: `hf auth login`.",
    fixes={
        "folder": FixCommand("ls -l {folder}"),
        "scratch": Advice("train.from_scratch: true    # in aboard.yaml, to begin with new weights"),
        "convert": FixCommand("python -c {code:shell}    # writes safetensors"),
        "config": FixCommand("cat {path}"),
        "hub": FixCommand("hf download {name}    # where there is a network; or name a directory: train.model"),
    },
)

ASKED = Diagnosis(
    code="train-asked",
    title="the trainer did not answer a question of the head",
    severity=Severity.WARN,
    symptoms=(
        "aboard.train.memory.worker: it did not answer within 120 s",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    explanation="A process with the trainer's own code estimates memory and exports checkpoints. It broke, or the head"
    " has no torch: export on a node, or `pip install 'aboard[train]'` here. A training goes on without the estimate.",
    fixes={
        "run": FixCommand("{python} -m {module}    # shows the traceback"),
        "report": Advice("please report it with your aboard.yaml"),
    },
)

GIVEN = Diagnosis(
    code="train-given",
    title="a rank was started without a training",
    symptoms=("no training settings: ABOARD_TRAINING is not set",),
    explanation="Ranks run `python -m aboard.train`, and the head tells them in their environment what to do.",
    fixes="aboard train aboard.yaml",
)

TENSORBOARD = Diagnosis(
    code="train-tensorboard",
    title="TensorBoard isn't installed where rank 0 runs",
    symptoms=(
        "ModuleNotFoundError: No module named 'tensorboard'",
        "tensorboard: true is set, but TensorBoard is not installed",
    ),
    explanation="`train.tensorboard: true` writes TensorBoard's files, and torch needs that package to do so.",
    fixes="python3 -m pip install tensorboard    # on rank 0's node; without it, metrics.jsonl is still written",
)

NONFINITE = Diagnosis(
    code="train-nonfinite",
    title="a loss or a gradient is no number",
    symptoms=("loss is nan", "the loss is not finite on rank 3", "'loss': nan, 'grad_norm': nan", "grad_norm: inf"),
    explanation="One step gave nan or infinity, and its update was left out on all ranks. Most often the learning rate"
    " is too high, a row is damaged (tokens of another tokenizer, thousands of equal characters), or the initial"
    " weights aren't numbers. If it is always the same rank, suspect its memory or GPU: `aboard check --only gpu`.",
    fixes=Advice(
        "look at those rows (aboard data FILE --show 5), lower learning_rate, or leave such steps out with"
        " on_nonfinite: skip"
    ),
)

CHECKPOINTING_UNKNOWN = Diagnosis(
    code="checkpointing-unknown",
    title="the model can't compute its activations twice",
    symptoms=("ValueError: XForCausalLM does not support gradient checkpointing.",),
    explanation="The model's own code does `gradient_checkpointing: true`, and transformers has none for this one.",
    fixes=Advice("train:\n  gradient_checkpointing: false   # for memory: a smaller batch, or more ranks"),
)

SHARDING_UNEVEN = Diagnosis(
    code="sharding-uneven",
    title="hybrid sharding met nodes of different sizes",
    symptoms=("`sharding: hybrid` needs the same number of ranks on every node",),
    explanation="With `hybrid`, ranks of the same place on all nodes hold the same shard: each node must have as many.",
    fixes=Advice("sharding: full   # in the train section; or give every node the same number of slots"),
)

BATCH = Diagnosis(
    code="train-batch",
    title="the batch and the ranks don't go together",
    symptoms=("the loss differs from the same run on another number of GPUs", "ranks with zero samples"),
    explanation="`global_batch_size` counts the sequences of one step over all ranks. With fewer sequences than ranks"
    " some would do nothing, and `gradient_accumulation_steps` must not contradict it.",
    fixes={
        "larger": FixCommand("--set train.global_batch_size={size}"),
        "larger-or-fewer": FixCommand("--set train.global_batch_size={size}    # or fewer ranks: --include {nodes}"),
        "one": Advice("leave gradient_accumulation_steps out    # it then follows from global_batch_size"),
    },
)

HYBRID = Diagnosis(
    code="train-hybrid",
    title="hybrid sharding on nodes that it can't be done on",
    symptoms=("RuntimeError: Mesh should not be bigger than default world size", "sharding: hybrid"),
    explanation="With `hybrid` each node shards the whole model over its own ranks: more than one, and equally many.",
    fixes={
        "unequal": FixCommand("--set train.sharding=full    # over all ranks, or give each node the same slots"),
        "single": FixCommand("--set train.sharding=full    # or none, or auto"),
    },
)

ATTENTION = Diagnosis(
    code="train-attention",
    title="flash attention without a GPU",
    symptoms=("FlashAttention only supports Ampere GPUs or newer", "ImportError: FlashAttention2 has been toggled on"),
    explanation="The kernels of flash-attn are written for GPUs.",
    fixes="--set train.attn_implementation=sdpa    # or auto: the best that is there",
)

BF16 = Diagnosis(
    code="train-bf16",
    title="bfloat16 on GPUs that don't have it",
    severity=Severity.WARN,
    symptoms=("Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",),
    explanation="Compute capability below 8.0 (V100, T4, RTX 20) has no bfloat16 in hardware.",
    fixes="--set train.bf16=false    # computes in float32; fp16 would overflow without loss scaling",
)

PACKAGES = Diagnosis(
    code="train-packages",
    title="a node's Python lacks what the trainer stands on",
    symptoms=("ModuleNotFoundError: No module named 'transformers'", "ModuleNotFoundError: No module named 'torch'"),
    explanation="Aboard brings its own code to every node. torch, transformers, safetensors and numpy must be in the"
    " Python that ranks get: see `python:` and `setup:` of the section `cluster`.",
    fixes="python3 -m pip install {packages:words}    # on {where:shell}, with the Python that ranks get: `python:` in"
    " aboard.yaml",
)

LENGTH = Diagnosis(
    code="train-length",
    title="sequences are longer than the model has positions",
    symptoms=(
        "Token indices sequence length is longer than the specified maximum sequence length for this model",
        "IndexError: index out of range in self",
        "CUDA error: device-side assert triggered",
    ),
    explanation="`max_position_embeddings` in config.json is the longest sequence that the model was made for.",
    fixes="--set data.max_length={most}    # or raise max_position_embeddings and the rope scaling in config.json",
)

VOCABULARY = Diagnosis(
    code="train-vocabulary",
    title="the tokenizer has more tokens than the model",
    symptoms=(
        "IndexError: index out of range in self",
        "CUDA error: device-side assert triggered",
        "vectorized_gather",
    ),
    explanation="Tokens were added to the tokenizer, or it is another model's: their numbers lie past the last row of"
    " the embedding. To train added tokens, resize it first: `model.resize_token_embeddings(len(tokenizer))`.",
    fixes=Advice("leave data.tokenizer out    # the model's own is then used"),
)

MEMORY = Diagnosis(
    code="train-memory",
    title="it doesn't fit into memory",
    symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "exitcode: -9"),
    explanation="AdamW in float32 takes 16 bytes per parameter: weight, gradient and two means. `full` and `hybrid`"
    " divide them among ranks; activations grow with the batch and the length.",
    remedy="Shard over more ranks (`sharding: full`, more nodes), set `gradient_checkpointing: true`, or take a smaller"
    " `per_device_train_batch_size` with the same `global_batch_size`: the losses stay the same.",
    fixes={
        "twice": FixCommand("--set train.gradient_checkpointing=true    # or more nodes, or a smaller model"),
        "settings": FixCommand("{settings:shell}"),
        "smaller": FixCommand("{settings:shell}   # then {amount} {unit} per rank"),
        "grown": FixCommand("{settings:shell}   # and {nodes} such nodes; then {amount} {unit} per rank"),
        "nodes": FixCommand("# and {nodes} such nodes; then {amount} {unit} per rank"),
    },
)

PACKING_UNKNOWN = Diagnosis(
    code="train-packing-unknown",
    title="the model can't keep documents of one sequence apart",
    symptoms=(
        "TypeError: forward() got an unexpected keyword argument 'position_ids'",
        "ValueError: too many values to unpack (expected 2)",
        "its forward takes no position_ids",
        "packed documents would attend to each other in this model",
    ),
    explanation="Packing puts several documents into one sequence; positions and a mask keep them apart. Models with a"
    " recurrent state (Mamba, RWKV, hybrids), without position ids (Bloom, decoders of BART's kind), with ALiBi or with"
    " chunks can't do that: they would crash, or silently learn from documents that see each other.",
    fixes="--set data.packing=false    # one document a sequence; a larger batch makes up for the padding",
)
