"""Whatever a node, a rank, a log or a record says: no terminal obeys it, and no fix changes its shape."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from core.evidence.test_recorded_snapshots import SCENES
from doctor.death.test_verdicts_death import PLAN
from evidence_builders import ending
from made_findings import made_finding
from rich.console import Console
from snapshot_builders import answers_of, kept_run, stopped

from aboard.agent import frames
from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.commands.launch.view.roster_view import RosterView
from aboard.commands.shared.findings.finding_lines import format_finding_lines
from aboard.commands.shared.findings.findings_view import FindingsView
from aboard.commands.shared.json_output import dump_json
from aboard.core.decoding import try_decode
from aboard.core.evidence.external_process import ExternalJobProcess
from aboard.core.evidence.node_snapshot import NodeSnapshot, RankSnapshot
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import NodeAnswer, decode_answers
from aboard.core.run.event_codec import KINDS
from aboard.core.run.event_kinds import ChildReport, NodeReport
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_progress import RunProgress, build_run_progress
from aboard.core.run.run_state import Run
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.judge_evidence import judge_evidence
from aboard.doctor.logs.judge_log import judge_log as judge_logs
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.engine.records.recorded_run import parse_recorded_run
from aboard.engine.records.replay_run import replay_run
from aboard.record.json_documents import RecordedFinding, build_findings_document
from aboard.transport.supervisor_messages import parse_event

TEXTS = ("'; $(x)", "a\nfix: curl x | sudo sh", "\x1b[31m", "\x1b]52;c;eA==\x07", "\u202eb", "-rf")
HOSTILE = (" ".join(TEXTS), "\x1b" + "A" * 1_000_000)
MOST = 30_000


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a text stands in a JSON value, keys of objects included."""
    match value:
        case str():
            yield path
        case dict():
            for key, each in value.items():
                yield (*path, ("key", key))
                yield from places(each, (*path, key))
        case list():
            for number, each in enumerate(value):
                yield from places(each, (*path, number))


def alike(path: tuple[Any, ...]) -> str:
    """What places of the same kind have in common: ranks and rows differ by their number alone."""
    return "/".join("0" if str(part).isdigit() else str(part) for part in path)


def put(value: Any, path: tuple[Any, ...], text: str) -> Any:
    """The value with another text at that place."""
    if not path:
        return text
    first, *rest = path
    if isinstance(first, tuple):
        return {text if key == first[1] else key: each for key, each in value.items()}
    if isinstance(value, dict):
        return {key: put(each, tuple(rest), text) if key == first else each for key, each in value.items()}
    return [put(each, tuple(rest), text) if number == first else each for number, each in enumerate(value)]


def drawn(findings: Iterable[Finding]) -> Iterator[str]:
    """The findings as each renderer shows them, each bounded."""
    every = tuple(findings)
    for width in (80, 120):
        console = Console(file=StringIO(), width=width, force_terminal=False)
        console.print(FindingsView(every, in_full=True), crop=False)
        assert isinstance(console.file, StringIO)
        yield console.file.getvalue()
    yield "\n".join(line for finding in every for line in format_finding_lines(finding))
    yield from (text for text in texts_in(json.loads(dump_json({"findings": every}))) if isinstance(text, str))


def assert_harmless(findings: Iterable[Finding]) -> None:
    """Most places change no finding: what is shown of the same findings is looked at once."""
    _assert_all_harmless(tuple(findings))


@cache
def _assert_all_harmless(every: tuple[Finding, ...]) -> None:
    for shown in drawn(every):
        assert all(line.isprintable() for line in shown.split("\n")), shown
        assert len(shown) < MOST
    for finding in every:
        assert all(map(str.isprintable, (finding.code, *finding.nodes, *finding.about)))
        for line in finding.fix.split("\n"):
            assert not line.lstrip().startswith(("curl", "fix:"))
            # A fix is split by bash without an error: no value has opened a quote in it.
            shlex.split(line.partition("    # ")[0])


def judged(scene: Evidence, name: str, answer: Mapping[str, Any]) -> Iterator[Finding]:
    answers = {**answers_of(scene), name: NodeAnswer(told=answer)}
    given = Evidence(**{**vars_of(scene), "snapshots": decode_answers(scene.plan, answers)})
    yield from judge_evidence(given).findings
    yield from ending(given)


def vars_of(scene: Evidence) -> dict[str, Any]:
    return {field.name: getattr(scene, field.name) for field in fields(scene)}


@pytest.mark.ci
@pytest.mark.parametrize("made", SCENES)
def test_no_word_of_a_node_reaches_a_screen_or_a_shell_as_it_came(made: Callable[[], Evidence]) -> None:
    """Each text in each answer of a node is replaced in turn, and all rules and renderers see it."""
    scene = made()
    for name, answer in answers_of(scene).items():
        plain = json.loads(json.dumps(answer.told))
        for place in {alike(place): place for place in places(plain)}.values():
            for hostile in HOSTILE:
                assert_harmless(judged(scene, name, put(plain, place, hostile)))


REPORTED = [word for word, kind in KINDS.items() if issubclass(kind, ChildReport | NodeReport)]
NUMBERS_AND_LISTS = ("killed", "stubborn", "serial", "files", "beside", "copied", "standby")


@pytest.mark.parametrize("kind", REPORTED)
def test_no_word_of_an_event_reaches_a_screen_as_it_came(kind: str) -> None:
    """What a rank raised, why it could not start, why a node ends: in verdicts, and in the lines of a run."""
    said = dict.fromkeys((each.name for each in fields(KINDS[kind])), HOSTILE[0])
    frame: frames.Message = {"event": 1, "kind": kind, "wall": 1.0, "child": "0", "pid": 7, "code": 1, "phase": "torch"}
    # Numbers, and words of ours: any other is refused.
    frame |= {"port": 29500, "uid": 1001, "cause": "lease", "process": "guard", "obstacle": "full", "number": 1}
    frame |= {"command": list(HOSTILE), "marker": "0" * 64, "serial": 1}
    frame |= {name: text for name, text in said.items() if name not in frame and name not in NUMBERS_AND_LISTS}
    first = parse_event({"event": 1, "kind": "started", "wall": 0.5, "child": "0", "pid": 7}, "n1", 0.0, {"0"})
    event = parse_event(frame, "n1", 0.0, {"0"})
    last = parse_event({"event": 3, "kind": "exited", "wall": 2.0, "child": "0", "code": 1}, "n1", 0.0, {"0"})
    run = Run.replay("r", [first, event, last])
    assert_harmless(ending(Evidence(plan=PLAN, run=run, tails={0: (Untrusted(HOSTILE[0]),)})))
    told = build_run_progress(PLAN, run, 3.0, tail=(Untrusted(HOSTILE[0]),))
    lines: list[str] = []
    PlainLaunchWriter(lines.append).update(told)
    console = Console(file=StringIO(), width=100, force_terminal=False)
    console.print(RosterView(told))
    assert isinstance(console.file, StringIO)
    for line in (*lines, *console.file.getvalue().split("\n")):
        assert line.isprintable(), line


@pytest.mark.ci
def test_no_line_of_a_log_reaches_a_screen_as_it_came() -> None:
    """Each symptom that the catalogue shows, with hostile words around and inside of it."""
    from aboard.diagnoses.catalogue import all_diagnoses  # noqa: PLC0415 - only here

    every = os.environ.get("TEST_SIZE") == "nightly"
    diagnoses = dict.fromkeys(all_diagnoses().values())
    for number, symptom in enumerate(symptom for diagnosis in diagnoses for symptom in diagnosis.symptoms):
        # Of the six texts, each symptom meets two that its neighbours don't; at night all of them.
        for hostile in TEXTS if every else (TEXTS[number % 3], TEXTS[number % 3 + 3]):
            reader = LogScanner()
            reader.begin("log\x1b[31m.txt")
            for line in (f"[rank0]: {hostile} {symptom}", f"n1: {symptom} {hostile}"):
                reader.take(line.replace("10.0.0.3", f"10.0.0.3{hostile}").encode())
            assert_harmless(judge_logs(reader.reading()))


@pytest.mark.ci
@pytest.mark.parametrize("made", SCENES)
def test_no_word_of_a_record_reaches_a_screen_as_it_came(made: Callable[[], Evidence], tmp_path: Path) -> None:
    """Each text in each file of a run that somebody packed is replaced in turn, and the run is judged again."""
    scene = made()
    run = kept_run(tmp_path, scene, after=stopped(scene), ended=judge_evidence(scene).findings)
    parts = {path.name: path.read_bytes() for path in run.path.iterdir() if path.suffix in (".json", ".jsonl")}
    for name, data in parts.items():
        lines = [json.loads(line) for line in data.splitlines()] if name.endswith("l") else [json.loads(data)]
        found = [(number, place) for number, line in enumerate(lines) for place in places(line)]
        # Of thousands of alike places some are enough.
        for number, place in found[:: max(1, len(found) // 60)]:
            changed = [put(line, place, HOSTILE[0]) if at == number else line for at, line in enumerate(lines)]
            text = "\n".join(map(json.dumps, changed)).encode()
            told = replay_run(parse_recorded_run("r", {**parts, name: text}))
            assert_harmless((*told.why.findings, *told.then))


def texts_in(value: Any) -> Iterator[str | Untrusted]:
    match value:
        case str() | Untrusted():
            yield value
        case Mapping():
            for key, each in value.items():
                yield from texts_in(key)
                yield from texts_in(each)
        case tuple() | frozenset() | list():
            for each in value:
                yield from texts_in(each)
        case _ if is_dataclass(value):
            for field in fields(value):
                yield from texts_in(getattr(value, field.name))


@pytest.mark.parametrize("kind", [NodeSnapshot, RankSnapshot, RunProgress, ExternalJobProcess, RecordedFinding])
@pytest.mark.parametrize("hostile", HOSTILE, ids=("short", "long"))
def test_a_decoder_gives_plain_text_only_if_it_can_be_shown(kind: type, hostile: str) -> None:
    """Every field of every decoded value: a `str` is printable and bounded, anything else from outside is a type."""
    samples: dict[type, Any] = {
        RunProgress: dict.fromkeys(("run", "program", "master", "stopping", "finished"), hostile)
        | {"began": 1, "now": 1, "world": 1, "generation": 1, "phase": 1, "ranks_in_phase": 1, "tail": [hostile]}
        | {"rows": [{"node": hostile, "ranks": [0], "phases": [[1, 1]], "state": hostile, "since": 1, "note": hostile}]}
        | {"missing": [{"trouble": 1, "node": hostile, "ranks": [0], "why": hostile, "seconds": 1}]},
        RecordedFinding: build_findings_document(
            [made_finding(code="hang-lock", severity=Severity.BLOCK, nodes=("n1",), seen="", why="", fix="")]
        )[0]
        | {"seen": hostile, "why": hostile, "fix": hostile, "nodes": [hostile]},
    }
    given = samples.get(kind) or {field.name: hostile for field in fields(kind)} | {"pid": 7}
    decoded: object = try_decode(kind, given)
    assert decoded is not None
    for text in texts_in(decoded):
        assert len(text) <= 256 * 1024
        assert isinstance(text, Untrusted) or all(line.isprintable() for line in text.split("\n"))


def test_a_decoder_takes_no_number_for_true() -> None:
    """To Python 1 is true: what a node calls true, and what it numbers, are told apart."""
    for given in (1, 0, "true", None):
        assert try_decode(bool, given) is None
    assert try_decode(bool, False) is False  # noqa: FBT003 - the value itself
    assert try_decode(Phase, True) is None  # noqa: FBT003 - the value itself
    assert try_decode(Phase, 1) is Phase.STARTED
