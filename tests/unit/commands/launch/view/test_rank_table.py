"""The roster as a value: who is missing, and the same at the far end of a socket."""

import json
from collections.abc import Callable
from dataclasses import asdict

import pytest
from run_states import Scene, dead, silent, starting, training

from aboard.commands.launch.view.plain_lines import PlainLaunchWriter
from aboard.core.decoding import decode
from aboard.core.run.run_progress import RunProgress
from aboard.diagnoses.untrusted import encode_text


@pytest.mark.parametrize("scene", [starting, training, dead, silent])
def test_a_roster_comes_over_as_it_is(scene: Callable[[int, int], RunProgress]) -> None:
    """Through JSON and back, with its phases and troubles as values."""
    roster = scene(4, 2)
    assert decode(RunProgress, json.loads(json.dumps(asdict(roster), default=encode_text))) == roster


@pytest.mark.parametrize("hostile", ["\x1b[2J", "\x1b]52;c;eA==\x07", "\u202egnp.exe", "\r\x9b31m"])
def test_what_a_rank_raises_reaches_no_terminal_as_it_is(hostile: str) -> None:
    """Escape sequences in an exception's type or message are spelled out in the lines about it."""
    scene = Scene(nodes=2, ranks=1)
    scene.held()
    scene.dies(2.0, 1, f"Error{hostile}", f"no{hostile}thing")
    scene.event(3.0, "failed", "n1", "0", why=f"can't{hostile}")
    lines: list[str] = []
    PlainLaunchWriter(lines.append).update(scene.at(9.0))
    assert any("dead" in line for line in lines)
    assert all(line.isprintable() for line in lines)
