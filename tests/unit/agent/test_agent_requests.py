"""Questions that the real agent answers on this machine: commands and files, each with a time-out."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from deadlines import wait_until, within

from aboard.agent import process_tree
from aboard.agent.requests import FILES_LIMIT, OUTPUT_LIMIT
from aboard.core.cluster.node import Node, TransportKind
from aboard.diagnoses import AgentRequestError
from aboard.transport.agent_link import AgentLink
from aboard.transport.node_dialer import NodeDialer

HERE = Node(name="here", transport=TransportKind.LOCAL)


def _asked(story: Callable[[AgentLink], Awaitable[None]]) -> None:
    """Tells a story with a link to this machine's own agent, which must leave no process behind."""

    async def tell() -> int:
        link = (await NodeDialer().dial(HERE)).link
        try:
            await story(link)
        finally:
            await link.close()
        return int(link.hello["pid"])

    pid = asyncio.run(tell())
    assert pid not in process_tree.read_parents()


def _run(*argv: str, **fields: Any) -> dict[str, Any]:
    """One command's outcome."""
    outcome: dict[str, Any] = {}

    async def story(link: AgentLink) -> None:
        outcome.update(await link.ask("run", 10, argv=list(argv), **fields))

    _asked(story)
    del outcome["re"]
    return outcome


def _read(*globs: str, **fields: Any) -> dict[str, Any]:
    outcome: dict[str, Any] = {}

    async def story(link: AgentLink) -> None:
        outcome.update(await link.ask("read", 10, globs=list(globs), **fields))

    _asked(story)
    return outcome


def test_a_command_answers_with_code_and_both_outputs() -> None:
    """What it printed on either side and how it ended come in one answer."""
    outcome = _run("sh", "-c", "echo out; echo err >&2; exit 5")
    assert outcome == {"code": 5, "stdout": "out\n", "stderr": "err\n"}


def test_a_command_gets_its_env_and_directory(tmp_path: Path) -> None:
    """On top of the login's own environment."""
    outcome = _run("sh", "-c", 'echo "$WORD $PWD ${HOME:+home}"', env={"WORD": "ahoy"}, cwd=str(tmp_path))
    assert outcome["stdout"] == f"ahoy {tmp_path} home\n"


@pytest.mark.parametrize(
    ("argv", "fields", "why"),
    [
        (["/nowhere/prog"], {}, "can't start /nowhere/prog: No such file or directory"),
        (["true"], {"cwd": "/nowhere"}, "can't enter /nowhere: No such file or directory"),
        (["true", "a\0b"], {}, "can't start true: embedded null byte"),
        ([], {}, "an empty command"),
    ],
    ids=["no program", "no directory", "nul", "no argv"],
)
def test_a_command_that_can_not_start_says_why(argv: list[str], fields: dict[str, Any], why: str) -> None:
    """As a shell would: code 127, and the reason on stderr."""
    assert _run(*argv, **fields) == {"code": 127, "stdout": "", "stderr": why}


def test_output_is_cut_at_its_limit_and_still_fits_a_frame() -> None:
    """Zeros cost JSON six letters each; as many as the limit allows, on both sides, don't break the agent."""
    size = 3 * OUTPUT_LIMIT
    outcome = _run("sh", "-c", f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2", limit=10**9)
    assert outcome["stdout"] == outcome["stderr"] == "\0" * OUTPUT_LIMIT
    assert _run("printf", "abcdef", limit=3)["stdout"] == "abc"


def test_a_time_out_ends_all_that_the_command_started() -> None:
    """Its own group, another group in its session, and a session of its own: all killed; what it said is kept."""
    mark = f"31{os.getpid()}"
    with within(5):
        outcome = _run("bash", "-c", f"echo hi; set -m; sleep {mark} & setsid sleep {mark} & wait", timeout=0.3)
    assert outcome == {"code": -9, "stdout": "hi\n", "stderr": "", "timed_out": True}
    _wait_until_nobody_has(mark)


def test_a_command_leaves_nothing_of_its_group_behind() -> None:
    """What it put in the background goes when it ends, so that no answer waits for it."""
    mark = f"32{os.getpid()}"
    assert _run("sh", "-c", f"sleep {mark} & echo done")["stdout"] == "done\n"
    _wait_until_nobody_has(mark)


def test_a_link_that_closes_ends_what_is_under_way() -> None:
    """The head hangs up in the middle of a question: its command doesn't outlive the bridge."""
    mark = f"33{os.getpid()}"

    async def story(link: AgentLink) -> None:
        asking = asyncio.create_task(link.ask("run", 10, argv=["sleep", mark]))
        # Answered in order: when this one is, the other is under way.
        await link.ask("ping", 5)
        await link.close()
        with pytest.raises(Exception, match="closed"):
            await asking

    _asked(story)
    _wait_until_nobody_has(mark)


@pytest.mark.ci
def test_two_hundred_questions_leave_no_descriptor_open() -> None:
    """Commands that work, that can't start, and files, again and again."""

    async def story(link: AgentLink) -> None:
        async def round_of(count: int) -> int:
            for _ in range(count):
                await link.ask("run", 5, argv=["true"])
                await link.ask("run", 5, argv=["/nowhere/prog"])
                await link.ask("read", 5, globs=["/proc/meminfo"])
            return _open_files(link.hello["pid"])

        assert await round_of(1) == await round_of(66)

    _asked(story)


def test_files_are_read_by_pattern(tmp_path: Path) -> None:
    """Matches come with their bytes; what is missing, a directory or a pipe is simply not there."""
    (tmp_path / "a.txt").write_bytes(b"\xff\x00a")
    (tmp_path / "b.txt").write_text("b")
    (tmp_path / "c.txt").mkdir()
    os.mkfifo(tmp_path / "d.txt")
    reply = _read(f"{tmp_path}/*.txt", f"{tmp_path}/missing", "/proc/self/nothing/*/x")
    assert reply["files"] == {f"{tmp_path}/a.txt": "\xff\x00a", f"{tmp_path}/b.txt": "b"}
    assert reply["timed_out"] is False


def test_more_files_than_fit_an_answer_do_not_break_it(tmp_path: Path) -> None:
    """Zeros cost JSON six letters each; files for which no room is left are not in the answer."""
    for number in range(9):
        (tmp_path / f"{number}").write_bytes(b"\0" * 100_000)
    (tmp_path / "9").write_bytes(b"small")
    (tmp_path / "big").write_bytes(b"\0" * FILES_LIMIT)
    files = _read(f"{tmp_path}/*", limit=FILES_LIMIT)["files"]
    assert files[f"{tmp_path}/9"] == "small"
    assert 6 <= len(files) < 10
    assert f"{tmp_path}/big" not in files


def test_questions_of_the_wrong_shape_are_answered() -> None:
    """Each is one error for whoever asked; the agent serves on."""

    async def story(link: AgentLink) -> None:
        for op, fields in (
            ("run", {}),
            ("run", {"argv": 5}),
            ("run", {"argv": ["true"], "limit": float("inf")}),
            ("run", {"argv": ["true"], "env": 7}),
            ("attach", {"run": "x"}),
            ("attach", {"run": "../x", "silence": 5}),
            ("hold", {"run": ["x"]}),
            ("beat", {}),
            ("dance", {}),
        ):
            with pytest.raises(AgentRequestError):
                await link.ask(op, 5, **fields)
        assert (await link.ask("read", 5, globs=7))["files"] is None
        assert (await link.ask("ping", 5))["wall"] > 0

    _asked(story)


def _open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def _wait_until_nobody_has(mark: str) -> None:
    """The last process with this on its command line is gone, or goes within a moment."""
    wait_until(lambda: not any(mark.encode() in _bytes(path) for path in Path("/proc").glob("[0-9]*/cmdline")), 1, mark)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_script_runs_in_a_child_of_the_agent() -> None:
    """Its words, both outputs and its end are its own; an error in it is told, and the agent lives on."""
    script = "import sys; print(sys.argv); sys.stderr.write('aside'); sys.exit"
    assert _run("name", "word", source=script) == {"code": 0, "stdout": "['name', 'word']\n", "stderr": "aside"}
    assert _run("name", source="1 / 0") == {"code": 1, "stdout": "", "stderr": "ZeroDivisionError: division by zero\n"}


def test_a_program_is_found_along_the_path_of_its_environment(tmp_path: Path) -> None:
    """As execvp finds it: what can't be run is passed over for what can, and named if nothing else is there."""
    for folder, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tool").write_text("#!/bin/sh\necho found\n")
        (tmp_path / folder / "tool").chmod(mode)
    path = f"{tmp_path}/none:{tmp_path}/first:{tmp_path}/second:/bin:/usr/bin"
    assert _run("tool", env={"PATH": path})["stdout"] == "found\n"
    assert _run("tool", env={"PATH": f"{tmp_path}/first"})["stderr"] == "can't start tool: Permission denied"
    assert _run("tool", env={"PATH": f"{tmp_path}/none"})["stderr"] == "can't start tool: No such file or directory"
