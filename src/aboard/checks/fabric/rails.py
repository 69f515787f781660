"""Rails: RoCE networks side by side, one for each adapter; whether each works, and whether they are connected.

An echo is no RDMA, but it takes the same addresses and routes, and any user may send one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from ipaddress import AddressValueError, IPv6Address

from aboard.checks.blanks import yaml_text
from aboard.checks.fabric.nccl import active, settings
from aboard.checks.fabric.ports import ETHERNET, Port
from aboard.checks.listed import listed
from aboard.checks.scripted import output
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts
from aboard.core.nodeset import fold
from aboard.core.probe import Unparsed
from aboard.core.words import many
from aboard.diagnoses import Finding, Severity, fabric, join_fixes
from aboard.lazy import dataclass

# Ends with 0 when an echo came back and with 1 when none did; all else is another trouble (ping(8)).
PINGS = """for pair; do
    { ping -n -q -c 2 -W 1 -I "${pair%%>*}" "${pair##*>}" >/dev/null 2>&1; echo "$pair $?"; } &
done
wait"""
_SECONDS = 10.0
_MOST = 8


@dataclass(frozen=True, kw_only=True)
class Echo:
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


@dataclass(frozen=True, kw_only=True)
class Rails:
    """What came back. A node that could not send is not in it."""

    echoes: tuple[Echo, ...] = field(default=())

    def between(self, frm: str, to: str, *, straight: bool) -> list[Echo]:
        return [each for each in self.echoes if (each.frm, each.to, each.straight) == (frm, to, straight)]


def send_echoes(facts: Facts) -> Script[Rails]:
    """Each node to the next: along every rail, and across the first two."""
    own = {name: _addresses(ports) for name, ports in active(facts).items()}
    own = {name: addresses for name, addresses in own.items() if len(addresses) > 1}
    names = list(own)
    plans = {name: _plan(name, names[(at + 1) % len(names)], own) for at, name in enumerate(names)}
    plans = {name: plan for name, plan in plans.items() if plan}
    if not plans:
        return Rails()
    replies = yield {
        name: Ask(op="run", fields={"argv": ["sh", "-c", PINGS, "sh", *plan], "timeout": _SECONDS}, within=_SECONDS + 5)
        for name, plan in plans.items()
    }
    echoes: list[Echo] = []
    for name, plan in plans.items():
        try:
            codes = dict(re.findall(r"^(\S+) ([0-9]{1,3})$", output(replies[name]).stdout, re.MULTILINE))
        except Unparsed:
            continue
        for pair, (to, rails) in plan.items():
            if codes.get(pair) in {"0", "1"}:
                frm, _, there = pair.partition(">")
                addresses = (frm, there)
                echoes.append(Echo(frm=name, to=to, rails=rails, addresses=addresses, back=codes[pair] == "0"))
    return Rails(echoes=tuple(echoes))


RAILS = Exercise(name="rails", script=send_echoes, quick=False)


def rail_cut(facts: Facts) -> Iterator[Finding]:
    """A rail on which two nodes don't hear each other, while they do on others, is a cable or a switch."""
    for frm, to in _pairs(facts):
        echoes = _rails(facts).between(frm, to, straight=True)
        lost = [echo for echo in echoes if not echo.back]
        # Where nothing comes back at all, echoes are filtered, and say nothing.
        if lost and len(lost) < len(echoes):
            ends = [f"{echo.rails[0]} ({echo.addresses[0]} → {echo.addresses[1]})" for echo in lost]
            own, peer = lost[0].addresses
            yield fabric.RAIL_CUT.finding(
                nodes=(frm, to),
                seen=f"no echo comes back from {to} to {frm} on {listed(ends, 4)};"
                f" on {many(len(echoes) - len(lost), 'other rail')} it does",
                fix=join_fixes(
                    fabric.RAIL_CUT.fix("echo", own=own, peer=peer, node=frm),
                    fabric.RAIL_CUT.fix("without", adapters=yaml_text(f"^={','.join(echo.rails[0] for echo in lost)}")),
                ),
            )


def rails_apart(facts: Facts) -> Iterator[Finding]:
    """Rails that aren't connected are how many build them; NCCL must then not send from one to the other."""
    told = settings(facts)
    apart = [pair for pair in _pairs(facts) if _apart(facts, *pair)]
    names = tuple(dict.fromkeys(name for pair in apart for name in pair))
    names = tuple(name for name in names if told[name].get("NCCL_CROSS_NIC") != "0")
    if not apart or not names:
        return
    cross = _rails(facts).between(*apart[0], straight=False)[0]
    crossing = any(told[name].get("NCCL_CROSS_NIC") == "1" for name in names)
    yield fabric.RAILS.finding(
        # Left to itself NCCL stays on a rail where all nodes have the same ones.
        severity=Severity.WARN if crossing else Severity.INFO,
        nodes=names,
        seen=f"rails are not connected with each other: {cross.rails[0]} of {cross.frm} ({cross.addresses[0]}) gets no"
        f" echo from {cross.rails[1]} of {cross.to} ({cross.addresses[1]}), along the rails it does"
        + ("; NCCL_CROSS_NIC=1 makes NCCL send across" if crossing else ""),
        fix=fabric.RAILS.fix(where=fold(names)),
    )


def _addresses(ports: tuple[Port, ...]) -> dict[str, str]:
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


def _plan(name: str, peer: str, own: Mapping[str, Mapping[str, str]]) -> dict[str, tuple[str, tuple[str, str]]]:
    """From `address>address` to whom that is and on which rails."""
    mine, theirs = own[name], own[peer]
    rails = [rail for rail in mine if rail in theirs][:_MOST]
    wanted = [(rail, rail) for rail in rails]
    wanted += [(rails[0], rails[1]), (rails[1], rails[0])] if len(rails) > 1 else []
    # Two names of one machine have nothing between them.
    if any(mine[rail] == theirs[rail] for rail in rails):
        return {}
    return {f"{mine[frm]}>{theirs[to]}": (peer, (frm, to)) for frm, to in wanted}


def _rails(facts: Facts) -> Rails:
    outcome = facts.outcome(RAILS)
    return outcome if isinstance(outcome, Rails) else Rails()


def _pairs(facts: Facts) -> list[tuple[str, str]]:
    return list(dict.fromkeys((echo.frm, echo.to) for echo in _rails(facts).echoes))


def _apart(facts: Facts, frm: str, to: str) -> bool:
    along = _rails(facts).between(frm, to, straight=True)
    across = _rails(facts).between(frm, to, straight=False)
    heard = {rail for echo in along if echo.back for rail in echo.rails}
    tried = [echo for echo in across if set(echo.rails) <= heard]
    return bool(tried) and not any(echo.back for echo in tried)
