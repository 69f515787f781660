"""A node's software inventory as values."""

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Annotated

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.decoding import Matching, MaxLength
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.secrets.secret_names import SECRET_WORDS
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.script_probes import (
    AnyPath,
    Plain,
    build_rank_command,
    decode_script_output,
    list_rank_variables,
    parse_script_output,
)
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script

_MANY = MaxLength(20_000)
# It is used in the commands of fixes.
ModuleName = Annotated[str, Matching(r"([A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*)?")]


@dataclass(frozen=True, kw_only=True)
class NodeSoftware:
    """What ranks will import on a node, and the variables that they will see.

    `environment` and `code` are digests: of every package with its version, and of the files in the working directory,
    of which there are `files`; `cut` means that there were more than the limit. Of the program that ranks run,
    `needed` are the files in the working directory that it imports, `imports` the versions of everything else that it
    imports, `missing` what it imports first of all and does not find, and `module` the file that
    `-m asked_module` runs.
    """

    python: Plain
    executable: AnyPath
    packages: Mapping[Plain, Plain]
    environment: Plain
    count: int
    variables: Annotated[Mapping[Plain, Annotated[Untrusted, MaxLength(500)]], _MANY]
    code: Plain
    files: int
    cut: bool
    commit: Untrusted
    needed: Annotated[tuple[AnyPath, ...], _MANY] = ()
    imports: Mapping[Plain, Plain] = field(default_factory=dict)
    missing: tuple[ModuleName, ...] = ()
    module: AnyPath = NO_TEXT
    asked_module: ModuleName = ""


@dataclass(frozen=True, kw_only=True)
class SoftwareListing:
    """Every package and every file of code, behind the digests."""

    packages: Annotated[Mapping[Plain, Plain], _MANY]
    files: Annotated[Mapping[AnyPath, Plain], _MANY]


def parse_software(answer: ProbeAnswer) -> NodeSoftware:
    document = parse_script_output(answer)
    program = document.get("program")
    return decode_script_output(NodeSoftware, document | program if isinstance(program, dict) else document)


def parse_listing(answer: ProbeAnswer) -> SoftwareListing:
    return decode_script_output(SoftwareListing, parse_script_output(answer))


def build_inventory_command(node: Node, what: str = "facts", program: Program | None = None) -> ProbeCommand:
    """The command that takes the inventory with the ranks' Python."""
    target = () if program is None or program.kind is ProgramKind.PROGRAM else (program.kind.value, program.target)
    workdir = node.workdir if node.container is None else node.container.workdir or node.workdir
    words = (what, workdir or "", *(("|".join(SECRET_WORDS), *target) if what == "facts" else ()))
    script = read_script("software_inventory")
    outside = node.container is None and not node.setup
    if outside and node.transport is not TransportKind.LOCAL and node.rank_python == node.python:
        # The agent runs on it already: a child of the agent saves each node 40 ms of start-up.
        env = list_rank_variables(node)
        return ProbeCommand(argv=("software", *words), timeout=10.0, source=script, env=env)
    return build_rank_command(node, "-Sc", script, *words)


SOFTWARE = Probe(name="software", question=build_inventory_command, parse=parse_software)


def build_program_probe(program: Program) -> Probe[NodeSoftware]:
    """As `SOFTWARE`, and also what a program needs."""
    return replace(SOFTWARE, question=partial(build_inventory_command, program=program))
