"""A probe: one question to a node, and a pure parser of the reply."""

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Generic, TypeAlias, TypeVar

from aboard.core.cluster.container import describe_container
from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import build_setup_words
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class ProbeCommand:
    """Run argv on the node, as the user that ranks will run as.

    It gets the variables `env`. With a `source`, which is Python, a child of the agent runs that, and argv is what it
    finds in sys.argv. With `inside`, argv runs in the container of that node, with the variables and the working
    directory of its ranks.
    """

    argv: tuple[str, ...]
    timeout: float = 10.0
    source: str | None = None
    inside: Node | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    def describe(self) -> dict[str, Any]:
        """The fields of the agent's op `run`."""
        fields: dict[str, Any] = {"argv": list(self.argv), "timeout": self.timeout}
        if self.source is not None:
            fields["source"] = self.source
        if self.inside is not None and self.inside.container is not None:
            fields |= describe_container(self.inside.container, build_setup_words(self.inside))
            fields["env"] = {**self.inside.env, **self.inside.container.env, **self.env}
            fields["cwd"] = self.inside.workdir
        elif self.env:
            fields["env"] = dict(self.env)
        return fields


@dataclass(frozen=True, kw_only=True)
class ProbeFiles:
    """Read every file that matches the globs; missing or unreadable files are left out of the reply."""

    globs: tuple[str, ...]
    limit: int = 65536


ProbeQuestion: TypeAlias = ProbeCommand | ProbeFiles


@dataclass(frozen=True, kw_only=True)
class CommandOutput:
    """The exit code and output of a command."""

    code: int
    stdout: str
    stderr: str = ""
    timed_out: bool = False


@dataclass(frozen=True, kw_only=True)
class FileContents:
    """The contents of the files, by path."""

    files: Mapping[str, str]


ProbeAnswer: TypeAlias = CommandOutput | FileContents


class ProbeParseError(ValueError):
    """The parser doesn't recognise the reply: the fact is unknown, never a pass and never a zero.

    `lines` are what a command that failed printed last.
    """

    def __init__(self, why: str, lines: tuple[Untrusted, ...] = ()) -> None:
        super().__init__(why)
        self.lines = lines


@dataclass(frozen=True, kw_only=True)
class Probe(Generic[T]):
    """`parse` raises ProbeParseError for a reply that it doesn't recognise; the fact is then unknown, with that reason.

    Only the full check runs probes that aren't `quick`; a launch skips them. A question that needs something of
    the node itself (its Python, its directory) is a function of it.
    """

    name: str
    question: ProbeQuestion | Callable[[Node], ProbeQuestion]
    parse: Callable[[ProbeAnswer], T]
    quick: bool = True

    def question_for(self, node: Node) -> ProbeQuestion:
        """The question for this node."""
        return self.question(node) if callable(self.question) else self.question
