"""Data, the loop and checkpoints."""

from aboard.verdicts.logs.symptom import Symptom, cause, end, odd

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "data-broken",
        r"JSONDecodeError|ArrowInvalid|DatasetGenerationError|pyarrow\.lib\.\w+|UnicodeDecodeError"
        r"|UnidentifiedImageError"
        r"|zipfile\.BadZipFile|DatasetGenerationCastError",
        "A file of the data can't be read: cut off, or of another format than the rest.",
        "aboard data FILE    # names the file and the line",
        weight=2,
    ),
    cause(
        "log-loader",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pid>[\d, ]+)\) exited unexpectedly",
        "A data-loader worker died; its own exception stands above, if it had one.",
        "num_workers=0    # in the DataLoader: the exception then comes from the rank itself",
        "df -h /dev/shm; free -g    # on {node}; shared memory and memory are the usual reasons",
        weight=1,
    ),
    end(
        "log-loader",
        r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
        "A data-loader worker raised; its own exception stands below it.",
        "num_workers=0    # in the DataLoader: the exception then comes from the rank itself",
    ),
    cause(
        "log-token-range",
        r"IndexError: index out of range in self|Token indices.*vocab.*(?:exceed|larger)",
        "A token id is larger than the embedding: the tokenizer has more tokens than the model.",
        "model.resize_token_embeddings(len(tokenizer))    # or the tokenizer that belongs to the model",
        weight=2,
    ),
    cause(
        "log-unused-parameters",
        r"Expected to have finished reduction in the prior iteration|Expected to mark a variable ready only once",
        "DDP waited for the gradient of a parameter that had none in this step.",
        "DistributedDataParallel(model, find_unused_parameters=True)    # or leave the parameter out of the model",
        weight=3,
    ),
    cause(
        "log-model-differs",
        r"DDP expects same model across all ranks|appears not to match (?:sizes"
        r"|strides) of the same param in process 0"
        r"|inconsistent \d+ params",
        "Ranks built different models: another config, vocabulary or version on one node.",
        "sha256sum CONFIG; python -m pip list | grep -iE 'torch|transformers'    # on each node",
        weight=3,
    ),
    odd(
        "log-nan",
        r"(?i)['\"]?(?:train_|eval_)?loss['\"]?\s*[:=]\s*['\"]?(?:nan|inf)\b"
        r"|grad_?norm['\"]?\s*[:=]\s*['\"]?(?:nan|inf)\b"
        r"|(?:loss|gradients?) (?:is|became|are) (?:nan|inf|not finite)|non-finite (?:loss|grad)",
        "The loss is no number any more: a learning rate too high, fp16 that overflows, a broken row, or a GPU that"
        " computes wrongly.",
        "grep -n -m1 -i 'nan' LOG    # the first step at which it is; go back to a checkpoint before it",
        "export TORCH_NCCL_NAN_CHECK=1    # then start again: the rank that brings it in is named",
    ),
    cause(
        "log-checkpoint-torn",
        r"failed finding central directory|PytorchStreamReader failed|HeaderTooLarge|MetadataIncompleteBuffer"
        r"|InvalidHeaderDeserialization"
        r"|HeaderTooSmall|EOFError: Ran out of input|_pickle\.UnpicklingError: (?:invalid load key"
        r"|pickle data was truncated)|incomplete metadata",
        "The checkpoint was not written to its end: a full disk, or a run that was killed meanwhile.",
        "ls -l CHECKPOINT    # is a file smaller than its peers? then resume from the one before it",
        weight=3,
    ),
    cause(
        "log-weights-only",
        r"Weights only load failed",
        "torch 2.6 loads weights only by default, and this file holds other objects.",
        "torch.load(FILE, weights_only=False)    # only for files that you trust: it runs what is in them",
        weight=3,
    ),
    cause(
        "log-checkpoint-shape",
        r"size mismatch for (?P<name>[\w.]+): copying a param|(?:Missing|Unexpected) key\(s\) in state_dict"
        r"|Error\(s\) in loading state_dict"
        r"|DP world size of \d+ but the current world size|different (?:number of ranks|world size)"
        r"",
        "The checkpoint is of another model, or of another number of ranks than this loader can spread.",
        "grep -nE 'vocab_size|hidden_size|num_hidden_layers' config.json    # of the model and of the checkpoint",
        weight=3,
    ),
)
