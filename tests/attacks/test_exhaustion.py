"""Attacks that cost time or memory: texts on which a careless matcher or expansion takes minutes."""

import gzip
import os
from pathlib import Path

import pytest
from deadlines import within

from aboard.commands.runs.bundle import pack_run
from aboard.commands.sync.trees.source_tree import scan_code
from aboard.commands.why.log_files import diagnose_logs
from aboard.config.yaml_tree import parse_tree
from aboard.core.cluster.node_sets import expand_node_set
from aboard.core.probes.probe import CommandOutput
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.core.text.gitignore import IgnoreRules
from aboard.core.trust.public_keys import find_known_keys
from aboard.diagnoses import InputError
from aboard.record.run_directory import RunDirectory
from aboard.record.run_record import Record
from aboard.trainer.checks import resumable_checkpoints

SECONDS = 2.0


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


def test_a_compressed_log_without_end_is_read_line_by_line(tmp_path: Path) -> None:
    """20 MB without a line end, in 100 KB: no more than the beginning of the line is kept."""
    (tmp_path / "job.log.gz").write_bytes(gzip.compress(b"\0" * 20_000_000, compresslevel=1))
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
