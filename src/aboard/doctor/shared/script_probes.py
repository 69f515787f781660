"""Probes that run a small Python script in the ranks' environment and print one line of JSON."""

from collections.abc import Mapping
from posixpath import join
from typing import Annotated, Any, TypeVar

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.decoding import DecodeError, Matching, MaxLength, decode, parse_json
from aboard.core.probes.facts import Unknown
from aboard.core.probes.probe import CommandOutput, ProbeAnswer, ProbeCommand, ProbeParseError
from aboard.core.text.input_text import decode_latin1
from aboard.diagnoses.untrusted import Untrusted, escape_text
from aboard.node_scripts.script_source import RUN_NEXT_WORD

T = TypeVar("T")

# Names and versions of packages, types of file systems: characters that are harmless on a terminal.
Plain = Annotated[str, Matching(r"[\w .:@/+!~=,#%()-]{0,500}")]
# As long as a kernel takes it.
AnyPath = Annotated[Untrusted, MaxLength(4096)]


_LINE_CHARS, _LAST_LINES = 4000, 40
# A container starts in a second, unless its image must be unpacked first.
CONTAINER_SECONDS = 120.0


def build_rank_command(node: Node, flags: str, script: str, *words: str, timeout: float = 10.0) -> ProbeCommand:
    """Runs a script with the ranks' own Python and variables: after the node's `setup`, in its container if any."""
    argv = (node.rank_python, flags, RUN_NEXT_WORD, script, *words)
    if node.container is None:
        return ProbeCommand(argv=prepend_setup(node, argv), timeout=timeout, env=list_rank_variables(node))
    return ProbeCommand(argv=argv, timeout=timeout + CONTAINER_SECONDS, inside=node)


def list_rank_variables(node: Node) -> Mapping[str, str]:
    """The node's `env`, for a probe that runs elsewhere: PYTHONPATH is relative to the ranks' directory."""
    path = node.env.get("PYTHONPATH")
    resolved = [join(node.workdir or "", part) for part in path.split(":")] if path else []
    return {**node.env, "PYTHONPATH": ":".join(resolved)} if path else node.env


def parse_run_reply(reply: Mapping[str, Any] | Unknown) -> CommandOutput:
    """Parses the agent's reply to the op `run`."""
    if isinstance(reply, Unknown):
        raise ProbeParseError(reply.why)
    code, out, err = reply.get("code"), reply.get("stdout"), reply.get("stderr")
    if not isinstance(code, int) or not isinstance(out, str) or not isinstance(err, str):
        raise ProbeParseError("the node sent a malformed reply")
    return CommandOutput(
        code=code, stdout=decode_latin1(out), stderr=decode_latin1(err), timed_out=bool(reply.get("timed_out"))
    )


def parse_script_output(answer: ProbeAnswer) -> dict[str, Any]:
    """The object on the last line that a script printed; a start-up file may have printed before it."""
    if not isinstance(answer, CommandOutput):
        raise ProbeParseError("not a program's output")
    if answer.timed_out:
        raise ProbeParseError("timed out; a mount may be dead, or the disk may be very slow")
    if answer.code != 0:
        lines = list_last_lines(answer)
        raise ProbeParseError(lines[-1].visible(200), lines)
    try:
        document = parse_json(answer.stdout.strip().rpartition("\n")[2])
    except ValueError:
        raise ProbeParseError("its output can't be parsed") from None
    if not isinstance(document, dict):
        raise ProbeParseError("its output can't be parsed")
    return document


def list_last_lines(answer: CommandOutput) -> tuple[Untrusted, ...]:
    """The last lines on stderr of a command that failed, or its exit code."""
    lines = (answer.stderr.strip() or f"exit code {answer.code}").splitlines()
    return tuple(Untrusted(line[:_LINE_CHARS]) for line in lines[-_LAST_LINES:])


def decode_script_output(kind: type[T], document: Mapping[str, Any]) -> T:
    """Decodes a script's output into its dataclass; ProbeParseError carries the script's own error or the bad field."""
    try:
        return decode(kind, document, strict=True)
    except DecodeError as error:
        script_error = document.get("error")
        why = (
            escape_text(script_error, 500) if isinstance(script_error, str) else f"its output can't be parsed: {error}"
        )
        raise ProbeParseError(why) from None
