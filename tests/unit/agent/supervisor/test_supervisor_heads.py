"""Heads that come, go and come back to a supervisor: nothing is missing, nobody else gets in."""

import asyncio

import pytest
from deadlines import slowness, until, wait_until
from supervisor_runs import Run, cut, held, python

from aboard.core.plan.plan import Start
from aboard.diagnoses import AgentRequestError
from aboard.transport.node_session import NodeSession, SessionState


@pytest.mark.ci
def test_a_wrong_key_is_refused_and_disturbs_nobody(clean: list[Run]) -> None:
    """Whoever hasn't the run's key is sent away; the bridge that is attached stays so."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        with pytest.raises(AgentRequestError, match="wrong key for run"):
            await run.hold(key="other").resume()
        await hold.start(Start(child="a", argv=("true",)))
        await until(lambda: "exited" in run.kinds("a"))

    held(run, story)
    assert run.states == [SessionState.CONNECTED, SessionState.LOST]


@pytest.mark.ci
def test_a_run_is_held_once(clean: list[Run]) -> None:
    """A second supervisor for the same run is refused; the first one is not harmed."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        with pytest.raises(AgentRequestError, match="another head already has run"):
            await run.hold().begin()
        await hold.start(Start(child="a", argv=("true",)))

    held(run, story)


def test_a_supervisor_that_can_not_start_says_why_and_leaves_nothing() -> None:
    """The reason comes over the wire, since nobody would look for a log on the node."""
    run = Run()
    run.id = "x" * 100
    with pytest.raises(AgentRequestError, match="not a run id"):
        asyncio.run(run.hold().begin())
    assert not run.place.exists()


def test_attaching_to_nothing_says_so() -> None:
    """A run that nobody holds here is named."""
    run = Run()
    with pytest.raises(AgentRequestError, match="no supervisor for run"):
        asyncio.run(run.hold().resume())
    assert not run.place.exists()


@pytest.mark.ci
def test_a_new_head_gets_all_that_was_not_acknowledged(clean: list[Run]) -> None:
    """One head leaves, another resumes: output from its first byte, events that nobody heard, nothing twice."""
    run = Run()
    clean.append(run)
    first = Run()
    first.id, first.key = run.id, run.key

    async def leave() -> None:
        hold = first.hold()
        await hold.begin()
        source = "import os, sys, time\nos.write(1, b'before ')\n"
        source += "while not os.path.exists(sys.argv[1]): time.sleep(0.01)\nos.write(1, b'after')"
        await hold.start(Start(child="a", argv=(*python(source), str(first.place / "go"))))
        await until(lambda: first.output("a") == b"before ")
        await hold.leave()

    asyncio.run(leave())
    (run.place / "go").touch()
    wait_until(lambda: not run.alive(), 5)

    async def resume() -> None:
        hold = run.hold()
        await hold.resume()
        await until(lambda: run.finished("a"))
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())
        await hold.leave()

    asyncio.run(resume())
    assert first.kinds("a") == ["started"]
    assert run.kinds("a") == ["exited"]
    assert run.output("a") == b"before after"


@pytest.mark.ci
def test_a_cut_is_mended_and_nothing_is_missing(clean: list[Run]) -> None:
    """The bridge is killed under a running child: the hold attaches again, with every event and byte once."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        source = "import os\nfor n in range(60000): os.write(1, b'%07d\\n' % n)"
        await hold.start(Start(child="a", argv=python(source)))
        for times in range(1, 3):
            await until(lambda: len(run.output("a")) > 50_000 * times)  # noqa: B023 - called at once
            await cut(run, hold)
        await until(lambda: run.finished("a"), 20)

    held(run, story)
    assert run.kinds("a") == ["started", "exited"]
    assert run.output("a") == b"".join(b"%07d\n" % n for n in range(60000))
    assert run.states.count(SessionState.DISCONNECTED) >= 2


@pytest.mark.ci
def test_many_children_that_ended_are_told_to_a_new_bridge(clean: list[Run]) -> None:
    """Hundreds of outputs end at once when a bridge attaches: each is sent in its turn, not one inside the other."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await asyncio.gather(*(hold.start(Start(child=f"c{n}", argv=("true",))) for n in range(150)))
        await until(lambda: sum(event.kind == "exited" for event in run.events) == 150)
        await cut(run, hold)
        await hold.start(Start(child="last", argv=("true",)))
        await until(lambda: run.finished("last"))

    held(run, story)
    assert sum(piece.end for piece in run.pieces) == 2 * 151


@pytest.mark.ci
def test_frames_of_the_wrong_shape_are_answered_and_harm_nobody(clean: list[Run]) -> None:
    """Whatever a frame holds, the supervisor answers with an error and keeps its children."""
    run = Run()
    clean.append(run)

    async def story(hold: NodeSession) -> None:
        await hold.start(Start(child="a", argv=("sleep", "300")))
        link = hold._link
        assert link is not None
        for op, fields in (
            ("start", {"child": "b"}),
            ("start", {"child": "b", "argv": 5}),
            ("start", {"child": "b", "argv": ["true"], "env": [1, 2]}),
            ("signal", {"child": "a", "signal": 10**30}),
            ("signal", {"child": "a", "signal": "x"}),
            ("ack", {"seq": float("inf")}),
            ("credit", {"bytes": None}),
            ("lease", {"lease": "long"}),
            ("end", {"grace": {}}),
            ("dance", {}),
        ):
            with pytest.raises(AgentRequestError):
                await link.ask(op, 5, **fields)
        await hold.start(Start(child="c", argv=("true",)))
        await until(lambda: "exited" in run.kinds("c"))
        assert run.kinds("a") == ["started"]

    held(run, story)


@pytest.mark.ci
def test_an_output_that_the_head_has_gives_its_files_back(clean: list[Run]) -> None:
    """While the run goes on: its length and end are still told to a new head, and the rest counts as dropped."""
    run = Run()
    clean.append(run)
    first = Run()
    first.id, first.key = run.id, run.key

    def spools(run: Run) -> list[str]:
        return sorted(path.name for path in run.place.glob("*.std*"))

    async def leave() -> None:
        hold = first.hold()
        await hold.begin()
        await hold.start(Start(child="stays", argv=("sleep", "300")))
        source = "import os\nfor n in range(60): os.write(1, b'x' * 10000)"
        await hold.start(Start(child="a", argv=python(source)))
        await until(lambda: first.finished("a") and spools(run) == ["0.stderr.0", "0.stdout.0"])
        await cut(first, hold)
        assert first.finished("a")
        await hold.leave()

    async def resume() -> None:
        hold = run.hold()
        await hold.resume()
        await until(lambda: run.finished("a"))
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())
        await hold.leave()

    asyncio.run(leave())
    asyncio.run(resume())
    assert first.output("a") == b"x" * 600_000
    assert run.output("a") == b""
    assert sum(piece.dropped for piece in run.pieces if piece.child == "a") == 600_000


@pytest.mark.ci
def test_a_piece_has_the_time_of_its_first_byte(clean: list[Run]) -> None:
    """Also when it is read much later: what came at another time is another piece."""
    run = Run()
    clean.append(run)
    first = Run()
    first.id, first.key = run.id, run.key
    source = "import os, time\nfor n in range(4):\n    os.write(1, b'%f\\n' % time.time())\n    time.sleep(0.6)"

    async def leave() -> None:
        hold = first.hold()
        await hold.begin()
        await hold.start(Start(child="a", argv=python(source)))
        await hold.leave()

    async def resume() -> None:
        hold = run.hold()
        await hold.resume()
        await until(lambda: run.finished("a"))
        await hold.end()
        await asyncio.wait_for(hold.wait_gone(), 5 * slowness())
        await hold.leave()

    asyncio.run(leave())
    wait_until(lambda: not run.alive(), 5)
    asyncio.run(resume())
    told = [(piece.at, float(piece.data)) for piece in run.pieces if piece.data]
    assert len(told) == 4
    for at, printed in told:  # of all times that were printed, its own is the nearest
        assert min((abs(at - other), other) for _at, other in told)[1] == printed
