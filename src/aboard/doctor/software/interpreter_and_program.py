"""The interpreter and the program of ranks: the same on every node, and safe to run."""

from collections.abc import Iterator, Mapping, Sequence
from posixpath import join, normpath

from aboard.core.cluster import node_sets
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import TransportKind
from aboard.core.cluster.node_commands import format_node_command, format_python_command, join_command_lines
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.rank_environment import CommandPath, ProgramFile, RankEnvironment
from aboard.core.text.input_text import agree, format_list
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, Shell, format_shell
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.untrusted import escape_text
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.software import diagnoses as software
from aboard.doctor.software.node_software import SOFTWARE, NodeSoftware

_MAX_FIXES = 4
_MAX_PATHS = 5
# A Python of the system is installed, not copied.
_SYSTEM = ("", "/usr", "/usr/local", "/opt")


def find_missing_interpreter(facts: Facts) -> Iterator[Finding]:
    """The head's environment is on some nodes only, or on none of them."""
    known = _list_known_environments(facts)
    lacking = [name for name, each in known.items() if each.interpreter.lacking and not each.interpreter.refused]
    if not lacking:
        return
    path = known[lacking[0]].interpreter.lacking
    origin = known[lacking[0]].interpreter.lacking_origin
    # Below a home, or at --env-path, it has another path.
    having = [
        name for name, each in known.items() if each.interpreter.path == path or each.interpreter.origin is origin
    ]
    if having:
        alike = _has_same_versions(facts.of(SOFTWARE), having[0], lacking)
        yield software.INTERPRETER.finding(
            severity=Severity.WARN if alike else Severity.BLOCK,
            nodes=tuple(lacking),
            seen=f"{path} is on {node_sets.fold_names(having)}, but not on {node_sets.fold_names(lacking)}"
            + ("; python3 there has the same packages" if alike else ""),
            fix=_fix_missing_environment(facts, software.INTERPRETER, known[lacking[0]].interpreter, lacking),
        )
    else:
        without = [
            name
            for name in lacking
            if (inventory := facts.of(SOFTWARE).get(name)) and "torch" not in inventory.packages
        ]
        yield software.INTERPRETER_LOGIN.finding(
            severity=Severity.WARN if without else Severity.INFO,
            nodes=tuple(lacking),
            seen=f"{path} is on none of the nodes, so ranks use the login shell's python3"
            + (f"; on {node_sets.fold_names(without)}, this python3 doesn't have torch" if without else ""),
            fix=_fix_missing_environment(facts, software.INTERPRETER_LOGIN, known[lacking[0]].interpreter, lacking),
        )


def find_unsafe_interpreter(facts: Facts) -> Iterator[Finding]:
    """An interpreter that another user can modify would run their code with this user's rights."""
    refused = {
        name: (each.interpreter.lacking, each.interpreter.refused)
        for name, each in _list_known_environments(facts).items()
        if each.interpreter.refused
    }
    for (path, reason), names in group_by_value(refused).items():
        yield software.INTERPRETER_UNSAFE.finding(
            nodes=names,
            seen=f"{path} is not used: {reason.visible(300)}",
            fix=software.INTERPRETER_UNSAFE.fix(path=path),
        )


def find_unknown_interpreter(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose environment is unknown."""
    for name, answer in facts.environments.items():
        if isinstance(answer, Unknown):
            node = facts.cluster.node(name)
            yield unanswered_probes.ENVIRONMENT.finding(
                nodes=(name,),
                seen=f"could not check whether the node has your Python environment and script: {answer.why}",
                why="The node's ranks use the login shell's python3 and may not start.",
                fix=unanswered_probes.ENVIRONMENT.fix(
                    look=format_node_command(node, format_shell("ls {folder}", folder=node.workdir or "."))
                ),
            )


def find_missing_program(facts: Facts) -> Iterator[Finding]:
    """The ranks' program is missing on a node, or can't be run there.

    A working directory that only some nodes lack is a finding of its own; one that all lack was never copied.
    """
    known = {name: each for name, each in _list_known_environments(facts).items() if each.program is not None}
    nowhere = all(each.workdir is False for each in known.values())
    by_path: dict[tuple[str, str], list[str]] = {}
    there, near = [], {}
    for name, program in _list_programs(facts, nowhere=nowhere).items():
        if program.exists and not program.problem:
            there.append(name)
        else:
            problem = program.problem.visible(200) or "is missing"
            by_path.setdefault((program.path, problem), []).append(name)
            if program.near is not None and not program.exists:
                near[program.path] = program.near
    for (path, problem), names in by_path.items():
        also = f"; {node_sets.fold_names(there)} {agree(there, 'has', 'have')} it" if there else ""
        folder = facts.cluster.node(names[0]).workdir if nowhere else None
        yield software.PROGRAM.finding(
            nodes=tuple(names),
            seen=f"{path} {problem} on {node_sets.fold_names(names)}{also}",
            fix=software.PROGRAM.fix("near" if near[path] else "nowhere", near=near[path], path=path)
            if path in near and not there
            else _fix_missing_program(facts, folder or path, names, there)
            if "/" in path
            else software.PROGRAM.fix(
                "install",
                look=format_node_command(facts.cluster.node(names[0]), format_shell("command -v {path}", path=path)),
                nodes=quote_folded_names(names),
            ),
        )


def find_missing_paths(facts: Facts) -> Iterator[Finding]:
    """Files and directories of the command that the head has and a node lacks.

    A node without the working directory lacks everything in it; that is reported once.
    """
    lacking: dict[CommandPath, list[str]] = {}
    for name, each in _list_known_environments(facts).items():
        for path in each.missing if each.workdir is not False else ():
            lacking.setdefault(path, []).append(name)
    groups = group_by_value({path: (path.needed, tuple(names)) for path, names in lacking.items()})
    for (needed, nodes), paths in groups.items():
        them = [each.path for each in paths]
        yield software.COMMAND_PATH.finding(
            severity=Severity.BLOCK if needed else Severity.WARN,
            nodes=nodes,
            seen=f"{format_list([escape_text(path, 200) for path in them[:_MAX_PATHS]])}"
            + (f" and {len(them) - _MAX_PATHS} more" if len(them) > _MAX_PATHS else "")
            + f" {agree(them, 'exists', 'exist')} on this machine, but not on {node_sets.fold_names(nodes)}",
            fix=software.COMMAND_PATH.fix("sync", paths=them, on=_format_on_option(facts, nodes))
            if all(_is_synced_place(facts, path, name) for path in paths for name in nodes)
            else software.COMMAND_PATH.fix("copy", paths=them, nodes=quote_folded_names(nodes)),
        )


def find_missing_module(facts: Facts) -> Iterator[Finding]:
    """The module of `-m` is missing for a node's interpreter."""
    inventories = {
        name: inventory
        for name, inventory in facts.of(SOFTWARE).items()
        if inventory.asked_module and not inventory.module
    }
    if inventories:
        name, inventory = next(iter(inventories.items()))
        node = facts.cluster.node(name)
        go = format_shell("cd {folder}", folder=node.workdir or ".")
        ask = format_shell("-m {module} --help", module=inventory.asked_module)
        yield software.PROGRAM.finding(
            nodes=tuple(inventories),
            seen=f"{inventory.executable.visible(500)} can't find the module {inventory.asked_module} in {node.workdir}"
            " or among its installed packages",
            fix=software.PROGRAM.fix("module", try_it=format_python_command(node, ask, go)),
        )


def find_differing_program(facts: Facts) -> Iterator[Finding]:
    """Nodes that run different scripts issue different collectives."""
    by_digest = group_by_value({name: each.digest for name, each in _list_programs(facts).items() if each.digest})
    if len(by_digest) > 1:
        usual = max(by_digest.values(), key=len)
        odd = tuple(name for names in by_digest.values() if names is not usual for name in names)
        path = _list_programs(facts)[odd[0]].path
        yield software.PROGRAM_DIFFERS.finding(
            nodes=odd,
            seen=f"{path} on {node_sets.fold_names(odd)} differs from the file on {node_sets.fold_names(usual)}",
            fix=software.PROGRAM_DIFFERS.fix(lines=_build_copy_commands(facts, path, odd, usual)),
        )


def find_missing_imports(facts: Facts) -> Iterator[Finding]:
    """Modules that the script imports in its first lines and a node's interpreter lacks."""
    lacking = {name: inventory.missing for name, inventory in facts.of(SOFTWARE).items() if inventory.missing}
    for missing, names in group_by_value(lacking).items():
        try_it = format_python_command(
            facts.cluster.node(names[0]), format_shell("-c {program}", program=f"import {', '.join(missing)}")
        )
        executable = facts.of(SOFTWARE)[names[0]].executable.visible(500)
        yield software.IMPORT.finding(
            nodes=names,
            seen=f"the script imports {format_list(missing)}, which {executable} does not have",
            fix=software.IMPORT.fix(
                try_it=try_it, them="it" if len(missing) == 1 else "them", nodes=quote_folded_names(names)
            ),
        )


def _list_known_environments(facts: Facts) -> Mapping[str, RankEnvironment]:
    return {name: each for name, each in facts.environments.items() if isinstance(each, RankEnvironment)}


def _list_programs(facts: Facts, *, nowhere: bool = False) -> Mapping[str, ProgramFile]:
    """The programs of nodes that have the working directory, or of all if it is `nowhere`."""
    return {
        name: each.program
        for name, each in _list_known_environments(facts).items()
        if each.program is not None and (nowhere or each.workdir is not False)
    }


def _has_same_versions(inventories: Mapping[str, NodeSoftware], having: str, lacking: Sequence[str]) -> bool:
    """Whether versions of Python, torch and the script's imports match."""
    if any(name not in inventories for name in (having, *lacking)):
        return False
    like = inventories[having]
    return all(
        inventories[name].python.rpartition(".")[0] == like.python.rpartition(".")[0]
        and inventories[name].packages.get("torch") == like.packages.get("torch")
        and inventories[name].imports == like.imports
        for name in lacking
    )


def _build_copy_commands(
    facts: Facts, path: str, names: Sequence[str], source: Sequence[str] = (), *, whole: bool = False
) -> Shell:
    """Copies from the head if it has the file or no node has it, else from a node through the head.

    A `whole` environment is more than a file.
    """
    origin = next((facts.cluster.node(name) for name in source), None)
    pack = format_shell("tar -C / -cf - {inner}", inner=path.lstrip("/"))
    read_command = pack if origin is None else format_node_command(origin, pack)
    away = [node for node in map(facts.cluster.node, names) if node.transport is not TransportKind.LOCAL]
    if not away:
        return format_shell("ls -l {folder}", folder=path.rpartition("/")[0] or ".")
    unpack = format_shell("tar -C / -xf -")
    lines = [
        format_shell("{read:shell} | {write:shell}", read=read_command, write=format_node_command(node, unpack))
        for node in away[:_MAX_FIXES]
    ]
    if whole:
        lines[0] = format_shell("{line:shell}    # the environment's base Python must be there, too", line=lines[0])
    return join_command_lines(lines, len(away) - _MAX_FIXES)


def _fix_missing_environment(facts: Facts, diagnosis: Diagnosis, interpreter: Interpreter, names: Sequence[str]) -> Fix:
    path, origin = interpreter.lacking, interpreter.lacking_origin
    prefix = path.rpartition("/")[0].rpartition("/")[0]
    if prefix in _SYSTEM:
        look = format_node_command(facts.cluster.node(names[0]), format_shell("ls -l {path}", path=path))
        return diagnosis.fix("install", look=look, nodes=quote_folded_names(names))
    if origin is not InterpreterSource.VIRTUAL_ENV:
        return diagnosis.fix("copy", lines=_build_copy_commands(facts, prefix, names, whole=True))
    return diagnosis.fix("sync", on=_format_on_option(facts, names))


def _fix_missing_program(facts: Facts, path: str, names: Sequence[str], there: Sequence[str]) -> Fix:
    """`aboard sync` copies from this machine; a file that only other nodes have comes from one of them."""
    is_local = [facts.cluster.node(name).transport is TransportKind.LOCAL for name in (*names, *there)]
    if all(is_local[: len(names)]) or (there and not any(is_local[len(names) :])):
        return software.PROGRAM.fix("copy", lines=_build_copy_commands(facts, path, names, there))
    return software.PROGRAM.fix("sync", on=_format_on_option(facts, names), path=path)


def _format_on_option(facts: Facts, names: Sequence[str]) -> Shell:
    """The nodes of a sync; only aboard.yaml knows nodes whose name is not what ssh is given."""
    nodes = [facts.cluster.node(name) for name in names]
    listed = all(node.target == node.name and node.user is None and node.port is None for node in nodes)
    return format_shell(" --on {nodes}", nodes=node_sets.fold_names(names)) if listed else format_shell("")


def _is_synced_place(facts: Facts, path: CommandPath, name: str) -> bool:
    """Whether ranks look for the path where a sync puts it: at the same place, or in the home directory."""
    node, environment = facts.cluster.node(name), _list_known_environments(facts)[name]
    if node.container is not None:
        return False
    moved = bool(environment.folder) and not path.path.startswith("/")
    return moved or normpath(join(node.workdir or "", path.path)) == path.source
