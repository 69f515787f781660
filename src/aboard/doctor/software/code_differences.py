"""Differing code and packages: the files and packages, listed only where digests disagree."""

from collections.abc import Callable, Iterator, Mapping

from aboard.core.cluster.node_commands import format_node_command, format_python_command, join_command_lines
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest, Script
from aboard.core.probes.probe import ProbeParseError
from aboard.core.text.input_text import format_list
from aboard.diagnoses import Finding, Severity, Shell, format_shell
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.shared.node_difference import find_common_value
from aboard.doctor.shared.script_probes import parse_run_reply
from aboard.doctor.software import diagnoses as software
from aboard.doctor.software.node_software import (
    SOFTWARE,
    NodeSoftware,
    SoftwareListing,
    build_inventory_command,
    parse_listing,
)
from aboard.lazy_dataclass import dataclass
from aboard.node_scripts.software_inventory import CODE, CONFIG, MAX_FILES, MODULES

# One node represents all that have the same digests.
_MAX_LISTINGS = 8
_MAX_NAMED = 5
_MAX_COPIED = 20
_MAX_FIXES = 4


@dataclass(frozen=True, kw_only=True)
class DivergentNodes:
    """Nodes that share an unusual digest, and their listing and the usual one, if known."""

    nodes: tuple[str, ...]
    model: str
    theirs: SoftwareListing | None
    model_listing: SoftwareListing | None


def fetch_listings(facts: Facts) -> Script[dict[str, SoftwareListing]]:
    """Fetches the listing of one node per digest; none when all digests agree."""
    inventories = facts.of(SOFTWARE)
    kinds: dict[tuple[str, str], str] = {}
    for of in (_get_code_digest, _get_environment_digest):
        # The usual digest comes first: without it there is nothing to compare with.
        common = find_common_value({name: of(each) for name, each in inventories.items()})
        for name, each in inventories.items():
            if of(each) is not None and of(each) == common:
                kinds.setdefault((each.environment, each.code), name)
                break
    for name, each in inventories.items():
        kinds.setdefault((each.environment, each.code), name)
    if len(kinds) < 2:  # noqa: PLR2004 - nothing differs
        return {}
    nodes = [facts.cluster.node(name) for name in list(kinds.values())[:_MAX_LISTINGS]]
    replies = yield {node.name: ProbeRequest.to_run(build_inventory_command(node, "list")) for node in nodes}
    listings = {}
    for name, reply in replies.items():
        try:
            listings[name] = parse_listing(parse_run_reply(reply))
        except ProbeParseError:
            # The difference itself is reported without it.
            continue
    return listings


LISTINGS = MultiNodeProbe(name="software-listings", script=fetch_listings)


def find_differing_code(facts: Facts) -> Iterator[Finding]:
    """Different code makes collectives crash or hang; different settings may."""
    for divergent in _list_divergent_nodes(facts, _get_code_digest):
        cut = any(facts.of(SOFTWARE)[name].cut for name in divergent.nodes)
        yield _build_code_finding(
            facts, divergent, f" (only the first {MAX_FILES:,} files were compared)" if cut else ""
        )


def find_differing_environment(facts: Facts) -> Iterator[Finding]:
    """Reports other packages that differ: one of them may be imported."""
    for divergent in _list_divergent_nodes(facts, _get_environment_digest):
        if divergent.theirs is None or divergent.model_listing is None:
            continue
        own_packages, model_packages = divergent.theirs.packages, divergent.model_listing.packages
        names = [
            name
            for name in sorted({*own_packages, *model_packages})
            if own_packages.get(name) != model_packages.get(name)
        ]
        others = [name for name in names if name not in MODULES and not name.startswith("nvidia-")]
        if others:
            changes = [
                f"{name} {own_packages.get(name, 'none')} instead of {model_packages.get(name, 'none')}"
                for name in others
            ]
            node = facts.cluster.node(divergent.nodes[0])
            pins = [f"{name}=={model_packages[name]}" for name in others if name in model_packages][:_MAX_COPIED]
            words = format_shell("-m pip install {pins:words}", pins=pins) if pins else format_shell("-m pip list")
            yield software.ENVIRONMENT.finding(
                nodes=divergent.nodes,
                seen=f"compared with {divergent.model}: {format_list(changes, _MAX_NAMED)}",
                fix=software.ENVIRONMENT.fix(pip=format_python_command(node, words)),
            )


def _get_code_digest(each: NodeSoftware) -> str | None:
    return each.code or None


def _get_environment_digest(each: NodeSoftware) -> str | None:
    return each.environment


def _list_divergent_nodes(facts: Facts, of: Callable[[NodeSoftware], str | None]) -> Iterator[DivergentNodes]:
    inventories = facts.of(SOFTWARE)
    digests = {name: digest for name, each in inventories.items() if (digest := of(each)) is not None}
    common = find_common_value(digests)
    outcome = LISTINGS.outcome(facts)
    listings: Mapping[str, SoftwareListing] = {} if outcome is None or isinstance(outcome, Unknown) else outcome
    by_digest = {digests[name]: listing for name, listing in listings.items() if name in digests}
    for digest in dict.fromkeys(digests.values()):
        if digest != common and common is not None:
            yield DivergentNodes(
                nodes=tuple(name for name, each in digests.items() if each == digest),
                model=next(name for name, each in digests.items() if each == common),
                theirs=by_digest.get(digest),
                model_listing=by_digest.get(common),
            )


def _build_code_finding(facts: Facts, divergent: DivergentNodes, note: str) -> Finding:
    node, model = facts.cluster.node(divergent.nodes[0]), facts.cluster.node(divergent.model)
    where, source = node.workdir or "", model.workdir or ""
    if divergent.theirs is None or divergent.model_listing is None:
        return software.CONFIG.finding(
            nodes=divergent.nodes,
            seen=f"{where} differs from {source} on {model.name} in code or settings{note}",
            fix=software.CONFIG.fix(
                "look", look=format_node_command(node, format_shell("cd {where} && git status", where=where))
            ),
        )
    own_files, model_files = divergent.theirs.files, divergent.model_listing.files
    changed = sorted(path for path in own_files if path in model_files and own_files[path] != model_files[path])
    lacking = sorted(path for path in model_files if path not in own_files)
    extra = sorted(path for path in own_files if path not in model_files)
    wrong = [*changed, *lacking]
    code = any(path.endswith(CODE) for path in wrong)
    # Where the program's imports are known, other files don't matter.
    needed = facts.of(SOFTWARE)[model.name].needed
    harmful = any(path in needed for path in wrong) if needed else code
    parts = [
        f"{word}: {format_list([path.visible(500) for path in paths], _MAX_NAMED)}"
        for paths, word in ((changed, "different"), (lacking, "missing"), (extra, "extra"))
        if paths
    ]
    own, usual_one = (facts.of(SOFTWARE)[name].commit for name in (node.name, model.name))
    git = f"; git: {own.visible()}, not {usual_one.visible()}" if own != usual_one else ""
    diagnosis = software.CODE if code or not wrong else software.CONFIG
    look = format_shell("cd {where} && ls -l {extra:words}", where=where, extra=extra[:_MAX_COPIED])
    return diagnosis.finding(
        severity=Severity.BLOCK if harmful else Severity.WARN if wrong else Severity.INFO,
        nodes=divergent.nodes,
        seen=f"in {where}, compared with {model.name}: {'; '.join(parts)}{note}{git}",
        fix=diagnosis.fix("copy", lines=_build_copy_commands(facts, divergent, wrong))
        if wrong
        else diagnosis.fix("look", look=format_node_command(node, look)),
    )


def _build_copy_commands(facts: Facts, divergent: DivergentNodes, wrong: list[Untrusted]) -> Shell:
    """Copies from the usual node to each of the others through the head: no node needs to trust another."""
    model = facts.cluster.node(divergent.model)
    read_command = format_node_command(
        model, format_shell("cd {source} && {pack:shell}", source=model.workdir or "", pack=_build_pack_command(wrong))
    )
    lines = []
    for node in map(facts.cluster.node, divergent.nodes[:_MAX_FIXES]):
        unpack = format_shell("tar -C {folder} -xf -", folder=node.workdir or "")
        lines.append(
            format_shell("{read:shell} | {write:shell}", read=read_command, write=format_node_command(node, unpack))
        )
    return join_command_lines(lines, len(divergent.nodes) - _MAX_FIXES)


def _build_pack_command(wrong: list[Untrusted]) -> Shell:
    if len(wrong) <= _MAX_COPIED:
        return format_shell("tar -cf - -- {wrong:words}", wrong=wrong)
    names = Shell(" -o ".join(format_shell("-name {pattern}", pattern=f"*{ending}") for ending in CODE + CONFIG))
    return format_shell("find . {names:shell} | tar -cf - -T -", names=names)
