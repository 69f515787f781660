"""The lines of a trainer's metrics on their way to the head: each once, in order, through lost connections."""

import json
import sys
from pathlib import Path

import pytest
from deadlines import until
from supervisor_runs import Run, cut, held

from aboard.core.plan.plan import Start
from aboard.core.run.events import METRICS_STREAM
from aboard.transport.node_session import NodeSession

# Through the beacon of the rank, as the trainer does, which the unit tests have no torch for.
LINES = """
import sys
from pathlib import Path
beacon = sys.modules["aboard_beacon"].armed
def log(step):
    beacon.tell('"logged":{"step":%d,"loss":2.5,"seconds":{"data":0.5}}' % step)
    while beacon._waiting:
        beacon.flush()
"""
TWICE = LINES + "for step in range(50): log(step)\nprint('half', flush=True)\nimport time, os\n"
TWICE += "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nfor step in range(50, 100): log(step)\n"
HOSTILE = (
    LINES
    + """
log(1)
for wrong in ('7', '[]', 'null', '"x"', '{"a":"%s"}' % ("x" * 5000), '{"a":' * 200 + '1' + '}' * 200):
    beacon.tell('"logged":' + wrong)
beacon._child = '"other"'
log(2)
beacon._child = '"0"'
log(3)
"""
)


def start(source: str, *args: str) -> Start:
    return Start(child="0", argv=(sys.executable, "-c", source, *args), beacon=True)


def get_steps(run: Run) -> list[int]:
    return [json.loads(line).get("step") for line in run.output("0", METRICS_STREAM).splitlines()]


def has_ended(run: Run) -> bool:
    return any(piece.end for piece in run.pieces if piece.stream == METRICS_STREAM)


@pytest.mark.ci
def test_every_line_comes_once_also_through_a_lost_connection(clean: list[Run], tmp_path: Path) -> None:
    """The bridge is killed between two halves; the last line is of a rank that exits at once."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(start(TWICE, str(tmp_path / "go")))
        await until(lambda: get_steps(run) == list(range(50)), 30)
        await cut(run, hold)
        (tmp_path / "go").touch()
        await until(lambda: has_ended(run), 30)

    held(run, story)
    assert get_steps(run) == list(range(100))


@pytest.mark.ci
def test_what_is_no_line_is_dropped_and_the_next_ones_come(clean: list[Run]) -> None:
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(start(HOSTILE))
        await until(lambda: has_ended(run), 30)

    held(run, story)
    assert [step for step in get_steps(run) if step is not None] == [1, 3]
    assert not run.output("other", METRICS_STREAM)
