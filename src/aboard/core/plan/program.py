"""The program of each rank: a Python script, a module, or an executable."""

import re
from collections.abc import Iterator, Sequence
from enum import Enum

from aboard.core.cluster.node import Node
from aboard.core.cluster.setup_commands import prepend_setup
from aboard.lazy_dataclass import dataclass

# These words mean the interpreter chosen for ranks; a path is used as it is.
PYTHON_WORDS = frozenset({"python", "python3"})
_WITH_VALUE = frozenset({"-W", "-X"})
# Python's options before a script: flags without `c` and `m`, which consume the rest, and without those that only
# print.
_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+|-[WX].*", re.DOTALL)

# DeepSpeed and the trainers of transformers read this file in every rank.
_CONFIG_OPTIONS = frozenset({"--deepspeed", "--deepspeed_config", "--deepscale_config"})
_PATH_LENGTH = 4096


class ProgramKind(Enum):
    """How it is started: by the node's Python, with `python -m`, or directly."""

    SCRIPT = "script"
    MODULE = "module"
    PROGRAM = "program"


@dataclass(frozen=True, kw_only=True)
class Program:
    """`args` are passed unchanged. `local_rank` is the option that passes the local rank, "" for none.

    DeepSpeed's launcher passes `--local_rank=N`, torch.distributed.launch `--local-rank=N`. `options` are Python's
    own, as in `python -u train.py`.
    """

    kind: ProgramKind
    target: str
    args: tuple[str, ...] = ()
    local_rank: str = ""
    options: tuple[str, ...] = ()

    def argv(self, node: Node, local_rank: int) -> tuple[str, ...]:
        """The argv of one rank on a node, including the node's `setup` lines; those of a container run outside it."""
        head = {
            ProgramKind.SCRIPT: (node.rank_python, *self.options, self.target),
            ProgramKind.MODULE: (node.rank_python, *self.options, "-m", self.target),
            ProgramKind.PROGRAM: (node.rank_python if self.target in PYTHON_WORDS else self.target,),
        }[self.kind]
        rank_options = (f"{self.local_rank}={local_rank}",) if self.local_rank else ()
        argv = (*head, *rank_options, *self.args)
        return argv if node.container is not None else prepend_setup(node, argv)


def parse_python_command(words: Sequence[str]) -> Program | None:
    """Parses `python -u train.py …` as a script and `python -m pkg …` as a module; None for other commands."""
    if not words or words[0] not in PYTHON_WORDS:
        return None
    index = 1
    while index < len(words) and words[index].startswith("-") and words[index] != "-m":
        if words[index] == "-" or not _OPTION.fullmatch(words[index]):
            return None
        index += 2 if words[index] in _WITH_VALUE else 1
    options, rest = tuple(words[1:index]), tuple(words[index:])
    if rest[:1] == ("-m",) and rest[1:]:
        return Program(kind=ProgramKind.MODULE, target=rest[1], args=tuple(rest[2:]), options=options)
    if rest and rest[0] != "-m":
        return Program(kind=ProgramKind.SCRIPT, target=rest[0], args=tuple(rest[1:]), options=options)
    return None


def list_possible_paths(program: Program) -> Iterator[tuple[str, bool]]:
    """The words of the arguments that may be paths, without the option in `--option=path`.

    True for those that every rank reads: the configuration of DeepSpeed.
    """
    before = ""
    for word in program.args:
        option, equals, value = word.partition("=") if word.startswith("-") else (before, "", word)
        text = value if equals or not word.startswith("-") else ""
        # A number names a file only by accident.
        if text and len(text) <= _PATH_LENGTH and "\0" not in text and not text.replace(".", "").isdecimal():
            yield text, option in _CONFIG_OPTIONS
        before = word


def build_rank_program(words: Sequence[str]) -> Program:
    """The program of a command that is a rank itself, as in `srun python train.py`."""
    if (python := parse_python_command(words)) is not None:
        return python
    kind = ProgramKind.SCRIPT if words[0].endswith(".py") else ProgramKind.PROGRAM
    return Program(kind=kind, target=words[0], args=tuple(words[1:]))
