"""Bytes that no program of ours wrote, where each program decodes what comes from outside."""

import json
from pathlib import Path

import pytest
from made_run import make_run
from typed_commands import aboard

from aboard.agent import frames
from aboard.agent.beacon.report_receiver import BeaconState
from aboard.agent.capture.launcher_captures import build_document
from aboard.core.decoding import DecodeError, decode_with, parse_json

DEEP = b"[" * 900 + b"]" * 900
DAMAGED = {
    "deep": DEEP,
    "deeper than Python reads": b"[" * 100_000 + b"]" * 100_000,
    "deep behind brackets in texts": b'["[[]",' + DEEP + b"]",
    "deep behind brackets in texts that pair with its own": b'["]",' * 400 + b"1" + b',"["]' * 400,
    "cut": b'{"a": [1, 2',
    "not UTF-8": b'"\xff"',
    "number of too many digits": b"9" * 5000,
    "nothing": b"",
}
LAUNCHER = {
    "launcher": "torchrun", "argv": ["torchrun"], "cwd": "/", "env": {}, "limits": {"n": -1}, "python": "", "files": {},
    "script": "", "line": 1,
}  # fmt: skip


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
def test_damaged_json_is_one_kind_of_error(data: bytes) -> None:
    """Of the agent and of the head, each has one, whatever Python raises."""
    with pytest.raises(frames.FrameError):
        frames.decode_json(data)
    with pytest.raises(DecodeError):
        parse_json(data)


@pytest.mark.parametrize(
    "error", [RecursionError, MemoryError, OverflowError, KeyError, UnicodeError, ZeroDivisionError]
)
def test_whatever_a_parser_raises_is_one_kind_of_error(error: type[Exception]) -> None:
    """A parser of foreign bytes needs no list of what they may make it raise."""

    def parse(_data: bytes) -> None:
        raise error

    with pytest.raises(frames.FrameError):
        frames.decode_with(parse, b"", "no marker")
    with pytest.raises(DecodeError):
        decode_with(parse, b"")


def test_brackets_in_texts_and_equal_keys_are_valid() -> None:
    """A rank's output has any brackets; of equal keys the last one counts, in both programs."""
    data = json.dumps({"text": "[" * 500, "rows": [[{}] * 100] * 2}).encode()[:-1] + b', "rows": 1}'
    for value in (frames.decode_json(data), parse_json(data)):
        assert value == {"text": "[" * 500, "rows": 1}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("line", "Infinity"), ("line", "NaN"), ("line", "-1"), ("line", "1e999"), ("line", "true"), ("line", "1" * 400),
        ("limits", '{"n":Infinity}'), ("argv", '["a",1]'), ("env", '{"A":null}'), ("files", "[]"), ("cwd", "{}"),
    ],
)  # fmt: skip
def test_a_launcher_that_is_described_wrongly_is_refused(field: str, value: str) -> None:
    """The supervisor takes declared fields only, and names the one that is wrong."""
    document = json.dumps({**LAUNCHER, field: "?"}).replace('"?"', value)
    with pytest.raises(frames.FrameError, match=f"no valid {field}: "):
        build_document(frames.unpack(document.encode()), {}, "/run/capture")


@pytest.mark.parametrize(
    "arrivals",
    [
        '{"groups":' + "[" * 500 + "]" * 500 + "}",
        '{"groups":[["k","n",[1],[NaN],1]]}',
        '{"groups":[["k","n",[],[],-1]]}',
    ],
    ids=["deep", "no number", "negative"],
)
def test_arrivals_that_no_beacon_sends_are_dropped(arrivals: str) -> None:
    """What a rank reports reaches the head in a frame with the figures of all ranks, which must stay valid."""
    beacon = BeaconState(0, "/run", [])
    with pytest.raises(frames.FrameError):
        beacon.take_figures(frames.unpack(b'{"arrivals":%s}' % arrivals.encode()))
    assert beacon.arrivals == {}


@pytest.mark.parametrize(
    "part", ["plan.json", "findings.json", "events.jsonl", "metrics.jsonl", "lateness.jsonl", "samples.jsonl"]
)
@pytest.mark.parametrize("command", ["status", "why", "bundle"])
def test_a_deeply_nested_record_is_shown_as_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, part: str
) -> None:
    """Commands that read a record end with what can be read, and name the run."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    runs = tmp_path / "aboard" / "runs"
    runs.mkdir(parents=True, mode=0o700)
    run = make_run(runs / "20261115-0800-brave-otter")
    file = run.path / part
    # A bundle walks through what others only read.
    deep = DEEP if command == "bundle" else DAMAGED["deeper than Python reads"]
    lines = file.read_bytes().splitlines(keepends=True) if part.endswith(".jsonl") and file.exists() else []
    file.write_bytes(b"".join([*lines, b'{"at":1.0,"kind":"x","node":"","data":{"a":' + deep + b"}}\n"]))
    ran = aboard(command, run.id)
    assert "Traceback" not in ran.stderr
    assert "RecursionError" not in ran.stderr + ran.stdout
    assert "brave-otter" in ran.stdout + ran.stderr
    if part.endswith(".json"):
        assert part in ran.stdout + ran.stderr
