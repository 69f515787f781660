"""RoCE: the address that NCCL must pick from each port's table, and ports that can't communicate."""

from collections.abc import Iterator

from aboard.core.cluster.node_sets import fold_names
from aboard.core.probes.facts import Facts
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Fix
from aboard.diagnoses.untrusted import NO_TEXT
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import collect_settings, list_active_ports
from aboard.doctor.fabric.rdma_ports import ETHERNET, INFINIBAND, ROCE_V2, RdmaPort
from aboard.doctor.shared.fix_values import quote_yaml
from aboard.doctor.shared.majority import find_majority, find_most_common, group_by_value

# From 2.21 on NCCL selects a RoCE v2 address itself when the variable is not set.


def _list_roce_ports(facts: Facts) -> dict[str, tuple[RdmaPort, ...]]:
    """The RoCE ports that are up and that NCCL will use."""
    own = {
        name: tuple(port for port in ports if port.layer == ETHERNET)
        for name, ports in list_active_ports(facts).items()
    }
    return {name: ports for name, ports in own.items() if ports}


def find_missing_gids(facts: Facts) -> Iterator[Finding]:
    """Without a RoCE v2 address a port can't reach another rack, and often not even the next switch."""
    every = _list_roce_ports(facts)
    somewhere = any(port.gid_index is not None for ports in every.values() for port in ports)
    for name, ports in every.items():
        without = [port for port in ports if port.gid_index is None]
        # Where no port of the cluster has an IP address, link-local addresses within one network may be intended.
        bad = [port for port in without if somewhere or not any(gid.kind == ROCE_V2 for gid in port.gids)]
        if bad:
            yield fabric.GID_NONE.finding(
                nodes=(name,),
                seen=f"no RoCE v2 address on {format_list([_format_port(port) for port in bad])}",
                fix=fabric.GID_NONE.fix(device=bad[0].device, port=bad[0].number, node=name),
            )


def _format_port(port: RdmaPort) -> str:
    interface = next((gid.interface for gid in port.gids if gid.interface), "")
    return f"{port.name} ({interface})" if interface else port.name


def find_wrong_gid_index(facts: Facts) -> Iterator[Finding]:
    """One NCCL_IB_GID_INDEX for all nodes is wrong on the node whose table is filled in another order."""
    every = {
        name: tuple(port for port in ports if port.gid_index is not None)
        for name, ports in _list_roce_ports(facts).items()
    }
    every = {name: ports for name, ports in every.items() if ports}
    expected = find_most_common(
        {name: _list_gid_indices(ports) for name, ports in every.items()}, better=lambda own: -len(own)
    )
    settings_of = collect_settings(facts)
    for name, ports in every.items():
        index_match = settings_of[name].get("NCCL_IB_GID_INDEX", NO_TEXT).match(r"\A[0-9]{1,9}\Z")
        seen = (
            _explain_wrong_index(ports, int(index_match[0]))
            if index_match
            else _explain_different_index(ports, expected or ())
        )
        if seen:
            yield fabric.GID_INDEX.finding(nodes=(name,), seen=seen, fix=_fix_gid_index(name, ports))


def _list_gid_indices(ports: tuple[RdmaPort, ...]) -> tuple[int, ...]:
    return tuple(sorted({port.gid_index for port in ports if port.gid_index is not None}))


def _explain_wrong_index(ports: tuple[RdmaPort, ...], configured_index: int) -> str:
    bad = [port for port in ports if not any(gid.index == configured_index and gid.routable for gid in port.gids)]
    if not bad:
        return ""
    where = {index: [port.name for port in bad if port.gid_index == index] for index in _list_gid_indices(tuple(bad))}
    right = "; ".join(
        f"the RoCE v2 address has index {index} on {format_list(names)}" for index, names in where.items()
    )
    return f"NCCL_IB_GID_INDEX={configured_index} is set, but that is not the index of a RoCE v2 address; {right}"


def _explain_different_index(ports: tuple[RdmaPort, ...], expected: tuple[int, ...]) -> str:
    own = _list_gid_indices(ports)
    if own == expected:
        return ""
    mine, theirs = (" and ".join(str(index) for index in indices) for indices in (own, expected))
    return f"its RoCE v2 address has GID index {mine}; on the other nodes it is {theirs}"


def _fix_gid_index(name: str, ports: tuple[RdmaPort, ...]) -> Fix:
    own = _list_gid_indices(ports)
    if len(own) == 1:
        return fabric.GID_INDEX.fix("one", index=quote_yaml(str(own[0])), node=name)
    return fabric.GID_INDEX.fix("several", node=name)


def find_mixed_layers(facts: Facts) -> Iterator[Finding]:
    """InfiniBand and RoCE ports can't communicate; NCCL pairs them anyway."""
    every = list_active_ports(facts)
    single = {name: _list_layers(ports) for name, ports in every.items() if len(_list_layers(ports)) == 1}
    expected = find_majority(single)
    keep = INFINIBAND if expected is None else next(iter(expected))
    mixed = {name: _split_by_layer(ports, keep) for name, ports in every.items() if name not in single}
    for (count, others), names in group_by_value(mixed).items():
        yield _build_mixed_finding(names, count, others, keep)
    for name, layers in single.items():
        if expected is not None and layers != expected:
            yield fabric.MIXED.finding(
                nodes=(name,),
                seen=f"its ports are in {next(iter(layers))} mode; the other nodes' ports are in {keep} mode",
                fix=fabric.MIXED.fix("mode", device=every[name][0].device, node=name),
            )


def _list_layers(ports: tuple[RdmaPort, ...]) -> frozenset[str]:
    return frozenset(port.layer for port in ports)


def _split_by_layer(ports: tuple[RdmaPort, ...], keep: str) -> tuple[int, tuple[str, ...]]:
    others = tuple(port.name for port in ports if port.layer != keep)
    return len(ports) - len(others), others


def _build_mixed_finding(names: tuple[str, ...], count: int, others: tuple[str, ...], keep: str) -> Finding:
    other = ETHERNET if keep == INFINIBAND else INFINIBAND
    return fabric.MIXED.finding(
        nodes=names,
        seen=f"active ports: {count} {keep}, {len(others)} {other} ({format_list(others)}); NCCL would use all of them",
        # `=` after `^`: without it mlx5_1 would mean mlx5_10 too.
        fix=fabric.MIXED.fix("exclude", adapters=quote_yaml(f"^={','.join(others)}"), where=fold_names(names)),
    )
