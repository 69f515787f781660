"""Which network NCCL uses in a live run: RDMA devices that ranks have open, and adapters that their hosts have."""

from dataclasses import replace

from aboard.core.cluster.node_sets import fold_names, quote_folded_names
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.verdict import Judgement
from aboard.core.text.input_text import agree
from aboard.diagnoses import Severity
from aboard.doctor.collective import diagnoses as collective

_NAMES = {True: "RDMA", False: "TCP sockets", None: "a network that is not known"}


def add_transport(why: Judgement, evidence: Evidence) -> Judgement:
    """The judgement with the network that NCCL uses on each node, and a finding if that is sockets.

    Unchanged for a run on one node, or if no collective of NCCL was recorded.
    """
    uses: dict[str, bool | None] = {}
    for rank, groups in evidence.records.items():
        view = evidence.view(rank)
        if view.seen is not None and any(each.op.startswith("nccl:") for group in groups for each in group.entries):
            uses[view.node] = uses.get(view.node) or view.seen.rdma
    if len(uses) < 2:  # noqa: PLR2004 - within one node, NCCL needs no network
        return why
    nodes = {kind: tuple(name for name, each in uses.items() if each is kind) for kind in _NAMES}
    told = ", ".join(f"{_NAMES[kind]} on {fold_names(names)}" for kind, names in nodes.items() if names)
    why = replace(why, progress=f"{why.progress}; NCCL uses {told}" if why.progress else "")
    slow, fast = nodes[False], nodes[True]
    if not slow:
        return why
    hcas = {name: evidence.snapshots[name].hcas for name in slow if evidence.snapshots[name].hcas}
    present = next(iter(hcas.values()), ())[:4]
    signs = [f"{fold_names(tuple(hcas))} {agree(tuple(hcas), 'has', 'have')} {', '.join(present)}"] if hcas else []
    signs += [f"{fold_names(fast)} {agree(fast, 'uses', 'use')} RDMA"] if fast else []
    seen = f"NCCL uses TCP sockets on {fold_names(slow)}: no rank there has an RDMA device open"
    finding = collective.SOCKETS.finding(
        severity=Severity.WARN if signs else Severity.INFO,
        nodes=slow,
        seen=seen + (f", although {' and '.join(signs)}" if signs else ", and the hosts have no adapter"),
        why=None if signs else "Without InfiniBand, RoCE or EFA in the nodes, this is as it should be.",
        fix=collective.SOCKETS.fix("" if signs else "log", where=quote_folded_names(slow)),
    )
    return replace(why, findings=(*why.findings, finding))
