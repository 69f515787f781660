"""Whether every node's ports are up, all there, and as fast as those of the others."""

from collections import Counter
from collections.abc import Iterator, Mapping
from statistics import median_low

from aboard.checks.fabric.nccl import active, disabled, settings, usable
from aboard.checks.fabric.ports import ETHERNET, INFINIBAND, PORTS, Port
from aboard.checks.listed import listed
from aboard.checks.usual import usual, usual_or_best
from aboard.core.facts import Facts
from aboard.core.words import many
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, fabric
from aboard.diagnoses.untrusted import Untrusted

# A switch that was restarted takes each of its links down once; one that goes down again and again is a bad cable.
FLAPS_INFO = 3
FLAPS_WARN = 10
# InfiniBand allows a bit error in 10^12; at 400 Gb/s a good link still has next to none after error correction.
SYMBOL_ERRORS_WARN = 1000


def would_use_sockets(facts: Facts) -> Iterator[Finding]:
    """NCCL skips ports that aren't up without a word, and then takes TCP, which is ten times slower."""
    up, told, all_ports = _on_rdma(facts), settings(facts), facts.of(PORTS)
    for name, ports in usable(facts).items():
        if any(port.active for port in ports) or not (up or _has_infiniband(ports)):
            continue
        yield fabric.SOCKETS.finding(
            nodes=(name,),
            seen=f"NCCL would use TCP sockets here: {_why_sockets(all_ports[name], ports, told[name])}"
            + (f"; {many(len(up), 'other node')} {'has' if len(up) == 1 else 'have'} RDMA" if up else ""),
            fix=_mend_sockets(name, all_ports[name], ports),
        )


def _has_infiniband(ports: tuple[Port, ...]) -> bool:
    """Its own InfiniBand adapters say that it should; an Ethernet card that is down says nothing."""
    return any(port.layer == INFINIBAND for port in ports)


def _on_rdma(facts: Facts) -> list[str]:
    """The nodes that train over RDMA: any with InfiniBand up; with RoCE, which may be chance, if it is usual."""
    up = active(facts)
    layers = {name: {port.layer for port in up.get(name, ())} for name in facts.of(PORTS)}
    roce = usual({name: ETHERNET in own for name, own in layers.items()})
    return [name for name, own in layers.items() if INFINIBAND in own or (roce and ETHERNET in own)]


def _why_sockets(ports: tuple[Port, ...], left: tuple[Port, ...], told: Mapping[str, Untrusted]) -> str:
    if disabled(told):
        return "NCCL_IB_DISABLE is set"
    if not ports:
        return "it has no RDMA adapter at all"
    if not left:
        return f"NCCL_IB_HCA={told['NCCL_IB_HCA'].visible()} fits none of {listed([port.name for port in ports])}"
    return "none of its ports is up: " + listed([_state(port) for port in left])


def _mend_sockets(name: str, ports: tuple[Port, ...], left: tuple[Port, ...]) -> Fix:
    if not ports:
        return fabric.SOCKETS.fix("no-card", node=name)
    if not left:
        return fabric.SOCKETS.fix("told", node=name)
    return _mend_down(fabric.SOCKETS, name, left)


def ports_down(facts: Facts) -> Iterator[Finding]:
    """One rail that is down takes its share of the bandwidth away from all nodes."""
    up = {port.name for ports in active(facts).values() for port in ports}
    for name, ports in usable(facts).items():
        if not any(port.active for port in ports):
            continue  # told by would_use_sockets
        # A port without a cable is nobody's fault; one that has a link, or is up on other nodes, is missed.
        down = tuple(port for port in ports if not port.active and (port.physical == "LinkUp" or port.name in up))
        if down:
            yield fabric.PORT_DOWN.finding(
                nodes=(name,),
                seen=f"not ACTIVE: {listed([_state(port) for port in down])}",
                fix=_mend_down(fabric.PORT_DOWN, name, down),
            )


def _state(port: Port) -> str:
    return f"{port.name} is {port.state} ({port.physical})"


def _mend_down(diagnosis: Diagnosis, name: str, ports: tuple[Port, ...]) -> Fix:
    first = ports[0]
    if first.layer == ETHERNET:
        return diagnosis.fix("ethernet", node=name, port=first.name)
    if first.physical == "LinkUp":
        return diagnosis.fix("no-manager", node=name, device=first.device)
    return diagnosis.fix("no-link", node=name, device=first.device)


def ports_missing(facts: Facts) -> Iterator[Finding]:
    """A card that fell off the bus isn't down: it is no longer there."""
    for layer in (INFINIBAND, ETHERNET):
        every = {name: _names(ports, layer) for name, ports in facts.of(PORTS).items() if _names(ports, layer)}
        expected = usual_or_best(every, better=len) or frozenset()
        for name, own in every.items():
            if len(own) < len(expected):
                yield fabric.PORT_MISSING.finding(
                    nodes=(name,),
                    seen=f"{many(len(own), f'{layer} port')}, the others have {len(expected)}; no"
                    f" {listed(sorted(expected - own))} here",
                    fix=fabric.PORT_MISSING.fix(node=name),
                )


def _names(ports: tuple[Port, ...], layer: str) -> frozenset[str]:
    return frozenset(port.name for port in ports if port.layer == layer)


def slow_rate(facts: Facts) -> Iterator[Finding]:
    """A link that trained at half its rate works, and makes every step of the run slower."""
    every = active(facts)
    by_name, rates = _by_name(every), {name: _rates(ports) for name, ports in every.items()}
    usually = Counter(usual_or_best(rates, better=sum) or ())
    for name, ports in every.items():
        found = _slow(ports, by_name, Counter(rates[name]) - usually)
        slow = {port.name: f"{port.name} runs at {port.speed}, {limit}" for port, limit in found}
        if slow:
            first = next(iter(slow)).partition(":")[0]
            yield fabric.RATE.finding(
                nodes=(name,), seen=listed(list(slow.values())), fix=fabric.RATE.fix(device=first, node=name)
            )


def _slow(ports: tuple[Port, ...], by_name: Mapping[str, float], surplus: Counter[float]) -> Iterator[tuple[Port, str]]:
    """Ports slower than they are elsewhere; `surplus` is how many more than usual it has of each rate."""
    # When a card is gone the others change their names, so then only the numbers of ports of each rate tell.
    alike = {port.name for port in ports} == set(by_name)
    for port in ports:
        usually = by_name.get(port.name, 0.0)
        if port.layer == INFINIBAND and port.mode.startswith("1X"):
            yield port, "one lane of four"
        elif port.rate < usually and (alike or surplus[port.rate] > 0):
            surplus[port.rate] -= 1
            yield port, f"{usually:g} Gb/s on the others"


def _rates(ports: tuple[Port, ...]) -> tuple[float, ...]:
    return tuple(sorted(port.rate for port in ports))


def _by_name(every: Mapping[str, tuple[Port, ...]]) -> dict[str, float]:
    """How fast the port of each name usually is, for names that most nodes have."""
    rates: dict[str, dict[str, float]] = {}
    for name, ports in every.items():
        for port in ports:
            rates.setdefault(port.name, {})[name] = port.rate
    common = {name: own for name, own in rates.items() if 2 * len(own) > len(every)}
    return {name: usual_or_best(own, better=float) or 0.0 for name, own in common.items()}


def flapping(facts: Facts) -> Iterator[Finding]:
    """Counters since the last boot: what stands out from the other ports was already failing before this run."""
    every = active(facts)
    flaps = median_low([port.link_downed or 0 for ports in every.values() for port in ports] or [0])
    for name, ports in every.items():
        bad = [port for port in ports if (port.link_downed or 0) - flaps >= FLAPS_INFO or _errors(port)]
        if not bad:
            continue
        grave = any((port.link_downed or 0) - flaps >= FLAPS_WARN or _errors(port) for port in bad)
        yield fabric.FLAPS.finding(
            severity=Severity.WARN if grave else Severity.INFO,
            nodes=(name,),
            seen=listed([_counters(port) for port in bad]) + f"; usual is {many(flaps, 'link-down')}",
            fix=fabric.FLAPS.fix(device=bad[0].device, node=name),
        )


def _errors(port: Port) -> bool:
    return (port.symbol_errors or 0) >= SYMBOL_ERRORS_WARN


def _counters(port: Port) -> str:
    errors = f" and had {port.symbol_errors} symbol errors" if _errors(port) else ""
    return f"{port.name} went down {many(port.link_downed or 0, 'time')}{errors}"
