"""Why ranks can't reach rank 0's store or each other: dropped, refused, unresolved, elsewhere, on loopback."""

from collections.abc import Iterator, Sequence

from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.evidence.follow_up_queries import is_address
from aboard.core.evidence.node_snapshot import StoreRequest, TcpConnection, split_endpoint
from aboard.core.evidence.run_evidence import Evidence, RankView, list_nodes, list_ranks
from aboard.core.evidence.verdict import RuledOut, RuleResult
from aboard.core.run.rank_phases import Phase
from aboard.core.text.input_text import agree
from aboard.core.text.rank_sets import name_ranks
from aboard.diagnoses import Cause, Confidence, Fix, RunFailure, Shell, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.network import diagnoses as network
from aboard.doctor.shared.fix_commands import (
    build_check_command,
    build_firewall_rules,
    find_down_link,
    find_nearest_address,
    resolve_host,
)
from aboard.doctor.start import diagnoses as rendezvous

# The first retransmission comes after one second, the second after three: RFC 6298.
_RESENT = 1
_LATE_SECONDS = 8.0
_BARRED = {
    "dropped": (rendezvous.STORE_DROPPED, ("gets no reply from", "get no reply from")),
    "rejected": (rendezvous.STORE_REJECTED, ("is rejected by", "are rejected by")),
    "refused": (rendezvous.STORE_REFUSED, ("is refused by", "are refused by")),
    "no route": (rendezvous.STORE_NO_ROUTE, ("has no route to", "have no route to")),
}


def find_unreachable_store(evidence: Evidence) -> Iterator[RuleResult]:
    """Ranks that can't reach the store, and why."""
    waiting: dict[tuple[str, int], list[RankView]] = {}
    for view in evidence.views:
        joining = view.seen.joining if view.alive and view.phase < Phase.STORE and view.seen is not None else None
        if joining is not None and not joining.master:
            waiting.setdefault((joining.host, joining.port), []).append(view)
    found = [
        cause for (host, port), views in waiting.items() for cause in _list_store_causes(evidence, host, port, views)
    ]
    yield from found
    if waiting and not found:
        yield RuledOut(what="an unreachable store", why="no rank is failing to connect to it")


def find_unreachable_peers(evidence: Evidence) -> Iterator[RuleResult]:
    """After the store, ranks connect to each other; the kernel shows within seconds which can't."""
    views = [view for view in evidence.views if view.alive and Phase.STORE <= view.phase < Phase.COLLECTIVE]
    on_loopback = [view for view in views if len(evidence.plan.parts) > 1 and _is_on_loopback(evidence, view)]
    if on_loopback:
        yield _build_cause(
            rendezvous.LOOPBACK,
            on_loopback,
            seen=f"{_format_ranks(on_loopback)} {agree(on_loopback, 'advertises', 'advertise')} 127.0.0.1 to peers"
            f" because {agree(list_nodes(on_loopback), 'the', 'each')} node's own hostname resolves to loopback",
            fix=build_loopback_fix(evidence, list_nodes(on_loopback)),
        )
        return
    trying: dict[str, list[tuple[RankView, str]]] = {}
    for view in views:
        for each in view.seen.sockets if view.seen is not None else ():
            if _is_unanswered(each):
                address = split_endpoint(each.remote)[0]
                trying.setdefault(evidence.owners.get(address, address), []).append((view, each.remote))
    if trying:
        yield _build_peer_cause(evidence, trying)
    elif views:
        yield RuledOut(what="unreachable peers", why="no connection between ranks is waiting for a reply")


RULES = (find_unreachable_store, find_unreachable_peers)


def _list_store_causes(evidence: Evidence, host: str, port: int, views: list[RankView]) -> Iterator[Cause]:
    outcomes: dict[str, list[RankView]] = {}
    for view in views:
        outcomes.setdefault(_find_outcome(evidence, view, host, port), []).append(view)
    if "rejected" in outcomes:
        # The kernel rejects only some of many tries (icmp_ratelimit in icmp(7)); the others look dropped.
        outcomes["rejected"] = sorted((*outcomes["rejected"], *outcomes.pop("dropped", ())), key=lambda view: view.rank)
    for outcome, those in outcomes.items():
        astray = _find_wrong_name(evidence, host, those)
        if astray is not None:
            yield astray
        elif outcome == "unresolved":
            answer = evidence.snapshots[those[0].node].names.get(host)
            reason = answer.visible(400) if isinstance(answer, Untrusted) else ""
            yield _build_cause(
                rendezvous.NAME,
                those,
                seen=f"{_format_ranks(those)} can't resolve {host}, the address of rank 0: {reason}",
                fix=_build_name_fix(evidence, host, list_nodes(those)),
            )
        elif outcome == "refused":
            yield from _explain_refusal(evidence, host, port, those)
        elif outcome in _BARRED:
            # Another name of the same address is no other place.
            is_elsewhere = evidence.owners.get(resolve_host(evidence, "", host)) != evidence.view(0).node
            astray = _find_wrong_place(evidence, host, port, those) if is_elsewhere else None
            yield astray or _build_barred_cause(evidence, outcome, f"{host}:{port}", those)


def _find_wrong_name(evidence: Evidence, host: str, views: list[RankView]) -> Cause | None:
    """A name that resolves to another machine on some nodes than on those that find rank 0."""
    master = evidence.view(0).node
    addresses = {
        name: found for name, node in evidence.snapshots.items() if isinstance(found := node.names.get(host), tuple)
    }
    right = [each for found in addresses.values() for each in found if evidence.owners.get(each) == master]
    wrong = [view for view in views if addresses.get(view.node) and not set(addresses[view.node]) & set(right)]
    if not right or not wrong or len(wrong) < len(views):
        return None
    other = addresses[wrong[0].node][0]
    whose = evidence.owners.get(other)
    return _build_cause(
        rendezvous.ELSEWHERE,
        wrong,
        seen=f"{_format_ranks(wrong)} {agree(wrong, 'resolves', 'resolve')} {host} to"
        f" {other}{f' ({whose})' if whose else ''}, but rank 0 on {master} is at {right[0]}",
        why="The hostname of rank 0's node resolves to different machines on different nodes. Possible causes: a"
        " stale line in /etc/hosts, or different name servers.",
        fix=rendezvous.ELSEWHERE.fix(
            "hosts",
            line=f"1i {right[0]} {host}",
            nodes=quote_folded_names(list_nodes(wrong)),
            check=build_check_command(
                evidence, (*list_nodes(wrong), master), "network", "shows names that resolve differently"
            ),
        ),
    )


def _build_barred_cause(evidence: Evidence, outcome: str, store: str, views: list[RankView]) -> Cause:
    """Blames the nodes that can't connect if others can, else rank 0's node."""
    master = evidence.view(0).node
    well = {view.node for view in evidence.views if view.phase >= Phase.STORE} - {master}
    nodes = list_nodes(views) if well else (master,)
    diagnosis, verbs = _BARRED[outcome]
    why = "Rank 0 is listening there, but a firewall refuses the connections." if outcome == "refused" else None
    target = resolve_host(evidence, master, store.rpartition(":")[0])
    dark = [(name, link) for name in nodes if (link := find_down_link(evidence, name, target)) is not None]
    opened = () if dark or outcome == "no route" else _build_opening_rules(evidence, nodes, master, target)
    check = build_check_command(
        evidence, (*nodes, master, *list_nodes(views)), "network", "shows which nodes can't reach each other"
    )
    return _build_cause(
        diagnosis,
        views,
        seen=f"{_format_ranks(views)} {agree(views, *verbs)} {store}, the store of rank 0 on {master}",
        why=f"NIC {dark[0][1].name} on {dark[0][0]} is {dark[0][1].state}." if dark else why,
        fix=join_fixes(
            *(diagnosis.fix("put-up", card=link.name, node=name) for name, link in dark[:1]),
            *(diagnosis.fix("open", rules=rules) for rules in opened),
            *(
                [diagnosis.fix("route", target=target, nodes=quote_folded_names(nodes))]
                if outcome == "no route"
                else []
            ),
            diagnosis.fix("check", check=check),
        ),
        nodes=nodes,
    )


def _build_opening_rules(evidence: Evidence, nodes: tuple[str, ...], master: str, target: str) -> tuple[Shell, ...]:
    """Rules for rank 0's node, or for both ends where only some nodes can't reach it."""
    if nodes == (master,):
        return (build_firewall_rules(evidence, nodes, target, ["in"]),)
    return build_firewall_rules(evidence, nodes, target, ["out"]), build_firewall_rules(
        evidence, (master,), target, ["in"]
    )


def _explain_refusal(evidence: Evidence, host: str, port: int, views: list[RankView]) -> Iterator[Cause]:
    """No process listens there: rank 0 is elsewhere, or late, which has its own finding."""
    master = evidence.view(0)
    own = master.seen.joining if master.seen is not None else None
    listens = (
        {split_endpoint(each.local)[1] for each in master.seen.sockets if each.state == "LISTEN"}
        if master.seen
        else set()
    )
    astray = _find_wrong_place(evidence, host, port, views)
    if astray is not None:
        yield astray
    elif own is not None and port not in listens and master.phase >= Phase.TORCH and _has_waited(evidence, own):
        yield _build_cause(
            rendezvous.STORE_REFUSED,
            views,
            seen=f"{_format_ranks(views)} {agree(views, 'is', 'are')} refused by {host}:{port} because no process is"
            " listening there",
            fix=rendezvous.STORE_REFUSED.fix("nobody", node=master.node, run=evidence.plan.run),
        )
    elif own is not None and port in listens:
        yield _build_barred_cause(evidence, "refused", f"{host}:{port}", views)


def _find_wrong_place(evidence: Evidence, host: str, port: int, views: list[RankView]) -> Cause | None:
    """Rank 0 uses another address than these ranks: the minority is wrong, even if it is rank 0 alone."""
    master = evidence.view(0)
    own = master.seen.joining if master.seen is not None else None
    if own is None or (own.host, own.port) == (host, port):
        return None
    return _build_cause(
        rendezvous.ELSEWHERE,
        views if 2 * len(views) < evidence.plan.world else [master],
        seen=f"{_format_ranks(views)} {agree(views, 'is', 'are')} looking for the store at {host}:{port}, but rank 0 on"
        f" {master.node} has it at {own.host}:{own.port}",
        fix=rendezvous.ELSEWHERE.fix("script"),
    )


def _build_peer_cause(evidence: Evidence, trying: dict[str, list[tuple[RankView, str]]]) -> Cause:
    """Blames the node that most can't reach, or the only node that can't reach the others."""
    peer = max(trying, key=lambda name: len({view.node for view, _remote in trying[name]}))
    sources = {view.node for tries in trying.values() for view, _remote in tries}
    blamed = next(iter(sources)) if len(trying) > 1 and len(sources) == 1 else peer
    view, remote = trying[peer][0]
    views = [each for each, _remote in trying[peer]]
    check = build_check_command(
        evidence, (blamed, view.node, peer), "network", "shows which nodes can't reach each other"
    )
    return _build_cause(
        network.EPHEMERAL_DROPPED,
        views,
        seen=f"{_format_ranks(views)} {agree(views, 'gets', 'get')} no reply from {remote} on {peer}",
        why="Ranks connect to each other on ephemeral ports. A firewall drops connections to these ports, although the"
        " store's port is open.",
        fix=join_fixes(
            network.EPHEMERAL_DROPPED.fix(
                "let-in", rules=build_firewall_rules(evidence, (blamed,), split_endpoint(remote)[0])
            ),
            network.EPHEMERAL_DROPPED.fix("check", check=check),
        ),
        nodes=(blamed,),
        ranks=tuple(each.rank for each in evidence.views if each.node == blamed),
    )


def _build_name_fix(evidence: Evidence, host: str, nodes: tuple[str, ...]) -> Fix:
    """An /etc/hosts line for the name, if rank 0's own address is known."""
    own = evidence.view(0).seen
    places = [own.joining.host if own is not None and own.joining is not None else "", evidence.plan.master.address]
    address = next((place for place in places if is_address(place)), "")
    where = quote_folded_names(nodes)
    if address:
        return rendezvous.NAME.fix("entry", host=host, nodes=where, entry=f"{address} {host}")
    return rendezvous.NAME.fix("who", host=host, nodes=where)


def _find_outcome(evidence: Evidence, view: RankView, host: str, port: int) -> str:
    """The outcome of a rank's connection to the store: from its own socket, else from the node's test."""
    node = evidence.snapshots.get(view.node)
    if node is None or view.seen is None:
        return ""
    found = node.names.get(host, ())
    if isinstance(found, Untrusted):
        if not is_address(host):
            return "unresolved"
        found = ()
    addresses = {host, *found}
    own = [
        each
        for each in view.seen.sockets
        if split_endpoint(each.remote)[1] == port and split_endpoint(each.remote)[0] in addresses
    ]
    dialled = [node.dials.get((address, port)) for address in addresses]
    if any(_is_unanswered(each) for each in own):
        # TCP also retries after a rejection; the node's own test shows whether there was one.
        return "rejected" if "rejected" in dialled else "dropped"
    if any(each.state == "ESTABLISHED" for each in own):
        return ""
    return next((each for each in dialled if each and each != "connected"), "")


def _is_unanswered(each: TcpConnection) -> bool:
    return each.state == "SYN_SENT" and each.resent >= _RESENT


def _is_on_loopback(evidence: Evidence, view: RankView) -> bool:
    """Whether it listens for its peers on loopback because its node's own hostname resolves to that."""
    node = evidence.snapshots.get(view.node)
    if node is None or view.seen is None or view.phase >= Phase.GROUP:
        return False
    places = [each.local for each in view.seen.sockets if each.state == "LISTEN"]
    return node.names_itself_loopback and any(place.startswith(("127.", "[::1]")) for place in places)


def _has_waited(evidence: Evidence, own: StoreRequest) -> bool:
    """Whether rank 0 has had the time to listen: it may have come to its store just now, long after the others."""
    seconds = [evidence.quiet or 0.0, *([] if own.seconds is None else [own.seconds])]
    return min(seconds) >= _LATE_SECONDS


def _build_cause(
    diagnosis: RunFailure,
    views: list[RankView],
    *,
    seen: str,
    fix: Fix,
    why: str | None = None,
    nodes: tuple[str, ...] = (),
    ranks: tuple[int, ...] = (),
) -> Cause:
    found = diagnosis.finding(
        nodes=nodes or list_nodes(views), ranks=ranks or tuple(view.rank for view in views), seen=seen, why=why, fix=fix
    )
    return found.as_cause(Confidence.CERTAIN)


def _format_ranks(views: list[RankView]) -> str:
    return f"{name_ranks(list_ranks(views))} on {fold_names(list_nodes(views))}"


def build_loopback_fix(evidence: Evidence, nodes: Sequence[str]) -> Fix:
    """Suggests the interface by which the first node reaches rank 0, and shows where loopback may come from."""
    master = evidence.plan.master
    own = find_nearest_address(evidence, nodes[0], resolve_host(evidence, master.node, master.address))
    hosts = rendezvous.LOOPBACK.fix("hosts", nodes=quote_folded_names(nodes))
    return join_fixes(rendezvous.LOOPBACK.fix("interface", card=own[0]), hosts) if own else hosts
