"""What each rank runs: a Python script, a module, or a program of its own."""

import re
from collections.abc import Sequence
from enum import Enum

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.lazy_dataclass import dataclass

# These words mean the interpreter that was chosen for ranks; a path means itself.
PYTHON_WORDS = frozenset({"python", "python3"})
_WITH_VALUE = frozenset({"-W", "-X"})
# Python's own before a script: flags without `c` and `m`, which take the rest, and without those that only print.
_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*", re.DOTALL)


class ProgramKind(Enum):
    """How it is started: by the node's Python, by its `-m`, or by itself."""

    SCRIPT = "script"
    MODULE = "module"
    PROGRAM = "program"


@dataclass(frozen=True, kw_only=True)
class Program:
    """`args` go to it as they are. `local_rank` is the option by which it is told its own, "" where it needs none.

    DeepSpeed's launcher says `--local_rank=N`, torch.distributed.launch `--local-rank=N`. `options` are Python's own,
    as in `python -u train.py`.
    """

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    local_rank: str = ""
    options: tuple[str, ...] = ()

    def argv(self, node: Node, local_rank: int) -> tuple[str, ...]:
        """What a node starts for one of its ranks, its `setup` lines first."""
        head = {
            ProgramKind.SCRIPT: (node.rank_python, *self.options, self.target),
            ProgramKind.MODULE: (node.rank_python, *self.options, "-m", self.target),
            ProgramKind.PROGRAM: (node.rank_python if self.target in PYTHON_WORDS else self.target,),
        }[self.kind]
        rank_options = (f"{self.local_rank}={local_rank}",) if self.local_rank else ()
        return prepend_setup(node, (*head, *rank_options, *self.args))


def parse_python_command(words: Sequence[str]) -> Program | None:
    """`python -u train.py …` as a script and `python -m pkg …` as a module; None for any other command."""
    if not words or words[0] not in PYTHON_WORDS:
        return None
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] != "-m":
        if words[place] == "-" or not _OPTION.fullmatch(words[place]):
            return None
        place += 2 if words[place] in _WITH_VALUE else 1
    options, rest = tuple(words[1:place]), tuple(words[place:])
    if rest[:1] == ("-m",) and rest[1:]:
        return Program(kind=ProgramKind.MODULE, target=rest[1], args=tuple(rest[2:]), options=options)
    if rest and rest[0] != "-m":
        return Program(kind=ProgramKind.SCRIPT, target=rest[0], args=tuple(rest[1:]), options=options)
    return None
