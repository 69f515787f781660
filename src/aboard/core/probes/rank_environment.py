"""The environment of ranks on a node: interpreter, working directory, program."""

from collections.abc import Mapping
from dataclasses import replace
from posixpath import join, normpath
from typing import Any

from aboard.core.cluster.container import find_script_outside
from aboard.core.cluster.interpreter import (
    PATH_LENGTH,
    FoundInterpreter,
    HeadEnvironment,
    Interpreter,
    InterpreterSource,
    choose_interpreter,
    is_at_place,
)
from aboard.core.cluster.node import Node, TransportKind
from aboard.core.decoding import DecodeError, decode
from aboard.core.plan.program import PYTHON_WORDS, Program, ProgramKind
from aboard.core.probes.probe import ProbeParseError
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

_HOME_LENGTH = 1024


@dataclass(frozen=True, kw_only=True)
class CommandPath:
    """A file or directory that the ranks' command names and that the head has as `source`.

    `needed`: every rank reads it, such as the configuration of DeepSpeed. Another one may be a directory for output.
    """

    path: str
    source: str
    needed: bool = False


@dataclass(frozen=True, kw_only=True)
class RankSpec:
    """What ranks should get, before the nodes are probed; a check has no program.

    `search_path` is the PATH that the user sets for every rank, if any. `folder` is the head's working directory, and
    `below_home` its path below the user's home, "" if it is elsewhere. `near` is None if the head has the script;
    otherwise a file here with a similar name, or "".
    """

    environment: HeadEnvironment | None = None
    program: Program | None = None
    search_path: str | None = None
    paths: tuple[CommandPath, ...] = ()
    folder: str = ""
    below_home: str = ""
    near: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramFile:
    """The file that ranks run: `digest` is its hash, `problem` is why it can't run, "" if it can.

    `near` is None if this machine may have it; otherwise the file that the user probably meant, "" if none is similar.
    """

    path: str
    exists: bool = False
    digest: Untrusted = NO_TEXT
    problem: Untrusted = NO_TEXT
    near: str | None = None


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """`workdir` says whether the directory exists; it and `program` are None if not probed.

    `folder` is the working directory if it is elsewhere than on the head: below a home directory with another path.
    `missing` are the paths of the command that the node lacks.
    """

    interpreter: Interpreter
    workdir: bool | None = None
    program: ProgramFile | None = None
    folder: str = ""
    missing: tuple[CommandPath, ...] = ()


def build_environment_query(node: Node, spec: RankSpec) -> dict[str, Any]:
    """The fields of the agent's op `environment`; empty if there is nothing to query.

    The agent runs outside of a container, where it can see the script only in the working directory or a bind.
    """
    fields: dict[str, Any] = {}
    if node.container is not None:
        return _build_query_outside(node, spec)
    if node.interpreter is not None:
        python = node.interpreter.path
    else:
        python = "" if spec.environment is None else spec.environment.python
    if python.startswith("/"):
        fields["python"] = python
        if places := _list_places(node, spec):
            fields["places"] = places
    program = spec.program
    if program is not None and not node.setup and program.kind is not ProgramKind.MODULE:
        if program.kind is ProgramKind.SCRIPT:
            fields["script"] = program.target
        elif program.target not in PYTHON_WORDS:
            fields["program"] = program.target
            if search_path := spec.search_path or node.env.get("PATH"):
                fields["search_path"] = search_path
    return {**fields, **_build_folder_query(node, spec)}


def _list_places(node: Node, spec: RankSpec) -> list[str]:
    """Where the node may have the head's environment, besides the same path."""
    if spec.environment is None or node.interpreter is not None or node.transport is TransportKind.LOCAL:
        return []
    return list(spec.environment.places)


def _build_folder_query(node: Node, spec: RankSpec) -> dict[str, Any]:
    """The working directory and the paths of the command, which are relative to it."""
    if spec.program is None or not node.workdir:
        return {}
    fields: dict[str, Any] = {"workdir": node.workdir}
    if spec.below_home and node.workdir == spec.folder and node.transport is not TransportKind.LOCAL:
        fields["below_home"] = spec.below_home
    if paths := _list_outer_paths(node, spec):
        fields["paths"] = [path for _, path in paths]
    return fields


def _list_outer_paths(node: Node, spec: RankSpec) -> list[tuple[CommandPath, str]]:
    """The paths of the command and where they are outside of a container; `setup` lines may change the directory."""
    if node.setup:
        return []
    if node.container is None:
        return [(each, each.path) for each in spec.paths]
    found = [(each, find_script_outside(node.container, each.path)) for each in spec.paths]
    return [(each, path) for each, path in found if path is not None]


def _build_query_outside(node: Node, spec: RankSpec) -> dict[str, Any]:
    if spec.program is None or not node.workdir:
        return {}
    script = _find_script(node, spec.program)
    return {**_build_folder_query(node, spec), **({"script": script} if script else {})}


def _find_script(node: Node, program: Program) -> str | None:
    """The script's path on the node; None if only the image may have it."""
    if node.container is None:
        return program.target
    return find_script_outside(node.container, program.target) if program.kind is ProgramKind.SCRIPT else None


def parse_environment(node: Node, spec: RankSpec, reply: Mapping[str, Any]) -> RankEnvironment:
    """Parses the agent's reply, which is untrusted; raises ProbeParseError if it can't be parsed."""
    if len(str(reply.get("search_path"))) > PATH_LENGTH:
        raise ProbeParseError("its PATH is too long")
    found, workdir, program = (reply.get(name) for name in ("python", "workdir", "program"))
    try:
        python = decode(FoundInterpreter, {**reply, **found}, strict=True) if isinstance(found, dict) else None
    except DecodeError:
        raise ProbeParseError("an invalid reply") from None
    if python is not None and python.path:
        places = _list_places(node, spec)
        if not any(is_at_place(python.path.raw(), place) for place in places):
            raise ProbeParseError("an invalid reply about the interpreter")
    folder = _parse_folder(spec, reply.get("folder"))
    return RankEnvironment(
        folder=folder,
        missing=_parse_missing(node, spec, reply.get("paths")),
        interpreter=Interpreter(path=node.container.python, origin=InterpreterSource.CONTAINER)
        if node.container is not None
        else choose_interpreter(
            node.interpreter, spec.environment, python, local=node.transport is TransportKind.LOCAL
        ),
        workdir=workdir if isinstance(workdir, bool) else None,
        program=_decode_program_file(replace(node, workdir=folder or node.workdir), spec, spec.program, program)
        if spec.program is not None and isinstance(program, dict)
        else None,
    )


def move_workdir(node: Node, folder: str) -> Node:
    """The node with its working directory, and an image in it, in the home directory that it has there."""
    if not folder or not node.workdir:
        return node
    container = node.container
    if container is not None and container.image.startswith(f"{node.workdir}/"):
        container = replace(container, image=folder + container.image[len(node.workdir) :])
    return replace(node, workdir=folder, container=container)


def _parse_folder(spec: RankSpec, folder: object) -> str:
    """A node says only where its home is: the rest of the path is ours."""
    if folder is None or not spec.below_home:
        return ""
    home = folder.removesuffix(f"/{spec.below_home}") if isinstance(folder, str) else ""
    if home == folder or not home.startswith("/") or not home.isprintable() or len(home) > _HOME_LENGTH:
        raise ProbeParseError("an invalid home directory")
    return f"{home}/{spec.below_home}"


def _parse_missing(node: Node, spec: RankSpec, there: object) -> tuple[CommandPath, ...]:
    asked = _list_outer_paths(node, spec)
    if there is None:
        return ()
    if not isinstance(there, list) or len(there) != len(asked):
        raise ProbeParseError("an invalid reply about paths")
    return tuple(each for (each, _), exists in zip(asked, there, strict=True) if exists is False)


def _decode_program_file(node: Node, spec: RankSpec, program: Program, reply: Mapping[str, Any]) -> ProgramFile:
    """Uses our own path, since a fix copies the file to it and no node may choose that path."""
    bare = program.kind is ProgramKind.PROGRAM and "/" not in program.target
    found = decode(ProgramFile, {**reply, "path": "", "near": None})
    target = _find_script(node, program) or program.target
    return replace(
        found,
        path=program.target if bare else normpath(join(node.workdir or "", target)),
        # System programs may differ between nodes; the script must not.
        digest=found.digest if program.kind is ProgramKind.SCRIPT else NO_TEXT,
        near=spec.near if node.container is None else None,
    )
