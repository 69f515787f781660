"""Diagnoses of training runs that stop before the first step or at one."""

from aboard.diagnoses.diagnosis import Diagnosis, Mistake, RunFailure, run_warning, warning
from aboard.diagnoses.failure_class import Circumstance, FailureClass
from aboard.diagnoses.fixes import Advice

CONFIG = Mistake(
    code="train-config",
    fixes={
        "model": Advice("set it: `train: {{model: ./my-model}}`, a directory or a Hugging Face Hub name"),
        "no-model": Advice("use a directory with config.json and safetensors, or a Hugging Face Hub model as ORG/NAME"),
        "files": Advice("set them: `data: {{files: [train.jsonl]}}`, then check them with: aboard data"),
        "keep-one": Advice("keep one"),
        "one-precision": Advice("keep one: bf16 on Ampere and newer, fp16 on older GPUs such as V100 and T4"),
        "schedule": Advice("remove it, or set lr_scheduler_type: {schedule}"),
        "optimizer": Advice("remove it, or set optim: {optim}"),
        "adapter-optimizer": Advice("use optim: adamw, adamw_8bit or adafactor, or remove adapter"),
        "chunks-precision": Advice("remove chunked_loss, or use bf16 or float32"),
        "offload": Advice("remove sharding, or set it to full or hybrid"),
        "below": Advice("use a number below {most}"),
        "parts": Advice("use two fractions whose sum is at most 1"),
        "part": Advice("use a fraction such as 0.03"),
        "validation": Advice("set `validation: [held.jsonl]` in the `data` section, or remove {key}"),
        "tracker": Advice("set `report_to: wandb` or `report_to: mlflow`, or remove {key}"),
        "project": Advice("use letters, digits, spaces, dots, dashes and underscores"),
        "evaluations": Advice("set data.validation (a file, or 2%) and train.eval_steps, or remove {key}"),
        "patience": Advice("set early_stopping_patience: N as well, or remove it"),
        "one-of-them": Advice("keep one of them"),
        "quantized": Advice("remove {key}, or load_in_4bit"),
        "quantized-sharding": Advice("remove sharding, or set it to none; or remove load_in_4bit: bf16 can be sharded"),
        "adapter-path": Advice("remove it; the adapter's own settings are used"),
        "resume": Advice("keep one of them; `resume: auto` continues from the run's own checkpoints"),
    },
)

FILE = Mistake(
    code="train-file",
    fixes=Advice("add `train:` and `data:` to aboard.yaml (see docs/train.md), or pass a file: aboard train FILE.yaml"),
)

MODEL = Diagnosis(
    code="train-model",
    title="the model is not available",
    symptoms=(
        "has no config.json, so transformers can't load it as a model",
        "no such model can be downloaded from the Hub",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
        "has no safetensors, only pytorch_model.bin",
    ),
    explanation="The head downloads the model once; ranks never download anything. A directory needs config.json and,"
    " unless `from_scratch` is set, safetensors files, as `from_pretrained(DIR).save_pretrained(DIR)` writes them. A"
    " gated model on the Hugging Face Hub needs a login: `hf auth login`. A name such as checkpoints/last is taken as a"
    " path, since anybody can own that name on the Hub; hub:checkpoints/last is the model there.",
    fixes={
        "folder": "ls -l {folder}",
        "unclear": Advice("correct the path; or, for a model of the Hugging Face Hub, write it as hub:{name}"),
        "scratch": Advice("train.from_scratch: true    # in aboard.yaml, to start with new weights"),
        "convert": "python -c {code:shell}    # writes safetensors",
        "config": "cat {path}",
        "hub": "hf download {name}    # on a machine with internet access; or set train.model to a directory",
    },
)

ASKED = warning(
    code="train-asked",
    title="the trainer's helper process failed",
    symptoms=("aboard.trainer.memory.worker: no reply within 120 s", "ModuleNotFoundError: No module named 'torch'"),
    explanation="A separate process with the trainer's code estimates memory and exports checkpoints. It crashed, or"
    " the head has no torch. Without torch, export on a node, or run `pip install '.[train]'` here, in"
    " Aboard's checkout. Training continues without the estimate.",
    fixes={
        "run": "{python} -m {module}    # shows the traceback",
        "report": Advice("please report it with your aboard.yaml"),
    },
)

GIVEN = RunFailure(
    code="train-given",
    restart=FailureClass.PROGRAM,
    title="a rank was started without a training configuration",
    symptoms=("no training settings: ABOARD_TRAINING is not set",),
    explanation="Ranks run `python -m aboard.trainer`, and the head passes the configuration in their environment.",
    fixes="aboard train aboard.yaml",
)

TRACKER_PACKAGE = RunFailure(
    code="train-tracker-package",
    restart=FailureClass.UNKNOWN,
    title="a tracker's package is not installed on rank 0's node",
    symptoms=(
        "ModuleNotFoundError: No module named 'wandb'",
        "ModuleNotFoundError: No module named 'mlflow'",
        "ModuleNotFoundError: No module named 'tensorboard'",
    ),
    explanation="`train.report_to` sends metrics with the tracker's own client, from the node of rank 0, so the Python"
    " that ranks use there must have it. metrics.jsonl is written in any case.",
    fixes="python3 -m pip install {package}    # on {where:shell}, with the Python that ranks use; or remove it from"
    " train.report_to",
)

TRACKER_SERVER = Diagnosis(
    code="train-tracker-server",
    title="a tracker's server or login is not set",
    symptoms=("MLFLOW_TRACKING_URI is not set", "wandb: ERROR api_key not configured (no-tty)"),
    explanation="Rank 0's node sends the metrics. Aboard passes the tracker's variables of this shell to rank 0 only,"
    " without writing their values anywhere; `env` in the `cluster` section and `--env` set them, too.",
    fixes={
        "mlflow": "export MLFLOW_TRACKING_URI=http://SERVER:5000    # or remove mlflow from report_to",
        "wandb": "export WANDB_API_KEY=KEY    # or WANDB_MODE=offline, then `wandb sync` later",
    },
)

TRACKER_ADDRESS = warning(
    code="train-tracker-address",
    title="a file would send a secret of yours to the tracker's address that it names",
    symptoms=("MLFLOW_TRACKING_TOKEN is yours, but `env` of a file sets MLFLOW_TRACKING_URI=http://server:5000",),
    explanation="Aboard uses a key, token or password of your shell or of `--env` only with an address from there, or"
    " with the tracker's own default. If `env` in aboard.yaml sets the address, or certificates to trust, rank 0 gets"
    " no such secret, also after `aboard allow`.",
    fixes="aboard train --env {variable}=VALUE    # if the server is yours: type the value instead of the file",
)

TRACKER = warning(
    code="train-tracker",
    title="a tracker does not accept the metrics of a run",
    symptoms=(
        "mlflow does not accept metrics: MlflowException: API request to http://server:5000 failed with exception",
        "wandb has not confirmed 12 lines of metrics.jsonl",
        "wandb.errors.CommError: Run initialization has timed out after 90.0 sec",
    ),
    explanation="A process beside rank 0 sends the lines of metrics.jsonl and retries what fails, so training is"
    " neither stopped nor slowed. It continues where it stopped when the server works again; a resumed run sends the"
    " rest first. If the run ends before that, the rest waits in metrics.jsonl on rank 0's node.",
    fixes={
        "later": "python3 -m aboard.trainer.trackers {folder}    # on rank 0's node: sends the rest",
        "wait": Advice("nothing needs to be done if the server comes back; `aboard logs` shows when it does"),
        "login-wandb": "export WANDB_API_KEY=KEY    # then start again: the rest is sent first",
        "login-mlflow": "export MLFLOW_TRACKING_TOKEN=TOKEN    # or _USERNAME and _PASSWORD; then start again",
        "host": Advice("correct the host name in {variable}: rank 0's node can't resolve it"),
    },
)

NONFINITE = RunFailure(
    code="train-nonfinite",
    restart=FailureClass.PROGRAM,
    title="a loss or a gradient is not finite",
    symptoms=("loss is nan", "the loss is not finite on rank 3", "'loss': nan, 'grad_norm': nan", "grad_norm: inf"),
    explanation="One step produced nan or infinity, and all ranks skipped its update. Usually the learning rate is too"
    " high, a row is damaged (for example, it has tokens from a different tokenizer, or one character repeated"
    " thousands of times), or the initial weights are not finite. In fp16, activations above"
    " 65,504 are infinite: many models made for bfloat16 have them, and need bf16 or float32. If the same rank is"
    " always affected, suspect its memory or GPU: `aboard check --only gpu`.",
    fixes=Advice(
        "check those rows (aboard data FILE --show 5), lower learning_rate, or skip such steps with on_nonfinite: skip"
    ),
)

LOSS_SCALE = RunFailure(
    code="train-loss-scale",
    restart=FailureClass.PROGRAM,
    title="gradients overflow float16 at every loss scale",
    symptoms=("the loss scale fell to 0.5", "Current loss scale already at minimum"),
    explanation="In fp16 the loss is multiplied by a scale that is halved whenever a gradient overflows, and the step"
    " is skipped. The first steps of a run usually skip a few. A scale below 1 means that gradients exceed 65,504 by"
    " themselves: the training diverged (the learning rate is too high), or the model was made for bfloat16's range.",
    fixes=Advice("lower learning_rate, or compute in float32 (fp16: false), or in bf16 on Ampere GPUs and newer"),
)

COMPILER = RunFailure(
    code="train-compiler",
    restart=FailureClass.PROGRAM,
    title="a node can't compile the model",
    symptoms=(
        "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found",
        "RuntimeError: Cannot find a working triton installation",
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable",
    ),
    explanation="`torch_compile` generates code on every node: with Triton and a C compiler for GPUs, with a C++"
    " compiler for CPUs.",
    fixes={
        "triton": "python3 -m pip install triton    # on that node; or --set train.torch_compile=false",
        "compiler": "sudo apt install g++    # on that node; or --set train.torch_compile=false",
    },
)

CHECKPOINTING_UNKNOWN = RunFailure(
    code="checkpointing-unknown",
    restart=FailureClass.PROGRAM,
    title="the model does not support gradient checkpointing",
    symptoms=("ValueError: XForCausalLM does not support gradient checkpointing.",),
    explanation="`gradient_checkpointing: true` needs support in the model's own code, and transformers has none for"
    " this model.",
    fixes=Advice("train:\n  gradient_checkpointing: false   # to save memory: a smaller batch, or more ranks"),
)

SHARDING_UNEVEN = RunFailure(
    code="sharding-uneven",
    restart=FailureClass.PROGRAM,
    title="hybrid sharding needs the same number of ranks on every node",
    symptoms=("`sharding: hybrid` needs the same number of ranks on every node",),
    explanation="With `hybrid`, ranks with the same local rank on all nodes hold the same shard, so every node needs"
    " the same number of ranks.",
    fixes=Advice("sharding: full   # in the train section; or give every node the same number of slots"),
)

BATCH = RunFailure(
    code="train-batch",
    restart=FailureClass.PROGRAM,
    title="the batch size does not fit the number of ranks",
    symptoms=("the loss differs from the same run on a different number of GPUs", "ranks with zero samples"),
    explanation="`global_batch_size` is the number of sequences per step across all ranks. If it is smaller than the"
    " number of ranks, some ranks have no work. If `gradient_accumulation_steps` is also set, the two must agree.",
    fixes={
        "larger": "--set train.global_batch_size={size}",
        "larger-or-fewer": "--set train.global_batch_size={size}    # or fewer ranks: --include {nodes}",
        "one": Advice("remove gradient_accumulation_steps    # it follows from global_batch_size"),
    },
)

HYBRID = RunFailure(
    code="train-hybrid",
    restart=FailureClass.PROGRAM,
    title="hybrid sharding does not work on these nodes",
    symptoms=("RuntimeError: Mesh should not be bigger than default world size", "sharding: hybrid"),
    explanation="With `hybrid`, each node shards the whole model across its own ranks. Each node needs more than one"
    " rank, and all nodes need the same number of ranks.",
    fixes={
        "unequal": "--set train.sharding=full    # across all ranks; or give each node the same number of slots",
        "single": "--set train.sharding=full    # or none, or auto",
    },
)

DEVICE = Diagnosis(
    code="train-device",
    title="some nodes of the run have no GPU",
    symptoms=("No backend type associated with device type cpu", "torch.cuda.is_available() is False on one node"),
    explanation="One run trains on GPUs or on CPUs. If some nodes have GPUs and others don't, their ranks would join"
    " process groups of different backends and wait for each other.",
    fixes=Advice(
        "leave these nodes out (`--exclude`, or `exclude:` in aboard.yaml), or train on CPUs: --set train.device=cpu"
    ),
)

ATTENTION = RunFailure(
    code="train-attention",
    restart=FailureClass.PROGRAM,
    title="flash attention needs a GPU of the Ampere generation or newer",
    symptoms=("FlashAttention only supports Ampere GPUs or newer", "ImportError: FlashAttention2 has been toggled on"),
    explanation="The flash-attn kernels run only on GPUs with a compute capability of at least 8.0; `sdpa` runs"
    " everywhere.",
    fixes="--set train.attn_implementation=sdpa    # or auto, for the best available one",
)

BF16 = run_warning(
    code="train-bf16",
    restart=FailureClass.PROGRAM,
    title="these GPUs don't support bfloat16",
    symptoms=("Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",),
    explanation="GPUs with a compute capability below 8.0 (such as V100, T4, RTX 20) don't support bfloat16 in"
    " hardware.",
    fixes="--set train.bf16=false --set train.fp16=true    # without fp16 it computes in float32, which is slower",
)

PACKAGES = RunFailure(
    code="train-packages",
    restart=Circumstance.BY_EXTENT,
    title="a node's Python lacks packages that the trainer needs",
    symptoms=("ModuleNotFoundError: No module named 'transformers'", "ModuleNotFoundError: No module named 'torch'"),
    explanation="Aboard copies its own code to every node, but not its dependencies, so the Python that ranks use"
    " must have torch, transformers, safetensors and numpy, and peft for an adapter (with load_in_4bit also"
    " bitsandbytes). `python:` and `setup:` in the `cluster` section choose that Python.",
    fixes="python3 -m pip install {packages:words}    # on {where:shell}, with the Python that ranks use: `python:` in"
    " aboard.yaml",
)

LENGTH = RunFailure(
    code="train-length",
    restart=FailureClass.PROGRAM,
    title="sequences are longer than the model's position limit",
    symptoms=(
        "Token indices sequence length is longer than the specified maximum sequence length for this model",
        "IndexError: index out of range in self",
        "CUDA error: device-side assert triggered",
    ),
    explanation="`max_position_embeddings` in config.json is the longest sequence that the model supports.",
    fixes="--set data.max_length={most}    # or raise max_position_embeddings and the rope scaling in config.json",
)

VOCABULARY = RunFailure(
    code="train-vocabulary",
    restart=FailureClass.PROGRAM,
    title="the tokenizer's vocabulary is larger than the model's",
    symptoms=(
        "IndexError: index out of range in self",
        "CUDA error: device-side assert triggered",
        "vectorized_gather",
    ),
    explanation="Tokens were added to the tokenizer, or the tokenizer belongs to a different model. The ids of the"
    " extra tokens are beyond the last row of the embedding. To train added tokens, resize the embedding first:"
    " `model.resize_token_embeddings(len(tokenizer))`.",
    fixes=Advice("remove data.tokenizer    # to use the model's own tokenizer"),
)

# The settings that a rank without memory proposes, each with what the run would need then.
MOST_CHANGES = 3
_LESS = [f"{{to{place}:--set}}   # then {{amount{place}}} {{unit{place}}} per rank" for place in (1, 2, 3)]

MEMORY = RunFailure(
    code="train-memory",
    restart=FailureClass.PROGRAM,
    title="the training run does not fit into memory",
    symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "exitcode: -9"),
    explanation="AdamW in float32 takes 16 bytes per parameter, for the weight, the gradient and two moments. `full`"
    " and `hybrid` divide them among ranks. Activations grow with the batch size and the sequence length.",
    remedy="Shard across more ranks (`sharding: full`, more nodes), set `gradient_checkpointing: true`, or use a"
    " smaller `per_device_train_batch_size` with the same `global_batch_size`. The losses stay the same.",
    fixes={
        "twice": "--set train.gradient_checkpointing=true    # or more nodes, or a smaller model",
        **{f"less-{count}": "\n".join(_LESS[:count]) for count in range(1, MOST_CHANGES + 1)},
        "settings": "{settings:shell}",
        "smaller": "{settings:shell}   # then {amount} {unit} per rank",
        "grown": "{settings:shell}   # and {nodes} nodes like these; then {amount} {unit} per rank",
        "nodes": "# and {nodes} nodes like these; then {amount} {unit} per rank",
    },
)

PACKING_UNKNOWN = RunFailure(
    code="train-packing-unknown",
    restart=FailureClass.PROGRAM,
    title="the model can't separate packed documents",
    symptoms=(
        "TypeError: forward() got an unexpected keyword argument 'position_ids'",
        "ValueError: too many values to unpack (expected 2)",
        "its forward method takes no position_ids",
        "packed documents would attend to each other in this model",
    ),
    explanation="Packing puts several documents into one sequence; position ids and a mask separate them. Models with"
    " a recurrent state (Mamba, RWKV, hybrids), without position ids (Bloom, decoders like BART's), with ALiBi or with"
    " chunked attention can't separate them: they would crash, or silently let documents attend to each other.",
    fixes="--set data.packing=false    # one document per sequence; a larger batch compensates for the padding",
)

CHUNKED_LOSS = RunFailure(
    code="train-chunked-loss",
    restart=FailureClass.PROGRAM,
    title="the model's logits can't be computed in chunks",
    symptoms=("chunked_loss can't be used with a ChameleonForConditionalGeneration: its logits are changed by",),
    explanation="`chunked_loss: true` computes the output layer and the loss for some positions at a time. That works"
    " for models whose logits are the output of one linear layer, scaled or capped element by element. This model"
    " computes them in another way, so the loss would be a different one.",
    fixes="--set train.chunked_loss=false    # to save memory: gradient_checkpointing, or a smaller batch",
)
