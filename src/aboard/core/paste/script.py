"""The program behind a launcher's flags."""

from aboard.core.paste.typed import Typed
from aboard.core.program import Kind, Program
from aboard.diagnoses import InputError, Problem, paste


def program(typed: Typed, *, local_rank: str = "") -> Program:
    """A script, a module or a program of its own; no launcher lets it be both of the latter."""
    if typed.on("module") and typed.on("no_python"):
        seen = "the script can't be run both as a Python module and without Python"
        fix = paste.FLAG.fix("leave-one")
        raise InputError(paste.FLAG, [Problem(where=f"{typed.launcher} --module", seen=seen, fix=fix)])
    kind = Kind.MODULE if typed.on("module") else Kind.PROGRAM if typed.on("no_python") else Kind.SCRIPT
    return Program(kind=kind, target=typed.target, args=typed.args, local_rank=local_rank)
