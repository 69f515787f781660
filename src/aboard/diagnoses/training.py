"""What ends a training before its first step, or at one."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command

CONFIG = Diagnosis(
    code="train-config",
    title="the training can't be as it is written",
    symptoms=("train.model is not given", "train.num_train_epochs and train.max_steps both say how long it trains"),
    explanation="Keys that are needed are missing, or two of them contradict each other. All of it is told at"
    " once, each at its line, before anything is looked at.",
    remedy="Write what stands behind `fix` at each place. `aboard train --print-config` shows what would be used"
    " and where each value comes from; `aboard init --schema` describes every key for editors.",
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
    explanation="`aboard train` reads the sections `train` and `data` of an aboard.yaml: the one that is named, or"
    " the one in the directory where it is typed.",
    remedy="Go to the directory that has it, or name it: `aboard train path/to/aboard.yaml`. docs/train.md has one"
    " to begin with, and examples/ three that run on a laptop.",
    fixes=Advice(
        "write aboard.yaml with `train:` and `data:`, as in docs/train.md, or name one: aboard train FILE.yaml"
    ),
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
    explanation="The model is fetched once, on the head, before ranks exist; ranks are offline. A directory must"
    " have config.json and, unless the training begins with new weights, safetensors. A name of the hub must be"
    " spelled as it is there, and a gated model needs a login.",
    remedy="Look with `ls -l DIR`. Fetch it where there is a network: `hf download ORG/NAME` (`hf auth login` for a"
    " gated one), and name the directory. `train.from_scratch: true` takes config.json only. Weights of another"
    " format become safetensors by `AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(DIR)`.",
    fixes={
        "folder": Command("ls -l {folder}"),
        "scratch": Advice("train.from_scratch: true    # in aboard.yaml, to begin with new weights"),
        "convert": Command("python -c {code:shell}    # writes safetensors"),
        "config": Command("cat {path}"),
        "hub": Command("hf download {name}    # where there is a network; or name a directory: train.model"),
    },
)

ASKED = Diagnosis(
    code="train-asked",
    title="the trainer did not answer a question of the head",
    severity=Severity.WARN,
    symptoms=("aboard.train.needs: it did not answer within 120 s", "ModuleNotFoundError: No module named 'torch'"),
    explanation="Memory is estimated, and checkpoints are exported, by the trainer's own code in a process of its"
    " own. That process broke, or the head has no torch. A training goes on without the estimate; an export can't.",
    remedy="Type what stands behind `fix`: it shows the whole trace. On a head without torch the nodes may have it;"
    " export on one of them, or `pip install 'aboard[train]'` here.",
    fixes={
        "run": Command("{python} -m {module}"),
        "report": Advice("please report it with your aboard.yaml"),
    },
)

GIVEN = Diagnosis(
    code="train-given",
    title="a rank was started without a training",
    symptoms=("there is no training to be done: ABOARD_TRAINING is not set",),
    explanation="`python -m aboard.train` is what ranks run. What they are to do comes in their environment, from"
    " the head.",
    remedy="Type `aboard train aboard.yaml`: it starts the ranks with all that they need.",
    fixes="aboard train aboard.yaml",
)

TENSORBOARD = Diagnosis(
    code="train-tensorboard",
    title="TensorBoard isn't installed where rank 0 runs",
    symptoms=(
        "ModuleNotFoundError: No module named 'tensorboard'",
        "tensorboard: true, and TensorBoard isn't installed",
    ),
    explanation="`train.tensorboard: true` writes TensorBoard's files, and torch needs that package to do so.",
    remedy="On rank 0's node, in the Python that ranks get: `python3 -m pip install tensorboard`. Or leave it out:"
    " metrics.jsonl is always written.",
    fixes="pip install tensorboard",
)

NONFINITE = Diagnosis(
    code="train-nonfinite",
    title="a loss or a gradient is no number",
    symptoms=("loss is nan", "the loss is not finite on rank 3", "'loss': nan, 'grad_norm': nan", "grad_norm: inf"),
    explanation="One step gave nan or infinity, and its update was left out on all ranks: the weights are as they"
    " were. The message names step, rank and the rows. Most often the learning rate is too high, a row is damaged"
    " (tokens of another tokenizer, thousands of equal characters), or the weights that it began with are no"
    " numbers. If it is the same rank again and again while its rows change, suspect that node's memory or GPU.",
    remedy="Look at the rows: `aboard data FILE --show 5`, `sed -n '17p' FILE | cut -c 1-300`. Take a lower"
    " `learning_rate` or more `warmup_steps`; the same command goes on from the last checkpoint."
    " `train.on_nonfinite: skip` leaves such steps out and names them. For a node: `aboard check --only gpu`.",
    fixes=Advice("look at those rows, lower learning_rate, or leave such steps out with on_nonfinite: skip"),
)

CHECKPOINTING_UNKNOWN = Diagnosis(
    code="checkpointing-unknown",
    title="the model can't compute its activations twice",
    symptoms=("ValueError: XForCausalLM does not support gradient checkpointing.",),
    explanation="`gradient_checkpointing: true` is done by the model's own code, and transformers has none for"
    " this one.",
    remedy="`--set train.gradient_checkpointing=false`. For memory: a smaller `per_device_train_batch_size`, or"
    " `sharding: full` over more ranks.",
    fixes=Advice("train:\n  gradient_checkpointing: false"),
)

SHARDING_UNEVEN = Diagnosis(
    code="sharding-uneven",
    title="hybrid sharding met nodes of different sizes",
    symptoms=("`sharding: hybrid` needs the same number of ranks on every node",),
    explanation="With `hybrid`, ranks of the same place on all nodes hold the same shard: each node must have as many.",
    remedy="`--set train.sharding=full`, or give the nodes the same number of slots.",
    fixes=Advice("sharding: full   # in the train section; or give every node the same number of slots"),
)

BATCH = Diagnosis(
    code="train-batch",
    title="the batch and the ranks don't go together",
    symptoms=("the loss differs from the same run on another number of GPUs", "ranks with zero samples"),
    explanation="`global_batch_size` counts the sequences of one step over all ranks, however many there are. With"
    " fewer sequences than ranks some would do nothing; with `gradient_accumulation_steps` beside it that multiply"
    " to something else, one of the two would have to be ignored.",
    remedy="Write `global_batch_size` alone: accumulation follows from it on any number of ranks, and the losses"
    " are the same. Or write `per_device_train_batch_size` and `gradient_accumulation_steps`, as for HF's Trainer.",
    fixes={
        "larger": Command("--set train.global_batch_size={size}"),
        "larger-or-fewer": Command("--set train.global_batch_size={size}    # or fewer ranks: --include {nodes}"),
        "one": Advice("leave gradient_accumulation_steps out    # it then follows from global_batch_size"),
    },
)

HYBRID = Diagnosis(
    code="train-hybrid",
    title="hybrid sharding on nodes that it can't be done on",
    symptoms=("RuntimeError: Mesh should not be bigger than default world size", "sharding: hybrid"),
    explanation="With `hybrid` each node holds the whole model, sharded over its own ranks, and ranks of the same"
    " place on all nodes hold the same shard. That needs the same number of ranks on each node, and more than one.",
    remedy="`--set train.sharding=full` shards over all ranks; `auto` takes the fastest layout that fits. Or give"
    " the nodes the same number of slots: `slots: 4` under `cluster:`, or `--include`.",
    fixes={
        "unequal": Command("--set train.sharding=full    # over all ranks, or give each node the same slots"),
        "single": Command("--set train.sharding=full    # or none, or auto"),
    },
)

ATTENTION = Diagnosis(
    code="train-attention",
    title="flash attention without a GPU",
    symptoms=(
        "FlashAttention only supports Ampere GPUs or newer",
        "ImportError: FlashAttention2 has been toggled on",
    ),
    explanation="The kernels of flash-attn are written for GPUs.",
    remedy="`--set train.attn_implementation=sdpa`, or leave it out: `auto` takes the best that is there.",
    fixes="--set train.attn_implementation=sdpa",
)

BF16 = Diagnosis(
    code="train-bf16",
    title="bfloat16 on GPUs that don't have it",
    severity=Severity.WARN,
    symptoms=("Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",),
    explanation="Compute capability below 8.0 (V100, T4, RTX 20) has no bfloat16 in hardware.",
    remedy="`--set train.bf16=false` computes in float32. fp16 is not offered: it overflows without loss scaling.",
    fixes="--set train.bf16=false",
)

PACKAGES = Diagnosis(
    code="train-packages",
    title="a node's Python lacks what the trainer stands on",
    symptoms=(
        "ModuleNotFoundError: No module named 'transformers'",
        "ModuleNotFoundError: No module named 'torch'",
    ),
    explanation="Aboard brings its own code to every node, so that versions never differ. torch, transformers,"
    " safetensors and numpy must be in the Python that ranks get.",
    remedy="On each node: `python3 -m pip install 'aboard[train]'`, or those packages alone. If they are in another"
    " Python there, name it: `cluster: {python: /opt/venv/bin/python}`, or `setup: [. /opt/venv/bin/activate]`.",
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
    explanation="`max_position_embeddings` of the model's config.json is the longest sequence that it was made for.",
    remedy="`--set data.max_length=N`. To train beyond it on purpose, raise `max_position_embeddings` (and the rope"
    " scaling that goes with it) in the model's config.json.",
    fixes="--set data.max_length={most}",
)

VOCABULARY = Diagnosis(
    code="train-vocabulary",
    title="the tokenizer has more tokens than the model",
    symptoms=(
        "IndexError: index out of range in self",
        "CUDA error: device-side assert triggered",
        "vectorized_gather",
    ),
    explanation="Tokens were added to the tokenizer, or it is another model's: their numbers lie past the last row"
    " of the embedding.",
    remedy="Leave `data.tokenizer` out, and the model's own is used. If tokens were added on purpose, resize the"
    " embedding first: `model.resize_token_embeddings(len(tokenizer))`, `save_pretrained`, and train that.",
    fixes=Advice("leave data.tokenizer out    # the model's own is then used"),
)

MEMORY = Diagnosis(
    code="train-memory",
    title="it doesn't fit into memory",
    symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "exitcode: -9"),
    explanation="AdamW in float32 takes 16 bytes for each parameter: weight, gradient and two means. `full` and"
    " `hybrid` share them out over ranks; activations grow with the batch and the length.",
    remedy="Shard over more ranks (`sharding: full`, more nodes), compute activations twice"
    " (`gradient_checkpointing: true`), or take a smaller `per_device_train_batch_size` with `global_batch_size`,"
    " which leaves the losses as they are.",
    fixes={
        "twice": Command("--set train.gradient_checkpointing=true    # or more nodes, or a smaller model"),
        "settings": Command("{settings:shell}"),
        "smaller": Command("{settings:shell}   # then {amount} {unit} per rank"),
        "grown": Command("{settings:shell}   # and {nodes} such nodes; then {amount} {unit} per rank"),
        "nodes": Command("# and {nodes} such nodes; then {amount} {unit} per rank"),
    },
)

PACKING_UNKNOWN = Diagnosis(
    code="train-packing-unknown",
    title="the model can't keep documents of one sequence apart",
    symptoms=(
        "TypeError: forward() got an unexpected keyword argument 'position_ids'",
        "ValueError: too many values to unpack (expected 2)",
        "its forward takes no position_ids",
        "documents of one sequence would see each other in this model",
    ),
    explanation="Packing lays several documents into one sequence, and tells the model by positions and a mask"
    " which tokens belong together. Some can't be told: those with a state that goes from token to token (Mamba,"
    " RWKV, hybrids), those that take no position ids (Bloom, decoders of BART's kind), those with ALiBi or"
    " chunks. They would crash, or learn in silence from documents that see each other.",
    remedy="`--set data.packing=false` gives each document a sequence of its own, padded. Rows are not read again."
    " With short documents, a larger `per_device_train_batch_size` makes up for the padding.",
    fixes="--set data.packing=false    # one document a sequence",
)
