"""`aboard bundle` and `aboard why --bundle`: what is secret stays here, what comes from outside is only data."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_events import made_event
from made_findings import made_finding
from typed_commands import aboard

from aboard.core.secrets.secret_names import MASK
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import AboardError, Finding, Severity
from aboard.engine.records import bundle_replay
from aboard.engine.records.bundle import REDACTED, pack_run, write_bundle
from aboard.engine.records.bundle_replay import replay_bundle
from aboard.engine.records.recorded_run import parse_recorded_run
from aboard.engine.records.replay_run import replay_run
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record

# Made up, each in the shape of its kind.
SECRETS = {
    "hugging face": "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345",
    "openai": "sk-proj-abcdEFGH1234ijklMNOP5678",
    "aws id": "AKIAIOSFODNN7EXAMPLE",
    "aws key": "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY00",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "wandb": "0123456789abcdef0123456789abcdef01234567",
    "url": "hunter2hunter2",
    "bearer": "abcdef.ghijkl.mnopqr-123456",
    "assigned": "correct-horse-battery",
    "argument": "s3cr3t-argument",
    "in an error": "supersecretvalue1",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    "private key": "MIIEpAIBAAKCAQEA7bq",
}
SAID = (
    f"login with {SECRETS['hugging face']} and {SECRETS['openai']}",
    f"aws {SECRETS['aws id']} aws_secret_access_key = {SECRETS['aws key']}",
    f"git clone https://ada:{SECRETS['url']}@git.example.org/x.git with {SECRETS['github']}",
    f"wandb: using api key {SECRETS['wandb']}",
    f"Authorization: Bearer {SECRETS['bearer']}",
    f"DB_PASSWORD={SECRETS['assigned']} python train.py --api-key {SECRETS['argument']} {SECRETS['jwt']}",
    f"ValueError: accessToken={SECRETS['in an error']}",
    f"-----BEGIN RSA PRIVATE KEY----- {SECRETS['private key']} -----END RSA PRIVATE KEY-----",
    "wrote /home/adalove/ckpt and /root/x as adalove, from 10.20.30.40",
)
TRACEBACK = ("Traceback (most recent call last):", '  File "/home/me/train.py", line 7, in <module>', "    main()")
PLAN = {
    "run": "r",
    "command": "aboard launch --env COLOUR=mauve -- train.py",
    "world": 2,
    "env": {"HF_TOKEN": "[secret]", "NCCL_DEBUG": "INFO", "EDITOR": "/home/adalove/bin/vim"},
    "nodes": [
        {"name": name, "env": {}, "starts": [{"child": str(rank), "rank": rank, "env": {"RANK": str(rank)}}]}
        for rank, name in enumerate(("n1", "n2"))
    ],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """A run of two ranks, of which the second raised."""
    made = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    made.make()
    record = Record.open(made, ranks=2)
    record.write_plan(PLAN)
    record.event(made_event("generation", node="", at=1.0, number=1))
    for rank, node in enumerate(("n1", "n2")):
        record.event(made_event("started", node=node, seq=1, at=2.0, child=str(rank), rank=rank))
    raised = {"type": "ValueError", "message": f"token={SECRETS['assigned']}", "trace": ""}
    record.event(made_event("raised", node="n2", seq=2, at=3.0, child="1", rank=1, **raised))
    record.event(made_event("exited", node="n2", seq=3, at=3.1, child="1", rank=1, code=1))
    for line in SAID:
        record.add_output("n2", 1, "stderr", f"{line}\n".encode(), 3.0)
    record.samples("n1", 2.5, {"children": {"0": {"step": 4}}})
    finding = made_finding(
        code="run-raised", severity=Severity.BLOCK, nodes=("n2",), ranks=(1,), seen="x", why="y", fix="z"
    )
    record.write_findings([finding])
    record.close()
    return made


def archive(
    path: Path, parts: Mapping[str, bytes], tweak: Callable[[tarfile.TarInfo], None] = lambda _entry: None
) -> Path:
    """A tar.gz of these members, as anybody could make it."""
    with tarfile.open(path, "w:gz") as tar:
        for name, content in parts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tweak(entry)
            tar.addfile(entry, io.BytesIO(content))
    return path


def manifest(**more: Any) -> bytes:
    return json.dumps({"format": 1, "aboard": "0", "run": "r", **more}).encode()


def judged_again(
    *events: tuple[int, float, str, Mapping[str, Any]],
    words: Mapping[int, tuple[str, ...]],
    nodes: Sequence[Mapping[str, Any]] = ({"name": "a"}, {"name": "b"}, {"name": "c"}),
) -> tuple[Finding, ...]:
    """What a record of three nodes comes to, given its events by rank and what the ranks said on stderr."""
    names = [node["name"] for node in nodes]
    plan = [{**node, "starts": [{"child": str(rank), "rank": rank}]} for rank, node in enumerate(nodes)]
    told = [
        {"at": at, "kind": kind, "node": names[rank], "child": str(rank), "data": data}
        for rank, at, kind, data in events
    ]
    logs = [
        {"at": 2.0, "rank": rank, "node": names[rank], "stream": "stderr", "text": line}
        for rank, lines in words.items()
        for line in lines
    ]
    parts = {
        "plan.json": json.dumps({"nodes": plan}).encode(),
        "events.jsonl": "".join(f"{json.dumps(each)}\n" for each in told).encode(),
        "logs.jsonl": "".join(f"{json.dumps(each)}\n" for each in logs).encode(),
    }
    return replay_run(parse_recorded_run("r", parts)).why.findings


def refused(path: Path) -> str:
    """The code with which a bundle is refused; "" when it isn't."""
    try:
        replay_bundle(path)
    except AboardError as error:
        return error.code
    return ""


def test_no_planted_secret_is_in_a_bundle(run: RunDirectory) -> None:
    """Keys of all kinds, passwords, homes and users are gone from every part of it."""
    bundle = pack_run(run, SecretScrubber(users=["adalove"]))
    whole = b"\n".join(bundle.parts.values()).decode()
    for kind, secret in SECRETS.items():
        assert secret not in whole, kind
    assert "adalove" not in whole
    assert bundle.removed["secrets"] >= len(SECRETS) - 1
    assert "10.20.30.40" in whole


def test_addresses_go_on_request_and_stay_apart(run: RunDirectory) -> None:
    """The same address is the same made-up one everywhere; loopback tells nobody anything and stays."""
    bundle = pack_run(run, SecretScrubber(hide_addresses=True))
    assert b"10.20.30.40" not in b"".join(bundle.parts.values())
    scrub = SecretScrubber(hide_addresses=True)
    assert scrub.text("10.0.0.1 10.0.0.2 10.0.0.1 127.0.0.1") == "198.18.0.1 198.18.0.2 198.18.0.1 127.0.0.1"


def test_of_the_environment_names_stay(run: RunDirectory) -> None:
    """Values stay only where they say how ranks talk to each other."""
    plan = json.loads(pack_run(run, SecretScrubber()).parts["plan.json"])
    assert plan["env"] == {"HF_TOKEN": MASK, "NCCL_DEBUG": "INFO", "EDITOR": REDACTED}
    assert plan["command"] == REDACTED
    assert plan["nodes"][1]["starts"][0]["env"] == {"RANK": "1"}


def test_an_option_of_an_argv_is_masked() -> None:
    """Its name and its value are two words there."""
    argv = ["python", "train.py", "--hub-token", "abcdefgh12", "--lr", "0.001", f"--api-key={SECRETS['argument']}"]
    assert SecretScrubber().value({"argv": argv}) == {
        "argv": ["python", "train.py", "--hub-token", MASK, "--lr", "0.001", f"--api-key={MASK}"]
    }


@pytest.mark.parametrize(
    "line",
    [
        "step 10 loss 2.1 tokens=123456 tokens_per_second: 98765",
        "tokenizer: Qwen/Qwen2.5-7B, pad_token='<pad>', eos_token_id=151643",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "key default_pg/0/0, keys: /default_pg/0//cpu//0/2",
        "https://example.org:8080/path@x",
        "passed 12 checks, author unknown",
    ],
)
def test_ordinary_lines_are_left_alone(line: str) -> None:
    """A verdict needs words: only what is secret goes."""
    assert SecretScrubber().text(line) == line


def test_equal_records_give_equal_bytes(run: RunDirectory) -> None:
    """No time and no user of this machine is in the archive."""
    assert pack_run(run, SecretScrubber()).data() == pack_run(run, SecretScrubber()).data()


def test_a_bundle_replays_the_verdict(run: RunDirectory, tmp_path: Path) -> None:
    """From its events, by the rules of this version: the same cause, node and rank."""
    path = tmp_path / "b.tar.gz"
    write_bundle(run.id, pack_run(run, SecretScrubber()).data(), path)
    assert path.stat().st_mode & 0o777 == 0o600
    told = replay_bundle(path).replayed
    assert told.run == run.id
    first = told.why.findings[0]
    assert (first.code, first.nodes, first.ranks) == ("run-raised", ("n2",), (1,))
    assert not told.changed
    with pytest.raises(AboardError):
        write_bundle(run.id, pack_run(run, SecretScrubber()).data(), path)


def test_a_record_knows_the_interpreter_of_its_ranks() -> None:
    """A missing module leads to the same commands as live; a name that is none of a host stays out of them."""
    nodes: list[dict[str, Any]] = [{"name": name, "argv": ["/opt/py/bin/python", "t.py"]} for name in "abc"]
    nodes[0] |= {"address": "10.0.0.7", "user": "ann", "port": 2222}
    nodes[2] |= {"address": "$(id)"}
    said = {"type": "ModuleNotFoundError", "message": "No module named 'apex'", "trace": ""}
    raised = [(rank, 3.0, "raised", said) for rank in range(3)]
    words = dict.fromkeys(range(3), (*TRACEBACK, "ModuleNotFoundError: No module named 'apex'"))
    (finding,) = judged_again(
        *raised, *((rank, 4.0, "exited", {"code": 1}) for rank in range(3)), nodes=nodes, words=words
    )
    assert (finding.ranks, finding.consequences) == ((0, 1, 2), ())
    assert finding.fix.startswith("for node in b c; do ssh")
    assert "\nssh -p 2222 ann@10.0.0.7 '/opt/py/bin/python -m pip install apex'    # here; " in finding.fix
    assert "$(id)" not in finding.fix


def test_peers_that_lost_a_killed_rank_are_no_second_cause() -> None:
    """After a SIGKILL there is one blocking finding; the errors of the other ranks follow from it."""
    reset = "RuntimeError: [pair.cc:544] Read error [10.0.0.3]:4711: Connection reset by peer"
    lost = {"type": "RuntimeError", "message": reset.partition(": ")[2], "trace": ""}
    (finding,) = judged_again(
        (2, 3.0, "exited", {"code": -9}),
        (0, 3.1, "raised", lost),
        (0, 3.2, "exited", {"code": 1}),
        (1, 3.1, "raised", lost),
        (1, 3.2, "exited", {"code": 1}),
        words={0: (*TRACEBACK, reset), 1: (*TRACEBACK, reset)},
    )
    assert (finding.code, finding.nodes, finding.ranks) == ("run-killed", ("c",), (2,))
    assert [(each.code, each.ranks) for each in finding.consequences] == [("run-followed", (0, 1))]


def test_what_a_rank_said_long_before_it_exited_is_no_second_cause() -> None:
    """An error that its script caught is shown below the exit code, and blocks nothing by itself."""
    words = ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "the batch is halved", "epoch 2")
    (finding,) = judged_again((1, 3.0, "exited", {"code": 3}), words={1: words})
    assert finding.code == "run-exited"
    assert [each.code for each in finding.consequences if each.severity > Severity.INFO] == []
    assert "log-gpu-memory" in [each.code for each in finding.consequences]


def test_the_words_of_a_rank_say_more_of_its_exception() -> None:
    """Where the exception alone leads to no fix, what is known of its message is told too."""
    raised = {"type": "RuntimeError", "message": "PytorchStreamReader failed reading zip archive", "trace": ""}
    words = (*TRACEBACK, f"RuntimeError: {raised['message']}: failed finding central directory")
    found = judged_again((1, 3.0, "raised", raised), (1, 3.1, "exited", {"code": 1}), words={1: words})
    assert [each.code for each in found] == ["run-raised", "log-checkpoint-torn"]


def test_the_command_line(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes in is listed; nobody there to be asked is no yes; the archive is judged anywhere."""
    state = run.path.parent
    runs = state / "aboard" / "runs"
    runs.mkdir(parents=True)
    run.path.rename(runs / run.id)
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.chdir(state)
    asked = aboard("bundle", run.id)
    assert asked.code == 3
    assert "events.jsonl" in asked.stdout
    assert "--yes" in asked.stderr
    assert not (state / f"{run.id}.tar.gz").exists()
    assert aboard("bundle", run.id, "--yes", "-o", "b.tar.gz").code == 0
    told = aboard("why", "--bundle", "b.tar.gz")
    assert told.code == 2
    assert "run-raised" in told.stdout


def test_a_bundle_with_remarks_only_exits_as_a_healthy_one(tmp_path: Path) -> None:
    """As --log does: an info never sets the exit code."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=2)
    record.write_plan(PLAN)
    record.event(made_event("generation", node="", at=1.0, number=1))
    for rank, node in enumerate(("n1", "n2")):
        record.event(made_event("started", node=node, seq=1, at=2.0, child=str(rank), rank=rank))
        record.event(made_event("exited", node=node, seq=2, at=3.0, child=str(rank), rank=rank, code=0))
    record.event(made_event("continued", node="n2", seq=3, at=2.5, process="guard"))
    record.event(made_event("finished", node="", seq=4, at=4.0, code=0, why="all ranks ended"))
    record.close()
    write_bundle(run.id, pack_run(run, SecretScrubber()).data(), tmp_path / "b.tar.gz")
    told = aboard("why", "--bundle", str(tmp_path / "b.tar.gz"))
    assert "run-agent-disturbed" in told.stdout
    assert told.code == 0


def test_paths_that_lead_outside_are_passed_by(tmp_path: Path) -> None:
    """Nothing is unpacked, and a name with a path is no part of a bundle."""
    parts = {"aboard-bundle/manifest.json": manifest(), "../evil.json": b"{}", "/etc/evil.json": b"{}",
             "aboard-bundle/../../evil.json": b"{}"}  # fmt: skip
    assert replay_bundle(archive(tmp_path / "b.tar.gz", parts)).replayed.why.findings == ()
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar.gz"]


def test_links_are_no_files(tmp_path: Path) -> None:
    """A link in the archive to a file of this machine is not followed."""

    def link(entry: tarfile.TarInfo) -> None:
        if entry.name.endswith("findings.json"):
            entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"

    parts = {"aboard-bundle/manifest.json": manifest(), "aboard-bundle/findings.json": b""}
    assert replay_bundle(archive(tmp_path / "b.tar.gz", parts, link)).replayed.why.findings == ()


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
def test_a_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: bytes) -> None:
    """What unpacks to more than the limit is not read to its end, be it a file or a header."""
    monkeypatch.setattr(bundle_replay, "MOST_UNPACKED", 10_000)
    entry = tarfile.TarInfo("aboard-bundle/logs.jsonl")
    entry.size, entry.type = 3_000_000, kind
    path = tmp_path / "b.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write(entry.tobuf() + bytes(entry.size))
    with pytest.raises(AboardError, match="unpacks to") as raised:
        replay_bundle(path)
    assert raised.value.code == "bundle-broken"


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b'[{"code": 3}]', b'[{"severity": "x"}]', b'{"a": 1}', b"\xff\xfe", b"1e999"],
)
def test_parts_that_make_no_sense_end_in_a_named_error_or_in_nothing(tmp_path: Path, content: bytes) -> None:
    """Never in a traceback."""
    names = ("findings.json", "plan.json", "events.jsonl", "logs.jsonl", "stacks.json")
    for name in names:
        parts = {"aboard-bundle/manifest.json": manifest(), f"aboard-bundle/{name}": content}
        assert refused(archive(tmp_path / "b.tar.gz", parts)) in ("", "bundle-broken")


def test_words_of_a_bundle_can_not_touch_a_terminal(tmp_path: Path) -> None:
    """An escape sequence in a finding is shown, not obeyed."""
    finding = {
        "code": "run-raised",
        "severity": "block",
        "nodes": ["n\x1b[2J"],
        "ranks": [],
        "seen": "\x1b]0;x\x07",
        "why": "",
        "fix": "",
    }
    parts = {
        "aboard-bundle/manifest.json": manifest(run="\x1b[2J"),
        "aboard-bundle/findings.json": json.dumps([finding]).encode(),
    }
    told = replay_bundle(archive(tmp_path / "b.tar.gz", parts)).replayed
    assert "\x1b" not in told.run + str(told.why.findings[0].nodes[0]) + told.why.findings[0].seen


def test_a_bundle_tells_of_the_attempts_that_failed(tmp_path: Path) -> None:
    """A run that went on without a lost node has no other finding; the line is text, and its fix is not used."""
    failure = {"failure": "node", "code": "run-node-gone", "nodes": ["n2"]}
    failed = {**failure, "seen": "n2 was lost\x1b[2J", "fix": "rm -rf /"}
    told = [
        {"at": 1.0, "kind": "generation", "data": {"number": 1}},
        {"at": 2.0, "kind": "recovering", "data": {**failed, "action": "replace", "why": "n2 failed: n3 takes over"}},
        {"at": 3.0, "kind": "generation", "data": {"number": 2}},
    ]
    parts = {
        "aboard-bundle/manifest.json": manifest(),
        "aboard-bundle/events.jsonl": "".join(f"{json.dumps({'node': '', **each})}\n" for each in told).encode(),
    }
    (line,) = replay_bundle(archive(tmp_path / "b.tar.gz", parts)).attempts
    assert "run-node-gone" in line
    assert "n3 takes over" in line
    assert "\x1b" not in line
    assert "rm -rf" not in line


def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path) -> None:
    """A missing file, another file, an archive of something else."""
    (tmp_path / "x").write_bytes(b"no archive")
    archive(tmp_path / "y", {"other/file": b"x"})
    for name in ("none", "x", "y"):
        with pytest.raises(AboardError) as raised:
            replay_bundle(tmp_path / name)
        assert raised.value.code.startswith("bundle-")
