"""Parses `torchrun …` and its older names as torch 2.13's distributed/run.py and distributed/launch.py do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from aboard.core.launchers.flag_parser import FlagGrammar, ParsedFlags, build_program, parse_flags
from aboard.core.launchers.flag_table import (
    FlagValueKind,
    list_flags,
    obey_flag,
    obey_switch,
    refuse_flag,
    refuse_help,
    skip_flag,
)
from aboard.core.launchers.launcher_command import LauncherCommand, LauncherContext
from aboard.core.launchers.master_address import RequestedMaster, parse_endpoint, parse_master
from aboard.core.plan.launch_request import LaunchRequest
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import pasted_commands

NAME = "torchrun"
NO_RENDEZVOUS = "is not needed: Aboard assigns the ranks, so there is no rendezvous to configure"
OWN_LOGS = "is not needed: each rank has its own log in the run directory (aboard logs --rank N)"
USE_GREP = "is not needed: aboard logs --grep PATTERN finds lines in the logs of all ranks"
NO_ROLES = "is not passed on: ROLE_NAME is 'default' for every rank"

_PER_SLOT = frozenset({"gpu", "auto", "xpu"})


FLAGS = (
    refuse_help(NAME),
    *list_flags(obey_flag, "--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --master-addr --numa-binding"),
    obey_flag("--master-port", takes=FlagValueKind.NUMBER),
    *list_flags(obey_switch, "--standalone --module|-m --no-python"),
    skip_flag("--role", note=NO_ROLES, accepted=("default",)),
    skip_flag("--node-rank", note="is not needed: Aboard assigns it to each node"),
    *list_flags(skip_flag, "--rdzv-id --rdzv-conf", note=NO_RENDEZVOUS),
    skip_flag("--local-addr", note="is not needed: Aboard uses addresses that were tested"),
    skip_flag("--monitor-interval", note="is not needed: Aboard sees at once when a rank exits"),
    skip_flag("--start-method", note="is not needed: each script always runs in its own process"),
    skip_flag(
        "--run-path", takes=FlagValueKind.NOTHING, note="is not needed: each script always runs in its own process"
    ),
    *list_flags(skip_flag, "--log-dir --redirects|-r --tee|-t", note=OWN_LOGS),
    skip_flag("--local-ranks-filter", note="is not needed: aboard logs --rank N shows the ranks that you want to see"),
    *list_flags(skip_flag, "--duplicate-stdout-filters --duplicate-stderr-filters", note=USE_GREP),
    obey_flag("--max-restarts", takes=FlagValueKind.NUMBER),
    refuse_flag(
        "--event-log-handler",
        note="torchrun's event handlers are not called",
        fix=pasted_commands.FLAG.fix("events"),
        accepted=("null",),
    ),
    refuse_flag("--logs-specs", note="torchrun log plug-ins are not called"),
    refuse_flag(
        "--signals-to-handle",
        note="Aboard forwards only SIGTERM and SIGINT",
        accepted=("sigterm,sigint,sighup,sigquit", "sigterm,sigint", "sigterm", "sigint"),
    ),
    refuse_flag("--shutdown-timeout", note="Aboard sets the time that ranks have to exit after SIGTERM"),
    refuse_flag(
        "--virtual-local-rank",
        takes=FlagValueKind.NOTHING,
        note="LOCAL_RANK is always the rank's number on its node",
    ),
)
GRAMMAR = FlagGrammar(launcher=NAME, flags=FLAGS, either_dash=True)
LAUNCH_GRAMMAR = FlagGrammar(
    launcher="torch.distributed.launch", flags=(*FLAGS, obey_switch("--use-env")), either_dash=True
)


def parse_torchrun(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses `torchrun WORDS`; without --nproc-per-node it starts one rank per node, as torchrun does."""
    return _build_command(parse_flags(GRAMMAR, [*_read_environ_flags(context.environ), *words]))


def parse_torch_launch(words: Sequence[str], context: LauncherContext) -> LauncherCommand:
    """Parses the older `python -m torch.distributed.launch`, which also passes the local rank to the script."""
    flags = parse_flags(LAUNCH_GRAMMAR, [*_read_environ_flags(context.environ), *words])
    command = _build_command(flags)
    if flags.on("use_env"):
        return command
    if flags.on("no_python"):
        seen = "--no-python also needs --use-env, as in torch.distributed.launch"
        raise InputError.of(pasted_commands.FLAG, flags.launcher, seen, "use-env")
    # Spelled with a dash since torch 2.0.
    rank_program = replace(command.request.program, local_rank="--local-rank")
    note = "The script gets --local-rank=N, as torch.distributed.launch does since torch 2.0."
    return replace(command, request=replace(command.request, program=rank_program), notes=(*command.notes, note))


def _read_environ_flags(environ: Mapping[str, str]) -> Iterator[str]:
    """The flags that torchrun takes from PET_* variables if they aren't given (Kubeflow sets these)."""
    for flag in FLAGS:
        value = environ.get(f"PET_{flag.dest.upper()}")
        if value and flag.takes is not FlagValueKind.NOTHING:
            yield f"{flag.names[0]}={value}"
        elif value and value != "0":
            yield flag.names[0]


def _build_command(flags: ParsedFlags) -> LauncherCommand:
    nodes = _parse_nodes(flags)
    ranks, notes = _parse_ranks(flags)
    master_address = _find_master(flags)
    return LauncherCommand(
        launcher=flags.launcher,
        request=LaunchRequest(
            program=build_program(flags),
            ranks=ranks,
            nodes=nodes,
            master_address=master_address.address,
            master_port=master_address.port,
            bind=_is_bound(flags),
            restarts=flags.count("max_restarts") or 0,
        ),
        per_node=True,
        notes=(*flags.notes, *notes, *master_address.notes),
    )


def _parse_nodes(flags: ParsedFlags) -> int | None:
    """The number of nodes; refuses an elastic range unless its ends are equal."""
    text = flags.text("nnodes")
    if text is None:
        return 1 if flags.on("standalone") else None
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()) or int(least) < 1:
        raise _build_error(flags, "--nnodes", f"'{escape_text(text)}' is not a number of nodes", "nnodes")
    if colon and int(least) != int(most):
        seen = f"{text} is elastic, and Aboard refuses a smaller world size than requested"
        raise _build_error(flags, "--nnodes", seen, "nnodes-range", most=most, least=least)
    if flags.on("standalone") and int(least) > 1:
        seen = f"it is for one node, but --nnodes is {least}"
        raise _build_error(flags, "--standalone", seen, "leave-out", flag="--standalone")
    return int(least)


def _parse_ranks(flags: ParsedFlags) -> tuple[int | None, tuple[str, ...]]:
    text = flags.text("nproc_per_node")
    if text is None:
        return 1, ("--nproc-per-node is not given, so each node starts one rank, as with torchrun.",)
    if text in _PER_SLOT:
        return None, (f"--nproc-per-node {text}: each node starts one rank per slot.",)
    if text.isdecimal() and int(text) > 0:
        return int(text), ()
    if text == "cpu":
        seen = "cpu means one rank per core, but the core count of each node is unknown here"
        raise _build_error(flags, "--nproc-per-node", seen, "ranks-of-cpus")
    seen = f"'{escape_text(text)}' is not a number of ranks"
    raise _build_error(flags, "--nproc-per-node", seen, "ranks")


def _find_master(flags: ParsedFlags) -> RequestedMaster:
    """The c10d endpoint, which is on node 0 by convention; an etcd endpoint is a server that isn't needed here."""
    backend = flags.text("rdzv_backend") or "static"
    address = flags.text("rdzv_endpoint")
    notes = (f"--rdzv-backend {escape_text(backend)} {NO_RENDEZVOUS}.",) if flags.text("rdzv_backend") else ()
    if flags.on("standalone") or (address and backend.startswith("etcd")):
        return RequestedMaster(notes=notes)
    if address:
        requested = parse_endpoint(address, where="--rdzv-endpoint")
        if requested.address:
            notes = (*notes, f"--rdzv-endpoint {escape_text(address)} is where rank 0 listens.")
        return replace(requested, notes=notes)
    requested = parse_master(flags.text("master_addr"), flags.values.get("master_port"), where="--master-addr")
    return replace(requested, notes=notes)


def _is_bound(flags: ParsedFlags) -> bool:
    mode = flags.text("numa_binding")
    if mode in {None, "node"}:
        return mode is not None
    seen = f"'{escape_text(mode)}' is not supported: ranks are bound to the cores of their NUMA node, or not at all"
    raise _build_error(flags, "--numa-binding", seen, "numa")


def _build_error(flags: ParsedFlags, where: str, seen: str, variant: str, **values: str) -> InputError:
    return InputError.of(pasted_commands.FLAG, f"{flags.launcher} {where}", seen, variant, **values)
