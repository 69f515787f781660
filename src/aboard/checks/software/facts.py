"""What a node told of its software, as values."""

from collections.abc import Mapping
from dataclasses import dataclass

from aboard.checks.scripted import as_a_rank, number, said, word, words
from aboard.checks.software.script import SCRIPT
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe


@dataclass(frozen=True, kw_only=True)
class Software:
    """What ranks will import on a node, and the variables that they will see.

    `environment` and `code` are digests: of every package with its version, and of the files in the working directory,
    of which there are `files`; `cut` says that there were more than are looked at.
    """

    python: str
    executable: str
    packages: Mapping[str, str]
    environment: str
    count: int
    variables: Mapping[str, str]
    code: str
    files: int
    cut: bool
    commit: str


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Every package and every file of code, behind the digests."""

    packages: Mapping[str, str]
    files: Mapping[str, str]


def parse_software(answer: Answer) -> Software:
    told = said(answer)
    return Software(
        python=word(told, "python"),
        executable=word(told, "executable"),
        packages=words(told, "packages"),
        environment=word(told, "environment"),
        count=number(told, "count"),
        variables=words(told, "variables"),
        code=word(told, "code"),
        files=number(told, "files"),
        cut=told.get("cut") is True,
        commit=word(told, "commit"),
    )


def parse_listing(answer: Answer) -> Listing:
    told = said(answer)
    return Listing(packages=words(told, "packages"), files=words(told, "files"))


def question(node: Node, what: str = "facts") -> Command:
    """Asks the Python that ranks will get, in their directory's name."""
    return Command(argv=as_a_rank(node, "-Sc", SCRIPT, what, node.workdir or ""), timeout=10.0)


SOFTWARE = Probe(name="software", question=question, parse=parse_software)
