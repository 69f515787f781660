"""The parsed arguments of a launch, and its start: nodes are dialled while the rest of the program loads."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from aboard.cli.options.submitted_run import remove_run_options
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.node import Node
from aboard.core.plan.launch_request import LaunchRequest
from aboard.core.run.lease import Lease
from aboard.core.secrets.secret_names import is_secret
from aboard.core.text.shell_quoting import quote_typed_words
from aboard.diagnoses import Shell
from aboard.lazy_dataclass import dataclass
from aboard.transport.node_dialer import NodeDialer

if TYPE_CHECKING:
    from aboard.core.probes.check_subject import Subject
    from aboard.flows.launch.launch_run import Payload


@dataclass(frozen=True, kw_only=True)
class ResolvedLaunch:
    """`check` is quick, full or none; `cargo` is a training's payload; `command` starts the same launch again.

    `subjects` are checked in addition to the usual ones. With `sync_limit`, the working directory is sent first.
    `run` is the id of a run that was submitted as a Slurm job, and `resubmits` how many jobs may continue it.
    """

    cluster: Cluster
    request: LaunchRequest
    check: str
    lease: Lease
    command: Shell
    notes: tuple[str, ...] = ()
    cargo: "Payload | None" = None
    subjects: "tuple[Subject, ...]" = ()
    sync_limit: int | None = None
    run: str | None = None
    resubmits: int = 0


def format_typed_command(argv: Sequence[str]) -> Shell:
    """The typed command, quoted for the shell, without the values of secrets."""
    return quote_typed_words(list_typed_words(argv))


def list_typed_words(argv: Sequence[str]) -> list[str]:
    """The typed command; a secret's value is left out, and `--env NAME` reads it from here."""
    words = remove_run_options(argv)
    end = words.index("--") if "--" in words else len(words)
    for place, word in enumerate(words[:end]):
        option, name, value = _parse_setting(words[place - 1] if place else "", word)
        if value and is_secret(name.rpartition(".")[2]):
            words[place] = word.removesuffix(f"={value}") + ("=…" if option == "--set" else "")
    return ["aboard", *words]


def _parse_setting(before: str, word: str) -> tuple[str, str, str]:
    """The option, name and value of `--env NAME=VALUE` or `--env=NAME=VALUE`, and of the same with `--set`."""
    option, _, rest = word.partition("=")
    if option not in ("--env", "--set"):
        option, rest = before, word
    name, _, value = rest.partition("=")
    return (option, name, value) if option in ("--env", "--set") else ("", "", "")


def dial_and_launch(arguments: ResolvedLaunch) -> int:
    """Runs the launch at this terminal and returns the run's exit code."""
    return asyncio.run(_dial_and_run(arguments.cluster, lambda: arguments))


def dial_while_parsing(nodes: Iterable[Node], read_arguments: Callable[[], ResolvedLaunch]) -> int:
    """The same, but dials these nodes while the arguments are still being parsed."""
    return asyncio.run(_dial_and_run(nodes, read_arguments))


async def _dial_and_run(nodes: Iterable[Node], read_arguments: Callable[[], ResolvedLaunch]) -> int:
    fleet = NodeDialer()
    try:
        fleet.begin(nodes)
        # Takes a third of a second; meanwhile ssh connects and the agents start.
        arguments = await asyncio.to_thread(read_arguments)
        fleet.begin(arguments.cluster)
        await _send_files(arguments, fleet)
        commands = await asyncio.to_thread(import_module, "aboard.cli.runs.attached_and_detached")
        code: int = await commands.run_attached(arguments, fleet)
        return code
    finally:
        await fleet.close()


def send_files_first(arguments: ResolvedLaunch) -> ResolvedLaunch:
    """Sends the working directory if that was asked for, over links of its own."""

    async def send() -> None:
        fleet = NodeDialer()
        try:
            await _send_files(arguments, fleet)
        finally:
            await fleet.close()

    if arguments.sync_limit is not None:
        asyncio.run(send())
    return arguments


async def _send_files(arguments: ResolvedLaunch, fleet: NodeDialer) -> None:
    if arguments.sync_limit is not None:
        from aboard.cli.runs.sync_workdir import send_working_directory  # noqa: PLC0415 - only for those who sync

        await send_working_directory(arguments.cluster, fleet, arguments.sync_limit)
