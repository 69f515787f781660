"""Whether every node's ports are up, complete, and as fast as those of the others."""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median_low

from aboard.core.probes.facts import Facts
from aboard.core.text.input_text import agree, format_count, format_list
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import collect_settings, is_rdma_disabled, list_active_ports, list_usable_ports
from aboard.doctor.fabric.rdma_ports import ETHERNET, INFINIBAND, PORTS, RdmaPort
from aboard.doctor.shared.majority import find_majority, find_most_common

# A switch restart takes each of its links down once; a link that goes down repeatedly has a bad cable.
FLAPS_INFO = 3
FLAPS_WARN = 10
# InfiniBand allows a bit error in 10^12; at 400 Gb/s a good link still has next to none after error correction.
SYMBOL_ERRORS_WARN = 1000


def predict_socket_fallback(facts: Facts) -> Iterator[Finding]:
    """NCCL silently skips ports that aren't up and falls back to TCP, which is ten times slower."""
    up, nccl_settings, all_ports = _list_rdma_nodes(facts), collect_settings(facts), facts.of(PORTS)
    for name, ports in list_usable_ports(facts).items():
        if any(port.active for port in ports) or not (up or _has_infiniband(ports)):
            continue
        yield fabric.SOCKETS.finding(
            nodes=(name,),
            seen=f"NCCL would use TCP sockets here: {_explain_sockets(all_ports[name], ports, nccl_settings[name])}"
            + (f"; {format_count(len(up), 'other node')} {agree(up, 'has', 'have')} RDMA" if up else ""),
            fix=_fix_sockets(name, all_ports[name], ports),
        )


def _has_infiniband(ports: tuple[RdmaPort, ...]) -> bool:
    """An InfiniBand adapter shows that the node should use RDMA; an Ethernet port that is down doesn't."""
    return any(port.layer == INFINIBAND for port in ports)


def _list_rdma_nodes(facts: Facts) -> list[str]:
    """The nodes that train over RDMA: any with InfiniBand up, and those with RoCE up if most nodes have it."""
    up = list_active_ports(facts)
    layers = {name: {port.layer for port in up.get(name, ())} for name in facts.of(PORTS)}
    roce = find_majority({name: ETHERNET in own for name, own in layers.items()})
    return [name for name, own in layers.items() if INFINIBAND in own or (roce and ETHERNET in own)]


def _explain_sockets(
    ports: tuple[RdmaPort, ...], usable_ports: tuple[RdmaPort, ...], nccl_settings: Mapping[str, Untrusted]
) -> str:
    if is_rdma_disabled(nccl_settings):
        return "NCCL_IB_DISABLE is set"
    if not ports:
        return "it has no RDMA adapter"
    if not usable_ports:
        return (
            f"NCCL_IB_HCA={nccl_settings['NCCL_IB_HCA'].visible()} matches none of"
            f" {format_list([port.name for port in ports])}"
        )
    return "none of its ports is up: " + format_list([_format_port_state(port) for port in usable_ports])


def _fix_sockets(name: str, ports: tuple[RdmaPort, ...], usable_ports: tuple[RdmaPort, ...]) -> Fix:
    if not ports:
        return fabric.SOCKETS.fix("no-card", node=name)
    if not usable_ports:
        return fabric.SOCKETS.fix("told", node=name)
    return _fix_down_port(fabric.SOCKETS, name, usable_ports)


def find_down_ports(facts: Facts) -> Iterator[Finding]:
    """A rail that is down costs all nodes its share of the bandwidth."""
    up = {port.name for ports in list_active_ports(facts).values() for port in ports}
    for name, ports in list_usable_ports(facts).items():
        if not any(port.active for port in ports):
            continue  # reported by predict_socket_fallback
        # A port without a cable is fine; one that has a link, or is up on other nodes, should be active.
        down = tuple(port for port in ports if not port.active and (port.physical == "LinkUp" or port.name in up))
        if down:
            yield fabric.PORT_DOWN.finding(
                nodes=(name,),
                seen=f"{format_list([_format_port_state(port) for port in down])}; expected ACTIVE",
                fix=_fix_down_port(fabric.PORT_DOWN, name, down),
            )


def _format_port_state(port: RdmaPort) -> str:
    return f"{port.name} is {port.state} ({port.physical})"


def _fix_down_port(diagnosis: Diagnosis, name: str, ports: tuple[RdmaPort, ...]) -> Fix:
    first = ports[0]
    if first.layer == ETHERNET:
        return diagnosis.fix("ethernet", node=name, port=first.name)
    if first.physical == "LinkUp":
        return diagnosis.fix("no-manager", node=name, device=first.device)
    return diagnosis.fix("no-link", node=name, device=first.device)


def find_missing_ports(facts: Facts) -> Iterator[Finding]:
    """An adapter that fell off the bus isn't down: it is missing."""
    for layer in (INFINIBAND, ETHERNET):
        every = {
            name: _list_port_names(ports, layer)
            for name, ports in facts.of(PORTS).items()
            if _list_port_names(ports, layer)
        }
        expected = find_most_common(every, better=len) or frozenset()
        for name, own in every.items():
            if len(own) < len(expected):
                yield fabric.PORT_MISSING.finding(
                    nodes=(name,),
                    seen=f"{format_count(len(own), f'{layer} port')}; the other nodes have {len(expected)}; missing"
                    f" {format_list(sorted(expected - own))}",
                    fix=fabric.PORT_MISSING.fix(node=name),
                )


def _list_port_names(ports: tuple[RdmaPort, ...], layer: str) -> frozenset[str]:
    return frozenset(port.name for port in ports if port.layer == layer)


def find_slow_ports(facts: Facts) -> Iterator[Finding]:
    """A link that trained at half its rate works, and makes every step of the run slower."""
    every = list_active_ports(facts)
    by_name = _find_usual_rates(every)
    rates = {name: tuple(sorted(port.rate for port in ports)) for name, ports in every.items()}
    usually = Counter(find_most_common(rates, better=sum) or ())
    for name, ports in every.items():
        found = _list_slow_ports(ports, by_name, Counter(rates[name]) - usually)
        slow = {port.name: f"{port.name} runs at {port.speed}, {limit}" for port, limit in found}
        if slow:
            first = next(iter(slow)).partition(":")[0]
            yield fabric.RATE.finding(
                nodes=(name,), seen=format_list(list(slow.values())), fix=fabric.RATE.fix(device=first, node=name)
            )


def _list_slow_ports(
    ports: tuple[RdmaPort, ...], by_name: Mapping[str, float], surplus: Counter[float]
) -> Iterator[tuple[RdmaPort, str]]:
    """Ports slower than they are elsewhere; `surplus` is how many more than usual it has of each rate."""
    # When an adapter is gone the others change names; then only the counts per rate are comparable.
    alike = {port.name for port in ports} == set(by_name)
    for port in ports:
        usually = by_name.get(port.name, 0.0)
        if port.layer == INFINIBAND and port.mode.startswith("1X"):
            yield port, "on one of four lanes"
        elif port.rate < usually and (alike or surplus[port.rate] > 0):
            surplus[port.rate] -= 1
            yield port, f"compared with {usually:g} Gb/s on the other nodes"


def _find_usual_rates(every: Mapping[str, tuple[RdmaPort, ...]]) -> dict[str, float]:
    """How fast the port of each name usually is, for names that most nodes have."""
    rates: dict[str, dict[str, float]] = {}
    for name, ports in every.items():
        for port in ports:
            rates.setdefault(port.name, {})[name] = port.rate
    common = {name: own for name, own in rates.items() if 2 * len(own) > len(every)}
    return {name: find_most_common(own, better=float) or 0.0 for name, own in common.items()}


def find_flapping_ports(facts: Facts) -> Iterator[Finding]:
    """Counters since the last boot: a port that stands out was already failing before this run."""
    every = list_active_ports(facts)
    flaps = median_low([port.link_downed or 0 for ports in every.values() for port in ports] or [0])
    for name, ports in every.items():
        bad = [port for port in ports if (port.link_downed or 0) - flaps >= FLAPS_INFO or _has_symbol_errors(port)]
        if not bad:
            continue
        serious = any((port.link_downed or 0) - flaps >= FLAPS_WARN or _has_symbol_errors(port) for port in bad)
        yield fabric.FLAPS.finding(
            severity=Severity.WARN if serious else Severity.INFO,
            nodes=(name,),
            seen=format_list([_format_counters(port) for port in bad])
            + f"; the median port went down {format_count(flaps, 'time')}",
            fix=fabric.FLAPS.fix(device=bad[0].device, node=name),
        )


def _has_symbol_errors(port: RdmaPort) -> bool:
    return (port.symbol_errors or 0) >= SYMBOL_ERRORS_WARN


def _format_counters(port: RdmaPort) -> str:
    errors = f" and had {port.symbol_errors} symbol errors" if _has_symbol_errors(port) else ""
    return f"{port.name} went down {format_count(port.link_downed or 0, 'time')}{errors}"
