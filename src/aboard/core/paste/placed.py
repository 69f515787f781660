"""The nodes of a run, as a pasted command wants them."""

from collections.abc import Sequence
from dataclasses import replace

from aboard.core.node import Node
from aboard.core.nodeset import fold
from aboard.core.paste.deepspeed import NAME as DEEPSPEED
from aboard.core.paste.pasted import Pasted
from aboard.diagnoses import InputError, Problem, paste


def placed(pasted: Pasted, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The first nodes where DeepSpeed was told a number, each with its slots, its setup lines and its ssh port.

    Call it behind the filters. Other launchers have no list of nodes to take the first from, so theirs must be as many
    as they say, and the plan refuses any other number.
    """
    if pasted.launcher == DEEPSPEED and pasted.nodes:
        nodes = nodes[: pasted.nodes]
    if pasted.picked is not None:
        short = [node.name for node in nodes if node.slots is not None and max(pasted.picked) >= node.slots]
        if short:
            wanted = ",".join(map(str, pasted.picked))
            seen = f"{fold(short)} has fewer slots than {max(pasted.picked) + 1}, and slots {wanted} are asked for"
            fix = paste.SLOTS.fix()
            raise InputError(paste.SLOTS, [Problem(where=pasted.launcher, seen=seen, fix=fix)])
    return tuple(
        replace(
            node,
            picked=node.picked if pasted.picked is None else pasted.picked,
            setup=(*node.setup, *pasted.setup),
            port=node.port or pasted.ssh_port,
        )
        for node in nodes
    )
