"""RoCE: the address that NCCL must pick from each port's table, and ports that don't speak with each other."""

from collections.abc import Iterator

from aboard.checks.blanks import yaml_text
from aboard.checks.fabric.nccl import active, settings
from aboard.checks.fabric.ports import ETHERNET, INFINIBAND, ROCE_V2, Port
from aboard.checks.listed import listed
from aboard.checks.usual import together, usual, usual_or_best
from aboard.core.facts import Facts
from aboard.core.nodeset import fold
from aboard.diagnoses import Finding, Fix, fabric
from aboard.diagnoses.untrusted import NO_TEXT

# From NCCL 2.21 on it looks for a RoCE v2 address by itself when the variable is not set.


def _roce(facts: Facts) -> dict[str, tuple[Port, ...]]:
    """The RoCE ports that are up and that NCCL will use."""
    own = {name: tuple(port for port in ports if port.layer == ETHERNET) for name, ports in active(facts).items()}
    return {name: ports for name, ports in own.items() if ports}


def no_gid(facts: Facts) -> Iterator[Finding]:
    """Without a RoCE v2 address a port can't reach another rack, and often not even the next switch."""
    every = _roce(facts)
    somewhere = any(port.gid_index is not None for ports in every.values() for port in ports)
    for name, ports in every.items():
        without = [port for port in ports if port.gid_index is None]
        # Where no port of the cluster has an IP address, link-local ones within one network may be how it is meant.
        bad = [port for port in without if somewhere or not any(gid.kind == ROCE_V2 for gid in port.gids)]
        if bad:
            yield fabric.GID_NONE.finding(
                nodes=(name,),
                seen=f"no RoCE v2 address on {listed([_with_interface(port) for port in bad])}",
                fix=fabric.GID_NONE.fix(device=bad[0].device, port=bad[0].number, node=name),
            )


def _with_interface(port: Port) -> str:
    interface = next((gid.interface for gid in port.gids if gid.interface), "")
    return f"{port.name} ({interface})" if interface else port.name


def gid_index(facts: Facts) -> Iterator[Finding]:
    """One NCCL_IB_GID_INDEX for all nodes is wrong on the node whose table is filled in another order."""
    every = {name: tuple(port for port in ports if port.gid_index is not None) for name, ports in _roce(facts).items()}
    every = {name: ports for name, ports in every.items() if ports}
    expected = usual_or_best({name: _indices(ports) for name, ports in every.items()}, better=lambda own: -len(own))
    settings_of = settings(facts)
    for name, ports in every.items():
        told = settings_of[name].get("NCCL_IB_GID_INDEX", NO_TEXT).match(r"\A[0-9]{1,9}\Z")
        seen = _told_wrong(ports, int(told[0])) if told else _differs(ports, expected or ())
        if seen:
            yield fabric.GID_INDEX.finding(nodes=(name,), seen=seen, fix=_propose(name, ports))


def _indices(ports: tuple[Port, ...]) -> tuple[int, ...]:
    return tuple(sorted({port.gid_index for port in ports if port.gid_index is not None}))


def _told_wrong(ports: tuple[Port, ...], told: int) -> str:
    bad = [port for port in ports if not any(gid.index == told and gid.routable for gid in port.gids)]
    if not bad:
        return ""
    where = {index: [port.name for port in bad if port.gid_index == index] for index in _indices(tuple(bad))}
    right = "; ".join(f"it is {index} on {listed(names)}" for index, names in where.items())
    return f"NCCL_IB_GID_INDEX={told} is set, which is no RoCE v2 address; {right}"


def _differs(ports: tuple[Port, ...], expected: tuple[int, ...]) -> str:
    own = _indices(ports)
    if own == expected:
        return ""
    mine, theirs = (" and ".join(str(index) for index in indices) for indices in (own, expected))
    return f"its RoCE v2 address has GID index {mine}, on the others {theirs}"


def _propose(name: str, ports: tuple[Port, ...]) -> Fix:
    own = _indices(ports)
    if len(own) == 1:
        return fabric.GID_INDEX.fix("one", index=yaml_text(str(own[0])), node=name)
    return fabric.GID_INDEX.fix("several", node=name)


def mixed_layers(facts: Facts) -> Iterator[Finding]:
    """InfiniBand and RoCE ports can't speak with each other; NCCL pairs them all the same."""
    every = active(facts)
    single = {name: _layers(ports) for name, ports in every.items() if len(_layers(ports)) == 1}
    expected = usual(single)
    keep = INFINIBAND if expected is None else next(iter(expected))
    mixed = {name: _kept_and_other(ports, keep) for name, ports in every.items() if name not in single}
    for (kept, others), names in together(mixed).items():
        yield _mixed(names, kept, others, keep)
    for name, layers in single.items():
        if expected is not None and layers != expected:
            yield fabric.MIXED.finding(
                nodes=(name,),
                seen=f"its ports are {next(iter(layers))}, those of the others {keep}",
                fix=fabric.MIXED.fix("mode", device=every[name][0].device, node=name),
            )


def _layers(ports: tuple[Port, ...]) -> frozenset[str]:
    return frozenset(port.layer for port in ports)


def _kept_and_other(ports: tuple[Port, ...], keep: str) -> tuple[int, tuple[str, ...]]:
    others = tuple(port.name for port in ports if port.layer != keep)
    return len(ports) - len(others), others


def _mixed(names: tuple[str, ...], kept: int, others: tuple[str, ...], keep: str) -> Finding:
    other = ETHERNET if keep == INFINIBAND else INFINIBAND
    return fabric.MIXED.finding(
        nodes=names,
        seen=f"ports that are up: {kept} {keep}, {len(others)} {other} ({listed(others)}); NCCL would use them all",
        # `=` after `^`: without it mlx5_1 would mean mlx5_10 too.
        fix=fabric.MIXED.fix("exclude", adapters=yaml_text(f"^={','.join(others)}"), where=fold(names)),
    )
