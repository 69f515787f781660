"""Rules over NCCL's log: sockets in place of a fabric, a plugin or topology file that NCCL didn't find.

These rules are tested on recordings only, so none of them stops a launch.
"""

from collections.abc import Iterator

from aboard.core.cluster import node_sets
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Finding, Shell, format_shell
from aboard.doctor.collective import diagnoses as collective
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.nccl_init_log import NcclInitLog
from aboard.doctor.fabric.nccl_settings import list_active_ports
from aboard.doctor.shared.majority import group_by_value

SOCKET = "Socket"
_MAX_PATH_LENGTH = 500
# NCCL looks for these on every machine; most lack them.
DEFAULT_PLUGINS = ("libnccl-net.so", "librccl-net.so")


def find_socket_fallback(facts: Facts) -> Iterator[Finding]:
    """Sockets are NCCL's last resort: with InfiniBand or RoCE present, something keeps it from using them."""
    logs = _get_init_logs(facts)
    there = {name: tuple(port.device for port in ports) for name, ports in list_active_ports(facts).items()}
    others = [name for name, log in logs.items() if log.networks and SOCKET not in log.networks]
    reasons: dict[str, str] = {}
    for name, log in logs.items():
        if SOCKET in log.networks and not any("Socket" in wanted for wanted in log.wanted_plugins):
            hcas = log.hcas or there.get(name, ())
            if hcas:
                reasons[name] = f"{', '.join(hcas[:8])} are present" if len(hcas) > 1 else f"{hcas[0]} is present"
            elif others:
                verb = "uses" if len(others) == 1 else "use"
                reasons[name] = f"{node_sets.fold_names(others)} {verb} {logs[others[0]].networks[0].visible()}"
    for reason, names in group_by_value(reasons).items():
        cards = sorted({card for name in names for card in logs[name].cards})
        yield collective.SOCKETS.finding(
            nodes=names,
            seen=f"NCCL uses TCP sockets ({', '.join(cards) or 'interface not logged'}) although {reason}"
            + (": NET/IB found no usable device" if all(logs[name].no_device for name in names) else ""),
            fix=collective.SOCKETS.fix(where=quote_folded_names(names)),
        )


def find_unloaded_plugins(facts: Facts) -> Iterator[Finding]:
    """A network plugin that was requested, or that the other nodes have, and that is missing."""
    logs = _get_init_logs(facts)
    loaded = {name: log.plugin for name, log in logs.items() if log.plugin}
    absent: dict[str, str] = {}
    for name, log in logs.items():
        plugin_names = [plugin for plugin in log.absent_plugins if plugin not in DEFAULT_PLUGINS]
        if log.plugin:
            continue
        if plugin_names or (log.wanted_plugins and log.absent_plugins):
            absent[name] = (
                f"NCCL is configured to use {(plugin_names or log.wanted_plugins)[0].visible()} but can't find it"
            )
        elif loaded and log.absent_plugins:
            absent[name] = (
                f"NCCL can't find a network plugin; {node_sets.fold_names(loaded)} loaded"
                f" {min(loaded.values()).visible()}"
            )
    for seen, names in group_by_value(absent).items():
        yield collective.PLUGIN.finding(
            nodes=names, seen=seen, fix=collective.PLUGIN.fix(where=quote_folded_names(names))
        )


def find_topology_problems(facts: Facts) -> Iterator[Finding]:
    """NCCL ignores an unreadable topology file silently at the default log level; all nodes must load the same one."""
    logs = _get_init_logs(facts)
    for seen, names in group_by_value({name: log.no_topology for name, log in logs.items() if log.no_topology}).items():
        yield _build_topology_finding(names, f"NCCL can't open its topology file {seen.visible(_MAX_PATH_LENGTH)}")
    loaded = {name: log.topology for name, log in logs.items() if not log.no_topology}
    kinds = group_by_value(loaded)
    if len(kinds) > 1:
        description = "; ".join(
            f"{node_sets.fold_names(names)}: {path.visible(_MAX_PATH_LENGTH) or 'none'}"
            for path, names in kinds.items()
        )
        yield _build_topology_finding(
            min(kinds.values(), key=len), f"nodes load different topology files: {description}"
        )


def find_disabled_gpudirect(facts: Facts) -> Iterator[Finding]:
    """Without GPUDirect every byte goes through host memory."""
    disabled: dict[str, str] = {}
    for name, log in _get_init_logs(facts).items():
        off = sorted(hca for hca, on in log.direct.items() if not on)
        if off and SOCKET not in log.networks and not log.direct_channels:
            disabled[name] = ", ".join(off[:8])
    for hcas, names in group_by_value(disabled).items():
        yield collective.NO_GPUDIRECT.finding(
            nodes=names,
            seen=f"NCCL copies data through host memory because GPUDirect RDMA is disabled for {hcas}",
            fix=collective.NO_GPUDIRECT.fix(where=quote_folded_names(names)),
        )


def find_fabric_errors(facts: Facts) -> Iterator[Finding]:
    """Completions with an error: the fabric lost data."""
    for name, log in _get_init_logs(facts).items():
        if log.completions:
            counts = ", ".join(f"{count} on {hca or 'an adapter'}" for hca, count in log.completions.items())
            yield collective.FABRIC_ERRORS.finding(
                nodes=(name,),
                seen=f"NCCL's RDMA operations completed with errors: {counts}",
                fix=collective.FABRIC_ERRORS.fix(counters=_format_counter_command(log), node=name),
            )


def _format_counter_command(log: NcclInitLog) -> Shell:
    """The command that shows the error counters of the first named adapter; empty where none is named."""
    name = next(filter(None, log.completions), "").partition(":")[0]
    if not name:
        return Shell("")
    return format_shell("; ethtool -S $(ls /sys/class/infiniband/{name}/device/net) | grep -iE 'err|drop'", name=name)


NCCL_RULES = (
    find_socket_fallback,
    find_unloaded_plugins,
    find_topology_problems,
    find_disabled_gpudirect,
    find_fabric_errors,
)


def _get_init_logs(facts: Facts) -> dict[str, NcclInitLog]:
    outcome = COLLECTIVE.outcome(facts)
    return dict(outcome.logs) if isinstance(outcome, CollectiveResult) else {}


def _build_topology_finding(names: tuple[str, ...], seen: str) -> Finding:
    return collective.TOPOLOGY.finding(
        nodes=names, seen=seen, fix=collective.TOPOLOGY.fix(where=quote_folded_names(names))
    )
