"""The shell that ranks get: not a login shell, so settings from ~/.bashrc or /etc/profile are missing.

The probe runs each node's `setup` lines as for a rank, one after the other in one `bash`, then locates Python and
reads the limits, since a line may change both.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aboard.core.cluster import node_sets
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.node_commands import format_node_command
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.secrets.secret_names import build_value_mask, is_secret
from aboard.core.text.input_text import decode_latin1
from aboard.diagnoses import Finding, Fix, format_shell
from aboard.diagnoses.nodes import reach, unanswered_probes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.lazy_dataclass import dataclass

# `module load` and `conda activate` on a busy network file system take their time.
SETUP_SECONDS = 20.0
# A PATH that forgets the one before it.
_PATH_ONLY = re.compile(r"^((?:export )?PATH=[^\s;&|$\"']+)$")


@dataclass(frozen=True, kw_only=True)
class ShellReady:
    """Every line worked; `python` is its path after them ("" if not found), `limits` the kernel's table."""

    python: Untrusted
    # Its path before them.
    python_first: Untrusted = NO_TEXT
    limits: Untrusted


@dataclass(frozen=True, kw_only=True)
class SetupFailure:
    """The line that failed, counted from 1, and its error."""

    line: int
    said: Untrusted


ShellsByNode = Mapping[str, ShellReady | SetupFailure | Unknown]


def build_shell_script(node: Node) -> str:
    """The script: it announces each line before running it and sends the lines' output to stderr."""
    find = f'"$(command -v {shlex.quote(node.python)})" >&9'
    steps = ["exec 9>&1 1>&2", rf"printf 'first %s\n' {find}"]
    if node.workdir:
        # A missing directory has its own finding.
        steps.append(f"cd -- {shlex.quote(node.workdir)} 2>/dev/null")
    for number, line in enumerate(node.setup, 1):
        # Each in an eval, so that a syntax error doesn't stop the lines before it.
        steps += [f"echo 'at {number}' >&9", f"eval {shlex.quote(line)} || exit"]
    steps += ["echo 'at 0' >&9", rf"printf 'python %s\n' {find}", "cat /proc/self/limits >&9"]
    return "\n".join(steps)


def is_shell_unknown(node: Node) -> bool:
    """Whether to probe: nodes with `setup` lines, and the head; elsewhere the agent runs on the node's Python."""
    return bool(node.setup) or node.transport is TransportKind.LOCAL


def probe_shells(facts: Facts) -> "Script[ShellsByNode]":
    """Probes the nodes with `setup` lines, and the head, whose agent runs on Aboard's own Python."""
    nodes = [node for node in facts.list_reached() if is_shell_unknown(node)]
    if not nodes:
        return {}
    replies = yield {
        node.name: ProbeRequest(
            op="run",
            fields={
                "argv": ["bash" if node.setup else "sh", "-c", build_shell_script(node)],
                "env": dict(node.env),
                "timeout": SETUP_SECONDS,
            },
            within=SETUP_SECONDS + 10,
        )
        for node in nodes
    }
    return {node.name: _parse_shell_reply(node, replies[node.name]) for node in nodes}


SHELL = MultiNodeProbe(name="shell", script=probe_shells, needs=is_shell_unknown)


def find_failed_setup(facts: Facts) -> Iterator[Finding]:
    """A line that fails in the probe fails for every rank."""
    failed: dict[tuple[tuple[str, ...], SetupFailure], list[str]] = {}
    for name, shell in _get_shells(facts).items():
        if isinstance(shell, SetupFailure):
            failed.setdefault((facts.cluster.node(name).setup, shell), []).append(name)
        elif isinstance(shell, Unknown):
            yield unanswered_probes.SHELL.finding(
                nodes=(name,),
                seen=f"could not check the shell that ranks get: {shell.why}",
                fix=unanswered_probes.SHELL.fix(
                    line=format_node_command(facts.cluster.node(name), format_shell("sh -c true"))
                ),
            )
    for (setup, shell), names in failed.items():
        line = setup[shell.line - 1]
        yield reach.SETUP.finding(
            nodes=tuple(names),
            seen=f"line {shell.line} of `setup`, `{escape_text(line)}`, failed: {shell.said.visible(200)}",
            fix=_fix_failed_setup(facts, names, shell.line),
        )


def find_lost_python(facts: Facts) -> Iterator[Finding]:
    """The ranks' Python must still be found after the lines."""
    for name, shell in _get_shells(facts).items():
        node = facts.cluster.node(name)
        if isinstance(shell, ShellReady) and not shell.python:
            after = " after its `setup` lines" if node.setup else ""
            yield reach.NO_PYTHON.finding(
                nodes=(name,),
                seen=f"the shell can't find {node.python}{after}",
                fix=_fix_lost_python(facts, node, shell),
            )


def _fix_lost_python(facts: Facts, node: Node, shell: ShellReady) -> Fix:
    lines = [_PATH_ONLY.sub(r"\1:$PATH", line) for line in node.setup]
    where = format_config_place(facts, [node.name])
    if lines != list(node.setup):
        return reach.NO_PYTHON.fix("setup", lines=format_yaml_list(lines), where=where)
    if shell.python_first:
        return reach.NO_PYTHON.fix("python", path=shell.python_first, where=where)
    return reach.NO_PYTHON.fix("path", python=node.python, node=node.name)


def _get_shells(facts: Facts) -> ShellsByNode:
    outcome = SHELL.outcome(facts)
    if isinstance(outcome, Unknown):
        return {node.name: outcome for node in facts.list_reached() if node.setup}
    return outcome or {}


def _parse_shell_reply(node: Node, reply: Mapping[str, Any] | Unknown) -> ShellReady | SetupFailure | Unknown:
    if isinstance(reply, Unknown):
        return reply
    stdout, stderr = (decode_latin1(reply.get(stream)) for stream in ("stdout", "stderr"))
    at = [int(number) for number in re.findall(r"^at ([0-9]{1,4})$", stdout, re.MULTILINE)]
    if at and at[-1] == 0:
        first, python = (re.search(rf"^{word} (.*)$", stdout, re.MULTILINE) for word in ("first", "python"))
        return ShellReady(
            python=Untrusted(python[1].strip()) if python else NO_TEXT,
            python_first=Untrusted(first[1].strip()) if first else NO_TEXT,
            limits=Untrusted(stdout.partition("\nLimit ")[2]),
        )
    if not at or at[-1] > len(node.setup):
        return Unknown(why=escape_text(stderr.strip(), 200) or "sh printed nothing")
    if reply.get("timed_out"):
        return SetupFailure(line=at[-1], said=Untrusted(f"timed out after {SETUP_SECONDS:g} s"))
    lines = [line for line in stderr.splitlines() if line.strip()]
    # After a syntax error bash repeats the line.
    last = next((line for line in lines if "syntax error" in line), lines[-1] if lines else "")
    message = _hide_secrets(node, last) if last else f"the shell exited with code {reply.get('code')}"
    return SetupFailure(line=at[-1], said=Untrusted(message))


def _hide_secrets(node: Node, message: str) -> str:
    """The message without secrets that a shell may repeat."""
    message = re.sub(r"^bash: (eval: )?(line [0-9]+: )?", "", message.strip())
    return build_value_mask({value: f"${name}" for name, value in node.env.items() if value and is_secret(name)})(
        message
    )


def format_yaml_list(lines: Sequence[str]) -> str:
    """The value of `setup:` in aboard.yaml."""
    return json.dumps(list(lines), ensure_ascii=False)


def format_config_place(facts: Facts, names: Sequence[str]) -> str:
    """Where in aboard.yaml the setting belongs: under `cluster:` when it applies to all nodes."""
    return "under cluster:" if len(names) == len(facts.cluster) else f"for {node_sets.fold_names(names)}"


# The line that defines a command which login shells get from /etc/profile.d.
_PREREQUISITES = {
    "module": ". /etc/profile.d/modules.sh",
    "ml": ". /etc/profile.d/lmod.sh",
    "conda": ". /opt/conda/etc/profile.d/conda.sh",
}
_ALTERNATIVES = {
    "module": "with Lmod it is lmod.sh",
    "ml": "without Lmod it is modules.sh",
    "conda": "with your path to conda",
}


def _fix_failed_setup(facts: Facts, names: Sequence[str], number: int) -> Fix:
    node = facts.cluster.node(names[0])
    line = node.setup[number - 1]
    first = (line.split() or [""])[0]
    if first in _PREREQUISITES and _PREREQUISITES[first] not in node.setup:
        lines = [*node.setup[: number - 1], _PREREQUISITES[first], *node.setup[number - 1 :]]
        return reach.SETUP.fix(
            "setup",
            lines=format_yaml_list(lines),
            where=format_config_place(facts, names),
            otherwise=_ALTERNATIVES[first],
        )
    return reach.SETUP.fix("try", line=format_node_command(node, format_shell("bash -c {line}", line=line)))
