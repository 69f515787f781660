"""Python's environment: modules, libraries, the hub, and tools around them."""

from aboard.verdicts.logs.symptom import Symptom, cause

SYMPTOMS: tuple[Symptom, ...] = (
    cause(
        "log-module-missing",
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'|No module named (?P<module2>[\w.]+)$",
        "The Python that this rank got has no such module: another environment than on the head.",
        "{python} -m pip install {module}    # on {node}; or start ranks with the absolute path of the right python",
        weight=3,
    ),
    cause(
        "log-library",
        r"Error: (?P<library>lib[\w.+-]+): cannot open shared object file|Error: .*undefined symbol: (?P<symbol>\w+)"
        r"|version `(?P<version>\w+_[\d.]+)' not found|symbol lookup error",
        "A native library is missing on this node, or is another version than what was built against.",
        "python -c 'import torch'; ldd FILE.so | grep 'not found'    # on {node}",
        "echo $LD_LIBRARY_PATH    # there: what comes first in it is loaded",
        weight=3,
    ),
    cause(
        "log-import",
        r"ImportError: cannot import name '(?P<name>\w+)'"
        r"|AttributeError: module '(?P<module>[\w.]+)' has no attribute|ImportError: ",
        "A package is another version than the code was written for.",
        "python -m pip list | grep -iE 'torch|transformers|deepspeed|accelerate|peft'    # on each node",
        weight=2,
    ),
    cause(
        "log-hub",
        r"GatedRepoError|401 Client Error|403 Client Error|RepositoryNotFoundError|Cannot access gated repo",
        "The hub wants a login with access to this model, and this node has none.",
        "hf auth login    # on {node}, or HF_TOKEN in the environment of ranks; ask for access on the model's page",
        weight=3,
    ),
    cause(
        "log-hub-unreachable",
        r"LocalEntryNotFoundError|We couldn't connect to 'https://huggingface"
        r"|Max retries exceeded with url: .*huggingface"
        r"|OfflineModeIsEnabled|Connection error, and we cannot find the requested files in the (?:disk )?cache"
        r"|HTTPSConnectionPool\(host='huggingface",
        "This node can't reach the hub, and has no copy of the files: compute nodes are often cut off.",
        "hf download MODEL --local-dir /shared/MODEL    # where there is a way out; then give that path",
        "export HF_HUB_OFFLINE=1    # uses only what is in the cache",
        weight=3,
    ),
    cause(
        "log-model-missing",
        r"is not a local folder and is not a valid model identifier|Can't load (?:tokenizer|config|the model) for|"
        r"does not appear to have a file named|Repo id must be in the form",
        "The model's path is not there on this node, or its name is wrong: transformers takes a missing path"
        " for a name.",
        "ls PATH    # on {node}; is the directory there, with config.json?",
        weight=3,
    ),
    cause(
        "log-wandb",
        r"wandb(?:\.errors)?[.:].*(?:api_key not configured|UsageError|CommError|AuthenticationError)",
        "Weights & Biases has no key, or no way out.",
        "wandb login    # on {node}; or WANDB_MODE=offline",
        weight=3,
    ),
    cause(
        "log-syntax",
        r"^SyntaxError: |^IndentationError: ",
        "The code can't be read by this node's Python: half copied, or written for a newer one.",
        "python --version; sha256sum *.py    # on each node, where the script is",
        weight=2,
    ),
)
