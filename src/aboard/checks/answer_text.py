"""Text extraction shared by the probes' parsers."""

from aboard.core.probes.probe import CommandOutput, FileContents, ProbeAnswer, ProbeParseError
from aboard.diagnoses.untrusted import escape_text


def extract_file_text(answer: ProbeAnswer) -> str:
    """The text of the single file that was requested."""
    if isinstance(answer, FileContents) and len(answer.files) == 1:
        return next(iter(answer.files.values()))
    raise ProbeParseError("the file is missing or unreadable")


def extract_stdout(answer: ProbeAnswer, *, codes: tuple[int, ...] = (0,)) -> str:
    """The output of a command that exited with one of these codes."""
    if not isinstance(answer, CommandOutput):
        raise ProbeParseError("not a command's output")
    if answer.timed_out:
        raise ProbeParseError("the command timed out")
    if answer.code not in codes:
        last_line = (answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.code}").splitlines()[-1]
        raise ProbeParseError(escape_text(last_line, 200))
    return answer.stdout
