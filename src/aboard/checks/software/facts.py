"""What a node told of its software, as values."""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

from aboard.checks.scripted import as_a_rank, number, said, word, words
from aboard.checks.software.script import SCRIPT
from aboard.core.node import Node
from aboard.core.probe import Answer, Command, Probe, Unparsed
from aboard.core.program import Kind, Program
from aboard.core.words import visible
from aboard.lazy import dataclass


@dataclass(frozen=True, kw_only=True)
class Software:
    """What ranks will import on a node, and the variables that they will see.

    `environment` and `code` are digests: of every package with its version, and of the files in the working directory,
    of which there are `files`; `cut` says that there were more than are looked at. Of the program that ranks run,
    `needed` are the files in the working directory that it imports, `imports` the versions of everything else that it
    imports, `missing` what it imports first of all and does not find, and `module` the file that
    `-m asked_module` runs.
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
    needed: tuple[str, ...] = ()
    imports: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    module: str = ""
    asked_module: str = ""


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
        **_program(told.get("program")),
    )


def parse_listing(answer: Answer) -> Listing:
    told = said(answer)
    return Listing(packages=words(told, "packages"), files=words(told, "files"))


def question(node: Node, what: str = "facts", program: Program | None = None) -> Command:
    """Asks the Python that ranks will get, in their directory's name."""
    target = () if program is None or program.kind is Kind.PROGRAM else (program.kind.value, program.target)
    words = (what, node.workdir or "", *target)
    if not node.local and not node.setup and node.rank_python == node.python:
        # The agent runs on it already: a child of the agent saves each node 40 ms of start-up.
        return Command(argv=("software", *words), timeout=10.0, source=SCRIPT)
    return Command(argv=as_a_rank(node, "-Sc", SCRIPT, *words), timeout=10.0)


SOFTWARE = Probe(name="software", question=question, parse=parse_software)


def software_with(program: Program) -> Probe[Software]:
    """As `SOFTWARE`, and also what a program needs."""
    return replace(SOFTWARE, question=partial(question, program=program))


def _program(told: Any) -> dict[str, Any]:
    if not isinstance(told, dict) or not told:
        return {}
    found: dict[str, Any] = {"module": word(told, "module"), "asked_module": word(told, "asked_module")}
    if "needed" in told:
        found |= {name: _texts(told, name) for name in ("needed", "missing")} | {"imports": words(told, "imports")}
    # These go into the commands of fixes, and come from a node.
    for name in filter(None, (found["asked_module"], *found.get("missing", ()))):
        if not name.isascii() or not all(part.isidentifier() for part in name.split(".")):
            raise Unparsed("what it printed can't be read")
    return found


def _texts(told: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = told.get(name)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise Unparsed(f"no {name} in what it printed")
    return tuple(visible(each, 500) for each in value)
