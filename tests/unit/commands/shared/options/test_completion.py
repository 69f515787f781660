"""TAB in real shells, at a terminal: what it completes, and that names from files are only words to a shell."""

import os
import pty
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from deadlines import wait_until
from typed_commands import aboard

RUN = "20261115-0507-brave-otter"
STARTS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}
SETUPS = {
    "bash": 'eval "$(aboard --completion bash)"',
    "zsh": 'autoload -U compinit; compinit -u -D; eval "$(aboard --completion zsh)"',
    "fish": "aboard --completion fish | source",
}
HOSTILE = ("$(touch pwned)", "`touch pwned`", "a;touch pwned", "x y", "*", "-rf", "\x1b[2J", "n\ntouch pwned")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One run and two nodes with plain names, and directories and a file of ssh_config with others."""
    for name in (RUN, *HOSTILE):
        (tmp_path / "state/aboard/runs" / name).mkdir(parents=True)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/aboard.yaml").write_text("cluster:\n  nodes:\n  - alpha[01-02] slots=2\n  - {name: beta}\n")
    # Completes as the real one, and otherwise writes down what was typed.
    program = tmp_path / "bin/aboard"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
case "$_ABOARD_COMPLETE$1" in --completion | *_complete*) exec {sys.executable} -m aboard "$@" ;; esac
printf '%s\\n' "$*" >> {tmp_path}/typed
"""
    )
    program.chmod(0o755)
    return tmp_path


@contextmanager
def start_shell(shell: str, folder: Path) -> Iterator[int]:
    """An interactive shell at a terminal of its own."""
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "HOME": str(folder), "XDG_STATE_HOME": str(folder / "state")}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", shell, *STARTS[shell]],
        cwd=folder / "work",
        env={**env, "TERM": "dumb"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        try:
            yield ours
        finally:
            process.kill()
            os.close(ours)


def type_line(terminal: int, line: str, typed: Path) -> str:
    """Types a line, waits until the program has been called, and returns its last words."""
    before = typed.read_text().count("\n") if typed.exists() else 0
    shown = bytearray()

    def is_called() -> bool:
        while select.select([terminal], [], [], 0)[0]:
            shown.extend(os.read(terminal, 65536))
        return typed.exists() and typed.read_text().count("\n") > before

    os.write(terminal, line.encode())
    wait_until(is_called, 30, lambda: shown.decode("utf-8", "replace"))
    return typed.read_text().splitlines()[-1]


LINES = {
    "aboard status \t\n": f"status {RUN}",
    "aboard check alpha02 be\t\n": "check alpha02 beta",
    "aboard why run-rank-st\t\n": "why run-rank-stopped",
}
MORE_LINES = {
    "aboard sta\t\n": "status",
    "aboard logs brav\t\n": "logs brave-otter",
    "aboard check ab\t\n": "check aboard.yaml",
}


@pytest.mark.parametrize(
    ("shell", "lines"),
    [
        pytest.param("bash", {**LINES, **MORE_LINES}, marks=pytest.mark.ci),
        pytest.param("fish", LINES, marks=pytest.mark.ci),
        pytest.param("zsh", {**LINES, **MORE_LINES}, marks=pytest.mark.nightly),
    ],
)
def test_tab_completes_runs_nodes_and_codes(shell: str, lines: dict[str, str], folder: Path) -> None:
    """Of all the names of runs one is a plain word, so TAB types that; no shell ran a part of the others."""
    assert shutil.which(shell), f"apt-get install {shell}"
    typed = folder / "typed"
    with start_shell(shell, folder) as terminal:
        type_line(terminal, f"{SETUPS[shell]}; aboard ready\n", typed)
        assert {line: type_line(terminal, line, typed).rstrip() for line in lines} == lines
    assert [path.name for path in (folder / "work").iterdir()] == ["aboard.yaml"]


@pytest.mark.parametrize(
    "nodes", ["'$(touch pwned)'", "[", "'-rf'", "{a: 1}", "n1 n2 n3", "&a [*a]", "n1] #" + "#" * 70_000]
)
def test_a_file_of_a_stranger_gives_plain_names_or_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: str
) -> None:
    """Without a message between the words that are typed."""
    monkeypatch.chdir(folder / "work")
    Path("aboard.yaml").write_text(f"cluster:\n  nodes: [{nodes}]\n")
    words = {"_ABOARD_COMPLETE": "bash_complete", "COMP_WORDS": "aboard\ncheck\n", "COMP_CWORD": "2"}
    for name, value in {**words, "HOME": str(folder)}.items():
        monkeypatch.setenv(name, value)
    ran = aboard()
    assert (ran.stdout, ran.stderr) == ("plain,n1\n" if nodes == "n1 n2 n3" else "file,\n", "")


@pytest.mark.ci
def test_commands_are_completed_without_importing_them() -> None:
    """All sixteen take ten times as long as the rest, after each TAB; their help comes from the same list as --help."""
    script = (
        "import sys\n"
        "from aboard.commands.command_line import cli\n"
        "words = cli.shell_complete(cli.make_context('aboard', [], resilient_parsing=True), 's')\n"
        "print([word.value for word in words], [name for name in sys.modules if name.endswith('command')])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "['sync', 'stop', 'status', 'sandbox'] []\n"
