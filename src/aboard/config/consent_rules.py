"""What a file that nobody named may set without `aboard allow` (decision 0032).

Each key of aboard.yaml has a rule here, or in its declaration if it is a setting of `train`. A key, a variable or a
value that no rule calls harmless needs the user's consent. The schema has the same keys, but importing pydantic takes
100 ms, and no node may be contacted before.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aboard.agent.transfer.root_folder import SYSTEM_FOLDERS
from aboard.config.input_files import FoundFile, read_text
from aboard.config.yaml_tree import VERBATIM, Items, Leaf, Table, Tree, convert_to_builtins
from aboard.core.secrets.secret_names import is_secret
from aboard.core.text.data_reference import DataReference
from aboard.diagnoses import NO_FIX, InputError
from aboard.foreign_files import follow_links
from aboard.lazy_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class GuardedSetting:
    """A setting that needs consent: its key, its value in plain types, its position, and what it makes possible."""

    key: str
    value: Any
    where: str
    effect: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Which values need no consent, and why; `effect` says what any other value makes possible."""

    harmless: str = "never"
    effect: str = ""
    # For a text and the directory of its file; None if no value is.
    is_harmless: Callable[[str, Path], bool] | None = None


def is_inside(text: str, folder: Path) -> bool:
    """Whether a path, with its links resolved, lies in the directory. A Hub name does, too: it is no path."""
    whole = folder.resolve()
    try:
        for path in (text, DataReference.parse(text).path):
            *steps, end = _follow_links(path, whole)
            # Below /proc is another place on each node.
            if any(str(step) in SYSTEM_FOLDERS for step in (*steps, end)) or not end.resolve().is_relative_to(whole):
                return False
    except (OSError, ValueError, RuntimeError):  # a NUL, or links in a circle
        return False
    return True


def describe_links(value: Any, folder: Path) -> Any:
    """The value, and where links in the directory lead what it names: consent is to that place, not to a link's name.

    Any text may name a file: a program, a line of shell, a variable.
    """
    if isinstance(value, dict):
        return {key: describe_links(each, folder) for key, each in value.items()}
    if isinstance(value, list):
        return [describe_links(each, folder) for each in value]
    words = dict.fromkeys((value, *_BETWEEN_PATHS.split(value))) if isinstance(value, str) else ()
    ends = {word: end for word in words if word and (end := _find_link_end(word, folder.resolve()))}
    notes = [f"a link to {end}" if word == value else f"{word}: a link to {end}" for word, end in ends.items()]
    return f"{value} ({', '.join(notes)})" if notes else value


def _find_link_end(text: str, whole: Path) -> str:
    path = DataReference.parse(text).path
    try:
        *_, end = _follow_links(path, whole)
    except (OSError, ValueError):
        return ""
    plain = os.path.normpath(whole / os.path.expanduser(path))  # noqa: PTH111 - as below
    return "" if str(end) == plain else str(end)


def _follow_links(path: str, whole: Path) -> "Iterator[Path]":
    """The steps of a path. Links in the directory are followed; those elsewhere are not the repository's."""
    expanded = os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser raises for an unknown user
    if expanded.startswith("~"):  # whose home may be on a node
        raise OSError
    yield from follow_links(whole / expanded, whole)


def list_logins(text: str, folder: Path) -> list[str]:
    """The lines of a hostfile that name a user; none if it can't be read, which its reader reports."""
    try:
        lines = read_text(FoundFile(folder / text), fix=NO_FIX).splitlines()
    except InputError:
        return []
    return [line.strip() for line in lines if "@" in line.partition("#")[0]]


_PATH_EFFECT = "reads files outside of this directory, and may send them to the nodes"
_BETWEEN_PATHS = re.compile(r"[\s=:;,|&<>()'\"]+")
_WORD = re.compile(r"[\w .:+-]{1,200}")
# Options of sbatch that start nothing and write nowhere; with a slash, some read a file.
_RESOURCE_OPTIONS = frozenset(
    {
        *("--exclusive", "--oversubscribe", "--mem", "--mem-per-cpu", "--mem-per-gpu", "--tmp", "--gres", "--gpus"),
        *("--gpus-per-node", "--gpu-freq", "--cpus-per-task", "--cpus-per-gpu", "--cores-per-socket", "--hint"),
        *("--sockets-per-node", "--threads-per-core", "--mincpus", "--constraint", "--prefer", "--nodelist"),
        *("--exclude", "--contiguous", "--switches", "--reservation", "--licenses", "--nice", "--priority", "--qos"),
        *("--begin", "--deadline", "--time-min", "--dependency", "--hold", "--account", "--partition", "--clusters"),
    }
)

VALIDATED = Rule(
    harmless="the schema admits only a number, true, false or one of a few words",
    is_harmless=lambda _text, _folder: True,
)
LABEL = Rule(
    harmless="a name in the data, the model or its adapter, which is compared and never opened",
    is_harmless=lambda _text, _folder: True,
)
TRACKER_NAME = Rule(
    harmless="letters, digits, blanks and `.:+-`: a run or project of your own account at the tracker",
    effect="sends metrics to this place at the tracker, with your token",
    is_harmless=lambda text, _folder: _WORD.fullmatch(text) is not None,
)
NODES = Rule(
    harmless="names of nodes without a user: ssh logs in as you configured it, and refuses unknown host keys",
    effect="logs in to these nodes under another name",
    is_harmless=lambda text, _folder: "@" not in text,
)
HOSTFILE = Rule(
    harmless="a file in this directory that names no user",
    effect="logs in to the nodes of a file outside of this directory, or under other names",
    is_harmless=lambda text, folder: is_inside(text, folder) and not list_logins(text, folder),
)
PATH = Rule(
    harmless="with links resolved, a path in this directory; or a name on the Hugging Face Hub",
    effect=_PATH_EFFECT,
    is_harmless=is_inside,
)
OUTPUT = Rule(
    harmless="with links resolved, a path in this directory",
    effect="writes, and starts ranks, outside of this directory",
    is_harmless=is_inside,
)
SLURM_NAME = Rule(
    harmless="a name or a node set of Slurm; with a slash it could be a file",
    effect="makes sbatch read this file",
    is_harmless=lambda text, _folder: "/" not in text,
)
SLURM_OPTION = Rule(
    harmless="an option that says which nodes a job gets, and when: --exclusive, --mem=0, --gres=gpu:8",
    effect="gives sbatch options that can run programs, set variables or write files",
    # A second option after a blank would be one of sbatch's, too.
    is_harmless=lambda text, _folder: (
        text.partition("=")[0] in _RESOURCE_OPTIONS and re.fullmatch(r"[^\s/]+", text) is not None
    ),
)
PYTHON = Rule(effect="starts this program on each node, with your rights")
SETUP = Rule(effect="runs these shell lines on each node, with your rights")
CONTAINER = Rule(effect="runs your ranks in this image, with these directories, variables and options")
USER = Rule(effect="logs in to the nodes under this name, and sends your files there")
PORT = Rule(effect="logs in at another ssh server of the node")
ADDRESS = Rule(effect="connects ssh to this host in place of the node")
FABRIC = Rule(effect="sends training traffic to these hosts")
WEBHOOK = Rule(effect="sends messages about your runs to the address that is in this variable or file")
TEXTFILE = Rule(effect="writes figures of your runs to this directory, where other users can read them")
COMMAND = Rule(effect="starts this program on this machine, with your rights")
MODEL_CODE = Rule(
    harmless="false",
    effect="runs Python code that comes with the model, here and on each node",
    is_harmless=lambda text, _folder: text.lower() == "false",
)

_NODE_RULES = {
    "slots": VALIDATED,
    "user": USER,
    "port": PORT,
    "python": PYTHON,
    "setup": SETUP,
    "container": CONTAINER,
    "workdir": OUTPUT,
    "fabric_address": FABRIC,
}
_DATASET_RULES = {"path": PATH, "split": LABEL, "subset": LABEL, "revision": LABEL}
# By section; lists have the key of their items. Variables in `env` have rules of their own.
SETTING_RULES: Mapping[str, Mapping[str, Rule]] = {
    "cluster": {**_NODE_RULES, "nodes": NODES, "hostfile": HOSTFILE},
    "cluster.nodes": {**_NODE_RULES, "name": NODES, "address": ADDRESS},
    "cluster.slurm": {
        **dict.fromkeys(("nodes", "gpus_per_node", "time"), VALIDATED),
        **dict.fromkeys(("partition", "account", "qos", "constraint", "exclude"), SLURM_NAME),
        "extra": SLURM_OPTION,
    },
    "cluster.slurm.resubmit": {"limit": VALIDATED},
    "run": {"output": OUTPUT, "writes": VALIDATED},
    "recover": {**dict.fromkeys(("restarts", "min_nodes", "wait", "standby"), VALIDATED), "spares": NODES},
    "notify": {"webhook": WEBHOOK, "command": COMMAND, **dict.fromkeys(("format", "on"), VALIDATED)},
    "metrics": {"textfile": TEXTFILE},
    "data": {
        **dict.fromkeys(("files", "validation", "tokenizer", "template"), PATH),
        **dict.fromkeys(("format", "max_length", "packing", "loss_on"), VALIDATED),
        **dict.fromkeys(("text_column", "allow"), LABEL),
    },
    "data.files": {**_DATASET_RULES, "weight": VALIDATED, "name": LABEL},
    "data.validation": _DATASET_RULES,
}
# The rules of these sections are in the declarations of their settings.
_TRAIN_SECTIONS = ("train", "train.adapter")

_ENV_SECTIONS = ("cluster.env", "cluster.nodes.env")
# The variables that need no consent, which are those of most launch scripts, unless their value could be a path.
HARMLESS_VARIABLES = frozenset(
    {
        *("OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "PYTHONUNBUFFERED", "HF_HUB_OFFLINE", "WANDB_MODE"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF"),
        *("CUDA_DEVICE_ORDER", "PYTORCH_ALLOC_CONF"),
        *("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"),
        *("NCCL_IB_DISABLE", "NCCL_IB_GID_INDEX", "NCCL_P2P_DISABLE", "TORCH_DISTRIBUTED_DEBUG"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"),
    }
)
_HARMLESS_VALUE = re.compile(r"[A-Za-z0-9_.,:;^=+-]{0,200}")
_ADDRESS_ENDINGS = ("_ADDR", "_HOST", "_PORT", "_URL", "_URI", "_ENDPOINT", "_PROXY", "_SERVER", "DOMAIN")
_PROGRAM_ENDINGS = ("ASKPASS", "FILE", "PATH", "DIR", "COMMAND", "CMD", "PROGRAM", "HELPER")


def find_rules(path: str) -> Mapping[str, Rule]:
    """The rules of a section by key."""
    if path not in _TRAIN_SECTIONS:
        return SETTING_RULES.get(path, {})
    from aboard.core.plan import training_settings  # noqa: PLC0415 - a few ms, and most files have no such section

    declared = {"harmless": VALIDATED, "label": LABEL, "path": PATH, "output": OUTPUT}
    declared |= {"tracker": TRACKER_NAME, "model code": MODEL_CODE}
    settings = training_settings.TRAIN_SETTINGS if path == "train" else training_settings.ADAPTER_SETTINGS
    rules = {name: declared[each.consent] for name, each in settings.items() if each.consent in declared}
    return rules if path == "train" else {"type": VALIDATED, **rules}


def list_guarded_settings(tree: Table, folder: Path) -> list[GuardedSetting]:
    """The settings of an aboard.yaml in this directory that need consent, in the order of the file."""
    return list(_walk_section(tree, "", "", folder))


def list_guarded_variables(env: Mapping[str, str], file: str) -> list[GuardedSetting]:
    """The variables of an environment file that need consent."""
    return [
        GuardedSetting(key=name, value=describe_links(value, Path(file).parent), where=file, effect=effect)
        for name, value in env.items()
        if (effect := describe_variable_effect(name, value))
    ]


def describe_variable_effect(name: str, value: str) -> str:
    """What an environment variable makes possible; "" if it is harmless."""
    if name in HARMLESS_VARIABLES and _HARMLESS_VALUE.fullmatch(value):
        return ""
    if name.startswith("MASTER_"):
        return "moves the rendezvous of the ranks to another address"
    if is_credential(name):
        return "gives programs this credential"
    if name.upper().endswith(_ADDRESS_ENDINGS):
        return "makes programs send data, and perhaps tokens, to this address"
    return "programs on the nodes may load code, write files or send data elsewhere because of it"


def is_credential(name: str) -> bool:
    """Whether the value is a secret itself, and no program or file such as that of SSH_ASKPASS or SSLKEYLOGFILE."""
    return is_secret(name) and not name.upper().endswith(_PROGRAM_ENDINGS)


def _walk_section(section: Table, key: str, path: str, folder: Path) -> "Iterator[GuardedSetting]":
    """`key` is the section's name as shown, with positions in lists; `path` is without them."""
    for name, tree in section.values.items():
        below, key_below = f"{path}.{name}".lstrip("."), f"{key}.{name}".lstrip(".")
        if rule := find_rules(path).get(name):
            yield from _apply_rule(rule, tree, key_below, below, folder)
        elif below in _ENV_SECTIONS:
            yield from _walk_variables(tree, key_below, folder)
        elif below in SETTING_RULES or below in _TRAIN_SECTIONS:
            # What is no section here is refused when it is validated.
            yield from _walk_section(tree, key_below, below, folder) if isinstance(tree, Table) else ()
        elif _is_undeclared(path, name):
            yield _build_setting(key_below, tree, "is not declared harmless", folder)


def _walk_variables(env: Tree, key: str, folder: Path) -> "Iterator[GuardedSetting]":
    for name, value in env.values.items() if isinstance(env, Table) else ():
        if effect := describe_variable_effect(name, value.text if isinstance(value, Leaf) else "\0"):
            yield _build_setting(f"{key}.{name}", value, effect, folder)


def _apply_rule(rule: Rule, tree: Tree, key: str, path: str, folder: Path) -> "Iterator[GuardedSetting]":
    if rule.is_harmless is None:
        if not (isinstance(tree, Leaf) and tree.value is None):
            yield _build_setting(key, tree, rule.effect, folder)
    elif isinstance(tree, Items):
        for number, each in enumerate(tree.values):
            yield from _apply_rule(rule, each, f"{key}[{number}]", path, folder)
    elif isinstance(tree, Table):
        yield from _walk_section(tree, key, path, folder)
    elif tree.value is not None and not rule.is_harmless(tree.text, folder):
        setting = _build_setting(key, tree, rule.effect, folder)
        logins = list_logins(tree.text, folder) if rule is HOSTFILE else []
        yield replace(setting, value=[setting.value, *logins]) if logins else setting


def _is_undeclared(path: str, name: str) -> bool:
    """Whether the schema has a key that has no rule; one that it does not have is refused when it is validated."""
    from aboard.config.schema.aboard_yaml import AboardConfig  # noqa: PLC0415 - pydantic takes 100 ms; only a mistake
    from aboard.config.validation_problems import list_known_keys  # noqa: PLC0415 - as above

    steps = [step for part in path.split(".") if part for step in (part, 0)]
    return name in list_known_keys(AboardConfig, tuple(steps))


def _build_setting(key: str, tree: Tree, effect: str, folder: Path) -> GuardedSetting:
    value = convert_to_builtins(tree, verbatim=VERBATIM, as_text=".env." in key)
    return GuardedSetting(key=key, value=describe_links(value, folder), where=tree.where, effect=effect)
