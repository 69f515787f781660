"""Attacks by a rank: code that runs with the user's rights on a node, and whatever it prints or kills."""

import base64
import json
import os
import re
from pathlib import Path

import pytest
from launching import Launches
from made_events import made_event
from secret_corpus import read_corpus
from typed_commands import aboard

from aboard.commands.launch.launch_view import LineBacklog
from aboard.commands.shared.log_lines import LogLineFormatter
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.engine.records.bundle import pack_run
from aboard.engine.records.read_logs import LogFollower, LogQuery
from aboard.record.rank_logs.log_reader import LogReader
from aboard.record.rank_logs.merged_logs import LineSelection
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.sandbox import Sandbox

# Made up: random bytes in the shape of a key. Marker lines are assembled, so that no code host takes them for a key.
# Made up: random bytes in the shape of a key. The marker lines are assembled, so that no code host objects to them.
KEY_LINES = [base64.b64encode(os.urandom(48)).decode() for _ in range(12)] + ["dGhlIGxhc3QgbGluZQ=="]
BEGIN, END = (f"-----{edge} OPENSSH PRIVATE" + " KEY-----" for edge in ("BEGIN", "END"))
PEM = "\n".join([BEGIN, *KEY_LINES, END])
STEP = "step 12 loss 2.31 tokens/s 51234"


def bundle_output(tmp_path: Path, pieces: list[tuple[int, str, str]]) -> str:
    """The text of a bundle of a run whose ranks wrote these pieces (rank, stream, text), seconds apart."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=2)
    for at, (rank, stream, text) in enumerate(pieces):
        record.add_output(f"n{rank}", rank, stream, text.encode(), 3.0 * at)
        record.tick(3.0 * at)
        record.tick(3.0 * at + 2)
    record.close()
    return bundle_run(run)


def bundle_run(run: RunDirectory) -> str:
    return b"\n".join(pack_run(run, SecretScrubber()).parts.values()).decode()


def list_leaked_lines(text: str) -> list[str]:
    return [line for line in KEY_LINES if line in text or line[5:30] in text]


def test_a_key_that_a_rank_prints_is_not_in_a_bundle(tmp_path: Path) -> None:
    """Neither its marker nor any line of its body; what the rank printed before and after it stays."""
    text = bundle_output(tmp_path, [(0, "stdout", f"before\n{PEM}\n{STEP}\n")])
    assert list_leaked_lines(text) == []
    assert "before" in text
    assert STEP in text


PUTTY = "\n".join(["Encryption: none", "Private-Lines: 13", *KEY_LINES, "Private-MAC: 0"])
PGP = "\n".join(
    ["-----BEGIN PGP PRIVATE" + " KEY BLOCK-----", "", *KEY_LINES, "-----END PGP PRIVATE" + " KEY BLOCK-----"]
)
PRINTED = {
    "with CRLF": PEM.replace("\n", "\r\n"),
    "after carriage returns": "loading 10%\rloading 100%\r" + PEM,
    "by a logger": "\n".join(
        f"2026-11-15 08:00:{at:02},{at} INFO [job.py:7] {each}" for at, each in enumerate(PEM.split("\n"))
    ),
    "by logging's default format": "\n".join(f"INFO:root:{line}" for line in PEM.split("\n")),
    "as one line": f"key={PEM!r}",
    "in JSON": json.dumps({"key": PEM}),
    "in JSON in JSON": json.dumps(json.dumps({"key": PEM})),
    "as a list of lines": repr(PEM.split("\n")),
    "as a list over lines": "[" + ",\n ".join(repr(f"{line}\n") for line in PEM.split("\n")) + "]",
    "indented": PEM.replace("\n", "\n      "),
    "in colours": "\n".join(f"\x1b[32m{line}\x1b[0m" for line in PEM.split("\n")),
    "in a box": "\n".join(f"│ {line:<96} │" for line in PEM.split("\n")),
    "in a table": "\n".join(f"| {line:<96} |" for line in PEM.removesuffix(END).split("\n")),
    "for PuTTY": PUTTY,
    "for PGP": PGP,
    "without an end": PEM.removesuffix(END),
    "without a beginning": PEM.removeprefix(BEGIN),
}


@pytest.mark.parametrize("printed", PRINTED)
def test_a_key_is_not_in_a_bundle_however_it_is_printed(tmp_path: Path, printed: str) -> None:
    """Neither any line of its body, whatever stands before and after each line; the lines around it stay."""
    text = bundle_output(tmp_path, [(0, "stdout", f"before\n{PRINTED[printed]}\n{STEP}\n")])
    assert list_leaked_lines(text) == []
    assert "before" in text
    assert STEP in text


@pytest.mark.parametrize("size", [7, 100, 1000])
def test_a_key_that_arrives_in_pieces_is_not_in_a_bundle(tmp_path: Path, size: int) -> None:
    """Pieces come seconds apart, cut anywhere, and other ranks and the other stream print between them."""
    pieces = [PEM[start : start + size] for start in range(0, len(PEM), size)]
    between = [(1, "stdout", f"{STEP}\n"), (0, "stderr", "a warning\n")]
    text = bundle_output(tmp_path, [part for piece in pieces for part in ((0, "stdout", piece), *between)])
    said = "".join(json.loads(line)["text"] for line in text.splitlines() if '"rank": 0, ' in line and "stdout" in line)
    assert list_leaked_lines(text + said) == []
    assert STEP in text


def test_a_key_that_began_before_the_kept_lines_is_not_in_a_bundle(tmp_path: Path) -> None:
    """A bundle keeps the last 400 lines of a rank, which may begin within a key."""
    after = f"{STEP}\n" * 393
    assert list_leaked_lines(bundle_output(tmp_path, [(0, "stdout", f"{PEM.removesuffix(END)}{after}")])) == []


def test_a_key_in_an_exception_is_not_in_a_bundle(tmp_path: Path) -> None:
    """Neither in the event with its message and trace, nor where a finding quotes one of its lines."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=1)
    raised = {"type": "ValueError", "message": f"bad key {PEM}", "trace": f"load({PEM!r})", "error": json.dumps(PEM)}
    record.event(made_event("raised", node="n1", seq=1, at=2.0, child="0", rank=0, **raised))
    record.add_output("n1", 0, "stderr", f"{PEM}\n".encode(), 3.0)
    record.write_stacks({0: f"n1: said {KEY_LINES[3]}"})
    record.close()
    assert list_leaked_lines(bundle_run(run)) == []


def test_secrets_that_a_rank_prints_are_not_in_a_bundle(tmp_path: Path) -> None:
    """Those of all formats of the corpus, printed one after the other; innocent lines between them stay."""
    cases = [case for case in read_corpus() if "\n" not in case.text and not re.search("/home/|/root/", case.text)]
    # A bundle has the last 400 lines of each rank.
    halves = [(0, "stdout", cases[: len(cases) // 2]), (1, "stdout", cases[len(cases) // 2 :])]
    pieces = [(rank, stream, "".join(f"{case.text}\n" for case in half)) for rank, stream, half in halves]
    text = bundle_output(tmp_path, pieces)
    printed = [json.loads(line)["text"] for line in text.splitlines() if line.startswith('{"at"')]
    lines = list(zip(cases, printed, strict=True))
    assert [case.id for case, line in lines if case.secret is not None and case.secret in line] == []
    assert [case.id for case, line in lines if case.secret is None and case.text != line] == []


def test_variables_with_our_prefix_are_scrubbed(tmp_path: Path) -> None:
    """Only variables that Aboard sets keep their values, and those are scrubbed, too."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=1)
    token = "hf_" + "AbCd1234" * 4
    given = {"ABOARD_MINE": "tell-nobody", "NCCL_AUTH": "tell-nobody", "ABOARD_RUN_ID": "r", "NCCL_DEBUG": f"x {token}"}
    record.write_plan({"run": "r", "env": given, "nodes": []})
    record.close()
    text = bundle_run(run)
    assert "tell-nobody" not in text
    assert token not in text
    assert '"ABOARD_RUN_ID": "r"' in text


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_dry_run_shows_no_password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    """Neither that of a URL nor the value of an option whose name is that of a secret; the command stays readable."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = ["--db", "postgres://u:PW123@db/x", "--hf_token", "swordfish", "--max_tokens", "512", "--tokenizer", "gpt2"]
    shown = aboard(
        "launch",
        "localhost",
        "--dry-run",
        *form,
        "--check",
        "none",
        "--env",
        "DB=redis://:PW123@h",
        "--",
        "train.py",
        *words,
    )
    assert shown.code == 0, shown.stderr
    for secret in ("PW123", "swordfish"):
        assert secret not in shown.stdout
    for word in ("postgres://u:", "--hf_token", "512", "gpt2"):
        assert word in shown.stdout


JOB = """
import os, sys, time
lines = open("key.txt").read().splitlines(keepends=True)
for number, line in enumerate(lines):
    sys.stdout.write(line[:20]); sys.stdout.flush(); time.sleep(0.7 if number == 3 else 0.02)
    sys.stdout.write(line[20:]); sys.stdout.flush()
    sys.stderr.write("between\\n")
print("the end of rank", os.environ["RANK"])
"""


@pytest.mark.ground
def test_a_key_that_two_ranks_print_in_pieces_is_not_in_their_bundle(box: Sandbox) -> None:
    """On real hosts, from the pipes of the ranks to the archive."""
    launches = Launches(box, folder="/shared/keys")
    launches.put("key.txt", f"{PEM}\n")
    launches.put("key_job.py", JOB)
    ran = launches.launch("--", "key_job.py")
    assert ran.code == 0, ran.said
    bundled = launches.aboard("bundle", ran.run, "--yes", "-o", "keys.tar.gz")
    assert bundled.returncode == 0, bundled.stderr
    unpacked = box.head.run(["tar", "-xzOf", "keys.tar.gz"], cwd=launches.folder).stdout
    assert list_leaked_lines(unpacked) == []
    assert unpacked.count("the end of rank") == 2


def test_a_rank_that_floods_its_output_leaves_the_head_time_for_ctrl_c(tmp_path: Path) -> None:
    """Lines are shown for a limited time in each turn of the head's loop; none is lost, and none is shown twice."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=1)
    record.add_output("n1", 0, "stdout", b"a\rb\r" * 10_000, 1.0)
    record.tick(2.0)
    record.close()
    reader = LogReader(run.logs)
    backlog = LineBacklog(LogFollower(reader, LogQuery(selection=LineSelection())), LogLineFormatter(styled=False))
    shown: list[str] = []
    assert not backlog.show(shown.append, 0.0)
    assert len(shown) == 1
    assert not backlog.show(shown.append, 0.001)
    assert backlog.show(shown.append, 60.0, last=True)
    assert [line[-1] for line in shown] == ["a", "b"] * 10_000
    reader.close()
