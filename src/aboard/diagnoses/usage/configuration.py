"""What the user wrote, in files or on the command line, and can't be obeyed as it is."""

import re

from aboard.diagnoses.diagnosis import Diagnosis
from aboard.diagnoses.fixes import Advice, FixCommand, Shell, format_shell
from aboard.diagnoses.shared_fixes import NEAR, SUGGESTED

_KEEP_ONE = Advice("keep one of the two")
_FEWER = Advice("leave some of them out")
# What means the same between double quotes as between single ones.
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@\[\]-]+")


def quote_doubly(text: str) -> Shell:
    """One word, between double quotes where nothing in it means anything to a shell there."""
    return Shell(f'"{text}"') if _PLAIN.fullmatch(text) else format_shell("{word}", word=text)


CONFIG = Diagnosis(
    code="config",
    title="aboard.yaml says something that can't be",
    symptoms=("unknown key 'slot' in cluster",),
    explanation="Every value is checked before anything starts, and all mistakes are listed, with line and column.",
    remedy="Write what each `fix` says. `aboard init --schema` describes every key, for editors too.",
    fixes={
        **SUGGESTED,
        "missing": Advice("add a line: {key}: …"),
        "node-or-mapping": Advice('write "gpu01", or {{name: gpu01, slots: 8}}'),
        "source-or-mapping": Advice("write train.jsonl, or {{path: train.jsonl, weight: 1}}"),
        "whole-number": Advice("write {key}: 8"),
        "number": Advice("write {key}: 1e-4"),
        "truth": Advice("write {key}: true"),
        "text": Advice('write {key}: "{shown}"'),
        "list": Advice("write {key}: [first, second]"),
        "mapping": Advice("write {key}: {{KEY: value}}"),
        "bound": Advice("write a number that is {bound}"),
        "no-nodes": Advice("write nodes: gpu[01-16]"),
        "empty": Advice("give {key} a value, or leave it out"),
        "schema": Advice("see what {key} may be: aboard init --schema"),
        "host": Advice("write a host name or an address, for example gpu01 or 10.0.0.5"),
        "user": Advice("write a login name, for example alice; other names can stand in ~/.ssh/config"),
        "character": Advice("leave that character out"),
        "one-line": Advice("write it on one line"),
        "option": Advice("write the name itself"),
        "path": Advice("write where it is on the nodes, for example /home/alice/{path}"),
        "pattern": Advice("write it as in {{name}}i or ib-{{name}}.cluster"),
        "env": Advice("write NAME: value, for example NCCL_DEBUG: INFO"),
        "size": Advice("write it with its unit: 200GB, 1.5TB, or 500GiB"),
        "kept": Advice("write how many to keep, or leave it out to keep all"),
        "train-write": Advice("write {line}"),
        "train-data": Advice("write it in the section `data`: {line}"),
        "train-length": Advice("write it in the section `data`, where `aboard data` reads it too: max_length: …"),
        "train-mix": Advice("write it in the section `data`, each with its weight: files: [{{path: …, weight: 1}}, …]"),
        "train-leave": Advice("leave it out"),
        "train-leave-then": Advice("leave it out; {then}"),
        "weight": Advice("write {{path: {path}, weight: 1}}, or give none a weight"),
        "source-name": Advice("give one of them another: name: {name}-2"),
        "fewer": _FEWER,
        "slots": Advice('write "{nodes} slots=8"'),
        "addresses": Advice("write an entry for each node, with its address"),
        "name": Advice("write name: {name}"),
        "own-fabric": Advice("give {node} a fabric_address of its own"),
        "fabric-pattern": Advice('use a pattern: fabric_address: "{{name}}i"'),
    },
)

CONFIG_SET = Diagnosis(
    code="config-set",
    title="--set can't be used as it is",
    symptoms=("can't read 'cluster.slots'",),
    explanation="`--set train.learning_rate=2e-5` gives one key of the file another value, with dots between sections.",
    fixes={
        "form": Advice("write --set cluster.slots=8"),
        "section": Advice("change it in {file}, or set all of it at once"),
    },
)

CONFIG_TWICE = Diagnosis(
    code="config-twice",
    title="two files say the same",
    symptoms=("cluster.user is also given at a.yaml:2:9",),
    explanation="Several files make one document, and none of them wins; for once, `--set` wins over all files.",
    fixes=_KEEP_ONE,
)

YAML = Diagnosis(
    code="yaml",
    title="the file is no YAML that can be read",
    symptoms=("found character '\\t' that cannot start any token",),
    explanation="YAML has rules about blanks, quotes and colons. Reading stopped here; the slip may be a line above.",
    remedy="Indent with blanks, not tabs; put quotes around values with `: `, `#`, `{` or `[`.",
    fixes={
        "escapes": Advice("check the \\ escapes between double quotes"),
        "no-mapping": Advice("write keys and values, for example\n    cluster:\n      nodes: gpu[01-16]"),
        "aliases": Advice("write the values out without aliases (*name)"),
        "key": Advice("write key: value"),
        "plain": Advice("write a plain value, or put quotes around text"),
        "tag": Advice("leave the tag out and write a plain value"),
        "twice": _KEEP_ONE,
        "deep": Advice("write it flatter"),
        "indentation": Advice("check the indentation, and put quotes around values with ': ' or ' #' in them"),
        "node-set": Advice('between [ and ] a node set needs quotes: nodes: ["gpu[01-16]"]'),
        "tabs": Advice("indent with blanks, not with tabs"),
    },
)

FILE = Diagnosis(
    code="file",
    title="a file can't be read",
    symptoms=("there is no such file",),
    explanation="It is not there, is a directory, is no text, or may not be read.",
    remedy="`ls -l FILE`, and name the right one.",
    fixes={
        "near": NEAR,
        "directory": Advice("name a file in it"),
        "long": Advice("name the right file"),
        "encoding": Advice("save it as UTF-8, or name the right file"),
        "config": FixCommand("write one with: aboard init gpu01 gpu02"),
        "hostfile": Advice('write one, with a line such as "worker-0 slots=8" for each node'),
        "own-hostfile": Advice("name the hostfile that you have"),
        "template": Advice("name a file with a chat template"),
        "left-out": Advice("leave it out, or name a file that is there"),
        "accelerate": FixCommand("make one with: accelerate config --config_file {path}"),
    },
)

HOSTFILE = Diagnosis(
    code="hostfile",
    title="the hostfile can't be read",
    symptoms=("the hostfile names no host",),
    explanation="A line is `HOST slots=N`, as DeepSpeed and MPI have it.",
    fixes={
        "fewer": _FEWER,
        "empty": Advice("add a line: worker-0 slots=8"),
        "line": Advice("write: {host} slots={slots}"),
        "twice": Advice("keep one line for {hosts}, with the slots of both"),
    },
)

ENVFILE = Diagnosis(
    code="envfile",
    title="the file of variables can't be read",
    symptoms=("is no NAME=value",),
    explanation="A line of .deepspeed_env is `NAME=value`.",
    fixes=Advice("write NAME=value, e.g. NCCL_DEBUG=INFO"),
)

NODESET = Diagnosis(
    code="nodeset",
    title="a set of nodes can't be read",
    symptoms=("gpu[01-",),
    explanation="Slurm and ClusterShell write it as `gpu[01-16]`, `gpu01,gpu02`, `gpu[1-4,7]`; leading zeros count.",
    remedy="Put quotes around it in a shell: `aboard check 'gpu[01-16]'`.",
    fixes={
        "none": Advice("name a node, for example gpu01 or gpu[01-16]"),
        "hostfile": FixCommand("for a hostfile, type: --hostfile {path}"),
        "no-user": Advice("leave out 'user@'"),
        "user": Advice("write user@{hosts}, for example alice@{hosts}"),
        "fewer": Advice("name at most {most} nodes, in smaller ranges"),
        "spelling": Advice("check the spelling in '{text}', for example gpu[01-16]"),
        "opened": Advice("write ranges as in gpu[01-16]"),
        "numbers": Advice("write numbers and a ']', for example {before}[01-04]"),
        "end-and-bracket": Advice("write the last number and a ']', for example {before}[{ranges}{end}]"),
        "bracket": Advice("write {before}[{ranges}]"),
        "port": Advice("in aboard.yaml write 'name: {name}' and 'port: {port}'"),
        "slots-or-port": Advice(
            "for {slots}, write the line `{name} slots={number}` into a hostfile and type --hostfile hostfile; for port"
            " {number}, write `port: {number}` in aboard.yaml"
        ),
        "empty": Advice("write what they stand for, for example [01-16]"),
        "end": Advice("write its last number, for example {range}{end}"),
        "ranges": Advice("write numbers and ranges between the brackets: [01-16,20]"),
        "ranges-or-address": Advice(
            "write numbers and ranges between the brackets: [01-16,20]; an IPv6 address is written without brackets"
        ),
        "digits": Advice("write the number that the host name has"),
        "range": Advice("write {first}-{last}"),
    },
)

NODE_TWICE = Diagnosis(
    code="node-twice",
    title="a node is named twice",
    symptoms=("gpu03 is named twice",),
    explanation="It would get twice its ranks, on the same GPUs. One machine under two names is one node.",
    fixes=Advice("name {nodes} once"),
)

CLUSTER_TWICE = Diagnosis(
    code="cluster-twice",
    title="the nodes are given in two ways",
    symptoms=("the nodes are given twice, by aboard.yaml and by --hostfile",),
    explanation="Which of them is meant is nothing to guess about.",
    fixes=Advice("keep one of them; to use a part of the nodes, add --include NODES"),
)

HEAD_TWICE = Diagnosis(
    code="head-twice",
    title="this machine is named twice",
    symptoms=("localhost",),
    explanation="`localhost` and its own name would make two nodes; keep the name that other nodes reach it by.",
    fixes=Advice("keep one of them: leave out {node}"),
)

HEAD_ADDRESS = Diagnosis(
    code="head-address",
    title="other nodes have no way to this machine",
    symptoms=("MASTER_ADDR=127.0.0.1",),
    explanation="It is a node of the run, and others can't reach it; `fabric_address` in aboard.yaml gives an address.",
    fixes=Advice("write the head's name or address instead of {node}, or connect it: ip addr"),
)

FILTER = Diagnosis(
    code="filter",
    title="--include or --exclude can't be used as it is",
    symptoms=("--include and --exclude can't be used together",),
    explanation="They name nodes of the cluster, and slots of them: `worker-0@worker-1:0,2`, as DeepSpeed has it.",
    remedy="Name only what to use: `--include NODES`.",
    fixes={
        "near": NEAR,
        "nodes": Advice("the nodes are {nodes}"),
        "one": Advice("name only what to use: --include NODES"),
        "none-left": Advice("leave {option} out, or name other nodes"),
        "hosts": FixCommand("write {option:shell} {hosts:shell}"),
        "slots": FixCommand("slots are numbers, hosts are separated by '@': {option:shell} {hosts:shell}"),
        "count": Advice('give its slots ("{nodes} slots=8"), or use --include {nodes}:0,1'),
        "range": Advice("the slots of {node} are 0 to {last}"),
        "no-slots": Advice("{node} has slots=0"),
    },
)

DURATION = Diagnosis(
    code="duration",
    title="a length of time has no unit",
    symptoms=("is no length of time",),
    explanation="Of a number alone, half of the people would mean minutes.",
    fixes=Advice("write it as in: {option} 10m (d, h, m, s)"),
)

RANKS = Diagnosis(
    code="ranks",
    title="the ranks that were asked for can't be read",
    symptoms=("0-3,7",),
    explanation="Ranks are numbers and ranges.",
    fixes=Advice("write it as in: {option} 3,5-7"),
)

SHELL_NUL = Diagnosis(
    code="shell-nul",
    title="an argument has a character that no program can be given",
    symptoms=("ValueError: embedded null byte",),
    explanation="A NUL ends a string for the kernel.",
    fixes=Advice("leave the NUL byte out; put binary data in a file and pass its path"),
)
