"""Questions that are a small Python script: how a node runs one as ranks will run, and the one line that it says."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.decoding import DecodeError, Matching, MaxLength, decode
from aboard.core.probes.facts import Unknown
from aboard.core.probes.probe import CommandOutput, ProbeAnswer, ProbeParseError
from aboard.core.text.input_text import decode_latin1, format_count
from aboard.core.text.shell_quoting import quote_word
from aboard.diagnoses import Shell, chain_commands, format_shell, join_lines
from aboard.diagnoses.untrusted import Untrusted, escape_text

T = TypeVar("T")

# Names and versions of packages, types of file systems: letters, digits and signs that mean nothing to a terminal.
Plain = Annotated[str, Matching(r"[\w .:@/+!~=,#%()-]{0,500}")]
# As long as a kernel takes it.
AnyPath = Annotated[Untrusted, MaxLength(4096)]


def build_rank_argv(node: Node, *words: str) -> tuple[str, ...]:
    """The argv that runs the node's own Python after its `setup` lines."""
    return prepend_setup(node, (node.rank_python, *words))


def format_node_command(node: Node, command: Shell) -> Shell:
    """The line that runs a shell command on the node from here."""
    if node.transport is TransportKind.LOCAL:
        return command
    target = f"{node.user}@{node.target}" if node.user else node.target
    # Its login shell may be any, so our own way of quoting.
    there = Shell(quote_word(command))
    if node.port is None:
        return format_shell("ssh {target} {there:shell}", target=target, there=there)
    return format_shell("ssh -p {port} {target} {there:shell}", port=node.port, target=target, there=there)


def format_python_command(node: Node, words: Shell, *before: Shell) -> Shell:
    """The line that runs the Python of the node's ranks from here, after its `setup` lines and what comes `before`."""
    run = format_shell("{python} {words:shell}", python=node.rank_python, words=words)
    return format_node_command(node, chain_commands(*before, *get_setup_lines(node), run))


def get_setup_lines(node: Node) -> list[Shell]:
    """The node's `setup`: shell that the user wrote."""
    return [Shell(line) for line in node.setup]


def join_command_lines(lines: Iterable[Shell], more: int = 0) -> Shell:
    """The lines, and for how many more nodes they would be the same."""
    rest = [Shell(f"# and so on for {format_count(more, 'more node')}")] if more > 0 else []
    return join_lines(*lines, *rest)


def parse_run_reply(reply: Mapping[str, Any] | Unknown) -> CommandOutput:
    """What the agent's op `run` replied to an exercise; Unparsed when it didn't."""
    if isinstance(reply, Unknown):
        raise ProbeParseError(reply.why)
    code, out, err = reply.get("code"), reply.get("stdout"), reply.get("stderr")
    if not isinstance(code, int) or not isinstance(out, str) or not isinstance(err, str):
        raise ProbeParseError("an answer that is none")
    return CommandOutput(
        code=code, stdout=decode_latin1(out), stderr=decode_latin1(err), timed_out=bool(reply.get("timed_out"))
    )


def parse_script_output(answer: ProbeAnswer) -> dict[str, Any]:
    """The object on the last line that a script printed; a start-up file may have printed before it."""
    if not isinstance(answer, CommandOutput):
        raise ProbeParseError("not a program's answer")
    if answer.timed_out:
        raise ProbeParseError("no answer in time: a mount there may be dead, or the disk very slow")
    if answer.code != 0:
        last = answer.stderr.strip().rpartition("\n")[2] or f"ended with {answer.code}"
        raise ProbeParseError(escape_text(last, 200))
    try:
        document = json.loads(answer.stdout.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        raise ProbeParseError("what it printed can't be read") from None
    if not isinstance(document, dict):
        raise ProbeParseError("what it printed can't be read")
    return document


def decode_script_output(kind: type[T], document: Mapping[str, Any]) -> T:
    """What a script said, as its dataclass; Unparsed says what failed there, or which field is wrong."""
    try:
        return decode(kind, document, strict=True)
    except DecodeError as error:
        script_error = document.get("error")
        why = (
            escape_text(script_error, 500)
            if isinstance(script_error, str)
            else f"what it printed can't be read: {error}"
        )
        raise ProbeParseError(why) from None
