"""`aboard sandbox break` and `heal`: inject faults and undo them."""

import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from aboard.core.cluster.node_sets import expand_node_set, fold_names
from aboard.sandbox import Host, Sandbox
from aboard.sandbox.faults import FAULTS, Fault, find_fault_class, heal_all_faults, inject_fault, list_active_faults
from aboard.sandbox.requirements import require_root

NAME_VARIABLE, NAME_HELP = "ABOARD_SANDBOX", "The sandbox's name."
_DEFAULT = "sandbox"


class FaultGroup(click.Group):
    """One command per fault, with the fault's fields as its options."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [kind.name for kind in FAULTS]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options may stand before the fault, too: `break --name other drop --node n2`."""
        place = next((at for at, word in enumerate(args) if word in self.list_commands(ctx)), 0)
        return super().parse_args(ctx, [*args[place : place + 1], *args[:place], *args[place + 1 :]])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        return _build_command(find_fault_class(cmd_name))


@click.group(
    name="break", cls=FaultGroup, subcommand_metavar="FAULT --node NODES [OPTIONS]…", invoke_without_command=True
)
@click.option("--list", "listing", is_flag=True, help="List every fault with its description.")
@click.option("--name", envvar=NAME_VARIABLE, hidden=True, expose_value=False)
@click.pass_context
def break_hosts(ctx: click.Context, listing: bool) -> None:
    """Inject a fault into hosts; FAULT --help shows its options."""
    if listing or ctx.invoked_subcommand is None:
        width = max(len(kind.name) for kind in FAULTS)
        for kind in FAULTS:
            click.echo(f"{kind.name:{width}}  {kind.__doc__}")
        click.echo("\nExample: aboard sandbox break drop --node n2 --ports 29500")
        ctx.exit()


@click.command(name="heal")
@click.argument("fault", required=False)
@click.option("--node", "nodes", metavar="NODES", help="Only these hosts, for example n2 or n[1-3]; default: all.")
@click.option("--name", default=_DEFAULT, envvar=NAME_VARIABLE, show_default=True, help=NAME_HELP)
def heal_hosts(fault: str | None, nodes: str | None, name: str) -> None:
    """Undo all faults, or only FAULT; boot hosts that are off."""
    require_root("heal")
    kind = None if fault is None else find_fault_class(fault)
    box = Sandbox.attach(name)
    anything = False
    for host in _find_hosts(box, nodes) if nodes else box.hosts.values():
        was_off = not host.on
        healed = heal_all_faults(box, host, kind)
        for undone in healed:
            click.echo(f"{host.name} is healed: {undone.describe()}")
        if was_off and host.on and not healed:
            click.echo(f"{host.name} has power again")
        anything = anything or bool(healed) or (was_off and host.on)
    if not anything:
        click.echo("Nothing to heal.")


COMMANDS = (break_hosts, heal_hosts)


def format_broken_lines(box: Sandbox) -> Iterator[str]:
    """The lines of `status` about active faults, each with the command that undoes it."""
    for name, faults in list_active_faults(box).items():
        for fault in faults:
            yield f"{name} is broken: {fault.describe()}   ({_format_undo(fault, [name], box.name)})"


def _build_command(kind: type[Fault]) -> click.Command:
    options = [
        click.Option(
            ["--node", "nodes"], required=True, metavar="NODES", help="Which hosts, for example n2, n[1-3] or head."
        ),
        *_list_options(kind),
        click.Option(["--name"], default=_DEFAULT, envvar=NAME_VARIABLE, show_default=True, help=NAME_HELP),
    ]

    def carry_out(nodes: str, name: str, **values: Any) -> None:
        _inject_on_hosts(kind(**values), nodes, name)

    return click.Command(kind.name, callback=carry_out, params=list(options), help=kind.__doc__)


def _list_options(kind: type[Fault]) -> Iterator[click.Option]:
    """A fault's annotated fields, as the options of its command."""
    hints = get_type_hints(kind, include_extras=True)
    for item in fields(kind):
        annotated, text = get_args(hints[item.name])
        default = {"required": True} if item.default is MISSING else {"default": item.default}
        yield click.Option(
            [f"--{item.name.replace('_', '-')}", item.name],
            type=_choose_option_type(annotated),
            is_flag=annotated is bool,
            show_default=item.default not in {MISSING, None} and annotated is not bool,
            help=text,
            **default,
        )


def _choose_option_type(annotated: Any) -> Any:
    if get_origin(annotated) is Literal:
        return click.Choice(get_args(annotated))
    plain = [part for part in get_args(annotated) or (annotated,) if part is not NoneType]
    return plain[0]


def _inject_on_hosts(fault: Fault, nodes: str, name: str) -> None:
    require_root("break")
    box = Sandbox.attach(name)
    hosts = _find_hosts(box, nodes)
    for host in hosts:
        is_new = inject_fault(box, host, fault)
        click.echo(f"{host.name} is broken: {fault.describe()}" if is_new else f"{host.name} already has this fault")
    if fault.momentary:
        click.echo("This fault is momentary; there is nothing to heal.")
    else:
        click.echo(f"Undo: {_format_undo(fault, [host.name for host in hosts], name)}")


def _find_hosts(box: Sandbox, nodes: str) -> list[Host]:
    return [box.host(name) for name in dict.fromkeys(expand_node_set(nodes, where="--node"))]


def _format_undo(fault: Fault, names: list[str], box_name: str) -> str:
    where = "" if box_name == _DEFAULT else f" --name {box_name}"
    return f"aboard sandbox heal {fault.name} --node {shlex.quote(fold_names(names))}{where}"
