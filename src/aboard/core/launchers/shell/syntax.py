"""The syntax tree of a shell script."""

from aboard.lazy_dataclass import dataclass


class UnreadableScriptError(Exception):
    """The script uses something that this package doesn't understand; `line` is counted from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class UnknownNumberError(UnreadableScriptError):
    """Arithmetic with a value that is known only at run time."""


class FailedScriptError(UnreadableScriptError):
    """The script itself would end here with an error."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A piece of a word: `text`, or the inside of a `parameter`, `command` or `arithmetic` expansion."""

    kind: str
    text: str
    quoted: bool


Word = tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """`name=value`, `name+=value` or `name=(values)`."""

    name: str
    values: tuple[Word, ...]
    is_array: bool = False
    appends: bool = False


@dataclass(frozen=True, kw_only=True)
class Redirect:
    """`operator` and its target; for `<<` the target is the text of the here-document."""

    operator: str
    target: Word


@dataclass(frozen=True, kw_only=True)
class SimpleCommand:
    line: int
    assignments: tuple[Assignment, ...]
    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    line: int
    commands: "tuple[Command, ...]"
    negated: bool


@dataclass(frozen=True, kw_only=True)
class Step:
    """A pipeline in a list; `joined` is `&&` or `||` if it depends on the one before."""

    pipeline: Pipeline
    joined: str
    in_background: bool


Block = tuple[Step, ...]


@dataclass(frozen=True, kw_only=True)
class Loop:
    """`for name in words`, or `while condition` (`until` if `negated`), with `name` empty."""

    line: int
    body: Block
    name: str = ""
    words: tuple[Word, ...] = ()
    condition: Block = ()
    negated: bool = False


@dataclass(frozen=True, kw_only=True)
class CountingLoop:
    """`for ((first; condition; step))`."""

    line: int
    first: str
    condition: str
    step: str
    body: Block


@dataclass(frozen=True, kw_only=True)
class Choice:
    """`if`, with each `elif`; an empty condition is the `else`."""

    line: int
    branches: tuple[tuple[Block, Block], ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    line: int
    subject: Word
    branches: tuple[tuple[tuple[Word, ...], Block], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """`{ … }`."""

    line: int
    body: Block


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """`(( … ))` as a command."""

    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Function:
    line: int
    name: str
    body: Block


Command = SimpleCommand | Loop | CountingLoop | Choice | Case | Group | Arithmetic | Function
