"""Looks at nodes, kept in a run's record and in its bundle: what was said of them live is said of them again."""

import gzip
import io
import json
import random
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from evidence_builders import NOW, at_collective, evidence, in_collective, process, stack, stuck_socket
from made_events import made_event
from made_findings import made_finding
from rich.console import Console
from snapshot_builders import RUN, answers_of, kept_run, stopped, verdict

from aboard import __version__
from aboard.commands.why.verdict_view import ReplayView
from aboard.core.evidence import snapshot as look_module
from aboard.core.evidence.node_snapshot import (
    DiskUsage,
    NicTraffic,
    OtherProcess,
    PingResult,
    RankSnapshot,
    StoreRequest,
    decode_node_snapshot,
)
from aboard.core.evidence.python_stacks import extract_main_thread, parse_main_thread
from aboard.core.evidence.run_evidence import Evidence
from aboard.core.evidence.snapshot import NO_ROOM, NodeAnswer, build_snapshot, decode_answers
from aboard.core.evidence.verdict import ReplayedJudgement
from aboard.core.run.events import Measurement
from aboard.core.run.rank_phases import Phase
from aboard.core.run.run_state import Run
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.byte_sizes import MIB
from aboard.diagnoses import AboardError, Severity
from aboard.diagnoses.catalogue import recall_diagnosis
from aboard.diagnoses.untrusted import Untrusted, encode_text
from aboard.doctor.death.rules import conclude_run
from aboard.doctor.judge_evidence import judge_evidence
from aboard.engine.records import recorded_run as kept_module
from aboard.engine.records.bundle import REDACTED, pack_run, write_bundle
from aboard.engine.records.bundle_replay import replay_bundle
from aboard.engine.records.record_parts import MOST_LINES
from aboard.engine.records.recorded_run import parse_recorded_run
from aboard.engine.records.replay_run import judge_finished_run, replay_run
from aboard.record.recent_snapshots import MOST_SNAPSHOTS
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.record.snapshot_document import decode_snapshot, encode_snapshot

SLEEPING = stack(("/home/adalove/secret-project/train.py", 42, "wait_for_it"))
TOKEN = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"  # noqa: S105 - made up


def behind(**given: Any) -> RankSnapshot:
    """A rank that has done the 19th and is elsewhere."""
    return replace(in_collective(), groups=(at_collective(19, over=True),), stack=SLEEPING, **given)


def eight(**others: RankSnapshot) -> dict[int, RankSnapshot]:
    return {rank: others.get(f"r{rank}", in_collective()) for rank in range(8)}


def locked() -> Evidence:
    return evidence(eight(r3=behind(process=process(call="futex"))), default=Phase.COLLECTIVE)


def cut_link() -> Evidence:
    ranks = eight(
        r4=in_collective(
            sockets=(stuck_socket("10.0.0.3:1", "10.0.0.1:2", tx=96), stuck_socket("10.0.0.3:1", "10.0.0.4:2"))
        ),
        r1=in_collective(sockets=(stuck_socket("10.0.0.1:3", "10.0.0.3:4"),)),
    )
    heard = {
        name: {"echoes": {"10.0.0.3": PingResult(small=True, large=False, sent=4, lost=3)}} for name in ("n1", "n2")
    }
    return evidence(ranks, nodes=heard, default=Phase.COLLECTIVE)


def mismatch() -> Evidence:
    odd = in_collective(groups=(at_collective(20, op="gloo:broadcast", sizes="[[4]]"),))
    return evidence(eight(r6=odd), default=Phase.COLLECTIVE)


def dead_mount() -> Evidence:
    seen = behind(process=process(state="D", states="DDDDDDDD", call="read", file="/mnt/dead/shard-7"))
    mounts = {"n2": {"mounts": (("server:/x", "/mnt/dead", "nfs4"),), "hung": "the disk of /mnt/dead"}}
    return evidence(eight(r3=seen), nodes=mounts, default=Phase.COLLECTIVE)


def barred_store() -> Evidence:
    joining = StoreRequest(host="10.0.0.1", port=29500, world=8, rank=1)
    why = {"flight": "it has no beacon"}
    seeking = RankSnapshot(process=process(call="poll"), stack=SLEEPING, joining=joining, why=why)
    dials = {name: {"dials": {("10.0.0.1", 29500): "no answer"}} for name in ("n2", "n3", "n4")}
    return evidence(dict.fromkeys(range(8), seeking), nodes=dials, default=Phase.TORCH, quiet=30.0)


SCENES = [locked, cut_link, mismatch, dead_mount, barred_store]


def bundled(run: RunDirectory, scrubber: SecretScrubber | None = None) -> Path:
    path = run.path.parent / "b.tar.gz"
    write_bundle(run.id, pack_run(run, scrubber or SecretScrubber(users=["adalove"])).data(), path)
    return path


def first(told: ReplayedJudgement) -> tuple[str, tuple[str, ...], tuple[int, ...]]:
    found = told.why.findings[0]
    return found.code, found.nodes, found.ranks


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("over", [False, True])
@pytest.mark.parametrize("hide", [False, True])
def test_what_was_said_live_is_said_again(
    tmp_path: Path, scene: Callable[[], Evidence], *, over: bool, hide: bool
) -> None:
    """From the record and from a bundle, of a run that stands and of one that was stopped: code, nodes and ranks."""
    given = scene()
    assert decode_answers(given.plan, answers_of(given)) == given.snapshots
    live = judge_evidence(given)
    after = stopped(given) if over else ()
    run = kept_run(tmp_path, given, after=after, ended=live.findings[:1] if over else None)
    from_bundle = replay_bundle(bundled(run, SecretScrubber(users=["adalove"], hide_addresses=hide))).replayed
    for told in (judge_finished_run(run), from_bundle):
        assert first(told) == (live.findings[0].code, live.findings[0].nodes, live.findings[0].ranks)
        assert not told.changed
        assert len(told.why.ruled_out) == len(live.ruled_out)


@pytest.mark.parametrize("hide", [False, True])
def test_an_end_is_judged_by_the_look_at_it(tmp_path: Path, *, hide: bool) -> None:
    """Whose connections were ended is told by addresses, which only the nodes' answers know; made-up ones will do."""
    given = evidence(eight(), default=Phase.COLLECTIVE)
    closed = {"type": "RuntimeError", "message": "Connection closed by peer [10.9.0.3]:29512"}
    deaths = [made_event("deciding", node="", at=NOW, why="rank 0 died", death=True)]
    for rank, name in ((0, "n1"), (2, "n2"), (6, "n4")):
        deaths.append(made_event("raised", node=name, seq=5, at=NOW - 1, child=str(rank), **closed))
        deaths.append(made_event("exited", node=name, seq=6, at=NOW, child=str(rank), code=1))
    for event in deaths:
        given.run.apply(event)
    third = replace(given.snapshots["n3"], addresses=(("eth1", "10.9.0.3"),))
    given = replace(given, snapshots={**given.snapshots, "n3": third})
    live = conclude_run(given, None, was_stopped=False).findings
    assert (live[0].code, live[0].nodes) == ("network-reset", ("n3",))
    run = kept_run(tmp_path, given, told=live, after=deaths, ended=live)
    from_bundle = replay_bundle(bundled(run, SecretScrubber(hide_addresses=hide))).replayed
    for told in (judge_finished_run(run), from_bundle):
        assert first(told) == (live[0].code, live[0].nodes, live[0].ranks)
        assert not told.changed


def test_a_run_that_moves_again_is_not_told_to_hang(tmp_path: Path) -> None:
    """A verdict that was taken back is none, whether the run goes on or was stopped later."""
    given = locked()
    for number, after in enumerate(([verdict(())], [verdict(()), *stopped(given)])):
        (tmp_path / str(number)).mkdir()
        assert judge_finished_run(kept_run(tmp_path / str(number), given, after=after)).why.findings == ()


def test_without_its_look_a_stall_is_told_as_it_was(tmp_path: Path) -> None:
    """A full disk, or an earlier version, kept no look: what the events say stands."""
    given = locked()
    run = kept_run(tmp_path, given, after=stopped(given))
    run.snapshot(1).unlink()
    assert first(judge_finished_run(run)) == ("hang-lock", ("n2",), (3,))


def test_other_rules_say_both(tmp_path: Path) -> None:
    """What was said then and what is said now, each with its version; never one in the place of the other."""
    given = locked()
    old = made_finding(code="hang-unknown", severity=Severity.WARN, nodes=("n1",), seen="who knows", why="w", fix="f")
    told = replay_bundle(bundled(kept_run(tmp_path, given, told=(old,)))).replayed
    assert told.changed
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(ReplayView(replace(told, version="0.0.9"), now="0.1.0", verbose=False))
    said = console.export_text()
    assert said.index("recorded verdict by aboard 0.0.9:") < said.index("hang-unknown")
    assert said.index("hang-unknown") < said.index("verdict by aboard 0.1.0:") < said.index("hang-lock")


def test_no_secret_no_home_and_no_environment_leaves_with_a_look(tmp_path: Path) -> None:
    """Stacks, kernel lines, names of processes and files are scrubbed as logs are, and an environment is left out."""
    given = locked()
    around = {
        "kernel": (f"audit: token={TOKEN}",),
        "neighbours": (OtherProcess(pid=7, name=Untrusted("adalove"), cores=1.0),),
        "disks": (DiskUsage(path=Untrusted("/home/adalove/data"), free=1, size=2),),
        "links": (NicTraffic(name="eth0", state="up"),),
    }
    snapshots = {name: replace(node, **around) for name, node in given.snapshots.items()}  # type: ignore[arg-type]
    answers = dict(answers_of(replace(given, snapshots=snapshots)))
    told = json.loads(json.dumps(answers["n1"].told))
    told["children"]["0"]["env"] = {"COLOUR": "mauve", "NCCL_DEBUG": "INFO"}
    answers["n1"] = NodeAnswer(told=told)
    run = kept_run(tmp_path, given, answers=answers)
    part = pack_run(run, SecretScrubber(users=["adalove"])).parts["look-0001.json"].decode()
    assert TOKEN in run.snapshot(1).read_text()
    for planted in (TOKEN, "adalove", "mauve"):
        assert planted not in part
    assert "/home/[user]/secret-project/train.py" in part
    assert REDACTED in part


def test_looks_are_private_and_few(tmp_path: Path) -> None:
    """Of each verdict the last look, of verdicts the last four, readable for their owner only."""
    run = RunDirectory(tmp_path / RUN)
    run.make()
    record = Record.open(run, ranks=8)
    given = locked()
    (found,) = judge_evidence(given).findings[:1]
    codes = ["a", "b", "b", "c", "d", "d", "e"]
    for number, code in enumerate(codes, 1):
        record.add_snapshot(
            build_snapshot(given, answers_of(given), (replace(found, diagnosis=recall_diagnosis(code)),), number=number)
        )
    record.close()
    kept = sorted(run.path.glob("look-*.json"))
    assert [path.name for path in kept] == [f"look-{number:04}.json" for number in (3, 4, 6, 7)]
    assert len(kept) == MOST_SNAPSHOTS
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}


def test_a_look_that_is_too_large_keeps_what_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """First threads that no rule reads go, then whole nodes, those of the verdict last; who is gone is said."""
    given = locked()
    other = 'Thread 0x02 (most recent call first):\n  File "/x.py", line 1 in other\n' * 400
    ranks = {
        name: {rank: replace(seen, stack=Untrusted(other + seen.stack.raw())) for rank, seen in node.ranks.items()}
        for name, node in given.snapshots.items()
    }
    full = replace(given, snapshots={name: replace(given.snapshots[name], ranks=seen) for name, seen in ranks.items()})
    findings = judge_evidence(full).findings
    monkeypatch.setattr(look_module, "MOST_BYTES", 50_000)
    slim = build_snapshot(full, answers_of(full), findings, number=1)
    assert decode_answers(given.plan, slim.answers) == given.snapshots
    monkeypatch.setattr(look_module, "MOST_BYTES", 5_000)
    least = build_snapshot(full, answers_of(full), findings, number=1)
    assert list(least.answers) == ["n2"]
    assert least.unheard == dict.fromkeys(("n1", "n3", "n4"), NO_ROOM)
    assert len(json.dumps(encode_snapshot(least), default=encode_text)) < 12_000


def test_the_main_thread_is_all_that_is_judged_of_a_dump() -> None:
    """It comes last, and is the same with and without the others."""
    dump = 'Thread 0x02 (most recent call first):\n  File "/x.py", line 1 in other\n\n' + SLEEPING.raw()
    assert extract_main_thread(dump) == SLEEPING.raw()
    assert parse_main_thread(Untrusted(extract_main_thread(dump))) == parse_main_thread(Untrusted(dump))


def test_a_run_is_seen_as_it_was_at_the_look(tmp_path: Path) -> None:
    """Events that came later, though with earlier times, as of a node that was cut off, were not known then."""
    given = locked()
    late = [made_event("exited", node="n2", seq=8, at=NOW - 5, child="3", code=0)]
    assert first(judge_finished_run(kept_run(tmp_path, given, after=late))) == ("hang-lock", ("n2",), (3,))


def test_a_look_is_read_as_it_was_written() -> None:
    """Every figure, word and answer of it, and that a rank makes steps is known from its figures again."""
    said = {0: (Untrusted("loss 2.1"), Untrusted("loss nan"))}
    given = replace(locked(), unheard={"n4": "the node was lost"}, usual=0.25, pace=0.5, last_lines=said, quiet=7.5)
    for node, child in (("n1", ""), ("n2", "3")):
        given.run.take(Measurement(node=node, child=child, at=NOW - 3, values={"step": 20, "load": 1.5}))
    kept = build_snapshot(given, answers_of(given), judge_evidence(given).findings, number=12, ended=True)
    again = decode_snapshot(json.loads(json.dumps(encode_snapshot(kept), default=encode_text)), own=True)
    assert again is not None
    assert replace(again, plan=kept.plan, version="") == kept
    assert again.version == __version__
    assert again.plan.master == kept.plan.master
    assert [(name, start.child, start.rank) for name, start in again.plan.starts()] == [
        (name, start.child, start.rank) for name, start in kept.plan.starts()
    ]
    assert [part.node for part in again.plan.parts] == [part.node for part in kept.plan.parts]
    run = Run(id=RUN)
    run.apply(made_event("started", node="n2", seq=1, at=1.0, child="3"))
    assert again.evidence(run, {}).view(3).phase is Phase.STEPS


# -- what strangers send ---------------------------------------------------------------------------------


def archive(path: Path, parts: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in parts.items():
            entry = tarfile.TarInfo(f"aboard-bundle/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return path


def refused(path: Path) -> str:
    try:
        replay_bundle(path)
    except AboardError as error:
        return error.code
    return ""


def parts_of_bundle(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name.partition("/")[2]: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    10**400,
    1e308,
    float("nan"),
    "",
    "\x1b[2J" * 9,
    [],
    {},
    [[]],
    {"": {}},
    [None],
)


def spoiled(value: Any, dice: random.Random) -> Any:
    """The value with something of another kind in one place of it."""
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(list(value))
        return {**value, key: spoiled(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.9:
        place = dice.randrange(len(value))
        return [*value[:place], spoiled(value[place], dice), *value[place + 1 :]]
    return dice.choice(JUNK)


@pytest.mark.ci
def test_values_of_other_kinds_end_in_a_verdict_or_a_named_error(tmp_path: Path) -> None:
    """In looks, events, plans and findings, again and again; no traceback, and nothing that a terminal obeys."""
    given = cut_link()
    run = kept_run(tmp_path, given, after=stopped(given), ended=judge_evidence(given).findings)
    parts = parts_of_bundle(bundled(run))
    dice = random.Random(7)  # noqa: S311 - the same each time
    judged = 0
    for _ in range(150):
        name = dice.choice(["look-0001.json", "look-0001.json", "plan.json", "findings.json", "events.jsonl"])
        lines = parts[name].splitlines() if name.endswith("l") else [parts[name]]
        place = dice.randrange(len(lines))
        lines[place] = json.dumps(spoiled(json.loads(lines[place]), dice)).encode()
        path = archive(tmp_path / "spoiled.tar.gz", {**parts, name: b"\n".join(lines)})
        try:
            findings = replay_bundle(path).replayed.why.findings
        except AboardError as error:
            assert error.code == "bundle-broken"  # noqa: PT017 - one of two good ends
        else:
            judged += 1
            assert all("\x1b" not in each.seen + each.fix + "".join(each.nodes) for each in findings)
    assert judged > 100


def test_a_look_that_was_cut_short_is_none(tmp_path: Path) -> None:
    """Of the archive too: a named error, or what the rest of it says."""
    given = locked()
    parts = parts_of_bundle(bundled(kept_run(tmp_path, given)))
    half = parts["look-0001.json"][:1000]
    assert decode_snapshot({"number": 1}) is None
    assert first(replay_bundle(archive(tmp_path / "x", {**parts, "look-0001.json": half})).replayed)[0] == "hang-lock"
    whole = (tmp_path / "b.tar.gz").read_bytes()
    for length in (0, 10, 500, len(whole) // 2):
        (tmp_path / "y").write_bytes(whole[:length])
        assert refused(tmp_path / "y") == "bundle-broken"


@pytest.mark.ci
@pytest.mark.parametrize("part", ["look-0001.json", "events.jsonl", "logs.jsonl", "findings.json", "stacks.json"])
def test_what_is_huge_in_memory_is_not_taken_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Hosts of empty lists in a few bytes of archive: passed by, line by line or as a whole."""
    for limit, least in (("MOST_DOCUMENT", MIB), ("MOST_LINES", 100), ("MOST_EVENTS", 100)):
        monkeypatch.setattr(kept_module, limit, least)
    content = {
        ".json": b"[" + b"[]," * MIB + b"[]]",
        ".jsonl": b'{"kind":"held","at":1,"node":"x","rank":1,"text":"","data":{"a":[[],[],[],[]]}}\n' * 20_000,
    }[Path(part).suffix]
    manifest = json.dumps({"format": 1, "aboard": "0", "run": "r"}).encode()
    path = tmp_path / "b.tar.gz"
    archive(path, {"manifest.json": manifest, part: content})
    size = len(content)
    del content
    tracemalloc.start()
    try:
        assert refused(path) in ("", "bundle-broken")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The archive's own bytes, copied while they are read. As values they would be twenty times as much.
    assert peak < 3 * size + 2 * MIB


@pytest.mark.ci
def test_of_a_stranger_no_more_is_taken_than_a_record_of_ours_holds(tmp_path: Path) -> None:
    """Looks, events and lines: the last of them, whatever number the archive holds."""
    parts = parts_of_bundle(bundled(kept_run(tmp_path, locked())))
    many = {f"look-{number:04}.json": parts["look-0001.json"] for number in range(1, 60)}
    line = b'{"at":1,"rank":1,"text":"x"}\n'
    taken = parse_recorded_run(RUN, {**parts, **many, "logs.jsonl": line * (MOST_LINES + 5)})
    assert (len(taken.snapshots), len(taken.lines)) == (MOST_SNAPSHOTS, MOST_LINES)
    assert first(replay_run(replace(taken, lines=())))[0] == "hang-lock"


def test_a_strangers_names_can_not_touch_a_terminal(tmp_path: Path) -> None:
    """They come back in findings, as the rules put them there, and are shown, not obeyed."""
    parts = parts_of_bundle(bundled(kept_run(tmp_path, locked())))
    evil = {name: data.replace(b'"n2"', b'"n\\u001b[2J"') for name, data in parts.items()}
    told = replay_bundle(archive(tmp_path / "x", evil)).replayed
    found = told.why.findings[0]
    assert (found.code, found.nodes) == ("hang-lock", ("n\\x1b[2J",))
    assert "\x1b" not in found.seen + found.fix + "".join(each.why for each in told.why.ruled_out)


def test_a_number_that_no_float_holds_is_none() -> None:
    """From the wire or from an archive: it is left out, and the rest is read."""
    seen = decode_node_snapshot({"wall": 10**400, "node": {"load": -(10**400), "cores": 4}}, {}, 0.0)
    assert (seen.at, seen.load, seen.cores) == (0.0, None, 4)


def test_a_truncated_gzip_is_said_to_be_broken(tmp_path: Path) -> None:
    """Half of a stream ends in a named error."""
    (tmp_path / "b").write_bytes(gzip.compress(b"x" * 100_000)[:50])
    assert refused(tmp_path / "b") == "bundle-broken"
