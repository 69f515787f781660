"""What each rank runs: a Python script, a module, or a program of its own."""

from dataclasses import dataclass
from enum import Enum

from aboard.core.node import Node
from aboard.core.setup import after_setup


class Kind(Enum):
    """How it is started: by the node's Python, by its `-m`, or by itself."""

    SCRIPT = "script"
    MODULE = "module"
    PROGRAM = "program"


@dataclass(frozen=True, kw_only=True)
class Program:
    """`args` go to it as they are. `local_rank` is the option by which it is told its own, "" where it needs none.

    DeepSpeed's launcher says `--local_rank=N`, torch.distributed.launch `--local-rank=N`.
    """

    kind: Kind
    target: str
    args: tuple[str, ...] = ()
    local_rank: str = ""

    def argv(self, node: Node, local_rank: int) -> tuple[str, ...]:
        """What a node starts for one of its ranks, its `setup` lines first."""
        head = {
            Kind.SCRIPT: (node.python, self.target),
            Kind.MODULE: (node.python, "-m", self.target),
            Kind.PROGRAM: (self.target,),
        }[self.kind]
        told = (f"{self.local_rank}={local_rank}",) if self.local_rank else ()
        return after_setup(node, (*head, *told, *self.args))
