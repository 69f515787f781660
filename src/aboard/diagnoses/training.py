"""What ends a training before its first step, or at one."""

from aboard.diagnoses.diagnosis import Diagnosis, Severity
from aboard.diagnoses.fixes import Advice, Command

CONFIG = Diagnosis(
    code="train-config",
    title="the training can't be as it is written",
    severity=Severity.BLOCK,
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
    severity=Severity.BLOCK,
    symptoms=("no file says what to train, and there is no ./aboard.yaml",),
    explanation="`aboard train` reads the sections `train` and `data` of an aboard.yaml: the one that is named, or"
    " the one in the directory where it is typed.",
    remedy="Go to the directory that has it, or name it: `aboard train path/to/aboard.yaml`. docs/train.md has one"
    " to begin with, and examples/ three that run on a laptop.",
)

MODEL = Diagnosis(
    code="train-model",
    title="the model can't be had",
    severity=Severity.BLOCK,
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
    severity=Severity.BLOCK,
    symptoms=("there is no training to be done: ABOARD_TRAINING is not set",),
    explanation="`python -m aboard.train` is what ranks run. What they are to do comes in their environment, from"
    " the head.",
    remedy="Type `aboard train aboard.yaml`: it starts the ranks with all that they need.",
    fixes=Command("aboard train aboard.yaml"),
)

TENSORBOARD = Diagnosis(
    code="train-tensorboard",
    title="TensorBoard isn't installed where rank 0 runs",
    severity=Severity.BLOCK,
    symptoms=(
        "ModuleNotFoundError: No module named 'tensorboard'",
        "tensorboard: true, and TensorBoard isn't installed",
    ),
    explanation="`train.tensorboard: true` writes TensorBoard's files, and torch needs that package to do so.",
    remedy="On rank 0's node, in the Python that ranks get: `python3 -m pip install tensorboard`. Or leave it out:"
    " metrics.jsonl is always written.",
    fixes=Command("pip install tensorboard"),
)

NONFINITE = Diagnosis(
    code="train-nonfinite",
    title="a loss or a gradient is no number",
    severity=Severity.BLOCK,
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
    severity=Severity.BLOCK,
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
    severity=Severity.BLOCK,
    symptoms=("`sharding: hybrid` needs the same number of ranks on every node",),
    explanation="With `hybrid`, ranks of the same place on all nodes hold the same shard: each node must have as many.",
    remedy="`--set train.sharding=full`, or give the nodes the same number of slots.",
    fixes=Advice("sharding: full   # in the train section; or give every node the same number of slots"),
)
