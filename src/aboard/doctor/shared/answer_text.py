"""Text extraction shared by the probes' parsers."""

from collections.abc import Mapping

from aboard.core.probes.probe import CommandOutput, FileContents, ProbeAnswer, ProbeParseError
from aboard.diagnoses.untrusted import escape_text

# As from a shell: the program is not installed.
NOT_INSTALLED = 127


def extract_files(answer: ProbeAnswer) -> Mapping[str, str]:
    """The contents of the files that were found, by path."""
    if not isinstance(answer, FileContents):
        raise ProbeParseError("not a list of files")
    return answer.files


def extract_file_text(answer: ProbeAnswer) -> str:
    """The text of the single file that was requested."""
    if isinstance(answer, FileContents) and len(answer.files) == 1:
        return next(iter(answer.files.values()))
    raise ProbeParseError("the file is missing or unreadable")


def require_output(answer: ProbeAnswer, late: str) -> CommandOutput:
    """The output of a command that ended in time, whatever its exit code; else the error `late`."""
    if not isinstance(answer, CommandOutput) or answer.timed_out:
        raise ProbeParseError(late)
    return answer


def extract_stdout(answer: ProbeAnswer, *, codes: tuple[int, ...] = (0,)) -> str:
    """The output of a command that exited with one of these codes."""
    output = require_output(answer, "the command timed out")
    if output.code not in codes:
        last_line = (output.stderr.strip() or output.stdout.strip() or f"exit code {output.code}").splitlines()[-1]
        raise ProbeParseError(escape_text(last_line, 200))
    return output.stdout
