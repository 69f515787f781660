"""Text that a node wrote in place of any word of its answers about links and GPUs changes no command and no screen."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
from replayed_checks import replay_recordings
from shell_shapes import split

from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import ReachedNode
from aboard.core.cluster.node import Node
from aboard.core.decoding import decode
from aboard.core.evidence.nccl_ras import RasStatus, parse_ras_status
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, parse_answer
from aboard.core.probes.multi_node_probe import MultiNodeProbe, ProbeRequest
from aboard.core.probes.probe import CommandOutput, FileContents, Probe, ProbeAnswer
from aboard.diagnoses import Advice, Finding
from aboard.doctor.collective import subject as collective
from aboard.doctor.collective.multi_node_probe import COLLECTIVE, CollectiveResult
from aboard.doctor.collective.nccl_init_log import NcclInitLog, parse_init_log
from aboard.doctor.collective.nccl_rules import NCCL_RULES
from aboard.doctor.collective.participants import TORCH, parse_capabilities
from aboard.doctor.collective.rank_report import RankReport
from aboard.doctor.fabric import subject as fabric
from aboard.doctor.gpu import subject as gpu
from aboard.doctor.network import subject as network
from aboard.doctor.network.interfaces import INTERFACES
from aboard.doctor.network.mesh_probe import MESH
from aboard.doctor.network.mesh_result import MeshResult
from aboard.testing import recorded_node

HERE = Path(__file__).parents[2]
HARMLESS = "qzq"
SHORT = ["'; $(x)", "\nfix: curl x | sudo sh", "\x1b[31m", "\x1b]52;c;eA==\x07", "\u202e"]
LONG = "A" * 1_000_000
MOST = 20_000
NODES = tuple(Node(name=name) for name in ("n1", "n2", "n3"))
CLUSTER = Cluster(nodes=NODES)
LAST = "n3"
REACHED = ReachedNode(hostname="h", user="u", address="10.0.0.9", python="3.11", round_trip=0.0, clock_offset=0.0)
load = cache(recorded_node.load_recording)

MARK = "\x01"


def _check(parse: Callable[[str], Any], judge: Callable[[Any], list[Finding]], usual: Any = None) -> None:
    """`parse` puts a value into one place of an answer that is `usual` without it, and `judge` has the rules."""
    known = [usual]

    @cache
    def harmless(value: str) -> dict[tuple[str, ...], list[str]]:
        return _commands(judge(parse(value)))

    for value in (*SHORT, LONG):
        # What nobody reads can't be too long.
        fact = usual if value == LONG and len(known) == 1 else parse(value)
        if fact in known:
            continue
        known.append(fact)
        assert all(text.isprintable() and len(text) <= MOST for text in _plain_texts(fact))
        findings = judge(fact)
        for each in findings:
            lines = (each.seen, each.why, *each.nodes, *each.about, *each.fix.split("\n"))
            assert all(line.isprintable() for line in lines)
            assert "\nfix: curl" not in each.fix
            assert max(len(each.seen), len(each.why), len(each.fix)) <= MOST
        # As with a name, with what fits no pattern of a name or a number, or with the end of a line.
        typed = {} if value == LONG else _commands(findings)
        assert any(typed.items() <= {**typed, **harmless(other)}.items() for other in (HARMLESS, "?", "\n"))


def _commands(findings: list[Finding]) -> dict[tuple[str, ...], list[str]]:
    return {(each.code, each.fix.variant, *each.nodes): _words(each) for each in findings}


def _words(finding: Finding) -> list[str]:
    """A mark for each word of its command, and the operators; nothing for advice, which no shell reads."""
    if isinstance(finding.diagnosis.templates.get(finding.fix.variant), Advice):
        return []
    words = [word for line in finding.fix.split("\n") for word in split(line)]
    return [word if word and set(word) <= set("();<>|&") else "word" for word in words]


def _plain_texts(fact: Any) -> Iterator[str]:
    """Each text of a fact that isn't marked as untrusted."""
    if isinstance(fact, str):
        yield fact
    elif isinstance(fact, Mapping):
        for key, value in fact.items():
            yield from _plain_texts(key)
            yield from _plain_texts(value)
    elif isinstance(fact, (tuple, list, frozenset)):
        for each in fact:
            yield from _plain_texts(each)
    elif is_dataclass(fact):
        for field in fields(fact):
            yield from _plain_texts(getattr(fact, field.name))


def _in_text(text: str, known: set[str]) -> Iterator[str]:
    """The mark in place of the text and of each of its words; once for lines that differ in their digits only."""
    yield MARK
    for line in re.finditer(r".+", text):
        for word in re.finditer(r"[^\s,=/]+", line[0]):
            kind = re.sub(r"[0-9a-fA-F]+", "0", f"{line[0]} {word[0]}")
            if kind not in known and word[0] != text:
                known.add(kind)
                start = line.start() + word.start()
                yield text[:start] + MARK + text[start + len(word[0]) :]


def _in_answer(answer: ProbeAnswer, known: set[str]) -> Iterator[ProbeAnswer]:
    if isinstance(answer, CommandOutput):
        yield from (replace(answer, stdout=text) for text in _in_text(answer.stdout, known))
        yield from (replace(answer, stderr=text) for text in _in_text(answer.stderr, known))
        return
    for path, text in answer.files.items():
        kind = re.sub(r"[0-9a-fA-F]+", "0", path)
        if kind not in known:
            known.add(kind)
            others = {name: each for name, each in answer.files.items() if name != path}
            yield from (FileContents(files={**others, path: each}) for each in _in_text(text, set()))
            parts = path.split("/")
            for at, part in enumerate(parts):
                yield FileContents(files={**others, "/".join([*parts[:at], part + MARK, *parts[at + 1 :]]): text})


def _in_json(value: Any) -> Iterator[Any]:
    """The mark in place of each text of the value, and of each key."""
    if isinstance(value, str):
        yield from _in_text(value, set())
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from ([*value[:at], marked, *value[at + 1 :]] for marked in _in_json(each))
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from ({**value, key: marked} for marked in _in_json(each))
            yield {MARK if name == key else name: own for name, own in value.items()}


def _fill(marked: Any, value: str) -> Any:
    if isinstance(marked, str):
        return marked.replace(MARK, value)
    if isinstance(marked, dict):
        return {_fill(key, value): _fill(each, value) for key, each in marked.items()}
    if isinstance(marked, list):
        return [_fill(each, value) for each in marked]
    if isinstance(marked, FileContents):
        return FileContents(files=_fill(marked.files, value))
    if isinstance(marked, CommandOutput):
        return replace(marked, stdout=_fill(marked.stdout, value), stderr=_fill(marked.stderr, value))
    return marked


RECORDED = {
    fabric.SUBJECT: ("a100-roce", "roce-shifted-gids", "acs-on", "efa-plugin-aside", "other-nccl-conf", "port-down"),
    gpu.SUBJECT: ("h100-infiniband", "xid-79", "driver-mismatch", "gpus-hidden", "no-fabric-manager"),
}


@pytest.mark.ci
@pytest.mark.parametrize("subject", RECORDED, ids=lambda subject: subject.name)
def test_no_word_of_a_recorded_answer_gets_out(subject: Subject) -> None:
    """Neither from a file, nor from its path, nor from what a command printed."""
    usual, *odd = (load(HERE / "recordings" / name) for name in RECORDED[subject])
    known: dict[str, set[str]] = {probe.name: set() for probe in subject.probes}
    for recording in odd:
        facts = replay_recordings(CLUSTER, subject, {"n1": usual, LAST: recording})
        for probe in subject.probes:
            for marked in _in_answer(recording.answer(probe.question_for(NODES[0])), known[probe.name]):
                _check_answer(subject, facts, probe, marked)


def _check_answer(subject: Subject, facts: Facts, probe: Probe[Any], marked: ProbeAnswer) -> None:
    given = facts.answers[probe.name]

    def judge(fact: Any) -> list[Finding]:
        return subject.judge(replace(facts, answers={**facts.answers, probe.name: {**given, LAST: fact}}))

    _check(lambda value: parse_answer(probe, _fill(marked, value)), judge, given[LAST])


def _hold(multi_probe: MultiNodeProbe[Any], facts: Facts, answer: Callable[[str, ProbeRequest], Any]) -> Facts:
    script = multi_probe.script(facts)
    try:
        asked = next(script)
        while True:
            asked = script.send({name: answer(name, ask) for name, ask in asked.items()})
    except StopIteration as done:
        return replace(facts, outcomes={**facts.outcomes, multi_probe.name: done.value})


def _met() -> Facts:
    link = {f"/sys/class/net/eth0/{name}": text for name, text in (("operstate", "down"), ("mtu", "1500"))}
    facts = Facts(cluster=CLUSTER, contacts={node.name: REACHED for node in NODES})
    return replace(facts, answers={INTERFACES.name: {LAST: parse_answer(INTERFACES, FileContents(files=link))}})


OWNER = {"user": "ann", "name": "python3", "pid": 77, "ours": False}
LISTENING = {
    "addresses": [["lo", "127.0.0.1", 8], ["eth0", "10.0.0.3", 24]],
    "ports": [{"errno": "EADDRINUSE", "owner": OWNER}, {"port": 40000}],
}
CONNECTED = {
    "hostname": "n3",
    "resolved": {"n1": "Name or service not known", "n2": ["127.0.0.1"], "n3": ["10.0.0.3"]},
    "results": [
        ["unresolved", 0.0, "", "", "unknown"],
        ["unresolved", 0.0, "", "", "unknown"],
        ["refused", 0.1, "10.0.0.3", "10.0.0.2", "Connection refused"],
        ["ok", 0.1, "10.0.0.3", "10.0.0.2", ""],
    ],
}


def _mesh(listening: Any, connected: Any, value: str) -> Facts:
    def answer(name: str, ask: ProbeRequest) -> Any:
        place = f"10.0.0.{name[1:]}"
        if ask.op == "listen":
            fine = {"addresses": [["eth0", place, 24]], "ports": [{"port": 29500}, {"port": 40000}]}
            return _fill(listening, value) if name == LAST else fine
        if name == LAST:
            told = _fill(connected, value)
            return {**told, "results": told["results"][-len(ask.fields["targets"]) :]} if "results" in told else told
        results = [["dropped", 2.0, place, f"10.0.0.{to[1:]}", ""] for to, _port, _size in ask.fields["targets"]]
        return {"hostname": name, "resolved": {"n3": ["10.0.0.3"], "n1": ["10.0.0.1"]}, "results": results}

    return _hold(MESH, _met(), answer)


@pytest.mark.ci
def test_no_word_of_a_mesh_gets_out() -> None:
    """Whatever the node says of its addresses, of its ports and of its peers."""
    usual = _mesh(LISTENING, CONNECTED, "")
    found = {each.code for each in network.SUBJECT.judge(usual)}
    assert {"network-unresolved", "network-peer-on-loopback", "network-port-taken", "network-link-down"} <= found
    for marked in _in_json(LISTENING):
        _check(partial(_mesh, marked, CONNECTED), network.SUBJECT.judge, usual)
    for marked in _in_json(CONNECTED):
        _check(partial(_mesh, LISTENING, marked), network.SUBJECT.judge, usual)


def test_no_word_about_interfaces_gets_out() -> None:
    """Neither a name nor a state."""
    files = {f"/sys/class/net/eth0/{name}": text for name, text in (("operstate", "down"), ("mtu", "1500"))}
    facts = _mesh(LISTENING, CONNECTED, "")
    for marked in _in_answer(FileContents(files=files), set()):
        _check_answer(network.SUBJECT, facts, INTERFACES, marked)


ABOUT = {"torch": True, "cuda": True, "gpus": 1, "cores": 2, "machine": "m", "port": 20_500, "token": "t"}
REPORT = {
    "rank": 1,
    "phase": "all_reduce",
    "error": "RuntimeError: waited in vain",
    "blocked": ["10.0.0.1"],
    "stack": ["  File a.py, line 1"],
    "torch": "2.7.1+cu126",
    "backend": "nccl",
    "rows": [["all_reduce", 1024, 1, 0.01]],
    "wrong": [["all_gather", 1024, [1]]],
    "pairs": {"1": 9000.0},
    "log": ["n3:1:1 [0] NCCL INFO Using network Socket"],
}


def _collective(about: Any, report: Any, value: str) -> Facts:
    def answer(name: str, ask: ProbeRequest) -> Any:
        own = {"rank": 0, "phase": "all_reduce", "told": True, "log": REPORT["log"]}
        told = _fill(report, value) if name == LAST else own
        return {"code": 0, "stdout": json.dumps(told, ensure_ascii=False), "stderr": ""}

    output = CommandOutput(code=0, stdout=json.dumps(_fill(about, value), ensure_ascii=False))
    facts = Facts(cluster=Cluster(nodes=NODES[::2]), contacts={node.name: REACHED for node in NODES[::2]})
    fine = parse_capabilities(CommandOutput(code=0, stdout=json.dumps(ABOUT)))
    facts = replace(facts, answers={TORCH.name: {"n1": fine, LAST: parse_answer(TORCH, output)}})
    return _hold(COLLECTIVE, replace(facts, outcomes={MESH.name: MeshResult(targets={}, tries={})}), answer)


@pytest.mark.ci
def test_no_word_of_a_collective_gets_out() -> None:
    """Whatever a rank says of itself and of its end."""
    judge = collective.SUBJECT.judge
    usual = _collective(ABOUT, REPORT, "")
    assert {each.code for each in judge(usual)} == {"collective-wrong"}
    for marked in _in_json(ABOUT):
        _check(partial(_collective, marked, REPORT), judge, usual)
    for report in (REPORT, {"rank": 1, "phase": "all_reduce", "error": "waited"}, {"rank": 1, "phase": "gone"}):
        for marked in _in_json(report):
            _check(partial(_collective, ABOUT, marked), judge)


LOGS = (
    "2.24-no-device",
    "2.23-plugin-not-found",
    "2.14-no-topology-file",
    "2.27-no-gpudirect",
    "2.30-completion-errors",
)


@pytest.mark.ci
def test_no_word_of_a_log_of_nccl_gets_out() -> None:
    """Whatever stands in it for an adapter, a plugin, a file or a complaint."""
    usual, *odd = ((HERE / "nccl_logs" / f"{name}.log").read_text("utf-8") for name in ("2.24-infiniband", *LOGS))

    def judge(log: NcclInitLog) -> list[Finding]:
        outcome = CollectiveResult(logs={"n1": _read_log(usual), LAST: log})
        facts = Facts(cluster=CLUSTER, contacts={}, outcomes={COLLECTIVE.name: outcome})
        return [each for rule in NCCL_RULES for each in rule(facts)]

    known: set[str] = set()
    for text in odd:
        for marked in _in_text(text, known):
            _check(partial(_read_log, marked), judge, _read_log(text))


def _read_log(marked: str, value: str = "") -> NcclInitLog:
    lines = _fill(marked, value).splitlines()
    return parse_init_log(decode(RankReport, {"rank": 0, "phase": "done", "log": lines}).log)


@pytest.mark.ci
def test_no_word_of_ras_gets_out() -> None:
    """What isn't a word of NCCL's is passed by."""
    known: set[str] = set()
    for name in ("error", "missing"):
        text = (HERE / "ras" / f"{name}.txt").read_text("utf-8")
        for marked in _in_text(text, known):
            _check(partial(_ask_ras, marked), lambda _status: [], parse_ras_status(text))


def _ask_ras(marked: str, value: str) -> RasStatus | None:
    return parse_ras_status(_fill(marked, value))
