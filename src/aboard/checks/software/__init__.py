"""Software: what ranks will import and run (Python, packages, code, variables) is the same on every node."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from aboard.checks.difference import Difference
from aboard.checks.scripted import in_lines, typed, typed_python
from aboard.checks.software.code import LISTINGS, differing_code, differing_environment
from aboard.checks.software.facts import SOFTWARE, Software, software_with
from aboard.checks.software.interpreter import (
    imports_missing,
    interpreter_missing,
    interpreter_unknown,
    interpreter_unsafe,
    module_missing,
    program_differs,
    program_missing,
)
from aboard.checks.software.script import MODULES
from aboard.checks.unknown import unknown_stories
from aboard.core.facts import Facts
from aboard.core.node import Node
from aboard.core.program import Program
from aboard.core.rule import Subject
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, Shell, join_fixes, shell, software, unknown
from aboard.diagnoses.catalogue import diagnoses_in
from aboard.diagnoses.untrusted import Untrusted

UNSET = "nothing set"
# What may well be another on each node, by its nature.
OWN_VARIABLES = {
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "GLOO_SOCKET_IFNAME",
    "NCCL_HOSTID",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "OMP_PLACES",
}
_SAME_EVERYWHERE = {"torch", "nccl", "cuda", "rocm"}
_FIXES_SHOWN = 4

_DIAGNOSES = {
    "python": software.PYTHON,
    "torch": software.TORCH,
    "nccl": software.NCCL,
    "cuda": software.CUDA,
    "rocm": software.ROCM,
    "package": software.PACKAGE,
}


def differences(facts: Facts) -> list[Difference]:
    """What isn't the same on every node that answered: versions first, then variables."""
    told = facts.of(SOFTWARE)
    return [*_python(told), *_packages(told), *_variables(facts, told)]


def differing_versions(facts: Facts) -> Iterator[Finding]:
    """Says which node has another Python or package; what follows from another Python or torch stands below it."""
    found: list[Finding] = []
    for difference in differences(facts):
        if difference.kind == "variable":
            continue
        finding = _version_finding(facts, difference)
        cause = next((index for index, each in enumerate(found) if _explains(each, finding)), None)
        if cause is None:
            found.append(finding)
        else:
            found[cause] = replace(found[cause], consequences=(*found[cause].consequences, finding))
    yield from found


def differing_variables(facts: Facts) -> Iterator[Finding]:
    """Variables that steer NCCL, torch and friends, and that not every rank would see alike."""
    for difference in differences(facts):
        if difference.kind == "variable":
            name, nodes = difference.what, difference.odd
            look = shell("grep -n {name} ~/.bashrc ~/.profile ~/.ssh/environment /etc/environment", name=name)
            yield software.VARIABLE.finding(
                severity=difference.severity,
                nodes=nodes,
                seen=difference.sentence(),
                about=(name,),
                fix=join_fixes(
                    software.VARIABLE.fix("look", look=typed(facts.cluster.node(nodes[0]), look)),
                    software.VARIABLE.fix("set", name=name, value=_one_value(facts, name)),
                ),
            )


def unknown_software(facts: Facts) -> Iterator[Finding]:
    """A node that can't say what it would run is not vouched for."""
    fact = unknown.fact(SOFTWARE.name)
    for name, answer in facts.unknown(SOFTWARE).items():
        line = typed_python(facts.cluster.node(name), shell("-c 'import sys; print(sys.path)'"))
        yield fact.finding(
            nodes=(name,), seen=f"its software stayed unknown: {answer.why}", fix=fact.fix("by-hand", line=line)
        )


def _python(told: Mapping[str, Software]) -> Iterator[Difference]:
    versions = {name: each.python for name, each in told.items()}
    if len(set(versions.values())) > 1:
        minors = {version.rpartition(".")[0] for version in versions.values()}
        severity = Severity.BLOCK if len(minors) > 1 else Severity.WARN
        yield Difference(what="Python", values=versions, severity=severity, kind="python")
    else:
        paths = {name: each.executable.visible(500) for name, each in told.items()}
        if len(set(paths.values())) > 1:
            yield Difference(what="path of Python", values=paths, severity=Severity.INFO, kind="python")


def _packages(told: Mapping[str, Software]) -> Iterator[Difference]:
    for what in ("torch", "cuda", "rocm", "nccl", *(name for name in MODULES if name != "torch")):
        # Who has no torch at all lacks its CUDA and NCCL too; that is said once.
        asked = {name: each for name, each in told.items() if what not in _SAME_EVERYWHERE - {"torch"} or _torch(each)}
        values = {name: _version(each, what) for name, each in asked.items()}
        if len(set(values.values())) > 1:
            yield Difference(
                what=what,
                values=values,
                severity=Severity.BLOCK if what in _SAME_EVERYWHERE else Severity.WARN,
                kind=what if what in _SAME_EVERYWHERE else "package",
            )


def _variables(facts: Facts, told: Mapping[str, Software]) -> Iterator[Difference]:
    # What aboard.yaml sets for a node is meant for it.
    meant = {name for node in facts.cluster for name in node.env}
    names = {name for each in told.values() for name in each.variables} - meant - OWN_VARIABLES
    for name in sorted(names):
        values = {node: each.variables.get(name) for node, each in told.items()}
        if len(set(values.values())) > 1:
            shown = {node: UNSET if value is None else _shown(value) for node, value in values.items()}
            yield Difference(what=name, values=shown, severity=Severity.WARN, kind="variable")


def _one_value(facts: Facts, name: str) -> str:
    """What most of those have that have any, as YAML; a secret is for its owner to write."""
    given = [each.variables[name] for each in facts.of(SOFTWARE).values() if name in each.variables]
    value = max(given, key=given.count)
    return "VALUE" if value.startswith("hidden ") else json.dumps(value.visible(500))


def _shown(value: Untrusted) -> str:
    """A secret's digest is for comparing, and tells two secrets apart by its first letters only."""
    hidden = value.match(r"^hidden ([0-9a-f]{0,4})")
    return f"a secret ({hidden[1]}…)" if hidden else value.visible(500) or "an empty text"


def _version(each: Software, what: str) -> str | None:
    """`2.7.1` and `2.7.1+cu126` are one torch, from two indexes; its CUDA is compared by itself."""
    version = each.packages.get(what)
    return version.partition("+")[0] if version and what == "torch" else version


def _torch(each: Software) -> str | None:
    return each.packages.get("torch")


def _version_finding(facts: Facts, difference: Difference) -> Finding:
    diagnosis = software.PYTHON_PATH if difference.severity is Severity.INFO else _DIAGNOSES[difference.kind]
    return diagnosis.finding(
        severity=difference.severity,
        nodes=difference.odd,
        seen=difference.sentence(),
        fix=_fix(facts, diagnosis, difference),
    )


def _fix(facts: Facts, diagnosis: Diagnosis, difference: Difference) -> Fix:
    nodes = list(map(facts.cluster.node, difference.odd))
    lines = [_install(facts, diagnosis, difference, node) for node in nodes[:_FIXES_SHOWN]]
    return diagnosis.fix("all", lines=in_lines(lines, len(nodes) - _FIXES_SHOWN))


def _install(facts: Facts, diagnosis: Diagnosis, difference: Difference, node: Node) -> Shell:
    if difference.kind == "python":
        path = facts.of(SOFTWARE)[_usual_node(difference)].executable
        return diagnosis.fix("look", look=typed(node, shell("ls {path}", path=path)), node=node.name)
    again = difference.kind in {"cuda", "rocm"}
    pip = shell("-m pip install --force-reinstall") if again else shell("-m pip install")
    words = shell("{pip:shell} {wanted}", pip=pip, wanted=_wanted(facts, difference))
    return typed_python(node, words)


def _wanted(facts: Facts, difference: Difference) -> str:
    """The requirement that makes a node like most others."""
    like = facts.of(SOFTWARE)[_usual_node(difference)]
    if difference.kind in {"torch", "cuda", "rocm"}:
        return f"torch=={_torch(like)}"
    if difference.kind == "nccl":
        return f"nvidia-nccl-cu{like.packages.get('cuda', '12').partition('.')[0]}=={difference.usual}"
    return f"{difference.what}=={difference.usual}"


def _usual_node(difference: Difference) -> str:
    return next(node for node, value in difference.values.items() if value == difference.usual)


def _explains(cause: Finding, finding: Finding) -> bool:
    """Another Python is another environment, and torch brings its CUDA, NCCL and Triton along."""
    whole = cause.code == software.PYTHON.code
    package = finding.code == software.PACKAGE.code
    brought = cause.code == software.TORCH.code and (not package or "triton" in finding.seen)
    return (whole or brought) and finding.severity <= cause.severity and set(finding.nodes) <= set(cause.nodes)


SUBJECT = Subject(
    name="software",
    title="the same Python, packages, code and variables everywhere",
    probes=(SOFTWARE,),
    rules=(
        interpreter_unsafe,
        interpreter_missing,
        interpreter_unknown,
        program_missing,
        module_missing,
        program_differs,
        imports_missing,
        differing_versions,
        differing_code,
        differing_environment,
        differing_variables,
        unknown_software,
    ),
    exercises=(LISTINGS,),
    stories=(*diagnoses_in(software), unknown.ENVIRONMENT, *unknown_stories((SOFTWARE,))),
)


def subject(program: Program) -> Subject:
    """The subject for a launch, which knows what ranks will run."""
    return replace(SUBJECT, probes=(software_with(program),))
