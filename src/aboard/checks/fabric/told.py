"""NCCL's settings, configuration and topology files: the same on all nodes, and fit for the adapters there."""

from collections.abc import Iterator, Mapping

from aboard.checks.blanks import yaml_text
from aboard.checks.fabric.nccl import NCCL_CONF, TOPOLOGY, absent, digest, known_settings, settings
from aboard.checks.fabric.ports import PORTS
from aboard.checks.listed import listed
from aboard.checks.usual import usual
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.nodeset import fold_quoted
from aboard.core.words import visible
from aboard.diagnoses import Finding, Fix, fabric, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy import dataclass

# These may well differ: they name what each node has, or where it writes.
OWN = ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_DEBUG", "NCCL_IGNORE", "NCCL_CONF")
NAMED = "NCCL_TOPO_FILE"


@dataclass(frozen=True, kw_only=True)
class Named:
    """The file that NCCL_TOPO_FILE names on a node, and a digest of it; None when NCCL can't read it either."""

    path: Untrusted
    digest: str | None


def read_topologies(facts: Facts) -> Script[Mapping[str, Named]]:
    """Reads the file that each node's own setting names: no probe could know its path beforehand."""
    paths = {name: told.get(NAMED, NO_TEXT) for name, told in known_settings(facts).items()}
    # What has a star would be read as a pattern; nobody calls a file so.
    paths = {name: path for name, path in paths.items() if path.startswith("/") and "*" not in path}
    if not paths:
        return {}
    replies = yield {
        name: Ask(op="read", fields={"globs": [path.raw()], "timeout": 5.0}) for name, path in paths.items()
    }
    found = {}
    for name, path in paths.items():
        reply = replies.get(name)
        files = None if reply is None or isinstance(reply, Unknown) else reply.get("files")
        if isinstance(files, dict):
            text = files.get(path.raw())
            found[name] = Named(path=path, digest=digest(text) if isinstance(text, str) else None)
    return found


TOPOLOGIES = Exercise(name="nccl-topology", script=read_topologies)


def hca_absent(facts: Facts) -> Iterator[Finding]:
    """NCCL takes what is there of NCCL_IB_HCA and says nothing of the rest."""
    told = settings(facts)
    for name, ports in facts.of(PORTS).items():
        spec = told[name].get("NCCL_IB_HCA", NO_TEXT)
        gone = absent(ports, spec)
        # What is refused and not there anyway is no loss.
        if gone and ports and not spec.startswith("^"):
            adapters = f"={','.join(port.name for port in ports if port.active)}"
            names = visible(listed([each.visible() for each in gone]))
            yield fabric.HCA_ABSENT.finding(
                nodes=(name,),
                seen=f"NCCL_IB_HCA={spec.visible()} names {names}, which it hasn't got:"
                f" it has {listed([port.name for port in ports])}",
                fix=fabric.HCA_ABSENT.fix(adapters=yaml_text(adapters), node=name),
            )


def settings_differ(facts: Facts) -> Iterator[Finding]:
    """Ranks that choose another algorithm or network than their peers wait for each other for ever."""
    every = {name: _shared(own) for name, own in known_settings(facts).items()}
    for key in sorted({key for own in every.values() for key in own}):
        values = {name: own.get(key) for name, own in every.items()}
        odd, seen = _odd(values, key)
        if odd:
            yield fabric.NCCL_SETTINGS.finding(
                nodes=odd,
                seen=seen,
                about=(key,),
                fix=join_fixes(
                    fabric.NCCL_SETTINGS.fix("look", key=key, where=fold_quoted(odd)),
                    fabric.NCCL_SETTINGS.fix("set", key=key),
                ),
            )


def _shared(told: Mapping[str, Untrusted]) -> dict[str, Untrusted]:
    return {key: value for key, value in told.items() if not key.startswith(OWN)}


def _odd(values: Mapping[str, Untrusted | None], key: str) -> tuple[tuple[str, ...], str]:
    """Who differs from most, or all when there is no most; and how that reads."""
    if len(set(values.values())) == 1:
        return (), ""
    most = usual(values)
    settled = sum(value == most for value in values.values()) * 2 > len(values)
    odd = tuple(name for name, value in values.items() if not settled or value != most)
    seen = listed([f"{name} has {_shown(key, values[name])}" for name in odd])
    return odd, seen + (f"; the others have {_shown(key, most)}" if settled else "")


def _shown(key: str, value: Untrusted | None) -> str:
    return f"no {key}" if value is None else f"{key}={value.visible()}"


def topology_differs(facts: Facts) -> Iterator[Finding]:
    """A topology file that is missing here makes NCCL guess, and guess slow rings."""
    outcome = facts.outcome(TOPOLOGIES)
    named = {} if outcome is None or isinstance(outcome, Unknown) else outcome
    for name, file in named.items():
        if file.digest is None:
            node = facts.cluster.node(name)
            yield _topology(
                name,
                f"{NAMED} is {file.path.visible()}, which can't be read here",
                _bring(named, file.path, node.target, bind=bool(node.container)),
            )
    yield from _other_text({name: file.digest for name, file in named.items() if file.digest}, "the topology file")
    loaded = {name: conf.topology for name, conf in facts.of(NCCL_CONF).items()}
    yield from _other_text(loaded, TOPOLOGY)


def _bring(named: Mapping[str, Named], path: Untrusted, target: str, *, bind: bool) -> Fix:
    """How to copy the file from a node that has it; where none has, only that it can be looked for."""
    giver = next((name for name, file in named.items() if file.path == path and file.digest), None)
    if giver is None:
        return fabric.TOPOLOGY.fix("absent-bind" if bind else "absent", path=path, node=target)
    source, goal = (Untrusted(f"{node}:{path.raw()}") for node in (giver, target))
    return fabric.TOPOLOGY.fix("copy-bind" if bind else "copy", source=source, target=goal)


def _other_text(digests: Mapping[str, str | None], what: str) -> Iterator[Finding]:
    if len(set(digests.values())) <= 1:
        return
    most = usual(digests)
    settled = sum(value == most for value in digests.values()) * 2 > len(digests)
    for name, own in digests.items():
        if settled and own != most:
            seen = f"{what} is not there" if own is None else f"{what} differs"
            yield _topology(name, f"{seen}; the others agree", fabric.TOPOLOGY.fix("other", node=name))
    if not settled:
        yield fabric.TOPOLOGY.finding(
            nodes=tuple(digests), seen=f"{what} is not the same on these nodes", fix=fabric.TOPOLOGY.fix("unequal")
        )


def _topology(name: str, seen: str, fix: Fix) -> Finding:
    return fabric.TOPOLOGY.finding(nodes=(name,), seen=seen, fix=fix)
