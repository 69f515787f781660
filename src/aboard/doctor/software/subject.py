"""Software: what ranks will import and run (Python, packages, code, variables) is the same on every node."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace

from aboard.core.cluster.node import Node
from aboard.core.cluster.node_commands import (
    format_image_copy,
    format_node_command,
    format_python_command,
    join_command_lines,
)
from aboard.core.plan.program import Program
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses import Diagnosis, Finding, Fix, Severity, Shell, format_shell, join_fixes
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.nodes import unanswered_probes
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.shared.node_difference import NodeDifference
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses
from aboard.doctor.software import diagnoses as software, interpreter_and_program
from aboard.doctor.software.code_differences import LISTINGS, find_differing_code, find_differing_environment
from aboard.doctor.software.node_software import SOFTWARE, NodeSoftware, build_program_probe
from aboard.node_scripts.software_inventory import MODULES

UNSET = "no value"
# Variables that legitimately differ between nodes.
OWN_VARIABLES = {
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GLOO_SOCKET_IFNAME", "NCCL_HOSTID", "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS", "OMP_PLACES",
}  # fmt: skip
_SAME_EVERYWHERE = {"torch", "nccl", "cuda", "rocm"}
_MAX_FIXES = 4

_DIAGNOSES = {
    "python": software.PYTHON,
    "torch": software.TORCH,
    "nccl": software.NCCL,
    "cuda": software.CUDA,
    "rocm": software.ROCM,
    "package": software.PACKAGE,
}


def list_differences(facts: Facts) -> list[NodeDifference]:
    """What differs between the nodes that answered: versions first, then variables."""
    inventories = facts.of(SOFTWARE)
    return [*_compare_pythons(inventories), *_compare_packages(inventories), *_compare_variables(facts, inventories)]


def find_differing_versions(facts: Facts) -> Iterator[Finding]:
    """Nodes with another Python or package; consequences of another Python or torch are listed under it."""
    found: list[Finding] = []
    for difference in list_differences(facts):
        if difference.kind == "variable":
            continue
        finding = _build_version_finding(facts, difference)
        cause = next((index for index, each in enumerate(found) if _is_cause_of(each, finding)), None)
        if cause is None:
            found.append(finding)
        else:
            found[cause] = replace(found[cause], consequences=(*found[cause].consequences, finding))
    yield from found


def find_differing_variables(facts: Facts) -> Iterator[Finding]:
    """Variables that configure NCCL, torch and related libraries, and that differ between nodes."""
    for difference in list_differences(facts):
        if difference.kind == "variable":
            name, nodes = difference.what, difference.odd
            look = format_shell("grep -n {name} ~/.bashrc ~/.profile ~/.ssh/environment /etc/environment", name=name)
            yield software.VARIABLE.finding(
                severity=difference.severity,
                nodes=nodes,
                seen=difference.sentence(),
                about=(name,),
                fix=join_fixes(
                    software.VARIABLE.fix("look", look=format_node_command(facts.cluster.node(nodes[0]), look)),
                    software.VARIABLE.fix("set", name=name, value=_suggest_value(facts, name)),
                ),
            )


def find_unknown_software(facts: Facts) -> Iterator[Finding]:
    """Reports nodes whose software is unknown."""
    fact = unanswered_probes.declare_unanswered(SOFTWARE.name)
    for name, answer in facts.unknown(SOFTWARE).items():
        line = format_python_command(facts.cluster.node(name), format_shell("-c 'import sys; print(sys.path)'"))
        yield fact.finding(nodes=(name,), seen=f"could not check its software: {answer.why}", fix=fact.fix(line=line))


def _compare_pythons(inventories: Mapping[str, NodeSoftware]) -> Iterator[NodeDifference]:
    versions = {name: each.python for name, each in inventories.items()}
    if len(set(versions.values())) > 1:
        minors = {version.rpartition(".")[0] for version in versions.values()}
        severity = Severity.BLOCK if len(minors) > 1 else Severity.WARN
        yield NodeDifference(what="Python", values=versions, severity=severity, kind="python")
    else:
        paths = {name: each.executable.visible(500) for name, each in inventories.items()}
        if len(set(paths.values())) > 1:
            yield NodeDifference(what="path to Python", values=paths, severity=Severity.INFO, kind="python")


def _compare_packages(inventories: Mapping[str, NodeSoftware]) -> Iterator[NodeDifference]:
    for what in ("torch", "cuda", "rocm", "nccl", *(name for name in MODULES if name != "torch")):
        # A node without torch lacks its CUDA and NCCL too; that is reported once.
        relevant = {
            name: each
            for name, each in inventories.items()
            if what not in _SAME_EVERYWHERE - {"torch"} or each.packages.get("torch")
        }
        values = {name: _get_version(each, what) for name, each in relevant.items()}
        if len(set(values.values())) > 1:
            yield NodeDifference(
                what=what,
                values=values,
                severity=Severity.BLOCK if what in _SAME_EVERYWHERE else Severity.WARN,
                kind=what if what in _SAME_EVERYWHERE else "package",
            )


def _compare_variables(facts: Facts, inventories: Mapping[str, NodeSoftware]) -> Iterator[NodeDifference]:
    # A value that aboard.yaml sets for a node is intended.
    configured = {name for node in facts.cluster for name in node.env}
    names = {name for each in inventories.values() for name in each.variables} - configured - OWN_VARIABLES
    for name in sorted(names):
        values = {node: each.variables.get(name) for node, each in inventories.items()}
        if len(set(values.values())) > 1:
            texts = {node: UNSET if value is None else _format_value(value) for node, value in values.items()}
            yield NodeDifference(what=name, values=texts, severity=Severity.WARN, kind="variable")


def _suggest_value(facts: Facts, name: str) -> str:
    """The most frequent value as YAML; secrets are left for the user to fill in."""
    values = [each.variables[name] for each in facts.of(SOFTWARE).values() if name in each.variables]
    value = max(values, key=values.count)
    return "VALUE" if value.startswith("hidden ") else json.dumps(value.visible(500))


def _format_value(value: Untrusted) -> str:
    """The value for display; a secret shows only the first digits of its digest."""
    hidden = value.match(r"^hidden ([0-9a-f]{0,4})")
    return f"a secret ({hidden[1]}…)" if hidden else value.visible(500) or "an empty string"


def _get_version(each: NodeSoftware, what: str) -> str | None:
    """A package's version; `2.7.1` and `2.7.1+cu126` are the same torch, and its CUDA is compared separately."""
    version = each.packages.get(what)
    return version.partition("+")[0] if version and what == "torch" else version


def _build_version_finding(facts: Facts, difference: NodeDifference) -> Finding:
    diagnosis = software.PYTHON_PATH if difference.severity is Severity.INFO else _DIAGNOSES[difference.kind]
    return diagnosis.finding(
        severity=difference.severity,
        nodes=difference.odd,
        seen=difference.sentence(),
        fix=_build_fix(facts, diagnosis, difference),
    )


def _build_fix(facts: Facts, diagnosis: Diagnosis, difference: NodeDifference) -> Fix:
    nodes = list(map(facts.cluster.node, difference.odd))
    lines = [_build_install_command(facts, diagnosis, difference, node) for node in nodes[:_MAX_FIXES]]
    return diagnosis.fix("all", lines=join_command_lines(lines, len(nodes) - _MAX_FIXES))


def _build_install_command(facts: Facts, diagnosis: Diagnosis, difference: NodeDifference, node: Node) -> Shell:
    usual = facts.cluster.node(_find_usual_node(difference))
    if node.container is not None and usual.container is not None:
        # What is installed outside has no effect inside.
        return format_image_copy(usual, node)
    if difference.kind == "python":
        path = facts.of(SOFTWARE)[_find_usual_node(difference)].executable
        return diagnosis.fix(
            "look", look=format_node_command(node, format_shell("ls {path}", path=path)), node=node.name
        )
    again = difference.kind in {"cuda", "rocm"}
    pip = format_shell("-m pip install --force-reinstall") if again else format_shell("-m pip install")
    words = format_shell("{pip:shell} {wanted}", pip=pip, wanted=_format_requirement(facts, difference))
    return format_python_command(node, words)


def _format_requirement(facts: Facts, difference: NodeDifference) -> str:
    """The requirement that matches the usual version."""
    like = facts.of(SOFTWARE)[_find_usual_node(difference)]
    if difference.kind in {"torch", "cuda", "rocm"}:
        return f"torch=={like.packages.get('torch')}"
    if difference.kind == "nccl":
        return f"nvidia-nccl-cu{like.packages.get('cuda', '12').partition('.')[0]}=={difference.usual}"
    return f"{difference.what}=={difference.usual}"


def _find_usual_node(difference: NodeDifference) -> str:
    return next(node for node, value in difference.values.items() if value == difference.usual)


def _is_cause_of(cause: Finding, finding: Finding) -> bool:
    """Another Python is another environment, and torch brings its CUDA, NCCL and Triton along."""
    whole = cause.code == software.PYTHON.code
    package = finding.code == software.PACKAGE.code
    brought = cause.code == software.TORCH.code and (not package or "triton" in finding.seen)
    return (whole or brought) and finding.severity <= cause.severity and set(finding.nodes) <= set(cause.nodes)


SUBJECT = Subject(
    name="software",
    title="Python, packages, code and variables are the same everywhere",
    probes=(SOFTWARE,),
    rules=(
        interpreter_and_program.find_unsafe_interpreter,
        interpreter_and_program.find_missing_interpreter,
        interpreter_and_program.find_unknown_interpreter,
        interpreter_and_program.find_missing_program,
        interpreter_and_program.find_missing_module,
        interpreter_and_program.find_missing_paths,
        interpreter_and_program.find_differing_program,
        interpreter_and_program.find_missing_imports,
        find_differing_versions,
        find_differing_code,
        find_differing_environment,
        find_differing_variables,
        find_unknown_software,
    ),
    multi_node_probes=(LISTINGS,),
    diagnoses=(*list_diagnoses(software), unanswered_probes.ENVIRONMENT, *list_unknown_diagnoses((SOFTWARE,))),
)


# What is checked of a script that will choose the interpreter itself.
SCRIPT_SUBJECT = Subject(
    name="software",
    title="the script is the same on every node",
    probes=(),
    rules=(
        interpreter_and_program.find_missing_program,
        interpreter_and_program.find_differing_program,
        interpreter_and_program.find_missing_paths,
    ),
    diagnoses=SUBJECT.diagnoses,
)


def build_subject(program: Program) -> Subject:
    """The subject for a launch, where the ranks' program is known."""
    return replace(SUBJECT, probes=(build_program_probe(program),))
