"""Code and packages that differ: which files, which packages, asked for only where digests disagree."""

from collections.abc import Callable, Iterator, Mapping

from aboard.checks.difference import usual
from aboard.checks.listed import listed
from aboard.checks.scripted import in_lines, output, typed, typed_python
from aboard.checks.software.facts import SOFTWARE, Listing, Software, parse_listing, question
from aboard.checks.software.script import CODE, CONFIG, MAX_FILES, MODULES
from aboard.core.exercise import Ask, Exercise, Script
from aboard.core.facts import Facts, Unknown
from aboard.core.probe import Unparsed
from aboard.diagnoses import Finding, Severity, Shell, shell, software
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

# One node speaks for all that have the same digests.
_MAX_LISTINGS = 8
_NAMED = 5
_COPIED = 20
_FIXES_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class Strangers:
    """Nodes that have one digest, which isn't the usual one, and what the listings say of them, if there are any."""

    nodes: tuple[str, ...]
    model: str
    theirs: Listing | None
    model_s: Listing | None


def list_both_sides(facts: Facts) -> Script[dict[str, Listing]]:
    """Asks one node of each kind for everything behind its digests; nobody, when all are alike."""
    told = facts.of(SOFTWARE)
    kinds: dict[tuple[str, str], str] = {}
    for of in (_code, _environment):
        # The usual ones come first: without them there is nothing to compare with.
        common = usual({name: of(each) for name, each in told.items()})
        for name, each in told.items():
            if of(each) is not None and of(each) == common:
                kinds.setdefault((each.environment, each.code), name)
                break
    for name, each in told.items():
        kinds.setdefault((each.environment, each.code), name)
    if len(kinds) < 2:  # noqa: PLR2004 - nothing differs
        return {}
    chosen = [facts.cluster.node(name) for name in list(kinds.values())[:_MAX_LISTINGS]]
    replies = yield {node.name: Ask.to_run(question(node, "list")) for node in chosen}
    listings = {}
    for name, reply in replies.items():
        try:
            listings[name] = parse_listing(output(reply))
        except Unparsed:
            # The difference itself is known without it, and said.
            continue
    return listings


LISTINGS = Exercise(name="software-listings", script=list_both_sides)


def differing_code(facts: Facts) -> Iterator[Finding]:
    """Code that differs crashes or hangs collectives; settings that differ may."""
    for strangers in _strangers(facts, _code):
        cut = any(facts.of(SOFTWARE)[name].cut for name in strangers.nodes)
        yield _code_finding(facts, strangers, f" (of the first {MAX_FILES:,} files)" if cut else "")


def differing_environment(facts: Facts) -> Iterator[Finding]:
    """Other packages that differ are worth a line: one of them may be imported."""
    for strangers in _strangers(facts, _environment):
        if strangers.theirs is None or strangers.model_s is None:
            continue
        theirs, model_s = strangers.theirs.packages, strangers.model_s.packages
        names = [name for name in sorted({*theirs, *model_s}) if theirs.get(name) != model_s.get(name)]
        others = [name for name in names if name not in MODULES and not name.startswith("nvidia-")]
        if others:
            told = [f"{name} {theirs.get(name, 'none')} instead of {model_s.get(name, 'none')}" for name in others]
            node = facts.cluster.node(strangers.nodes[0])
            pins = [f"{name}=={model_s[name]}" for name in others if name in model_s][:_COPIED]
            words = shell("-m pip install {pins:words}", pins=pins) if pins else shell("-m pip list")
            yield software.ENVIRONMENT.finding(
                nodes=strangers.nodes,
                seen=f"compared with {strangers.model}: {listed(told, _NAMED)}",
                fix=software.ENVIRONMENT.fix(pip=typed_python(node, words)),
            )


def _code(each: Software) -> str | None:
    return each.code or None


def _environment(each: Software) -> str | None:
    return each.environment


def _strangers(facts: Facts, of: Callable[[Software], str | None]) -> Iterator[Strangers]:
    told = facts.of(SOFTWARE)
    digests = {name: digest for name, each in told.items() if (digest := of(each)) is not None}
    common = usual(digests)
    outcome = facts.outcome(LISTINGS)
    listings: Mapping[str, Listing] = {} if outcome is None or isinstance(outcome, Unknown) else outcome
    by_digest = {digests[name]: listing for name, listing in listings.items() if name in digests}
    for digest in dict.fromkeys(digests.values()):
        if digest != common and common is not None:
            yield Strangers(
                nodes=tuple(name for name, each in digests.items() if each == digest),
                model=next(name for name, each in digests.items() if each == common),
                theirs=by_digest.get(digest),
                model_s=by_digest.get(common),
            )


def _code_finding(facts: Facts, strangers: Strangers, note: str) -> Finding:
    node, model = facts.cluster.node(strangers.nodes[0]), facts.cluster.node(strangers.model)
    where, source = node.workdir or "", model.workdir or ""
    if strangers.theirs is None or strangers.model_s is None:
        return software.CONFIG.finding(
            nodes=strangers.nodes,
            seen=f"{where} holds other code or settings than {source} of {model.name}{note}",
            fix=software.CONFIG.fix("look", look=typed(node, shell("cd {where} && git status", where=where))),
        )
    theirs, model_s = strangers.theirs.files, strangers.model_s.files
    changed = sorted(path for path in theirs if path in model_s and theirs[path] != model_s[path])
    lacking = sorted(path for path in model_s if path not in theirs)
    extra = sorted(path for path in theirs if path not in model_s)
    wrong = [*changed, *lacking]
    code = any(path.endswith(CODE) for path in wrong)
    # Where the files that a program imports are known, others are strays.
    needed = facts.of(SOFTWARE)[model.name].needed
    harmful = any(path in needed for path in wrong) if needed else code
    parts = [
        f"{listed([path.visible(500) for path in paths], _NAMED)} {word}"
        for paths, word in ((changed, "differ"), (lacking, "missing"), (extra, "only there"))
        if paths
    ]
    own, usual_one = (facts.of(SOFTWARE)[name].commit for name in (node.name, model.name))
    git = f"; git: {own.visible()}, not {usual_one.visible()}" if own != usual_one else ""
    diagnosis = software.CODE if code or not wrong else software.CONFIG
    look = shell("cd {where} && ls -l {extra:words}", where=where, extra=extra[:_COPIED])
    return diagnosis.finding(
        severity=Severity.BLOCK if harmful else Severity.WARN if wrong else Severity.INFO,
        nodes=strangers.nodes,
        seen=f"in {where}, compared with {model.name}: {'; '.join(parts)}{note}{git}",
        fix=diagnosis.fix("copy", lines=_copy(facts, strangers, wrong))
        if wrong
        else diagnosis.fix("look", look=typed(node, look)),
    )


def _copy(facts: Facts, strangers: Strangers, wrong: list[Untrusted]) -> Shell:
    """From the usual node to each of the others, by way of here: no node needs to trust another."""
    model = facts.cluster.node(strangers.model)
    read = typed(model, shell("cd {source} && {pack:shell}", source=model.workdir or "", pack=_pack(wrong)))
    lines = []
    for node in map(facts.cluster.node, strangers.nodes[:_FIXES_SHOWN]):
        unpack = shell("tar -C {folder} -xf -", folder=node.workdir or "")
        lines.append(shell("{read:shell} | {write:shell}", read=read, write=typed(node, unpack)))
    return in_lines(lines, len(strangers.nodes) - _FIXES_SHOWN)


def _pack(wrong: list[Untrusted]) -> Shell:
    if len(wrong) <= _COPIED:
        return shell("tar -cf - -- {wrong:words}", wrong=wrong)
    names = Shell(" -o ".join(shell("-name {pattern}", pattern=f"*{ending}") for ending in CODE + CONFIG))
    return shell("find . {names:shell} | tar -cf - -T -", names=names)
