"""What `aboard init` found out about nodes before there is a configuration, and the command to type next."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.node_sets import fold_names
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.lazy_dataclass import dataclass

# `aboard trust` installs the key and pins the host key.
_TRUST_REASONS = (
    UnreachableReason.KEY_REFUSED,
    UnreachableReason.HOST_KEY_UNKNOWN,
    UnreachableReason.HOST_KEY_CHANGED,
)


@dataclass(frozen=True, kw_only=True)
class DiscoveredNode:
    """One node; texts are safe to show. Without `problem` it was reached.

    `gpus` has the model of each GPU, and is None if unknown. `lacking` is the head's environment if this node doesn't
    have it.
    """

    name: str
    problem: UnreachedNode | None = None
    gpus: tuple[str, ...] | None = None
    interpreter: str = ""
    lacking: str = ""
    shares_workdir: bool = False

    @property
    def needs_trust(self) -> bool:
        return self.problem is not None and self.problem.reason in _TRUST_REASONS


@dataclass(frozen=True, kw_only=True)
class FabricNetwork:
    """A network that every reached node has beside the one of ssh; no `interface` means that its name differs."""

    network: str
    interface: str = ""


@dataclass(frozen=True, kw_only=True)
class DiscoveredCluster:
    """The nodes, and what those that were reached have in common.

    `source` is where their names came from; `mounts` are the network file systems that all have. `at_home` is a working
    directory that has the user's keys, which no sync sends.
    """

    source: str
    workdir: str
    nodes: tuple[DiscoveredNode, ...]
    fabric: FabricNetwork | None = None
    mounts: tuple[str, ...] = ()
    at_home: bool = False

    @property
    def reached(self) -> tuple[DiscoveredNode, ...]:
        return tuple(node for node in self.nodes if node.problem is None)

    @property
    def unreached(self) -> tuple[DiscoveredNode, ...]:
        return tuple(node for node in self.nodes if node.problem is not None)

    @property
    def private(self) -> tuple[DiscoveredNode, ...]:
        """The reached nodes that do not share the head's working directory."""
        return tuple(node for node in self.reached if not node.shares_workdir)


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A command of `aboard`, and why it comes next; `option` is how it takes a cluster file."""

    command: str
    why: str = ""
    option: str = ""


def choose_next_step(cluster: DiscoveredCluster) -> NextStep:
    """What to type next: make the nodes reachable, bring them what they lack, then check them."""
    if untrusted := [node.name for node in cluster.nodes if node.needs_trust]:
        return NextStep(command="trust", why=f"lets you log in to {fold_names(untrusted)}")
    if cluster.unreached:
        names = fold_names(node.name for node in cluster.unreached)
        return NextStep(command="check", why=f"explains why {names} can't be reached")
    if lacking := [node.name for node in cluster.reached if node.lacking]:
        return NextStep(
            command="sync --env", why=f"brings files and environment to {fold_names(lacking)}", option="--on "
        )
    if cluster.private and not cluster.at_home:
        names = fold_names(node.name for node in cluster.private)
        return NextStep(command="sync", why=f"brings the files of this directory to {names}", option="--on ")
    return NextStep(command="check", why="checks every node and the network between them")


def describe_node(node: DiscoveredNode) -> str:
    """The GPUs of a node, or why it was not reached."""
    if node.problem is not None:
        return f"not reached: {node.problem.reason.value.replace('-', ' ')}"
    if node.gpus is None:
        return "GPUs unknown"
    return ", ".join(f"{count} × {model}" for model, count in Counter(node.gpus).items()) or "no NVIDIA GPU"


def list_common_facts(cluster: DiscoveredCluster) -> Iterator[str]:
    """What the reached nodes have: interpreters, shared directories, a second network."""
    for interpreter, names in _group_names(cluster.reached, lambda node: node.interpreter):
        where = "" if len(names) == len(cluster.reached) else f" on {fold_names(names)}"
        yield f"ranks{where} use {interpreter}"
    for environment, names in _group_names(cluster.reached, lambda node: node.lacking):
        if environment:
            yield f"{environment}, which is active here, is missing on {fold_names(names)}"
    if cluster.private:
        advice = "; Aboard never sends it to nodes: start in a directory below it" if cluster.at_home else ""
        yield f"{cluster.workdir} is not shared with {fold_names(node.name for node in cluster.private)}{advice}"
    elif cluster.reached:
        yield f"{cluster.workdir} is shared with this machine"
    if cluster.mounts:
        yield f"network file systems on every node: {', '.join(cluster.mounts)}"
    if cluster.fabric is not None:
        place = f" on {cluster.fabric.interface}" if cluster.fabric.interface else ""
        yield f"a second network on every node: {cluster.fabric.network}{place}"


def _group_names(
    nodes: Iterable[DiscoveredNode], key: Callable[[DiscoveredNode], str]
) -> Iterable[tuple[str, list[str]]]:
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(key(node), []).append(node.name)
    return groups.items()
