"""The long stories of what keeps a training from these nodes."""

from aboard.diagnoses import Diagnosis, Severity

STORIES = (
    Diagnosis(
        code="train-batch",
        title="the batch and the ranks don't go together",
        severity=Severity.BLOCK,
        symptoms=("the loss differs from the same run on another number of GPUs", "ranks with zero samples"),
        explanation="`global_batch_size` counts the sequences of one step over all ranks, however many there are. With"
        " fewer sequences than ranks some would do nothing; with `gradient_accumulation_steps` beside it that multiply"
        " to something else, one of the two would have to be ignored.",
        remedy="Write `global_batch_size` alone: accumulation follows from it on any number of ranks, and the losses"
        " are the same. Or write `per_device_train_batch_size` and `gradient_accumulation_steps`, as for HF's Trainer.",
    ),
    Diagnosis(
        code="train-hybrid",
        title="hybrid sharding on nodes that it can't be done on",
        severity=Severity.BLOCK,
        symptoms=("RuntimeError: Mesh should not be bigger than default world size", "sharding: hybrid"),
        explanation="With `hybrid` each node holds the whole model, sharded over its own ranks, and ranks of the same"
        " place on all nodes hold the same shard. That needs the same number of ranks on each node, and more than one.",
        remedy="`--set train.sharding=full` shards over all ranks; `auto` takes the fastest layout that fits. Or give"
        " the nodes the same number of slots: `slots: 4` under `cluster:`, or `--include`.",
    ),
    Diagnosis(
        code="train-attention",
        title="flash attention without a GPU",
        severity=Severity.BLOCK,
        symptoms=(
            "FlashAttention only supports Ampere GPUs or newer",
            "ImportError: FlashAttention2 has been toggled on",
        ),
        explanation="The kernels of flash-attn are written for GPUs.",
        remedy="`--set train.attn_implementation=sdpa`, or leave it out: `auto` takes the best that is there.",
    ),
    Diagnosis(
        code="train-bf16",
        title="bfloat16 on GPUs that don't have it",
        severity=Severity.WARN,
        symptoms=("Your setup doesn't support bf16/gpu. You need Ampere+ GPU with cuda>=11.0",),
        explanation="Compute capability below 8.0 (V100, T4, RTX 20) has no bfloat16 in hardware.",
        remedy="`--set train.bf16=false` computes in float32. fp16 is not offered: it overflows without loss scaling.",
    ),
    Diagnosis(
        code="train-packages",
        title="a node's Python lacks what the trainer stands on",
        severity=Severity.BLOCK,
        symptoms=(
            "ModuleNotFoundError: No module named 'transformers'",
            "ModuleNotFoundError: No module named 'torch'",
        ),
        explanation="Aboard brings its own code to every node, so that versions never differ. torch, transformers,"
        " safetensors and numpy must be in the Python that ranks get.",
        remedy="On each node: `python3 -m pip install 'aboard[train]'`, or those packages alone. If they are in another"
        " Python there, name it: `cluster: {python: /opt/venv/bin/python}`, or `setup: [. /opt/venv/bin/activate]`.",
    ),
    Diagnosis(
        code="train-length",
        title="sequences are longer than the model has positions",
        severity=Severity.BLOCK,
        symptoms=(
            "Token indices sequence length is longer than the specified maximum sequence length for this model",
            "IndexError: index out of range in self",
            "CUDA error: device-side assert triggered",
        ),
        explanation="`max_position_embeddings` of the model's config.json is the longest sequence that it was made"
        " for.",
        remedy="`--set data.max_length=N`. To train beyond it on purpose, raise `max_position_embeddings` (and the rope"
        " scaling that goes with it) in the model's config.json.",
    ),
    Diagnosis(
        code="train-vocabulary",
        title="the tokenizer has more tokens than the model",
        severity=Severity.BLOCK,
        symptoms=(
            "IndexError: index out of range in self",
            "CUDA error: device-side assert triggered",
            "vectorized_gather",
        ),
        explanation="Tokens were added to the tokenizer, or it is another model's: their numbers lie past the last row"
        " of the embedding.",
        remedy="Leave `data.tokenizer` out, and the model's own is used. If tokens were added on purpose, resize the"
        " embedding first: `model.resize_token_embeddings(len(tokenizer))`, `save_pretrained`, and train that.",
    ),
    Diagnosis(
        code="train-memory",
        title="it doesn't fit into memory",
        severity=Severity.BLOCK,
        symptoms=("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "exitcode: -9"),
        explanation="AdamW in float32 takes 16 bytes for each parameter: weight, gradient and two means. `full` and"
        " `hybrid` share them out over ranks; activations grow with the batch and the length.",
        remedy="Shard over more ranks (`sharding: full`, more nodes), compute activations twice"
        " (`gradient_checkpointing: true`), or take a smaller `per_device_train_batch_size` with `global_batch_size`,"
        " which leaves the losses as they are.",
    ),
    Diagnosis(
        code="train-packing-unknown",
        title="the model can't keep documents of one sequence apart",
        severity=Severity.BLOCK,
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
    ),
)
