"""Diagnoses of invalid configuration files and command-line values."""

import re

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand, Shell, format_shell
from aboard.diagnoses.shared_fixes import NEAR, SUGGESTED

_KEEP_ONE = Advice("keep one of the two")
_FEWER = Advice("remove some of them")
# Characters that mean the same in double quotes as in single quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@\[\]-]+")


def quote_doubly(text: str) -> Shell:
    """Quotes one word, with double quotes if the shell expands nothing in it."""
    return Shell(f'"{text}"') if _PLAIN.fullmatch(text) else format_shell("{word}", word=text)


CONFIG = Diagnosis(
    code="config",
    title="aboard.yaml is invalid",
    symptoms=("unknown key 'slot' in cluster",),
    explanation="All values are validated before anything starts, and all errors are listed with line and column.",
    remedy="Follow each `fix`. `aboard init --schema` describes every key, for editors too.",
    fixes={
        **SUGGESTED,
        "missing": Advice("add a line: {key}: …"),
        "node-or-mapping": Advice('use "gpu01", or {{name: gpu01, slots: 8}}'),
        "source-or-mapping": Advice("use train.jsonl, or {{path: train.jsonl, weight: 1}}"),
        "whole-number": Advice("write {key}: 8"),
        "number": Advice("write {key}: 1e-4"),
        "truth": Advice("write {key}: true"),
        "text": Advice('write {key}: "{shown}"'),
        "list": Advice("write {key}: [first, second]"),
        "mapping": Advice("write {key}: {{KEY: value}}"),
        "bound": Advice("write a number that is {bound}"),
        "no-nodes": Advice("write nodes: gpu[01-16]"),
        "empty": Advice("set a value for {key}, or remove it"),
        "schema": Advice("see the values of {key}: aboard init --schema"),
        "host": Advice("use a host name or an address, for example gpu01 or 10.0.0.5"),
        "user": Advice("use a login name, for example alice; other names can go into ~/.ssh/config"),
        "character": Advice("remove that character"),
        "one-line": Advice("write it on one line"),
        "option": Advice("use a value that does not start with '-'"),
        "path": Advice("use an absolute path on the nodes, for example /home/alice/{path}"),
        "pattern": Advice("use a pattern such as {{name}}i or ib-{{name}}.cluster"),
        "env": Advice("write NAME: value, for example NCCL_DEBUG: INFO"),
        "size": Advice("write it with a unit: 200GB, 1.5TB, or 500GiB"),
        "kept": Advice("set how many to keep, or remove it to keep all"),
        "train-write": Advice("write {line}"),
        "train-data": Advice("move it to the section `data`: {line}"),
        "train-length": Advice("move it to the section `data`, where `aboard data` reads it too: max_length: …"),
        "train-mix": Advice("move it to the section `data`, each with its weight: files: [{{path: …, weight: 1}}, …]"),
        "train-leave": Advice("remove it"),
        "train-leave-then": Advice("remove it; {then}"),
        "weight": Advice("write {{path: {path}, weight: 1}}, or remove all weights"),
        "source-name": Advice("rename one of them: name: {name}-2"),
        "fewer": _FEWER,
        "slots": Advice('write "{nodes} slots=8"'),
        "addresses": Advice("write one entry per node, with its address"),
        "name": Advice("write name: {name}"),
        "own-fabric": Advice("set a separate fabric_address for {node}"),
        "fabric-pattern": Advice('use a pattern: fabric_address: "{{name}}i"'),
    },
)

CONFIG_SET = Diagnosis(
    code="config-set",
    title="--set is invalid",
    symptoms=("'cluster.slots' is not KEY=VALUE",),
    explanation="`--set train.learning_rate=2e-5` overrides one key of the file, with dots between sections.",
    fixes={
        "form": Advice("write --set cluster.slots=8"),
        "section": Advice("change it in {file}, or set the whole section at once"),
    },
)

CONFIG_TWICE = Diagnosis(
    code="config-twice",
    title="two files set the same key",
    symptoms=("cluster.user is also set at a.yaml:2:9",),
    explanation="Several files make one document, and none of them takes precedence. For a single run, `--set`"
    " overrides all files.",
    fixes=_KEEP_ONE,
)

YAML = Diagnosis(
    code="yaml",
    title="the file is not valid YAML",
    symptoms=("found character '\\t' that cannot start any token",),
    explanation="Parsing stopped here; the mistake may be a line above. YAML has rules about spaces, quotes and"
    " colons.",
    remedy="Indent with spaces, not tabs. Put quotes around values with `: `, `#`, `{` or `[`.",
    fixes={
        "escapes": Advice("check the \\ escapes in double quotes"),
        "no-mapping": Advice("write keys and values, for example\n    cluster:\n      nodes: gpu[01-16]"),
        "aliases": Advice("write the values out without aliases (*name)"),
        "key": Advice("write key: value"),
        "plain": Advice("write a plain value, or put quotes around text"),
        "tag": Advice("remove the tag and write a plain value"),
        "twice": _KEEP_ONE,
        "deep": Advice("nest it less deeply"),
        "indentation": Advice("check the indentation, and put quotes around values with ': ' or ' #' in them"),
        "node-set": Advice('inside [ ] a node set needs quotes: nodes: ["gpu[01-16]"]'),
        "tabs": Advice("indent with spaces, not tabs"),
    },
)

FILE = Diagnosis(
    code="file",
    title="a file can't be read",
    symptoms=("the file does not exist",),
    explanation="The file does not exist, is a directory, is not text, or you have no permission to read it.",
    remedy="Run `ls -l FILE`, and name the right one.",
    fixes={
        "near": NEAR,
        "directory": Advice("name a file in it"),
        "long": Advice("name the right file"),
        "encoding": Advice("save it as UTF-8, or name the right file"),
        "config": FixCommand("write one with: aboard init gpu01 gpu02"),
        "hostfile": Advice('write one, with a line such as "worker-0 slots=8" for each node'),
        "own-hostfile": Advice("name an existing hostfile"),
        "template": Advice("name a file with a chat template"),
        "left-out": Advice("remove it, or name an existing file"),
        "accelerate": FixCommand("create one with: accelerate config --config_file {path}"),
    },
)

HOSTFILE = Diagnosis(
    code="hostfile",
    title="the hostfile is invalid",
    symptoms=("the hostfile lists no hosts",),
    explanation="Each line is `HOST slots=N`, as in DeepSpeed and MPI hostfiles.",
    fixes={
        "fewer": _FEWER,
        "empty": Advice("add a line: worker-0 slots=8"),
        "line": Advice("write: {host} slots={slots}"),
        "twice": Advice("keep one line for {hosts}, with the sum of the slots"),
    },
)

ENVFILE = Diagnosis(
    code="envfile",
    title="the environment file is invalid",
    symptoms=("is no NAME=value",),
    explanation="Each line of .deepspeed_env is `NAME=value`.",
    fixes=Advice("write NAME=value, e.g. NCCL_DEBUG=INFO"),
)

NODESET = Diagnosis(
    code="nodeset",
    title="a node set is invalid",
    symptoms=("gpu[01-",),
    explanation="The syntax is that of Slurm and ClusterShell: `gpu[01-16]`, `gpu01,gpu02`, `gpu[1-4,7]`. Leading"
    " zeros count.",
    remedy="Put quotes around it in a shell: `aboard check 'gpu[01-16]'`.",
    fixes={
        "none": Advice("name a node, for example gpu01 or gpu[01-16]"),
        "hostfile": FixCommand("for a hostfile, use: --hostfile {path}"),
        "no-user": Advice("remove 'user@'"),
        "user": Advice("write user@{hosts}, for example alice@{hosts}"),
        "fewer": Advice("name at most {most} nodes: use smaller ranges"),
        "spelling": Advice("check the spelling in '{text}', for example gpu[01-16]"),
        "opened": Advice("write ranges as in gpu[01-16]"),
        "numbers": Advice("write numbers and a ']', for example {before}[01-04]"),
        "end-and-bracket": Advice("write the last number and a ']', for example {before}[{ranges}{end}]"),
        "bracket": Advice("write {before}[{ranges}]"),
        "port": Advice("in aboard.yaml write 'name: {name}' and 'port: {port}'"),
        "slots-or-port": Advice(
            "for {slots}, put the line `{name} slots={number}` into a hostfile and use --hostfile hostfile; for port"
            " {number}, write `port: {number}` in aboard.yaml"
        ),
        "empty": Advice("write a range in the brackets, for example [01-16]"),
        "end": Advice("write its last number, for example {range}{end}"),
        "ranges": Advice("write numbers and ranges in the brackets: [01-16,20]"),
        "ranges-or-address": Advice(
            "write numbers and ranges in the brackets: [01-16,20]; write an IPv6 address without brackets"
        ),
        "digits": Advice("write the number as in the host name"),
        "range": Advice("write {first}-{last}"),
    },
)

NODE_TWICE = Diagnosis(
    code="node-twice",
    title="a node is named twice",
    symptoms=("gpu03 is named twice",),
    explanation="It would get twice its ranks, on the same GPUs. One machine with two names is one node.",
    fixes=Advice("name {nodes} once"),
)

CLUSTER_TWICE = Diagnosis(
    code="cluster-twice",
    title="the nodes are given twice",
    symptoms=("the nodes are given twice, by aboard.yaml and by --hostfile",),
    explanation="Aboard does not guess which of the two to use.",
    fixes=Advice("keep one of them; to use some of the nodes, add --include NODES"),
)

HEAD_TWICE = Diagnosis(
    code="head-twice",
    title="this machine is named twice",
    symptoms=("localhost",),
    explanation="`localhost` and its own name would make two nodes. Keep the name that other nodes reach it by.",
    fixes=Advice("keep one of them: remove {node}"),
)

HEAD_ADDRESS = Diagnosis(
    code="head-address",
    title="other nodes can't reach this machine",
    symptoms=("MASTER_ADDR=127.0.0.1",),
    explanation="It is a node of the run, and the others can't reach it. `fabric_address` in aboard.yaml sets its"
    " address.",
    fixes=Advice("use the head's name or address instead of {node}, or connect it: ip addr"),
)

FILTER = Diagnosis(
    code="filter",
    title="--include or --exclude is invalid",
    symptoms=("--include and --exclude can't be used together",),
    explanation="They take nodes of the cluster and their slots: `worker-0@worker-1:0,2`, in DeepSpeed's syntax.",
    remedy="Name only the nodes to use: `--include NODES`.",
    fixes={
        "near": NEAR,
        "nodes": Advice("the nodes are {nodes}"),
        "one": Advice("name only the nodes to use: --include NODES"),
        "none-left": Advice("remove {option}, or name other nodes"),
        "hosts": FixCommand("write {option:shell} {hosts:shell}"),
        "slots": FixCommand("slots are numbers, and '@' separates hosts: {option:shell} {hosts:shell}"),
        "count": Advice('set its slots ("{nodes} slots=8"), or use --include {nodes}:0,1'),
        "range": Advice("the slots of {node} are 0 to {last}"),
        "no-slots": Advice("{node} has slots=0"),
    },
)

DURATION = Diagnosis(
    code="duration",
    title="a duration has no unit",
    symptoms=("is no length of time",),
    explanation="A number without a unit is ambiguous: seconds or minutes.",
    fixes=Advice("for example: {option} 10m (d, h, m, s)"),
)

RANKS = Diagnosis(
    code="ranks",
    title="the rank list is invalid",
    symptoms=("0-3,7",),
    explanation="A rank list is made of numbers and ranges.",
    fixes=Advice("for example: {option} 3,5-7"),
)

SHELL_NUL = Diagnosis(
    code="shell-nul",
    title="an argument contains a NUL byte",
    symptoms=("ValueError: embedded null byte",),
    explanation="A NUL byte ends a string for the kernel, so no program can receive it.",
    fixes=Advice("remove the NUL byte; put binary data in a file and pass its path"),
)
