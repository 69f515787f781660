"""What parsers have in common: getting at the text of an answer."""

from aboard.core.probes.probe import CommandOutput, FileContents, ProbeAnswer, ProbeParseError
from aboard.diagnoses.untrusted import escape_text


def extract_file_text(answer: ProbeAnswer) -> str:
    """The only file that was asked for."""
    if isinstance(answer, FileContents) and len(answer.files) == 1:
        return next(iter(answer.files.values()))
    raise ProbeParseError("the file is not there or can't be read")


def extract_stdout(answer: ProbeAnswer, *, codes: tuple[int, ...] = (0,)) -> str:
    """What a command printed that ended with one of these codes."""
    if not isinstance(answer, CommandOutput):
        raise ProbeParseError("not the answer of a command")
    if answer.timed_out:
        raise ProbeParseError("the command did not end in time")
    if answer.code not in codes:
        last_line = (answer.stderr.strip() or answer.stdout.strip() or f"it ended with {answer.code}").splitlines()[-1]
        raise ProbeParseError(escape_text(last_line, 200))
    return answer.stdout
