"""A node's container as values: its runtime and image, and what processes see outside and inside."""

from dataclasses import replace
from typing import Annotated, Literal, TypeAlias

from aboard.core.cluster.node import Node, TransportKind
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.core.decoding import Matching, MaxLength
from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import CommandOutput, Probe, ProbeAnswer, ProbeCommand, ProbeFiles, ProbeQuestion
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.script_probes import (
    AnyPath,
    Plain,
    build_rank_command,
    decode_script_output,
    list_last_lines,
    parse_script_output,
)
from aboard.doctor.software.node_software import build_inventory_command, parse_software
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.script_source import read_script

# Images are hashed, on a file server that others read from as well.
_OUTSIDE_SECONDS = 60.0
_PROBLEM_CHARS = 4000

Devices = Annotated[tuple[Annotated[str, Matching(r"[a-z]+[0-9]{1,5}")], ...], MaxLength(1000)]
ImageKind: TypeAlias = Literal["", "file", "directory", "registry", "store", "missing", "unreadable", "unusable"]


@dataclass(frozen=True, kw_only=True)
class ProcessView:
    """What a process of the ranks' user sees: devices, limits (None is no limit) and directories.

    `driver` says whether it can load NVIDIA's driver. `workdir` identifies the directory itself, whatever its path is;
    empty if it is not there. `users` counts the user ids that it can use. Sizes are bytes.
    """

    python: Plain
    executable: AnyPath
    gpus: Devices
    rocm: bool
    driver: bool
    infiniband: Devices
    shm: int
    files: int | None
    locked: int | None
    home: AnyPath
    home_writable: bool
    workdir: Annotated[str, Matching(r"([0-9]+:[0-9]+)?")]
    users: int


@dataclass(frozen=True, kw_only=True)
class NodeRuntime:
    """The runtime (its path, empty if it is missing) and the image; `image` is a digest, or the id in the image store.

    `problem` is what the runtime or the system printed. `mountable` says whether Apptainer can use the file without
    unpacking it; if not, `free` is the space to unpack it. `replaceable`: this user can replace the file.
    """

    runtime: AnyPath
    version: Untrusted
    view: ProcessView
    kind: ImageKind = ""
    image: Annotated[str, Matching("[0-9a-f]{0,64}")] = ""
    size: int = 0
    replaceable: bool = True
    mountable: bool = True
    free: int | None = None
    problem: Annotated[Untrusted, MaxLength(_PROBLEM_CHARS)] = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class FailedStart:
    """A container that ended without a result, and what was printed."""

    lines: tuple[Untrusted, ...]


def _build_outside_command(node: Node) -> ProbeQuestion:
    if node.container is None:
        return ProbeFiles(globs=())
    words = ("outside", node.workdir or "", node.container.runtime, node.container.image)
    script = read_script("container_view")
    if node.setup or node.transport is TransportKind.LOCAL:
        return ProbeCommand(argv=prepend_setup(node, (node.python, "-ISc", script, *words)), timeout=_OUTSIDE_SECONDS)
    return ProbeCommand(argv=("container", *words), timeout=_OUTSIDE_SECONDS, source=script)


def _build_inside_command(node: Node) -> ProbeQuestion:
    if node.container is None:
        return ProbeFiles(globs=())
    workdir = node.container.workdir or node.workdir or ""
    return build_rank_command(node, "-Sc", read_script("container_view"), "inside", workdir)


def _build_software_command(node: Node) -> ProbeQuestion:
    if node.container is None:
        return ProbeFiles(globs=())
    return build_inventory_command(replace(node, container=None, interpreter=None))


def parse_runtime(answer: ProbeAnswer) -> NodeRuntime:
    return decode_script_output(NodeRuntime, parse_script_output(answer))


def parse_inside(answer: ProbeAnswer) -> ProcessView | FailedStart:
    if isinstance(answer, CommandOutput) and answer.code != 0 and not answer.timed_out:
        return FailedStart(lines=list_last_lines(answer))
    return decode_script_output(ProcessView, parse_script_output(answer))


RUNTIME = Probe(name="container-runtime", question=_build_outside_command, parse=parse_runtime)
INSIDE = Probe(name="container-inside", question=_build_inside_command, parse=parse_inside, quick=False)
OUTSIDE_SOFTWARE = Probe(name="outside-software", question=_build_software_command, parse=parse_software, quick=False)


def collect_views(facts: Facts) -> dict[str, tuple[ProcessView, ProcessView]]:
    """What processes see outside and inside, for nodes whose container started."""
    inside = facts.of(INSIDE)
    return {
        name: (runtime.view, view)
        for name, runtime in facts.of(RUNTIME).items()
        if isinstance(view := inside.get(name), ProcessView)
    }
