"""Work in a child of our own: told piece by piece, with nothing of ours held, and nothing lost where it breaks."""

import os
import socket
from collections.abc import Callable
from typing import Any

from aboard.agent import forked_work

Tell = Callable[[bytes], None]
TellPiece = Callable[[dict[str, Any]], None]


def told_by(work: Callable[[Tell], None]) -> tuple[bytes, int]:
    """All that the child wrote, and how it ended."""
    read, write = os.pipe()
    try:
        pid = forked_work.fork_worker(work, write)
    finally:
        os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_pieces_come_one_by_one() -> None:
    """As they were told, whatever is in them; one that was cut is left out."""

    def work(tell: TellPiece) -> None:
        tell({"a": "über\n"})
        tell({"b": [1, 2]})

    said, code = told_by(forked_work.wrap_json_lines(work))
    assert (list(forked_work.parse_json_lines(said)), code) == ([{"a": "über\n"}, {"b": [1, 2]}], 0)
    assert list(forked_work.parse_json_lines(said[:-4])) == [{"a": "über\n"}]


def test_work_that_breaks_tells_of_what() -> None:
    """What it told before is there, and the exception behind it; without pieces, the end of the child shows it."""

    def work(tell: TellPiece) -> None:
        tell({"a": 1})
        int("no number")

    def in_bytes(tell: Tell) -> None:
        tell(b"x")
        int("no number")

    said, code = told_by(forked_work.wrap_json_lines(work))
    first, second = forked_work.parse_json_lines(said)
    assert (first, code) == ({"a": 1}, 0)
    assert second["broke"].startswith("ValueError: ")
    assert told_by(in_bytes) == (b"x", 1)


def test_the_child_holds_nothing_of_ours() -> None:
    """One that hangs for ever must not keep a port of ours; it leads a session of its own."""
    with socket.create_server(("127.0.0.1", 0)) as held:

        def work(tell: TellPiece) -> None:
            held_too = True
            try:
                os.fstat(held.fileno())
            except OSError:
                held_too = False
            tell({"held": held_too, "leads": os.getsid(0) == os.getpid()})

        (piece,) = forked_work.parse_json_lines(told_by(forked_work.wrap_json_lines(work))[0])
        assert piece == {"held": False, "leads": True}
