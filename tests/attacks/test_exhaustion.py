"""Attacks that cost time or memory: texts on which a careless matcher or expansion takes minutes."""

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from deadlines import within

from aboard.commands.sync.trees.source_tree import scan_code
from aboard.commands.why.log_files import diagnose_logs
from aboard.config.yaml_tree import parse_tree
from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.evidence.nccl_ras import MAX_ENTRIES, MAX_TOPICS, RasReading
from aboard.core.probes.probe import CommandOutput
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.gitignore import IgnoreRules
from aboard.core.trust.public_keys import find_known_keys
from aboard.diagnoses import InputError
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.engine.records.bundle import pack_run
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.trainer.checks import resumable_checkpoints

SECONDS = 2.0
MANY = "9" * 12
LYING_LOGS = {
    "world": f"n1:1:1 [0] NCCL INFO comm 0x1 rank 3 nranks {MANY} cudaDev 3 - Init START\n",
    "rank": f"[rank{MANY}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=BROADCAST) ran\n",
    "torchrun's rank": f"  time  : 2026-11-15\n  host  : n1\n  rank  : {'9' * 5_000} (local_rank: 0)\n  exitcode : 1\n",
    "messages": "".join(f"h{number}x: RuntimeError: CUDA out of memory\n" for number in range(3_000)),
}


@pytest.mark.parametrize("target", ["/dev/zero", "/dev/stdin", "pipe"])
def test_a_gitignore_without_end_is_not_read(tmp_path: Path, target: str) -> None:
    """A .gitignore that is a link to a device, or a pipe, counts as none: the code is listed at once."""
    (tmp_path / "train.py").write_text("")
    if target == "pipe":
        os.mkfifo(tmp_path / ".gitignore")
    else:
        (tmp_path / ".gitignore").symlink_to(target)
    with within(SECONDS):
        assert "train.py" in scan_code(tmp_path, "~/x").files


@pytest.mark.parametrize(
    "pattern",
    ["*a*a*a*a*ab", "**/a/**/a/**/a/**/a/b", "*" * 200 + "b", "a*" * 60 + "b", "[a]*" * 60 + "b"],
    ids=["stars", "directories", "only-stars", "many-stars", "sets"],
)
def test_a_pattern_of_a_gitignore_takes_no_time(pattern: str) -> None:
    """Each part of a pattern is searched once from the left, however many stars it has."""
    name, path = "a" * 200, "/".join("a" * 1000)
    with within(SECONDS):
        rules = IgnoreRules(f"{pattern}\n" * 20)
        assert not rules.match(name, name + "c", is_directory=False)
        assert not rules.match(path + "c", "ac", is_directory=False)


@pytest.mark.parametrize(
    "nodes",
    ["n1" + " " * 60_000 + "x", "[" * 60_000, "n[" + "1-" * 30_000, "n1," * 20_000 + "["],
    ids=["blanks", "brackets", "ranges", "names"],
)
def test_a_long_list_of_nodes_is_refused_or_read_at_once(nodes: str) -> None:
    """`nodes:` with 60,000 blanks or brackets takes no longer than its length."""
    with within(SECONDS):
        tree = parse_tree(f'cluster: {{nodes: "{nodes}"}}', file="aboard.yaml")
        assert tree is not None
        try:
            expand_node_set(nodes)
        except InputError:
            return


@pytest.mark.parametrize(
    "line",
    ["echo" + " " * 8000 + "sudo -", "echo x " * 1200 + "sudo -", "printf -" * 1200 + " -with-token"],
    ids=["blanks", "echo", "printf"],
)
def test_a_line_of_a_rank_does_not_delay_a_bundle(tmp_path: Path, line: str) -> None:
    """The search for secrets takes no longer than the text, whatever a rank prints."""
    run = RunDirectory(tmp_path / "20261115-0800-brave-otter")
    run.make()
    record = Record.open(run, ranks=1)
    record.add_output("n1", 0, "stdout", f"{line}\n".encode() * 40, 0.0)
    record.close()
    with within(SECONDS):
        pack_run(run, SecretScrubber())


@pytest.mark.parametrize(
    "word", ["Error", "[PG ID ((", "Using network  ", "XFS ", "Got completion from peer a.ibnet<1>", "[E111 1"]
)
def test_a_log_of_repeated_words_is_diagnosed_at_once(tmp_path: Path, word: str) -> None:
    """40 lines of 16 KB that repeat the beginning of a known message, with a control character at the end."""
    (tmp_path / "job.log").write_text(f"{word * (16_000 // len(word))}\x07\n" * 40)
    with within(SECONDS):
        diagnose_logs([str(tmp_path / "job.log")])


@pytest.mark.parametrize("log", LYING_LOGS.values(), ids=LYING_LOGS)
def test_a_number_in_a_log_is_no_amount_of_work(tmp_path: Path, log: str) -> None:
    """Whatever size of the world, ranks, exit codes or groups a log claims, its lines are what it costs."""
    (tmp_path / "job.log").write_text(log)
    with within(SECONDS):
        diagnose_logs([str(tmp_path / "job.log")])


def test_long_lines_of_a_log_are_not_kept() -> None:
    """Eight lines of trouble with 16 KB each, no two alike: the scanner remembers a small part of each."""
    scanner = LogScanner()
    scanner.begin("job.log")
    tracemalloc.start()
    for number in range(8):
        scanner.take(b"error: \xf0\x9f\x98\x80 failed %s %s" % (bytes([ord("a") + number]), b"-" * 16_000))
    held, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scanner.reading().troubles
    assert held < 700_000


def test_a_report_of_ras_without_end_keeps_a_limited_number_of_ranks_and_kinds() -> None:
    """Ranks of one state, missing ranks and kinds of collectives: each has its limit."""
    reading = RasReading()
    reading.take("#0-0 (abc) MISMATCH")
    reading.take("  999999999 ranks have launched up to operation 5")
    for number in range(MAX_ENTRIES + 9):
        reading.take(f"  Rank {number} -- GPU 0 managed by process 1 on node 10.0.0.1")
    for number in range(99):
        reading.take(f"  The missing ranks: {'1,' * 1_900}")
        reading.take(f"  Communicator ranks have different K{number} operation counts")
        reading.take("  1 ranks have launched up to operation 5")
    (comm,) = reading.comms()
    assert len(comm.missing_ranks) == MAX_ENTRIES
    assert max(len(part.ranks) for _kind, parts in comm.launched for part in parts) == MAX_ENTRIES
    assert len(comm.launched) == MAX_TOPICS


def test_a_compressed_log_without_end_is_read_line_by_line(tmp_path: Path) -> None:
    """20 MB without a line end, in 100 KB: no more than the beginning of the line is kept."""
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(b"a" * 20_000_000, compresslevel=1))
    with within(SECONDS):
        diagnose_logs([str(tmp_path / "job.log.gz")])


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43


def test_patterns_of_a_known_hosts_file_take_no_time() -> None:
    """A line of 100 patterns with 50 stars each is compared with a name at once."""
    content = (",".join(["*a" * 50 + "b"] * 100) + f" {KEY}\n").encode()
    with within(SECONDS):
        assert not find_known_keys(content, ["a" * 250])


def test_a_manifest_of_a_million_brackets_is_skipped() -> None:
    """A checkpoint whose manifest is nested too deeply counts as damaged, as any other that can't be parsed."""
    manifest = f"{resumable_checkpoints._MARK}/data/step-1\n" + '{"serial": 1, "a": ' + "[" * 1_000_000
    answer = CommandOutput(code=0, stdout=manifest, stderr="", timed_out=False)
    with within(SECONDS):
        assert not resumable_checkpoints.parse_checkpoints(answer)
