"""A node's answer as a value, read at the border: what is of another kind than it should be is left out, and bounded.

The same reader serves the wire and the record, in which the answers are kept as they came.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from aboard.core.ras import RasStatus, ras_status
from aboard.core.witness import (
    Collective,
    Disk,
    Echo,
    Group,
    Joining,
    Link,
    Neighbour,
    NodeWitness,
    Process,
    RankWitness,
    Socket,
)

TEXT = 400
STACK = 64 * 1024
RAS = 256 * 1024
MANY = 256
MOST = 2**53
_HUGE = 1e300
# As the beacon numbers them: agent/beacons.py.
DOINGS = ("", "evaluation", "checkpoint", "data", "compiling")


def node_of(given: object, ranks: Mapping[str, int], offset: float) -> NodeWitness:
    """`ranks` are the numbers of the node's children by name; `offset` is its clock less ours."""
    whole = _object(given)
    node, children = _object(whole.get("node")), _object(whole.get("children"))
    return NodeWitness(
        at=(number(whole.get("wall")) or 0.0) - offset,
        offset=offset,
        ranks={ranks[name]: rank_of(_object(told)) for name, told in children.items() if name in ranks},
        load=number(node.get("load")),
        throttled=number(node.get("throttled")),
        quota=_text(node.get("quota")),
        others=number(node.get("others")),
        resent=number(node.get("resent")),
        cores=_count(node.get("cores")),
        memory=_count(node.get("memory")),
        free=_count(node.get("free")),
        limit=_count(node.get("limit")),
        held=_count(node.get("held")),
        oom_kills=_count(node.get("oom_kills")),
        oom_before=_count(node.get("oom_before")),
        neighbours=tuple(_neighbour(each) for each in _objects(node.get("neighbours"))),
        links=tuple(_link(name, _object(each)) for name, each in list(_object(node.get("links")).items())[:MANY]),
        addresses=tuple((_text(each[0]), _text(each[1])) for each in _rows(node.get("addresses"), 2)),
        mounts=tuple((_text(each[0]), _text(each[1]), _text(each[2])) for each in _rows(node.get("mounts"), 3)),
        disks=tuple(_disk(each) for each in _objects(node.get("disks"))),
        dials={(_text(each[0]), _count(each[1]) or 0): _text(each[2]) for each in _rows(node.get("dials"), 3)},
        names={_text(name): _addresses(found) for name, found in list(_object(node.get("names")).items())[:MANY]},
        echoes={
            _text(address): Echo(
                small=given[0] is True, large=given[1] is True, sent=_count(given[2]) or 0, lost=_count(given[3]) or 0
            )
            for address, given in list(_object(node.get("echoes")).items())[:MANY]
            if isinstance(given, list) and len(given) == 4  # noqa: PLR2004 - small, large, sent, lost
        },
        hostname=_text(node.get("hostname")),
        kernel=tuple(map(_text, node["kernel"][:MANY])) if isinstance(node.get("kernel"), list) else None,
        gpus=tuple(map(_text, node["gpus"][:MANY])) if isinstance(node.get("gpus"), list) else (),
        ras=_ras(_object(node.get("ras"))),
        hung=_text(node.get("asked")),
    )


def rank_of(given: Mapping[str, Any]) -> RankWitness:
    stack, flight = given.get("stack"), _object(given.get("flight"))
    why = {"stack": _text(_object(stack).get("why"))} if isinstance(stack, dict) else {}
    groups = None
    if "groups" in flight:
        groups = tuple(_group(name, _object(each)) for name, each in list(_object(flight["groups"]).items())[:MANY])
    else:
        why["flight"] = _text(flight.get("why")) or "it has no beacon"
    doing = _count(given.get("doing")) or 0
    return RankWitness(
        process=_process(given) if "state" in given else None,
        workers=tuple(_process(each) for each in _objects(given.get("workers"))),
        sockets=tuple(_socket(each) for each in _objects(given.get("sockets"))),
        stack=stack[-STACK:] if isinstance(stack, str) else "",
        groups=groups,
        joining=_joining(_object(given.get("joining"))),
        doing=DOINGS[doing] if doing < len(DOINGS) else "",
        why=why,
    )


def number(given: object) -> float | None:
    """None for what is no figure; an integer of JSON can be too long for any float."""
    if not isinstance(given, int | float) or isinstance(given, bool) or not abs(given) < _HUGE:
        return None
    return float(given)


def _process(given: Mapping[str, Any]) -> Process:
    return Process(
        pid=_count(given.get("pid")) or 0,
        name=_text(given.get("name")),
        state=_text(given.get("state")),
        states=_text(given.get("states")),
        wchan=_text(given.get("wchan")),
        call=_text(given.get("call")),
        file=_text(given.get("file")),
        cpu=number(given.get("cpu")) or 0.0,
        delay=number(given.get("delay")) or 0.0,
        threads=_count(given.get("threads")) or 0,
        rss=_count(given.get("rss")) or 0,
    )


def _socket(given: Mapping[str, Any]) -> Socket:
    return Socket(
        local=_text(given.get("local")),
        remote=_text(given.get("remote")),
        state=_text(given.get("state")),
        tx=_count(given.get("tx")) or 0,
        rx=_count(given.get("rx")) or 0,
        resent=_count(given.get("resent")) or 0,
        inode=_count(given.get("inode")) or 0,
        losses=_count(given.get("losses")),
        segments=_count(given.get("segments")),
        rate=_count(given.get("rate")),
        rtt=number(given.get("rtt")),
        least_rtt=number(given.get("least_rtt")),
        silent=number(given.get("silent")),
    )


def _group(name: str, given: Mapping[str, Any]) -> Group:
    return Group(
        name=_text(name),
        what=_text(given.get("what")),
        enqueued=_signed(given.get("enqueued")),
        completed=_signed(given.get("completed")),
        entries=tuple(_collectives(given.get("entries"))),
    )


def _collectives(given: object) -> Iterator[Collective]:
    """As the beacon tells them: numbers, kind, name, state, whether it is over, when it began, and some with sizes."""
    for row in _rows(given, 7):
        seq, p2p_seq, p2p, op, state, over, began, *sizes = row
        position = _count(p2p_seq if p2p else seq)
        if position is not None:
            at = (number(began) or 0.0) / 1e9
            finished = over is True or state == "completed"
            shape = _text(str(sizes[0])) if sizes else ""
            yield Collective(seq=position, op=_text(op), at=at, over=finished, p2p=p2p is True, sizes=shape)


def _joining(given: Mapping[str, Any]) -> Joining | None:
    if not given:
        return None
    host, port = _text(given.get("host")), _count(given.get("port")) or 0
    world, rank = _count(given.get("world")), _count(given.get("rank"))
    return Joining(host=host, port=port, world=world, rank=rank, master=given.get("master") is True)


def _neighbour(given: Mapping[str, Any]) -> Neighbour:
    pid = _count(given.get("pid")) or 0
    return Neighbour(pid=pid, name=_text(given.get("name")), cores=number(given.get("cores")) or 0.0)


def _link(name: object, given: Mapping[str, Any]) -> Link:
    counts = {key: _count(given.get(key)) or 0 for key in ("received", "sent", "errors", "changes")}
    return Link(name=_text(name), state=_text(given.get("state")), **counts)


def _disk(given: Mapping[str, Any]) -> Disk:
    free, size = _count(given.get("free")) or 0, _count(given.get("size")) or 0
    inodes = number(given.get("inodes"))
    return Disk(
        path=_text(given.get("path")),
        free=free,
        size=size,
        inodes=1.0 if inodes is None else inodes,
        why=_text(given.get("why")),
    )


def _ras(given: Mapping[str, Any]) -> RasStatus | str | None:
    if not given:
        return None
    text = given.get("text")
    if not isinstance(text, str):
        return _text(given.get("why")) or "its answer is none that is known"
    return ras_status(text[:RAS]) or "its answer is none that is known, or it was cut"


def _addresses(given: object) -> tuple[str, ...] | str:
    return tuple(map(_text, given[:MANY])) if isinstance(given, list) else _text(given)


def _object(given: object) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}


def _objects(given: object) -> list[dict[str, Any]]:
    return [each for each in given[:MANY] if isinstance(each, dict)] if isinstance(given, list) else []


def _rows(given: object, least: int) -> list[list[Any]]:
    rows = given[:MANY] if isinstance(given, list) else []
    return [row for row in rows if isinstance(row, list) and len(row) >= least]


def _text(given: object) -> str:
    return given[:TEXT] if isinstance(given, str) else ""


def _count(given: object) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < MOST else None


def _signed(given: object) -> int:
    return given if isinstance(given, int) and abs(given) < MOST else -1
