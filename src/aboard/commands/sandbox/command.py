"""`aboard sandbox`: a practice cluster."""

import os
import sys
import time
from functools import partial
from typing import Any

import click

from aboard.commands.sandbox.faults_command import COMMANDS, NAME_HELP, NAME_VARIABLE, format_broken_lines
from aboard.core.text.input_text import format_count
from aboard.sandbox import Sandbox, list_sandboxes, take_down_sandbox
from aboard.sandbox.host_setup.system_files import ADMIN_KEY
from aboard.sandbox.layout import HEAD
from aboard.sandbox.requirements import require_root
from aboard.sandbox.sandbox import find_active_environment
from aboard.transport.ssh_arguments import format_options

_NAME = click.option("--name", default="sandbox", envvar=NAME_VARIABLE, show_default=True, help=NAME_HELP)
_SHARED_DIRECTORY = "/shared is the same on all hosts, /private is each host's own."
_BARE_HOSTS = """\
The nodes accept only the key admin.pem on the head; fingerprints has their host keys.
There is no shared directory."""
# A shell leaves no trace: the user's known_hosts stays as it is.
_ADMIN_OPTIONS = {"LogLevel": "ERROR", "StrictHostKeyChecking": "no", "UserKnownHostsFile": "/dev/null"}
_ADMIN_LOGIN = ("-i", str(ADMIN_KEY), *format_options(_ADMIN_OPTIONS))


@click.group()
def sandbox() -> None:
    """Build a practice cluster of real hosts on this machine (Linux, root)."""


@sandbox.command()
@click.option("--nodes", default=4, show_default=True, help="Number of nodes, not counting the head.")
@click.option("--slots", default=2, show_default=True, help="Slots per node.")
@click.option("--fabric", is_flag=True, help="Add a second network on eth1, where nodes are named n1i, n2i, …")
@click.option(
    "--slurm", is_flag=True, help="Run a real Slurm: slurmctld on the head, slurmd on the nodes, slots as GPUs."
)
@click.option("--shared-home", is_flag=True, help="Give crew the same home directory on all hosts.")
@click.option("--containers", is_flag=True, help="Let crew run containers with Apptainer and Podman.")
@click.option("--bare", is_flag=True, help="Only an admin key: no user keys, shared directory or environment.")
@_NAME
def up(name: str, nodes: int, slurm: bool, bare: bool, **options: Any) -> None:
    """Build the cluster."""
    started = time.monotonic()
    progress = partial(_show_progress, nodes + 1)
    box = Sandbox.up(name, nodes=nodes, slurm=slurm, bare=bare, progress=progress, **options)
    if box.found:
        click.echo(f"Sandbox {name!r} is already up: head and {_format_nodes(box)}.")
    else:
        click.echo(f"Up in {time.monotonic() - started:.1f} s: head and {_format_nodes(box)}.")
    option = "" if name == "sandbox" else f" --name {name}"
    srun = f"  aboard sandbox exec{option} -- srun -N{nodes} hostname\n" if slurm else ""
    click.echo(
        "\n"
        f"  aboard sandbox exec{option} -- aboard {'init' if bare else 'check --hostfile hostfile'}\n"
        f"{srun}"
        f"  aboard sandbox ssh{option}          a shell on the head, as the ordinary user crew\n"
        f"  aboard sandbox ssh{option} n1       a shell on n1\n"
        f"  aboard sandbox down{option}         remove it; nothing is left behind\n"
        "\n"
        f"{_BARE_HOSTS if bare else _SHARED_DIRECTORY}"
    )


@sandbox.command()
@click.argument("node", default="head")
@_NAME
def ssh(node: str, name: str) -> None:
    """Open a shell on NODE as user crew, over ssh from the head."""
    require_root("ssh")
    box = Sandbox.attach(name)
    options = _ADMIN_LOGIN if box.layout.bare else ()
    box.head.become(["ssh", *options, box.host(node).name], env=_build_terminal_environment())


@sandbox.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--node", default="head", show_default=True, help="The host to run the command on.")
@click.option("--root", is_flag=True, help="Run as root instead of user crew.")
@_NAME
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def execute_command(node: str, root: bool, name: str, argv: tuple[str, ...]) -> None:
    """Run a command on a host and exit with its exit code."""
    require_root("exec")
    box = Sandbox.attach(name)
    environment = _build_terminal_environment(active=node == HEAD or not box.layout.bare)
    box.host(node).become(argv, root=root, env=environment)


@sandbox.command()
@_NAME
def status(name: str) -> None:
    """Show the hosts."""
    require_root("status")
    box = Sandbox.attach(name)
    kind = f"{', with Slurm' if box.layout.slurm else ''}{', bare' if box.layout.bare else ''}"
    kind += ", a shared home" if box.layout.shared_home else ""
    kind += ", containers" if box.layout.containers else ""
    click.echo(f"Sandbox {name!r}: head and {_format_nodes(box)}, {format_count(box.layout.slots, 'slot')} each{kind}.")
    for host in box.hosts.values():
        power = "on " if host.on else "off"
        click.echo(f"  {host.name:6} {power}  {host.address:15} {host.fabric_address or ''}".rstrip())
    for line in format_broken_lines(box):
        click.echo(f"  {line}")
    others = [other for other in list_sandboxes() if other != name]
    if others:
        click.echo(f"Other sandboxes: {', '.join(others)} (--name)")


@sandbox.command(name="down")
@_NAME
def take_down(name: str) -> None:
    """Remove the cluster; nothing is left behind."""
    click.echo(f"Sandbox {name!r} is down." if take_down_sandbox(name) else f"No sandbox {name!r} was up.")


for command in COMMANDS:
    sandbox.add_command(command)


def _show_progress(hosts: int, count: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r{hosts} hosts: {count} up", nl=count == hosts, err=True)


def _format_nodes(box: Sandbox) -> str:
    return "n1" if box.layout.nodes == 1 else f"n1…n{box.layout.nodes}"


def _build_terminal_environment(*, active: bool = True) -> dict[str, str]:
    """The terminal's variables and the active Python environment."""
    wanted = ("TERM", "COLORTERM", "NO_COLOR", "COLUMNS")
    shown = {key: os.environ[key] for key in wanted if key in os.environ}
    if not active:
        return shown
    # Without an activated one: that of an aboard which is called by its path.
    own = {"VIRTUAL_ENV": sys.prefix} if sys.prefix != sys.base_prefix else {}
    return shown | (find_active_environment() or find_active_environment(own))
