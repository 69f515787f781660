"""Crafted reports and dumps that somebody hands you for `aboard why --log`: refused, or read within limits."""

import json
from pathlib import Path
from struct import pack

import pytest

from aboard.commands.why.log_files import diagnose_logs
from aboard.core.decoding import DecodeError
from aboard.core.evidence.flight_dumps import parse_flight_dump
from aboard.core.evidence.plain_pickles import parse_plain_pickle
from aboard.diagnoses import InputError

EMPTY = b"\x80\x02}"


def text(word: str) -> bytes:
    return b"X" + pack("<I", len(word)) + word.encode()


def dump(entries: bytes) -> bytes:
    """A pickle with a version and these entries."""
    return EMPTY + b"(" + text("version") + text("2.10") + text("entries") + entries + b"u."


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\x80\x02cos\nsystem\n(" + text("touch PWNED") + b"tR.", "instruction 0x63"),
        (EMPTY + b"(ios\nsystem\n.", "instruction 0x69"),
        (EMPTY + b"P1\n.", "instruction 0x50"),
        (EMPTY + b"\x81.", "instruction 0x81"),
        (EMPTY + b"\x82\x01.", "instruction 0x82"),
        (EMPTY + b"r\xff\xff\xff\xff.", "index beyond"),
        (EMPTY + b"X\xff\xff\xff\x7f" + bytes(9), "cut off"),
        (EMPTY + b"\x8a\xff" + b"\xff" * 255 + b".", "more than 64 bits"),
        (EMPTY + b"(" * 1_100_000, "too many lists"),
        (EMPTY + b"}" * 1_100_000, "too many lists"),
        (EMPTY + b"(]]u.", "neither text nor number"),
        (EMPTY + b"ttt.", "IndexError"),
        (EMPTY, "cut off"),
    ],
    ids=[
        *("call", "instance", "persistent", "object", "extension", "index", "text of 2 GB", "number of 2,040 bits"),
        *("marks", "dicts", "key", "no mark", "cut"),
    ],
)
def test_a_pickle_in_place_of_a_flight_record_is_not_run(
    data: bytes, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it would call, build, index or claim, it is refused by name, and nothing is allocated for it."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DecodeError, match=named):
        parse_plain_pickle(data)
    (tmp_path / "dump_0").write_bytes(data)
    with pytest.raises(InputError):
        diagnose_logs(["dump_0"])
    assert [path.name for path in tmp_path.iterdir()] == ["dump_0"]


def test_a_flight_record_that_contains_itself_is_read_once() -> None:
    """Lists that contain themselves, or each other twice 120 times, take no more time or memory than their bytes."""
    doubled = b"]q\x00" + b"".join(b"h" + bytes([each]) + b"\x86q" + bytes([each + 1]) for each in range(120))
    entry = b"}(" + text("seq_id") + b"K\x05" + text("input_sizes") + doubled + b"u"
    (group,) = parse_flight_dump(dump(b"](" + entry + b"e")).groups
    assert [(each.seq, each.sizes) for each in group.entries] == [(5, "")]
    with pytest.raises(DecodeError, match="no collective"):
        parse_flight_dump(dump(b"]q\x01(h\x01h\x01h\x01e"))


@pytest.mark.parametrize(
    "content",
    [
        b'{"version": "1", "entries": [{"collective_seq_id": ' + b"9" * 500 + b"}]}",
        b'{"version": "1", "entries": [{"collective_seq_id": NaN, "time_created_ns": Infinity}]}',
        b'{"version": "1", "entries": {"a": 1}}',
        json.dumps({"nccl_version": "2", "communicators": {"ranks": 1}}).encode(),
        json.dumps([{"frames": 7}]).encode(),
    ],
    ids=["digits", "NaN", "object", "communicators", "frames"],
)
def test_a_crafted_report_in_json_is_no_verdict(content: bytes, tmp_path: Path) -> None:
    """With wrong types it is damaged; nested too deeply, or with numbers without end, it is lines of a log."""
    (tmp_path / "report").write_bytes(content)
    with pytest.raises(InputError, match="damaged"):
        diagnose_logs([str(tmp_path / "report")])
    for endless in (b"[" * 100_000 + b"]" * 100_000, b"9" * 5000):
        (tmp_path / "report").write_bytes(b'{"version": "1", "entries": ' + endless + b"}")
        explanation = diagnose_logs([str(tmp_path / "report")])
        assert (explanation.outcome, explanation.kinds) == ("unknown", ("log",))


def test_names_in_a_report_reach_neither_screen_nor_command(tmp_path: Path) -> None:
    """Control characters are shown as escapes, and a host that is no name is not in a fix."""
    name = "\x1b[2J`id`"
    entry = {"collective_seq_id": 4, "process_group": ["0", name], "profiling_name": name, "state": "scheduled"}
    (group,) = parse_flight_dump(json.dumps({"version": "2", "entries": [entry]}).encode()).groups
    assert "\x1b" not in group.what
    assert group.entries[0].op == ""
    (tmp_path / "nodes").write_text(f"NodeName=n1{name} Arch=x86 State=DOWN Reason=off\n")
    with pytest.raises(InputError, match="a name that is none"):
        diagnose_logs([str(tmp_path / "nodes")])


def test_a_host_in_a_report_of_ras_is_a_name_or_unknown(tmp_path: Path) -> None:
    """Neither a second line nor a command gets through."""
    missing = [{"rank": 1, "host": "n1\nKernel panic - not syncing; rm -rf ~", "pid": 5}]
    document = {"nccl_version": "2.29", "communicators": [{"missing_ranks": missing}]}
    (tmp_path / "ras.json").write_text(json.dumps(document))
    (finding,) = diagnose_logs([str(tmp_path / "ras.json")]).findings
    assert (finding.code, finding.nodes, finding.ranks) == ("hang-nccl-missing", (), (1,))
    assert "rm -rf" not in finding.fix + finding.seen
