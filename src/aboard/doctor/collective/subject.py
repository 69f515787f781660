"""Collective: a real torch.distributed job over all nodes, checked for correct sums and even rates on every link."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aboard.core.cluster import node_sets
from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import enter_container, format_node_command, get_setup_lines
from aboard.core.cluster.node_sets import quote_folded_names
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.diagnoses import Finding, Severity, Shell, chain_commands, format_shell, join_fixes
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.doctor.collective import diagnoses as collective, multi_node_probe
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.nccl_rules import NCCL_RULES
from aboard.doctor.collective.participants import TORCH
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.cuda_support import CUDA
from aboard.doctor.network.mesh_probe import get_mesh
from aboard.doctor.shared.majority import group_by_value
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule

# A fault with two names is the link between them.
_NODES_OF_LINK = 2
_MAX_COMMANDS = 3
# How a rank says that torch imports but finds no GPU (rank_measurement.py).
_NO_CUDA = "torch can't use the GPUs"


def find_dead_ranks(facts: Facts) -> Iterator[Finding]:
    """A node whose Python can't import torch, or whose rank dies silently, can't take part in a run."""
    for why, names in group_by_value(dict(_get_result(facts).dead)).items():
        if _NO_CUDA in why:
            yield gpu.CUDA.finding(
                severity=Severity.BLOCK,
                nodes=names,
                seen=f"the test rank failed: {why}",
                fix=join_fixes(*(gpu.CUDA.fix("look", node=name) for name in names[:_MAX_COMMANDS])),
            )
            continue
        yield collective.NO_RANK.finding(
            nodes=names,
            seen=f"the test rank failed: {why}",
            fix=join_fixes(*(collective.NO_RANK.fix(command=each) for each in _list_torch_commands(facts, names))),
        )


def find_cpu_builds(facts: Facts) -> Iterator[Finding]:
    """The job then uses gloo on CPUs, and its table says nothing about the GPUs."""
    names = tuple(name for name, node in facts.of(TORCH).items() if node.torch and node.gpus and not node.cuda)
    if names and CUDA.name not in facts.answers:
        yield gpu.CUDA.finding(
            nodes=names,
            seen=f"torch is a CPU build on {node_sets.fold_names(names)}, so no collective between GPUs was tested",
            fix=join_fixes(*(gpu.CUDA.fix("look", node=name) for name in names[:_MAX_COMMANDS])),
        )


def find_failures(facts: Facts) -> Iterator[Finding]:
    """A job that fails with a node or a link and succeeds without it."""
    for fault in _get_result(facts).failed:
        yield collective.FAILED.finding(
            nodes=fault.nodes,
            seen=f"an all-reduce fails {_describe_nodes(fault.nodes, _get_result(facts).nodes)}: {fault.seen}",
            fix=collective.FAILED.fix(
                where=quote_folded_names(fault.nodes), interface=_find_interface(facts, fault.nodes)
            ),
        )


def find_wrong_results(facts: Facts) -> Iterator[Finding]:
    """Wrong sums are worse than a failure: the run continues with them."""
    for fault in _get_result(facts).wrong:
        tries = [collective.WRONG.fix("torch", command=each) for each in _list_torch_commands(facts, fault.nodes[:1])]
        yield collective.WRONG.finding(
            nodes=fault.nodes,
            seen=f"a collective returns wrong values {_describe_nodes(fault.nodes, _get_result(facts).nodes)}:"
            f" {fault.seen}",
            fix=join_fixes(*tries, collective.WRONG.fix("hardware", where=quote_folded_names(fault.nodes))),
        )


def find_slow_links(facts: Facts) -> Iterator[Finding]:
    """A link with a fraction of the others' rate, in two jobs in a row."""
    for fault in _get_result(facts).slow:
        is_link = len(fault.nodes) == _NODES_OF_LINK
        diagnosis = collective.SLOW_LINK if is_link else collective.SLOW_NODE
        what = " ↔ ".join(fault.nodes) if is_link else f"the links of {fault.nodes[0]}"
        yield diagnosis.finding(
            nodes=fault.nodes,
            seen=f"{what}: {fault.seen}",
            why="Every collective waits for its slowest link, so the whole run is limited to this rate.",
            fix=join_fixes(
                *(
                    diagnosis.fix(interface=_find_interface(facts, [node]), node=node)
                    for node in fault.nodes[:_MAX_COMMANDS]
                )
            ),
        )


def find_transient_failure(facts: Facts) -> Iterator[Finding]:
    """A failure that did not repeat is reported as information."""
    outcome = _get_result(facts)
    if outcome.once:
        yield collective.ONCE.finding(
            nodes=(),
            seen=f"the test job failed once and succeeded when repeated: {outcome.once}",
            fix=collective.ONCE.fix(),
        )


def find_skipped_nodes(facts: Facts) -> Iterator[Finding]:
    """Reports nodes on which no collective was run."""
    outcome = _get_result(facts)
    reached = {node.name for node in facts.list_reached()}
    out = {name: why for name, why in outcome.left_out.items() if name in reached and name not in facts.unknown(TORCH)}
    for why, names in group_by_value(out).items():
        risk = "On nodes that were not tested, a run may fail in its first collective."
        if outcome.nodes:
            coverage = f"tested on {len(outcome.nodes)} of {len(facts.cluster)} nodes"
            seen = f"{coverage}, without {node_sets.fold_names(names)}: {why}"
            yield collective.PART.finding(nodes=names, seen=seen, why=risk, fix=collective.PART.fix())
        else:
            yield collective.NOT_HELD.finding(
                nodes=names,
                seen=f"{why} on {node_sets.fold_names(names)}, so no collective was run",
                why=risk,
                fix=join_fixes(*(collective.NOT_HELD.fix(command=each) for each in _list_torch_commands(facts, names))),
            )


def list_untested_nodes(facts: Facts) -> dict[str, str]:
    """The nodes that took part in no collective: all when none ran, else those left out."""
    outcome = COLLECTIVE.outcome(facts)
    if not isinstance(outcome, CollectiveResult) or outcome.dead or outcome.lost:
        return {}
    reached = [node.name for node in facts.list_reached()]
    if outcome.ranks == 1:
        return dict.fromkeys(reached, "a single rank has no peers")
    if outcome.nodes:
        return {name: why for name, why in outcome.left_out.items() if name in reached}
    whys = group_by_value({name: why for name, why in outcome.left_out.items() if name in reached})
    reasons = "; ".join(f"{why} on {node_sets.fold_names(names)}" for why, names in whys.items())
    return dict.fromkeys(reached, reasons)


def find_unknown_result(facts: Facts) -> Iterator[Finding]:
    """Reports a test that did not finish."""
    outcome = COLLECTIVE.outcome(facts)
    lost = {"": outcome.why} if isinstance(outcome, Unknown) else dict(_get_result(facts).lost)
    for why, names in group_by_value(lost).items():
        yield collective.UNKNOWN_COLLECTIVE.finding(
            nodes=tuple(filter(None, names)),
            seen=f"the collective test did not finish: {why}",
            fix=collective.UNKNOWN_COLLECTIVE.fix(),
        )


def _get_result(facts: Facts) -> CollectiveResult:
    outcome = COLLECTIVE.outcome(facts)
    return outcome if isinstance(outcome, CollectiveResult) else CollectiveResult()


def _describe_nodes(nodes: Sequence[str], all_nodes: Sequence[str]) -> str:
    """Where the job fails, as far as it was located."""
    if len(nodes) == _NODES_OF_LINK:
        return f"between {nodes[0]} and {nodes[1]}"
    if len(all_nodes) <= 1:
        return f"on {node_sets.fold_names(nodes)}"
    if len(nodes) > _NODES_OF_LINK:
        return f"on {node_sets.fold_names(nodes)}, in every subset tried"
    return f"with {nodes[0]} and succeeds without it"


def _list_torch_commands(facts: Facts, names: Sequence[str]) -> list[Shell]:
    """Commands that import torch on these nodes the way their ranks do."""
    return [_format_torch_command(facts.cluster.node(name)) for name in names[:_MAX_COMMANDS]]


def _format_torch_command(node: Node) -> Shell:
    steps = [format_shell("cd {folder}", folder=node.workdir)] if node.workdir else []
    run = format_shell("{python} -c 'import torch; print(torch.__version__)'", python=node.rank_python)
    return format_node_command(node, chain_commands(*steps, *get_setup_lines(node), enter_container(node, run)))


def _find_interface(facts: Facts, nodes: Sequence[str]) -> str:
    """The interface that peers reach the first of these nodes on, as far as it is known."""
    found = get_mesh(facts).interfaces
    return next((found[node] for node in nodes if node in found), "eth0")


SUBJECT = Subject(
    name="collective",
    title="all-reduce across the nodes gives correct sums at an even rate",
    probes=(TORCH,),
    multi_node_probes=(COLLECTIVE,),
    rules=(
        find_dead_ranks,
        find_cpu_builds,
        find_failures,
        find_wrong_results,
        find_slow_links,
        find_transient_failure,
        find_skipped_nodes,
        find_unknown_result,
        *NCCL_RULES,
        make_unknown_rule(TORCH),
    ),
    diagnoses=(*list_diagnoses(collective), *list_unknown_diagnoses((TORCH,))),
    untested=list_untested_nodes,
)


def build_subject(*, every: bool = False) -> Subject:
    """The subject; with `every`, all nodes take part even if many of them are one machine."""
    return replace(SUBJECT, multi_node_probes=(multi_node_probe.build_collective_probe(every=every),))
