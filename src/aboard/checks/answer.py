"""What parsers have in common: getting at the text of an answer."""

from aboard.core.probe import Answer, Contents, Output, Unparsed
from aboard.core.words import visible


def one_file(answer: Answer) -> str:
    """The only file that was asked for."""
    if isinstance(answer, Contents) and len(answer.files) == 1:
        return next(iter(answer.files.values()))
    raise Unparsed("the file is not there or can't be read")


def printed(answer: Answer, *, codes: tuple[int, ...] = (0,)) -> str:
    """What a command printed that ended with one of these codes."""
    if not isinstance(answer, Output):
        raise Unparsed("not the answer of a command")
    if answer.timed_out:
        raise Unparsed("the command did not end in time")
    if answer.code not in codes:
        said = (answer.stderr.strip() or answer.stdout.strip() or f"it ended with {answer.code}").splitlines()[-1]
        raise Unparsed(visible(said, 200))
    return answer.stdout
