"""The README's way to machines of one's own, typed as printed from a virtual environment in root's home."""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import slowness
from small_wheels import install, make_full_venv

pytestmark = [pytest.mark.ground, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
# What a reader replaces: the names of the nodes, a first key for them, and the questions.
TYPED = {
    "aboard init 'gpu[01-04]'": "aboard init 'n[1-2]' --yes",
    "aboard trust": "aboard trust --identity ~/admin.pem --fingerprints ~/fingerprints",
}
SCRIPT = """\
import os, sys, tiny
print("rank", os.environ["RANK"], "has", tiny.value, "in", sys.prefix, os.getcwd(), sys.argv[1:])
"""


@pytest.fixture
def venv() -> Iterator[Path]:
    """In a home that the user of the nodes can't enter, with a package that only it has."""
    folder = Path(tempfile.mkdtemp(dir=Path.home(), prefix="aboard-own-"))
    made = make_full_venv(folder / "venv")
    install(made, "tiny", "1.0", {"tiny/__init__.py": "value = 7\n", "tiny-1.0.data/scripts/say": "#!python\n"})
    yield made
    shutil.rmtree(folder)


def list_commands() -> list[str]:
    (section,) = re.findall(
        r"^## On your own machines\n(.*?)^## ", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    lines = re.findall(r"^    (aboard .*?)(?:    #.*)?$", section, re.MULTILINE)
    commands = [line.strip() for line in lines]
    return [TYPED.get(line, line) for line in commands[: commands.index("aboard launch -- train.py --lr 1e-4") + 1]]


def test_the_commands_for_own_machines_work_as_printed(venv: Path, box_name: str) -> None:
    """Nodes get the environment where their user may write, ranks use it there, and nothing of ours stays behind."""
    env = {
        **os.environ,
        "PATH": f"{venv}/bin:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "ABOARD_SANDBOX": box_name,
        "PYTHONPATH": str(ROOT / "src"),
    }

    def aboard(*words: str, text: str = "") -> str:
        done = subprocess.run(
            [f"{venv}/bin/python", "-m", "aboard", "sandbox", *words],
            env=env, input=text, capture_output=True, text=True, timeout=180 * slowness(), check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def type_on_head(command: str, text: str = "") -> str:
        return aboard("exec", "--", "bash", "-lc", f"mkdir -p project && cd project && {command}", text=text)

    aboard("up", "--bare", "--nodes", "2", "--slots", "1")
    type_on_head("cat > train.py", SCRIPT)
    type_on_head("mkdir data && echo x > data/rows && echo data/ > .gitignore")
    said = {command: type_on_head(command) for command in list_commands()}
    moved = said["aboard sync --env"]
    place = re.findall(rf"{venv} can't be written on n\[?1[-,]2\]?: the environment goes to ~(\S+) there", moved)
    assert place, moved
    assert "2 of 2 nodes have" in moved
    assert "left out, since .gitignore names it: 1 file, 2 B: data/" in said["aboard sync"]
    assert "aboard sync --data=data" in said["aboard sync"]
    assert f"/home/crew{place[0]}/bin/python" in said["aboard check"]
    launched = said["aboard launch -- train.py --lr 1e-4"]
    for rank in (0, 1):
        words = f"has 7 in /home/crew{place[0]} /home/crew/project ['--lr', '1e-4']"
        assert re.search(rf"rank {rank} {re.escape(words)}", launched) or words in launched, launched
    assert "finished: 2 ranks" in launched
    # What a node lacks of the command is named before ranks start.
    assert "data/rows exists on this machine, but not on n" in type_on_head("aboard launch -- train.py data/rows")
    assert "fine n[1-2]: unchanged" in type_on_head("aboard sync --env --dry-run")
    page = (ROOT / "docs/uninstall.md").read_text()
    (remove,) = re.findall(r"^    (aboard launch .*rm -rf.*)$", page, re.MULTILINE)
    type_on_head(remove)
    for node in ("n1", "n2"):
        find = "find / -xdev -name '.aboard-*' -o -path /home/crew/.cache/aboard -o -path '/tmp/aboard-*'; true"
        assert aboard("exec", "--node", node, "--", "sh", "-c", f"({find}) 2>/dev/null") == ""
