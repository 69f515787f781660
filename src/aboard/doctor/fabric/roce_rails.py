"""Rails: parallel RoCE networks, one for each adapter; whether each works, and whether they are interconnected.

A ping is not RDMA, but it uses the same addresses and routes, and any user may send one.
"""

import re
from collections.abc import Iterator, Mapping
from ipaddress import AddressValueError, IPv6Address

from aboard.core.cluster.node_sets import fold_names
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.probes.probe import ProbeParseError
from aboard.core.text.input_text import format_count, format_list
from aboard.diagnoses import Finding, Severity, join_fixes
from aboard.doctor.fabric import diagnoses as fabric
from aboard.doctor.fabric.nccl_settings import collect_settings, list_active_ports
from aboard.doctor.fabric.rdma_ports import ETHERNET, RdmaPort
from aboard.doctor.shared.fix_values import quote_yaml
from aboard.doctor.shared.script_probes import parse_run_reply
from aboard.lazy_dataclass import dataclass

# ping(8) exits with 0 when an echo came back and with 1 when none did; any other code is another error.
PINGS = """for pair; do
    { ping -n -q -c 2 -W 1 -I "${pair%%>*}" "${pair##*>}" >/dev/null 2>&1; echo "$pair $?"; } &
done
wait"""
_SECONDS = 10.0
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class RailEcho:
    """From one node's rail to another node's; `back` is whether an echo came."""

    frm: str
    to: str
    rails: tuple[str, str]
    addresses: tuple[str, str]
    back: bool

    @property
    def straight(self) -> bool:
        """Both ends are on the same rail."""
        return self.rails[0] == self.rails[1]


def send_echoes(facts: Facts) -> Script[tuple[RailEcho, ...]]:
    """Each node to the next: along every rail, and across the first two. A node that could not send is left out."""
    own = {name: _list_rail_addresses(ports) for name, ports in list_active_ports(facts).items()}
    own = {name: addresses for name, addresses in own.items() if len(addresses) > 1}
    names = list(own)
    plans = {name: _plan_echoes(name, names[(at + 1) % len(names)], own) for at, name in enumerate(names)}
    plans = {name: plan for name, plan in plans.items() if plan}
    if not plans:
        return ()
    replies = yield {
        name: ProbeRequest(
            op="run", fields={"argv": ["sh", "-c", PINGS, "sh", *plan], "timeout": _SECONDS}, within=_SECONDS + 5
        )
        for name, plan in plans.items()
    }
    echoes: list[RailEcho] = []
    for name, plan in plans.items():
        try:
            codes = dict(re.findall(r"^(\S+) ([0-9]{1,3})$", parse_run_reply(replies[name]).stdout, re.MULTILINE))
        except ProbeParseError:
            continue
        for pair, (to, rails) in plan.items():
            if codes.get(pair) in {"0", "1"}:
                frm, _, there = pair.partition(">")
                echoes.append(RailEcho(frm=name, to=to, rails=rails, addresses=(frm, there), back=codes[pair] == "0"))
    return tuple(echoes)


RAILS = MultiNodeProbe(name="rails", script=send_echoes, quick=False)


def find_broken_rails(facts: Facts) -> Iterator[Finding]:
    """A rail that fails between two nodes while others work has a bad cable or switch."""
    for frm, to in _list_node_pairs(facts):
        echoes = _list_echoes(facts, frm, to, straight=True)
        lost = [echo for echo in echoes if not echo.back]
        # Where nothing comes back at all, echoes are filtered and prove nothing.
        if lost and len(lost) < len(echoes):
            ends = [f"{echo.rails[0]} ({echo.addresses[0]} → {echo.addresses[1]})" for echo in lost]
            own, peer = lost[0].addresses
            yield fabric.RAIL_CUT.finding(
                nodes=(frm, to),
                seen=f"{frm} gets no ping reply from {to} on {format_list(ends, 4)};"
                f" {format_count(len(echoes) - len(lost), 'other rail')} work{'s' * (len(echoes) - len(lost) == 1)}",
                fix=join_fixes(
                    fabric.RAIL_CUT.fix("echo", own=own, peer=peer, node=frm),
                    fabric.RAIL_CUT.fix(
                        "without", adapters=quote_yaml(f"^={','.join(echo.rails[0] for echo in lost)}")
                    ),
                ),
            )


def find_disconnected_rails(facts: Facts) -> Iterator[Finding]:
    """Many clusters keep rails separate on purpose; NCCL must then not send across rails."""
    nccl_settings = collect_settings(facts)
    apart = [pair for pair in _list_node_pairs(facts) if _has_disconnected_rails(facts, *pair)]
    names = tuple(dict.fromkeys(name for pair in apart for name in pair))
    names = tuple(name for name in names if nccl_settings[name].get("NCCL_CROSS_NIC") != "0")
    if not apart or not names:
        return
    cross = _list_echoes(facts, *apart[0], straight=False)[0]
    crossing = any(nccl_settings[name].get("NCCL_CROSS_NIC") == "1" for name in names)
    yield fabric.RAILS.finding(
        # By default NCCL stays on a rail where all nodes have the same ones.
        severity=Severity.WARN if crossing else Severity.INFO,
        nodes=names,
        seen=f"rails are not interconnected: {cross.rails[0]} on {cross.frm} ({cross.addresses[0]}) gets no"
        f" ping reply from {cross.rails[1]} on {cross.to} ({cross.addresses[1]}); pings within each rail get replies"
        + ("; NCCL_CROSS_NIC=1 makes NCCL send across rails" if crossing else ""),
        fix=fabric.RAILS.fix(where=fold_names(names)),
    )


def _list_rail_addresses(ports: tuple[RdmaPort, ...]) -> dict[str, str]:
    """The IPv4 address behind each RoCE port's first routable entry, by the port's name."""
    found = {}
    for port in ports:
        gid = next((gid for gid in port.gids if gid.routable and gid.ipv4), None)
        if port.layer == ETHERNET and gid is not None:
            try:
                found[port.name] = str(IPv6Address(gid.address).ipv4_mapped)
            except AddressValueError:
                continue
    return found


def _plan_echoes(name: str, peer: str, own: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, tuple[str, str]]]:
    """The peer and the rails of each `address>address`."""
    mine, theirs = own[name], own[peer]
    rails = [rail for rail in mine if rail in theirs][:_MOST]
    rail_pairs = [(rail, rail) for rail in rails]
    rail_pairs += [(rails[0], rails[1]), (rails[1], rails[0])] if len(rails) > 1 else []
    # Two names of one machine share the rails' ports.
    if any(mine[rail] == theirs[rail] for rail in rails):
        return {}
    return {f"{mine[frm]}>{theirs[to]}": (peer, (frm, to)) for frm, to in rail_pairs}


def _get_echoes(facts: Facts) -> tuple[RailEcho, ...]:
    outcome = RAILS.outcome(facts)
    return () if outcome is None or isinstance(outcome, Unknown) else outcome


def _list_echoes(facts: Facts, frm: str, to: str, *, straight: bool) -> list[RailEcho]:
    return [each for each in _get_echoes(facts) if (each.frm, each.to, each.straight) == (frm, to, straight)]


def _list_node_pairs(facts: Facts) -> list[tuple[str, str]]:
    return list(dict.fromkeys((echo.frm, echo.to) for echo in _get_echoes(facts)))


def _has_disconnected_rails(facts: Facts, frm: str, to: str) -> bool:
    along = _list_echoes(facts, frm, to, straight=True)
    across = _list_echoes(facts, frm, to, straight=False)
    working_rails = {rail for echo in along if echo.back for rail in echo.rails}
    tried = [echo for echo in across if set(echo.rails) <= working_rails]
    return bool(tried) and not any(echo.back for echo in tried)
