"""Attacks on the terminal: names, paths and files with escape sequences, bidirectional marks and line ends."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from aboard.commands.command_line import COMMANDS, cli, main

HOSTILE = "\x1b]0;x\x07\u202e\x9b\nerror: "
# Without a line end, which a path may have but YAML would fold; a YAML file can only have the others escaped.
IN_PATHS, IN_QUOTES = HOSTILE.partition("\n")[0], r"\e]0;x\a\u202E\x9b"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]|^error: ", re.MULTILINE)
FILES = (
    f'cluster: {{nodes: [localhost, "{IN_QUOTES}"]}}',
    f'cluster: {{nodes: localhost, "{IN_QUOTES}": 1}}',
    f'cluster: {{nodes: localhost, slots: "{IN_QUOTES}"}}',
    f'"{IN_QUOTES}": 1',
    f'cluster: {{hostfile: "{IN_QUOTES}"}}',
    "cluster: [\u202e",
    "\u202e: :",
    "a: *\u202e",
    "x: '\u202e",
    f"# {IN_PATHS}\ncluster: [",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the real user, in a directory whose own name is hostile."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    folder = tmp_path / IN_PATHS
    folder.mkdir()
    monkeypatch.chdir(folder)


def type_words(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs `aboard` and fails if it writes something that a terminal would obey, or a line that looks like its own."""
    monkeypatch.setattr(sys, "argv", ["aboard", *words])
    with pytest.raises(SystemExit):
        main()
    shown = "".join(capsys.readouterr())
    assert RAW.search(shown) is None, (words, shown)


def list_commands(command: click.Command, words: list[str]) -> Iterator[tuple[click.Command, list[str]]]:
    """The command, or all below a group."""
    if not isinstance(command, click.Group):
        yield command, words
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from list_commands(below, [*words, name])


@pytest.mark.parametrize("name", COMMANDS)
def test_no_argument_of_a_command_reaches_the_terminal_raw(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever a hostile word stands: as an unknown option, as the value of each option, and as arguments."""
    named = cli.get_command(click.Context(cli), name)
    assert named is not None
    for command, words in list_commands(named, [name]):
        options = [each.opts[-1] for each in command.params if isinstance(each, click.Option) and not each.hidden]
        with_values = [[f"{option}={HOSTILE}"] for option in options]
        for way in ([f"--{HOSTILE}"], [f"-{HOSTILE}"], [HOSTILE, HOSTILE, HOSTILE], *with_values):
            type_words([*words, *way], monkeypatch, capsys)


def test_no_name_of_a_command_reaches_the_terminal_raw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a command, and as an option of `aboard` itself."""
    for words in ([HOSTILE], [f"--{HOSTILE}"], ["sandbox", HOSTILE]):
        type_words(words, monkeypatch, capsys)


def test_no_content_of_a_found_file_reaches_the_terminal_raw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid aboard.yaml is quoted with its control and bidirectional characters escaped."""
    for text in FILES:
        Path("aboard.yaml").write_text(text)
        for words in ("launch --dry-run -- true", "train --dry-run", "data"):
            type_words(words.split(), monkeypatch, capsys)


def test_no_path_reaches_the_terminal_raw(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A working directory, scripts, logs and bundles may have any name."""
    Path("logs").mkdir()
    Path("logs", IN_PATHS).write_text(f"RuntimeError: {HOSTILE}\n")
    Path(f"{IN_PATHS}.log").write_text(f"RuntimeError: {HOSTILE}\n")
    Path("aboard.yaml").write_text("cluster: {nodes: localhost}\n")
    Path(f"{IN_PATHS}.yaml").write_text("num_processes: 1\n")
    for words in (
        ["why", "--log", "logs"],
        ["why", "--log", str(Path.cwd())],
        ["why", "--log", f"{IN_PATHS}.log"],
        ["why", "--bundle", f"missing{IN_PATHS}"],
        ["why", "--bundle", f"{IN_PATHS}.log"],
        ["data", f"missing{IN_PATHS}.jsonl"],
        ["launch", "--dry-run", "--", "accelerate", "launch", "--config_file", f"{IN_PATHS}.yaml", "train.py"],
        ["launch", "--dry-run", "--", "python3", f"missing{IN_PATHS}.py"],
    ):
        type_words(words, monkeypatch, capsys)
