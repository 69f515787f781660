"""What `aboard launch` was asked to do, and how it begins: nodes are dialled while the rest of the program loads."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from aboard.core.cluster import Cluster
from aboard.core.lease import Lease
from aboard.core.node import Node
from aboard.core.request import Request
from aboard.core.retyped import retyped
from aboard.core.secrets import is_secret
from aboard.diagnoses import Shell
from aboard.lazy import dataclass
from aboard.wires.fleet import Fleet

if TYPE_CHECKING:
    from aboard.core.rule import Subject
    from aboard.flows.launch import Cargo


@dataclass(frozen=True, kw_only=True)
class Errand:
    """`check` is quick, full or none; `cargo` is what a training brings along; `command` starts the same again.

    `subjects` are asked for it beside those of every check.
    """

    cluster: Cluster
    request: Request
    check: str
    lease: Lease
    command: Shell
    notes: tuple[str, ...] = ()
    cargo: "Cargo | None" = None
    subjects: "tuple[Subject, ...]" = ()


def typed_command(argv: Sequence[str]) -> Shell:
    """What was typed, quoted to be typed again; a secret's value is left out, `--env NAME` reads it where it is set."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        option, name, value = _setting(words[place - 1] if place else "", word)
        if value and is_secret(name.rpartition(".")[2]):
            words[place] = word.removesuffix(f"={value}") + ("=…" if option == "--set" else "")
    return retyped(["aboard", *words])


def _setting(before: str, word: str) -> tuple[str, str, str]:
    """The option, name and value of `--env NAME=VALUE` or `--env=NAME=VALUE`, and of the same with `--set`."""
    option, _, rest = word.partition("=")
    if option not in ("--env", "--set"):
        option, rest = before, word
    name, _, value = rest.partition("=")
    return (option, name, value) if option in ("--env", "--set") else ("", "", "")


def run(errand: Errand) -> int:
    """Runs it at this terminal; the exit code is the run's."""
    return asyncio.run(_run(errand.cluster, lambda: errand))


def run_early(nodes: Iterable[Node], read: Callable[[], Errand]) -> int:
    """As `run`, of an errand that is not read yet: these nodes are dialled while it is."""
    return asyncio.run(_run(nodes, read))


async def _run(nodes: Iterable[Node], read: Callable[[], Errand]) -> int:
    fleet = Fleet()
    try:
        fleet.begin(nodes)
        # A third of a second, in which the ssh programs have shaken hands and the agents have come up.
        errand = await asyncio.to_thread(read)
        fleet.begin(errand.cluster)
        launching = await asyncio.to_thread(import_module, "aboard.cli.launching")
        code: int = await launching.held(errand, fleet)
        return code
    finally:
        await fleet.close()
