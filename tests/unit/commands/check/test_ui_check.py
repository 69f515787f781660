"""A check on the screen, as plain lines and as JSON: generated text, compared whole."""

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_findings import made_finding
from rich.console import Console, RenderableType

from aboard.commands.check.node_table import CheckNodeTable
from aboard.commands.check.report_page import render_check
from aboard.commands.check.report_view import CheckReportView, format_check_json, format_check_lines
from aboard.commands.shared.findings.merge_findings import merge_findings
from aboard.commands.shared.findings.subject_results import summarize_subjects
from aboard.commands.shared.json_output import to_plain_value
from aboard.core.cluster.cluster import THIS_MACHINE, Cluster
from aboard.core.cluster.contact import Contact, ReachedNode, UnreachedNode
from aboard.core.cluster.interpreter import Interpreter, InterpreterSource
from aboard.core.cluster.node import Node
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown
from aboard.core.probes.probe import FileContents, Probe, ProbeFiles
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import Finding, Fix, Severity, sort_by_severity
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.host import subject as host
from aboard.doctor.network.link_rates import RATES, LinkRate, LinkRates

GOLDEN = Path(__file__).parents[2] / "golden" / "ui"
SUBJECTS = tuple(
    Subject(name=name, title=title, probes=(), rules=())
    for name, title in {
        "reach": "every node answers",
        "host": "every host that answers is known",
        "network": "every node reaches every other",
        "fabric": "no fast fabric is expected, and none is there",
        "gpu": "accelerators are alike",
        "software": "the same versions everywhere",
        "storage": "every path is there",
    }.items()
)

REFUSED = "The machine is up, but no ssh server listens on that port."
TORCH = made_finding(
    code="software-torch",
    severity=Severity.WARN,
    nodes=("n3",),
    seen="torch is 2.5.1 in /opt/conda/envs/a-long-name-of-an-environment/lib/python3.11/site-packages/torch;"
    " 3 of 4 nodes have 2.6.0",
    why="Ranks with another torch may hang in the first collective, or exchange wrong numbers in silence.",
    fix="/opt/conda/envs/a-long-name-of-an-environment/bin/python -m pip install --force-reinstall 'torch==2.6.0'"
    "    # on n3; or give the others 2.5.1, whichever the run was made for\n"
    "python -c 'import torch; print(torch.__version__)'    # on n3, to see it",
)
SHELL = made_finding(
    code="reach-noisy-shell",
    severity=Severity.INFO,
    nodes=("n1",),
    seen="before any command, the login shell prints: Welcome! Please read the rules of this machine.",
    why="We skip it, but scp, rsync and git over ssh break on it.",
    fix="ssh n1 true    # must print nothing",
)


def refused(node: str, *consequences: Finding) -> Finding:
    return made_finding(
        code="reach-refused",
        severity=Severity.BLOCK,
        nodes=(node,),
        seen=f"ssh: connect to host {node} port 22: Connection refused",
        why=REFUSED,
        fix=f"sudo systemctl start ssh    # on {node}; if its sshd uses another port, set `port:` in aboard.yaml",
        consequences=consequences,
    )


def unheard(node: str) -> Finding:
    return made_finding(
        code="network-unheard",
        severity=Severity.WARN,
        nodes=(node,),
        seen=f"{node} could not be asked whom it reaches",
        why="-",
        fix="-",
    )


def reached(number: int, **others: Any) -> ReachedNode:
    known = {"address": f"10.0.0.{number}", "user": "crew", "python": "3.11.2", "clock_offset": 0.0001}
    return ReachedNode(**{"hostname": f"n{number}", "round_trip": 0.001, **known, **others})


def facts_of(contacts: Mapping[str, Contact], **answers: Mapping[str, Any]) -> Facts:
    met = [name for name, contact in contacts.items() if isinstance(contact, ReachedNode)]
    usual: dict[str, Mapping[str, Any]] = {
        "kernel": dict.fromkeys(met, Untrusted("6.8.0-45-generic")),
        "cores": dict.fromkeys(met, 64),
        "memory": dict.fromkeys(met, 512 * 1024**3),
        "accelerators": dict.fromkeys(met, (Untrusted("NVIDIA H100"),) * 8),
    }
    return Facts(
        cluster=Cluster(nodes=tuple(Node(name=name) for name in contacts)),
        contacts=contacts,
        answers={**usual, **answers},
    )


def four(*findings: Finding) -> tuple[Facts, dict[str, list[Finding]]]:
    """Four nodes; the second refuses when a finding says so, the fourth has fewer cores."""
    gone = UnreachedNode(reason=UnreachableReason.REFUSED, said="Connection refused")
    silent = {node for finding in findings if finding.code == "reach-refused" for node in finding.nodes}
    contacts: dict[str, Contact] = {
        f"n{number}": gone if f"n{number}" in silent else reached(number) for number in range(1, 5)
    }
    cores = {name: 32 if name == "n4" else 64 for name, contact in contacts.items() if contact is not gone}
    return facts_of(contacts, cores=cores), sorted_out(findings)


def sorted_out(findings: Sequence[Finding]) -> dict[str, list[Finding]]:
    by_subject: dict[str, list[Finding]] = {subject.name: [] for subject in SUBJECTS}
    for finding in findings:
        by_subject[finding.code.partition("-")[0]].append(finding)
    return by_subject


def drawn(view: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, highlight=False).print(view, crop=False)
    return out.getvalue()


def view(facts: Facts, by_subject: Mapping[str, Sequence[Finding]], *, verbose: bool = False) -> CheckReportView:
    findings = sort_by_severity([finding for each in by_subject.values() for finding in each])
    return CheckReportView(facts, SUBJECTS, by_subject, findings, seconds=2.345, verbose=verbose)


def golden(name: str, text: str) -> None:
    assert text == (GOLDEN / name).read_text("utf-8")


@pytest.mark.parametrize("width", [80, 120])
def test_four_nodes_with_trouble(width: int) -> None:
    """Worst first, a consequence under its cause, commands whole on lines of their own, an info on its line."""
    text = drawn(view(*four(SHELL, TORCH, refused("n2", unheard("n2")))), width)
    golden(f"trouble-{width}.txt", text)


@pytest.mark.parametrize("width", [80, 120])
def test_all_is_well(width: int) -> None:
    """One green line for each subject."""
    golden(f"well-{width}.txt", drawn(view(*four()), width))


@pytest.mark.parametrize("width", [80, 120])
def test_many_nodes_that_are_alike_share_a_row_and_a_finding(width: int) -> None:
    """Sixty-four nodes, five of them refusing, fit on a screen, and the folded fix says on which nodes."""
    gone = UnreachedNode(reason=UnreachableReason.REFUSED, said="Connection refused")
    contacts: dict[str, Contact] = {
        f"n{number}": gone if 5 <= number <= 9 else reached(number, round_trip=number / 1000) for number in range(1, 65)
    }
    by_subject = sorted_out([refused(f"n{number}") for number in range(5, 10)])
    golden(f"many-{width}.txt", drawn(view(facts_of(contacts), by_subject), width))


@pytest.mark.parametrize(
    ("fix", "folded_fix"),
    [
        (
            "ssh-copy-id {}    # here; password of {}",
            "for node in n1 n2; do ssh-copy-id $node; done    # here; password of n[1-2]",
        ),
        ("ssh {0} \"cat '/x'\" && ping {0}", "for node in n1 n2; do ssh $node \"cat '/x'\" && ping $node; done"),
        (
            "ssh-keygen -R '[{}]:22'    # on {}",
            "ssh-keygen -R '[n1]:22'    # on n1\nssh-keygen -R '[n2]:22'    # on n2",
        ),
        ("sudo reboot    # on {}\ntrue", "sudo reboot    # on n[1-2]\ntrue"),
    ],
)
def test_a_folded_fix_can_be_typed(fix: str, folded_fix: str) -> None:
    """A command that names the node becomes a loop over the real names, or a line for each where quotes forbid that."""
    found = [replace(refused(name), fix=Fix(fix.format(name, name))) for name in ("n1", "n2")]
    (together,) = merge_findings(found)
    assert together.fix == folded_fix
    assert together.seen == "ssh: connect to host n[1-2] port 22: Connection refused"


def test_long_names_leave_room_for_the_marks() -> None:
    """Subjects are shortened first; a set of names that is still too long gets a line of its own, whole."""
    names = [f"gpu-worker-{number}.rack-{number}.cluster.example.com" for number in (1, 2)]
    contacts: dict[str, Contact] = {name: reached(1, hostname=name) for name in names}
    golden("long-names-80.txt", drawn(view(facts_of(contacts), sorted_out([])), 80))
    golden("long-names-50.txt", drawn(view(facts_of(contacts), sorted_out([])), 50))


def test_verbose_shows_infos_in_full() -> None:
    """What is worth a line has its reason and its fix too."""
    text = drawn(view(*four(SHELL), verbose=True), 120)
    assert "  fix   ssh n1 true    # must print nothing\n" in text
    assert "  why   We skip it" in text


def test_a_consequence_spoils_its_own_subject() -> None:
    """A subject isn't called well when its trouble is told under another's."""
    text = drawn(view(*four(refused("n2", unheard("n3")))), 120)
    assert "✓ network" not in text
    assert "✓ software" in text


def test_nobody_answering_is_no_good_news() -> None:
    """What could not be asked isn't called well."""
    text = drawn(view(*four(*(refused(f"n{number}") for number in range(1, 5)))), 80)
    assert "✓" not in text
    assert "– host      not tested: no node was reached\n" in text
    assert "0 of 4 nodes reached; 1 finding would stop a run; 6 subjects not tested.  2.3 s" in text


def test_a_machine_of_one_core() -> None:
    """One is one, also where all nodes have it."""
    facts = facts_of({"n1": reached(1)}, cores={"n1": 1})
    assert ", 1 core, " in drawn(view(facts, sorted_out([])), 120)


def test_nobody_named_a_node() -> None:
    """The last line on the screen says that this machine alone was checked, and how to name others."""
    facts = facts_of({"localhost": reached(1)})
    text = drawn(view(replace(facts, cluster=replace(facts.cluster, source=THIS_MACHINE)), sorted_out([])), 80)
    assert text.endswith(
        "checked this machine only; to check a cluster, pass its nodes:\n  `aboard check gpu01 gpu02`\n"
    )


def test_the_nodes_of_a_slurm_job() -> None:
    """The last line says that Slurm named them."""
    facts = facts_of({"n1": reached(1), "n2": reached(2)})
    text = drawn(view(replace(facts, cluster=replace(facts.cluster, source="Slurm job 7")), sorted_out([])), 80)
    assert text.endswith("checked the nodes of Slurm job 7: n[1-2]\n")


NO_GPU = "no NVIDIA GPU and no driver for one"
NOT_HELD = made_finding(
    code="fabric-none", severity=Severity.INFO, nodes=("n1", "n2", "n3", "n4"), seen="there is none", why="-", fix="-"
)


def partly_tested() -> tuple[Subject, ...]:
    """Fabric on no node, for two reasons; GPUs on two of four nodes."""
    untested = {
        "fabric": {"n1": "no adapter", "n2": "no adapter", "n3": "its ports are hidden", "n4": "no adapter"},
        "gpu": {"n1": NO_GPU, "n3": NO_GPU},
    }

    def with_untested(subject: Subject) -> Subject:
        return replace(subject, untested=lambda _facts: untested.get(subject.name, {}))

    return tuple(map(with_untested, SUBJECTS))


@pytest.mark.parametrize("width", [80, 120])
def test_what_was_not_tested_has_not_passed(width: int) -> None:
    """A dash and the reason, in the table and below, also where an info was found; the last line names it."""
    facts, by_subject = four(NOT_HELD)
    text = drawn(CheckReportView(facts, partly_tested(), by_subject, [NOT_HELD], seconds=2.345, verbose=False), width)
    golden(f"untested-{width}.txt", text)


def test_plain_lines_and_json_tell_what_was_not_tested() -> None:
    """The same subjects as on the screen, with the same reasons."""
    facts, by_subject = four(NOT_HELD)
    lines = list(format_check_lines(facts, partly_tested(), by_subject, [NOT_HELD], 2.345))
    reason = "no adapter on n[1-2,4]; its ports are hidden on n3"
    assert f"untested fabric: {reason}" in lines
    assert "fine gpu: accelerators are alike (2 of 4 nodes)" in lines
    assert not [line for line in lines if line.startswith("fine fabric")]
    assert lines[-1] == "done: 4 of 4 nodes reached; no problems found; 1 subject not tested; 2.3 s"
    outcomes = summarize_subjects(facts, partly_tested(), by_subject)
    told = json.loads(format_check_json(facts, outcomes, [NOT_HELD], 2.345))["subjects"]
    assert told["reach"] == {"status": "passed", "reason": "", "not_tested": {}}
    assert (told["fabric"]["status"], told["fabric"]["reason"]) == ("not tested", reason)
    assert told["gpu"] == {"status": "passed", "reason": "", "not_tested": {"n1": NO_GPU, "n3": NO_GPU}}


def test_a_command_is_never_broken() -> None:
    """However narrow the terminal, what is to be typed stands on one line."""
    lines = drawn(view(*four(TORCH)), 40).splitlines()
    command = TORCH.fix.partition("    #")[0]
    assert f"        {command}" in lines


def test_plain_lines() -> None:
    """Into a pipe: each line tells severity, code and nodes, nothing is folded, nothing trails."""
    facts, by_subject = four(SHELL, TORCH, refused("n2", unheard("n2")))
    findings = sort_by_severity([finding for each in by_subject.values() for finding in each])
    text = "\n".join(format_check_lines(facts, SUBJECTS, by_subject, findings, 2.345)) + "\n"
    golden("plain.txt", text)
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_plain_fixes_can_be_cut_out() -> None:
    """What --help promises of `sed -n 's/.* fix: //p'`: the lines to type, of each node."""
    facts, by_subject = four(refused("n2"), refused("n3"))
    lines = format_check_lines(facts, SUBJECTS, by_subject, by_subject["reach"], 1.0)
    fixes = [line.partition(" fix: ")[2] for line in lines if " fix: " in line]
    assert fixes == [refused("n2").fix, refused("n3").fix]


def test_json_carries_every_fact() -> None:
    """Every probe of every subject by node, unknowns with their reason, multi_probes with their outcome."""
    contacts: dict[str, Contact] = {"n1": reached(1), "n2": UnreachedNode(reason=UnreachableReason.LOST, said="gone")}
    probe = Probe(name="paths", question=ProbeFiles(globs=("/x",)), parse=lambda _answer: FileContents(files={}))
    facts = facts_of(contacts, **{probe.name: {"n1": Unknown(why="a dead mount")}})
    facts = Facts(
        cluster=facts.cluster,
        contacts=facts.contacts,
        answers=facts.answers,
        outcomes={
            "pairs": {("n1", "n2"): UnreachableReason.REFUSED, ("n2", "n1"): float("inf")},
            "rate": Unknown(why="no time"),
        },
    )
    told = json.loads(format_check_json(facts, [], [refused("n2", unheard("n2"))], 1.23456))
    assert told["seconds"] == 1.235
    first, second = told["nodes"]
    basics = [first["facts"][name] for name in ("kernel", "cores", "accelerators", "memory")]
    assert basics == ["6.8.0-45-generic", 64, ["NVIDIA H100"] * 8, 512 * 1024**3]
    assert first["facts"]["paths"] == {"unknown": "a dead mount"}
    assert (second["reached"], second["reason"], second["facts"]) == (False, "lost", {})
    assert told["multi_node_probes"] == {"pairs": {"n1 n2": "refused", "n2 n1": None}, "rate": {"unknown": "no time"}}
    (finding,) = told["findings"]
    assert (finding["severity"], finding["nodes"]) == ("block", ["n2"])
    assert finding["consequences"][0]["code"] == "network-unheard"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (frozenset({"b", "a"}), ["a", "b"]),
        (FileContents(files={"/a": "1"}), {"files": {"/a": "1"}}),
        ((1, 2.5, None, True, "x"), [1, 2.5, None, True, "x"]),
        (float("nan"), None),
        (10**400, 10**400),
        (Path("/a"), "/a"),
        ({1: {("a", 2): Severity.WARN}}, {"1": {"a 2": "warn"}}),
    ],
)
def test_any_fact_becomes_json(value: Any, plain: Any) -> None:
    """Whatever a parser makes of an answer can be written down."""
    assert to_plain_value(value) == plain


def test_the_names_of_the_hosts_probes() -> None:
    """Scripts find them in `facts` by these names."""
    assert [host.KERNEL.name, host.CORES.name, host.MEMORY.name, host.ACCELERATORS.name] == [
        "kernel",
        "cores",
        "memory",
        "accelerators",
    ]


@pytest.mark.parametrize("width", [80, 120])
def test_the_interpreter_of_each_node_is_shown_with_the_reason(width: int) -> None:
    """In a line of its own, which no width leaves out."""
    venv = Interpreter(path="/home/me/venv/bin/python", origin=InterpreterSource.VIRTUAL_ENV)
    login = Interpreter(path="python3", origin=InterpreterSource.LOGIN_SHELL)
    nodes = tuple(Node(name=name, interpreter=login if name == "n2" else venv) for name in ("n1", "n2", "n3"))
    facts = facts_of({node.name: reached(1) for node in nodes})
    facts = replace(facts, cluster=Cluster(nodes=nodes))
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(CheckNodeTable(facts, {}, [], every_node=True))
    said = " ".join(capture.get().split())
    assert said.endswith("ranks use /home/me/venv/bin/python ($VIRTUAL_ENV) on n[1,3], python3 (login shell) on n2")


def test_a_page_of_a_check_has_findings_nodes_and_links() -> None:
    facts, by_subject = four()
    rates = LinkRates(links={("n1", "n2"): LinkRate(mbit=800.0, segments=10, again=0, rtt=0.001)})
    facts = replace(facts, outcomes={**facts.outcomes, RATES.name: rates})
    found = [unheard("n4")]
    outcomes = summarize_subjects(facts, SUBJECTS, by_subject)
    page = render_check(facts, outcomes, found, 2.0, SecretScrubber())
    data = re.search(r'id="data">(.*?)</script>', page)
    assert data is not None
    check = json.loads(data[1])["check"]
    assert [(each["code"], each["nodes"]) for each in check["findings"]] == [(found[0].code, ["n4"])]
    assert [row[0] for row in check["nodes"]] == ["n1", "n2", "n3", "n4"]
    assert check["links"] == {"measured": True, "nodes": ["n1", "n2"], "matrix": [[None, 1e8], [None, None]]}
    assert {each["name"] for each in check["subjects"]} == {subject.name for subject in SUBJECTS}
