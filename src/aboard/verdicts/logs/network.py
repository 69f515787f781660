"""What NCCL's set-up lines say of a run that goes on: nodes that took another network than the rest."""

from collections.abc import Iterator

from aboard.core.nodeset import fold
from aboard.diagnoses import Finding, Severity, collective, shell, software
from aboard.verdicts.nccl import NcclLog

_SOCKET = "Socket"


def network_findings(log: NcclLog) -> Iterator[Finding]:
    """Sockets on some nodes while others have the fabric, or although the same node names its adapters."""
    took: dict[str, set[str]] = {}
    hcas: dict[str, tuple[str, ...]] = {}
    for each in log.ranks.values():
        if each.network:
            took.setdefault(each.network, set()).add(each.host)
        if each.hcas:
            hcas[each.host] = each.hcas
    slow = sorted(took.get(_SOCKET, ()))
    fast = sorted(host for network, hosts in took.items() if network != _SOCKET for host in hosts)
    with_hcas = [host for host in slow if host in hcas]
    named = [host for host in slow if host not in fast] if fast else with_hcas
    if named:
        reason = f"{fold(fast)} took the fabric" if fast else f"{', '.join(hcas[named[0]][:4])} are there"
        yield collective.SOCKETS.finding(
            severity=Severity.WARN,
            nodes=tuple(named),
            seen=f"NCCL took sockets on {fold(named)}, although {reason}",
            why="Sockets carry a tenth of what the fabric does, and every collective waits for the slowest node.",
            fix=collective.SOCKETS.fix("log", where=shell("{names}", names=fold(named))),
        )
    versions = {each.version: each.host for each in log.ranks.values() if each.version}
    if len(versions) > 1:
        told = ", ".join(f"{version} on {host}" for version, host in sorted(versions.items()))
        yield software.NCCL.finding(
            severity=Severity.WARN,
            nodes=tuple(sorted(versions.values())),
            seen=f"NCCL is {told}",
            why="Nodes that load different versions of NCCL often can't talk to each other.",
            fix=software.NCCL.fix("paths"),
        )
