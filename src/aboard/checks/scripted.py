"""Questions that are a small Python script: how a node runs one as ranks will run, and the one line that it says."""

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from aboard.core.decoding import DecodeError, Limit, Matching, decode
from aboard.core.facts import Unknown
from aboard.core.node import Node
from aboard.core.probe import Answer, Output, Unparsed
from aboard.core.setup import after_setup
from aboard.core.shell import quote
from aboard.core.words import carried, many, visible
from aboard.diagnoses import Shell, chain, join_lines, shell
from aboard.diagnoses.untrusted import Untrusted

T = TypeVar("T")

# Names and versions of packages, types of file systems: letters, digits and signs that mean nothing to a terminal.
Plain = Annotated[str, Matching(r"[\w .:@/+!~=,#%()-]{0,500}")]
# As long as a kernel takes it.
AnyPath = Annotated[Untrusted, Limit(4096)]


def as_a_rank(node: Node, *words: str) -> tuple[str, ...]:
    """The argv that runs the node's own Python after its `setup` lines."""
    return after_setup(node, (node.rank_python, *words))


def typed(node: Node, command: Shell) -> Shell:
    """The line that runs a shell command on the node from here."""
    if node.local:
        return command
    target = f"{node.user}@{node.target}" if node.user else node.target
    # Its login shell may be any, so our own way of quoting.
    there = Shell(quote(command))
    if node.port is None:
        return shell("ssh {target} {there:shell}", target=target, there=there)
    return shell("ssh -p {port} {target} {there:shell}", port=node.port, target=target, there=there)


def typed_python(node: Node, words: Shell, *before: Shell) -> Shell:
    """The line that runs the Python of the node's ranks from here, after its `setup` lines and what comes `before`."""
    run = shell("{python} {words:shell}", python=node.rank_python, words=words)
    return typed(node, chain(*before, *setup_lines(node), run))


def setup_lines(node: Node) -> list[Shell]:
    """The node's `setup`: shell that the user wrote."""
    return [Shell(line) for line in node.setup]


def in_lines(lines: Iterable[Shell], more: int = 0) -> Shell:
    """The lines, and for how many more nodes they would be the same."""
    rest = [Shell(f"# and so on for {many(more, 'more node')}")] if more > 0 else []
    return join_lines(*lines, *rest)


def output(reply: Mapping[str, Any] | Unknown) -> Output:
    """What the agent's op `run` replied to an exercise; Unparsed when it didn't."""
    if isinstance(reply, Unknown):
        raise Unparsed(reply.why)
    code, out, err = reply.get("code"), reply.get("stdout"), reply.get("stderr")
    if not isinstance(code, int) or not isinstance(out, str) or not isinstance(err, str):
        raise Unparsed("an answer that is none")
    return Output(code=code, stdout=carried(out), stderr=carried(err), timed_out=bool(reply.get("timed_out")))


def said(answer: Answer) -> dict[str, Any]:
    """The object on the last line that a script printed; a start-up file may have printed before it."""
    if not isinstance(answer, Output):
        raise Unparsed("not a program's answer")
    if answer.timed_out:
        raise Unparsed("no answer in time: a mount there may be dead, or the disk very slow")
    if answer.code != 0:
        last = answer.stderr.strip().rpartition("\n")[2] or f"ended with {answer.code}"
        raise Unparsed(visible(last, 200))
    try:
        told = json.loads(answer.stdout.strip().rpartition("\n")[2])
    except (ValueError, RecursionError):
        raise Unparsed("what it printed can't be read") from None
    if not isinstance(told, dict):
        raise Unparsed("what it printed can't be read")
    return told


def decode_told(kind: type[T], told: Mapping[str, Any]) -> T:
    """What a script said, as its dataclass; Unparsed says what failed there, or which field is wrong."""
    try:
        return decode(kind, told, strict=True)
    except DecodeError as error:
        failed = told.get("error")
        why = visible(failed, 500) if isinstance(failed, str) else f"what it printed can't be read: {error}"
        raise Unparsed(why) from None
