"""Diagnoses of invalid configuration files and command-line values."""

import re

from aboard.diagnoses.diagnosis import Diagnosis, Mistake
from aboard.diagnoses.fixes import Advice, Shell, format_shell
from aboard.diagnoses.shared_fixes import NEAR, SUGGESTED

_KEEP_ONE = Advice("keep one of the two")
_FEWER = Advice("remove some of them")
# Characters that mean the same in double quotes as in single quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@\[\]-]+")


def quote_doubly(text: str) -> Shell:
    """Quotes one word, with double quotes if the shell expands nothing in it."""
    return Shell(f'"{text}"') if _PLAIN.fullmatch(text) else format_shell("{word}", word=text)


CONFIG = Mistake(
    code="config",
    fixes={
        **SUGGESTED,
        "missing": Advice("add a line: {key}: …"),
        "node-or-mapping": Advice('use "gpu01", or {{name: gpu01, slots: 8}}'),
        "source-or-mapping": Advice("use train.jsonl, or {{path: train.jsonl, weight: 1}}"),
        "whole-number": Advice("write {key} as a whole number"),
        "number": Advice("write {key} as a number"),
        "typed-number": Advice("write {key}: {shown}"),
        "truth": Advice("write {key}: true, or {key}: false"),
        "text": Advice('write {key}: "{shown}"'),
        "list": Advice("write {key}: [first, second]"),
        "mapping": Advice("write {key}: {{KEY: value}}"),
        "bound": Advice("write a number that is {bound}"),
        "no-nodes": Advice("write nodes: gpu[01-16]"),
        "empty": Advice("set a value for {key}, or remove it"),
        "schema": Advice("see the values of {key}: aboard init --schema"),
        "host": Advice("use a hostname or an address, for example gpu01 or 10.0.0.5"),
        "user": Advice("use a login name, for example alice; other names can go into ~/.ssh/config"),
        "character": Advice("remove that character"),
        "one-line": Advice("write it on one line"),
        "option": Advice("use a value that does not start with '-'"),
        "path": Advice("use an absolute path on the nodes, for example /home/alice/{path}"),
        "pattern": Advice("use a pattern such as {{name}}i or ib-{{name}}.cluster"),
        "env": Advice("write NAME: value, for example NCCL_DEBUG: INFO"),
        "duration": Advice("write it with a unit: 90s, 10m or 2h"),
        "size": Advice("write it with a unit: 200GB, 1.5TB, or 500GiB"),
        "slurm-value": Advice("use sbatch's own syntax without quotes, for example gpu, a100&nvlink or n[3,7-9]"),
        "slurm-time": Advice("write hours:minutes:seconds, for example 24:00:00, or days-hours, or minutes"),
        "slurm-option": Advice("write each option as sbatch takes it, for example --exclusive or --mem=0"),
        "slurm-key": Advice("remove it from extra, and write {key}: … in cluster.slurm"),
        "slurm-own": Advice("remove {option} from extra"),
        "webhook": Advice(
            "put the address into a variable or a file: webhook: {{env: ABOARD_WEBHOOK}} or webhook: {{file: PATH}}"
        ),
        "steps": Advice("set a number of steps, or remove it to train num_train_epochs"),
        "split": Advice("write split: train; for a part of it, use max_steps, or validation: 2% to hold rows out"),
        "revision": Advice("write a commit, tag or branch for revision, and the Hub's configuration name for subset"),
        "subset": Advice("write subset: {name} for the Hub's configuration, or give each entry a weight"),
        "share": Advice("write validation: 2%, or the files of a validation set"),
        "kept": Advice("set how many to keep, or remove it to keep all"),
        "train-write": Advice("write {line}"),
        "train-section": Advice("write it below `train:`: {line}"),
        "train-data": Advice("move it to the `data` section: {line}"),
        "train-length": Advice("move it to the `data` section, where `aboard data` reads it too: max_length: …"),
        "train-mix": Advice("move it to the `data` section, each with its weight: files: [{{path: …, weight: 1}}, …]"),
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

CONFIG_SET = Mistake(
    code="config-set",
    fixes={
        "form": Advice("write --set {key}=VALUE, without a space around ="),
        "section": Advice("change it in {file}, or set the whole section at once"),
    },
)

CONFIG_TWICE = Mistake(code="config-twice", fixes=_KEEP_ONE)

YAML = Mistake(
    code="yaml",
    fixes={
        "escapes": Advice("check the \\ escapes in double quotes"),
        "no-mapping": Advice("write keys and values, for example\n    cluster:\n      nodes: gpu[01-16]"),
        "aliases": Advice("write the values out without aliases (*name)"),
        "key": Advice("write key: value"),
        "plain": Advice("write a plain value, or put quotes around text"),
        "tag": Advice("remove the tag and write a plain value"),
        "twice": _KEEP_ONE,
        "deep": Advice("nest it less deeply"),
        "size": Advice("pass the right file; nodes that are alike fit on one line: nodes: gpu[0001-4096]"),
        "indentation": Advice("check the indentation, and put quotes around values with ': ' or ' #' in them"),
        "node-set": Advice('inside [ ] a node set needs quotes: nodes: ["gpu[01-16]"]'),
        "tabs": Advice("indent with spaces, not tabs"),
    },
)

FILE = Diagnosis(
    code="file",
    title="a file can't be read",
    symptoms=("the file does not exist",),
    explanation="The file does not exist, it is a directory, it is not text, or you have no permission to read it."
    " Files that Aboard finds, such as ./aboard.yaml, must be regular files, or links inside their directory.",
    remedy="Check the path with `ls -l FILE`, then pass the right file.",
    fixes={
        "near": NEAR,
        "directory": Advice("pass a file in it"),
        "long": Advice("pass the right file"),
        "foreign": Advice("put a regular file there; one that you name on the command line may also be a link"),
        "encoding": Advice("save it as UTF-8, or pass the right file"),
        "config": Advice("correct the path, or write ./aboard.yaml with `aboard init`"),
        "hostfile": Advice('write one, with a line such as "worker-0 slots=8" for each node'),
        "own-hostfile": Advice("specify an existing hostfile"),
        "template": Advice("specify a file with a chat template"),
        "left-out": Advice("remove it, or specify an existing file"),
        "accelerate": "create one with: accelerate config --config_file {path}",
    },
)

NOT_ALLOWED = Diagnosis(
    code="file-not-allowed",
    title="a file in this directory has settings that need your consent",
    symptoms=("has settings that need your consent, and you have not allowed them",),
    explanation="Aboard found this file in the working directory; nobody named it. Whoever wrote it would decide what"
    " runs with your rights, where your files go and which hosts you reach. Names of nodes, training settings and"
    " paths in the directory need no consent; these lines do, once, and again when they change. Nothing was started.",
    remedy="Read the lines, then type `aboard allow`. For a single command, name the file, or add"
    " --allow-file (check, launch, train, sync).",
    fixes="aboard allow {file}    # after reading these lines",
)

ALLOW_RECORD = Diagnosis(
    code="allow-record",
    title="the record of allowed files can't be used",
    symptoms=("others can write to",),
    explanation="`aboard allow` records what you allowed in a directory that only you can write to.",
    fixes="ls -ld {folder}    # it must be yours, with mode 0700",
)

HOSTFILE = Mistake(
    code="hostfile",
    fixes={
        "fewer": _FEWER,
        "empty": Advice("add a line: worker-0 slots=8"),
        "line": Advice("write: {host} slots={slots}"),
        "twice": Advice("keep one line for {hosts}, with the sum of the slots"),
    },
)

ENVFILE = Mistake(code="envfile", fixes=Advice("write NAME=value, e.g. NCCL_DEBUG=INFO"))

NODESET = Mistake(
    code="nodeset",
    fixes={
        "none": Advice("specify a node, for example gpu01 or gpu[01-16]"),
        "hostfile": "for a hostfile, use: --hostfile {path}",
        "no-user": Advice("remove 'user@'"),
        "user": Advice("write user@{hosts}, for example alice@{hosts}"),
        "fewer": Advice("specify at most {most} nodes, with smaller ranges"),
        "spelling": Advice("check the spelling in '{text}', for example gpu[01-16]"),
        "opened": Advice("write ranges as in gpu[01-16]"),
        "numbers": Advice("write numbers and a ']', for example {before}[01-04]"),
        "end-and-bracket": Advice("write the last number and a ']', for example {before}[{ranges}{end}]"),
        "bracket": Advice("write {before}[{ranges}]"),
        "port": Advice("in aboard.yaml write 'name: {name}' and 'port: {port}'"),
        "slots-or-port": Advice(
            "for {ranks} on each node, add `--ranks {number}` to launch or train; for {slots} on {name} alone,"
            " put the line `{name} slots={number}` into a hostfile and use --hostfile hostfile; for port {number},"
            " write `port: {number}` in aboard.yaml"
        ),
        "empty": Advice("write a range in the brackets, for example [01-16]"),
        "end": Advice("write its last number, for example {range}{end}"),
        "ranges": Advice("write numbers and ranges in the brackets: [01-16,20]"),
        "ranges-or-address": Advice(
            "write numbers and ranges in the brackets: [01-16,20]; write an IPv6 address without brackets"
        ),
        "digits": Advice("write the number as in the hostname"),
        "range": Advice("write {first}-{last}"),
    },
)

NODE_TWICE = Mistake(code="node-twice", fixes=Advice("list {nodes} only once"))

CLUSTER_TWICE = Mistake(
    code="cluster-twice", fixes=Advice("keep one of them; to use some of the nodes, add --include NODES")
)

HEAD_TWICE = Mistake(code="head-twice", fixes=Advice("keep one of them: remove {node}"))

HEAD_ADDRESS = Diagnosis(
    code="head-address",
    title="other nodes can't reach this machine",
    symptoms=("MASTER_ADDR=127.0.0.1",),
    explanation="This machine is a node in the run, but the other nodes have no address at which they can reach it."
    " `fabric_address` in aboard.yaml sets that address.",
    fixes=Advice("use the head's name or address instead of {node}, or connect the head to a network: ip addr"),
)

FILTER = Mistake(
    code="filter",
    fixes={
        "near": NEAR,
        "nodes": Advice("the nodes are {nodes}"),
        "one": Advice("pass only the nodes to use: --include NODES"),
        "none-left": Advice("remove {option}, or specify different nodes"),
        "hosts": "write {option:shell} {hosts:shell}",
        "slots": "slots are numbers, and '@' separates hosts: {option:shell} {hosts:shell}",
        "count": Advice('set its slots ("{nodes} slots=8"), or use --include {nodes}:0,1'),
        "range": Advice("{node} has slots 0 to {last}"),
        "no-slots": Advice("{node} has slots=0"),
    },
)

DURATION = Mistake(code="duration", fixes=Advice("for example: {option} 10m (units: d, h, m, s)"))

RANKS = Mistake(code="ranks", fixes=Advice("for example: {option} 3,5-7"))

SHELL_NUL = Mistake(code="shell-nul", fixes=Advice("remove the NUL byte; put binary data in a file and pass its path"))
