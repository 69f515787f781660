"""The program behind a launcher's flags."""

from aboard.core.launchers.flag_parser import ParsedFlags
from aboard.core.plan.program import Program, ProgramKind
from aboard.diagnoses import InputError, Problem
from aboard.diagnoses.usage import pasted_commands


def build_program(flags: ParsedFlags, *, local_rank: str = "") -> Program:
    """A script, a module or a program of its own; no launcher lets it be both of the latter."""
    if flags.on("module") and flags.on("no_python"):
        seen = "the script can't be run both as a Python module and without Python"
        fix = pasted_commands.FLAG.fix("leave-one")
        raise InputError(pasted_commands.FLAG, [Problem(where=f"{flags.launcher} --module", seen=seen, fix=fix)])
    kind = (
        ProgramKind.MODULE
        if flags.on("module")
        else ProgramKind.PROGRAM
        if flags.on("no_python")
        else ProgramKind.SCRIPT
    )
    return Program(kind=kind, target=flags.target, args=flags.args, local_rank=local_rank)
