"""Merges the programs that a batch script starts on each node in a loop into one for all nodes."""

import re
from collections.abc import Sequence
from dataclasses import replace

from aboard.core.launchers.flag_parser import parse_flags
from aboard.core.launchers.launcher_command import LauncherContext
from aboard.core.launchers.shell.captured_output import JobNodes
from aboard.core.launchers.shell.commands import StartedProgram
from aboard.core.launchers.shell.syntax import UnreadableScriptError
from aboard.core.launchers.slurm.srun import GRAMMAR, NAME

_NODE = re.compile(r"(?:-w|--nodelist)=?(.*)")
_COUNT = re.compile(r"(?:-[Nn]=?|--(?:nodes|ntasks)(?:=|$))(.*)")


def split_srun(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The flags of `srun FLAGS COMMAND`, and the command; no flags if the words are another command."""
    if words[0] != NAME:
        return (), words
    flags = parse_flags(GRAMMAR, words[1:])
    count = 1 + len(flags.args)
    return words[1:-count], words[-count:]


def merge_programs(programs: Sequence[StartedProgram], nodes: JobNodes, context: LauncherContext) -> StartedProgram:
    """The only program, or one srun over all nodes for programs that differ by their node and its rank alone."""
    if not programs:
        raise UnreadableScriptError(1, "a script that starts nothing with srun")
    first, *others = programs
    if not others:
        return first
    extended = [_extend_to_all_nodes(program, nodes.names) for program in programs]
    merged, used = [program for program, _ in extended], {node for _, node in extended}
    # The launcher's flags for a node's rank and for the number of nodes mean nothing to Aboard, so they don't count.
    wanted = context.parse_inner(merged[0].words, context)
    for program in merged[1:]:
        found = context.parse_inner(program.words, context)
        is_same = (
            wanted is not None
            and found is not None
            and (found.request, found.container) == (wanted.request, wanted.container)
        )
        if not is_same or program.env != first.env:
            raise UnreadableScriptError(program.line, "a second program: Aboard starts one on all nodes")
    if len(programs) != len(nodes.names) or (any(used) and used != set(nodes.names)):
        reason = f"a loop that starts {len(programs)} programs, which is not one on each of {len(nodes.names)} nodes"
        raise UnreadableScriptError(first.line, reason)
    return merged[0]


def _extend_to_all_nodes(program: StartedProgram, names: Sequence[str]) -> tuple[StartedProgram, str]:
    """The program with srun over all nodes, and the node that it was for, if it was for one."""
    flags, command = split_srun(program.words)
    kept: list[str] = []
    node = ""
    rest = list(flags)
    while rest:
        word = rest.pop(0)
        if match := _NODE.fullmatch(word):
            node = (match[1] or rest.pop(0)).strip()
        elif match := _COUNT.fullmatch(word):
            if (match[1] or rest.pop(0)) != "1":
                raise UnreadableScriptError(program.line, "a second program: Aboard starts one on all nodes")
        else:
            kept.append(word)
    if program.words[0] != NAME or (node and node not in names):
        raise UnreadableScriptError(program.line, "a second program: Aboard starts one on all nodes")
    words = (NAME, f"--nodes={len(names)}", "--ntasks-per-node=1", *kept, *command)
    return replace(program, words=words), node
