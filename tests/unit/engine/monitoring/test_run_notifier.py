"""The real conductor over simulated nodes tells a real web hook what happened, once, and is not held up by it."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import within
from made_events import list_fields
from simulated_runs import EventList, conduct_simulated
from webhook_server import SECRET, WebhookServer, serve_webhook

from aboard.core.evidence.verdict import Judgement
from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.run.event_kinds import Finished
from aboard.core.run.events import Event
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.core.run.run_state import Run
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.hang import diagnoses as hang
from aboard.engine.conductor.conductor import Conductor
from aboard.engine.launch_run import LaunchResult
from aboard.engine.monitoring import run_notifier
from aboard.engine.monitoring.run_notifier import RunNotifier
from aboard.record.event_log import read_events
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import run_simulator

NODES = ("n1", "n2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebhookServer]:
    with serve_webhook() as running:
        monkeypatch.setenv("HOOK", running.address)
        # A busy machine must not lose the last message.
        monkeypatch.setattr(run_notifier, "FINISH_SECONDS", 60.0)
        yield running


def conduct(
    folder: Path,
    faults: dict[str, FakeNodeFaults],
    observer: EventList,
    notify: NotifySettings | None = None,
    recovery: RecoverySettings | None = None,
) -> LaunchResult:
    async def run() -> LaunchResult:
        async with run_simulator() as socket:
            settings = notify or NotifySettings(env="HOOK")
            return await conduct_simulated(folder, socket, NODES, faults, settings, observer, recovery=recovery)

    return asyncio.run(run())


@pytest.mark.ci
def test_a_run_that_fails_is_one_message_with_its_verdict(tmp_path: Path, server: WebhookServer) -> None:
    """The failure is also the end: who wants to hear of both hears of it once."""
    observer = EventList()
    launched = conduct(tmp_path, {"n2": FakeNodeFaults(dies={"3": 0.5})}, observer)
    assert launched.outcome is not None
    ((_at, message),) = server.posts
    verdict = launched.findings[0]
    assert (message["event"], message["ended"], message["exit_code"]) == ("failure", True, 1)
    assert (message["code"], message["nodes"], message["ranks"]) == (verdict.code, ["n2"], [3])
    (run,) = Runs(tmp_path).all()
    headline, attempt, *rest = message["text"].splitlines()
    assert headline == f"{run.id} has failed on n2: {verdict.diagnosis.title}"
    assert attempt == "attempt 1"
    assert rest[0].startswith("seen: ")
    assert rest[-1] == "then: the run has ended: rank 3 on n2 died"
    assert observer.list_data("unsent", "why") == []
    assert all(SECRET.encode() not in path.read_bytes() for path in run.path.rglob("*") if path.is_file())


@pytest.mark.ci
def test_a_script_without_ranks_ends_with_a_message(tmp_path: Path, server: WebhookServer) -> None:
    """It was not monitored; a run that was refused while its script ran is told by its finding only."""

    async def end(name: str, finished: Finished, *, refused: bool = False) -> None:
        record = Record.open(Runs(tmp_path).open_or_create(name), ranks=1)
        async with RunNotifier(NotifySettings(env="HOOK"), record, EventList(), os.environ) as notifier:
            notifier.note_end(finished, refused=refused)
        record.close()

    why = Untrusted("the script on n1 ended with exit code 0, and called no launcher")
    asyncio.run(end("20261116-1950-calm-crane", Finished(code=0, why=why, monitored=False)))
    asyncio.run(end("20261116-1950-calm-otter", Finished(code=2, why=Untrusted("torchrun escaped")), refused=True))
    ((_at, message),) = server.posts
    assert message["headline"] == "20261116-1950-calm-crane was not monitored"
    assert (message["ended"], message["exit_code"]) == (True, 0)
    assert why.raw() in message["text"]


@pytest.mark.ci
def test_a_restart_a_recovery_and_a_stop_are_a_message_each(tmp_path: Path, server: WebhookServer) -> None:
    """In this order; the first says what Aboard does about it, and the second for how long nothing was trained."""

    def stop(conductor: Conductor, event: Event) -> None:
        if event.kind == "stepping" and conductor.run.generation.number == 2:
            conductor.stop("that is all")

    killed = {"n2": FakeNodeFaults(kills={"1/3": 0.5})}
    conduct(tmp_path, killed, EventList(stop), recovery=RecoverySettings(restarts=1))
    posts = [body for _at, body in server.posts]
    assert [(each["event"], each["ended"], each["attempt"]) for each in posts] == [
        ("failure", False, 1),
        ("recovery", False, 2),
        ("end", True, 2),
    ]
    assert [each["id"].rpartition("-")[2] for each in posts] == ["1", "2", "3"]
    assert posts[0]["action"].startswith("restart: ")
    assert "no training for" in posts[1]["action"]
    assert posts[2]["headline"].endswith(" was stopped: that is all")


@pytest.mark.ci
def test_a_stall_and_its_end_are_a_message_each(tmp_path: Path, server: WebhookServer) -> None:
    """The verdict of the stall monitor, and that the run makes progress again; not again and again."""
    verdict = hang.MISMATCH.finding(nodes=("n2",), ranks=(3,), seen="rank 3 waits in another collective")

    def stall(conductor: Conductor, event: Event) -> None:
        if event.kind == "stepping":
            conductor.verdicts.watch._settle(Judgement(findings=(verdict,)))
            conductor.verdicts.watch._settle(None)
            # It comes and goes: that was told.
            conductor.verdicts.watch._settle(Judgement(findings=(verdict,)))
            conductor.verdicts.watch._settle(None)
            conductor.stop("that is all")

    conduct(tmp_path, {}, EventList(stall))
    posts = [body for _at, body in server.posts]
    assert [each["event"] for each in posts] == ["stall", "recovery", "end"]
    assert posts[0]["headline"].endswith(f" is stuck on n2: {verdict.diagnosis.title}")
    assert (posts[0]["code"], posts[0]["ranks"], posts[1]["code"]) == (verdict.code, [3], None)


@pytest.mark.ci
def test_a_run_that_is_stopped_while_it_is_stuck_ends_with_the_verdict_of_the_last_look(
    tmp_path: Path, server: WebhookServer
) -> None:
    """How long ranks have waited is what it was then, not when the verdict was new."""

    def stall(conductor: Conductor, event: Event) -> None:
        if event.kind == "stepping":
            for seen in ("1 other rank has waited 5 s", "1 other rank has waited 47 s"):
                verdict = hang.MISMATCH.finding(nodes=("n2",), ranks=(3,), seen=seen)
                conductor.verdicts.watch._settle(Judgement(findings=(verdict,)))
            conductor.stop("that is all")

    launched = conduct(tmp_path, {}, EventList(stall))
    assert launched.outcome is not None
    assert [finding.seen for finding in launched.findings] == ["1 other rank has waited 47 s"]


@pytest.mark.ci
def test_only_the_events_that_were_asked_for_are_told(tmp_path: Path, server: WebhookServer) -> None:
    """A failed run is told to those who only want to hear of its end, too."""
    killed = {"n2": FakeNodeFaults(kills={"1/3": 0.3, "2/3": 0.3})}
    settings = NotifySettings(env="HOOK", on=("end",))
    conduct(tmp_path, killed, EventList(), settings, RecoverySettings(restarts=1))
    assert [(body["event"], body["attempt"]) for _at, body in server.posts] == [("failure", 2)]


@pytest.mark.ci
@pytest.mark.parametrize("answer", ["hang", 404])
def test_a_receiver_that_does_not_take_messages_is_a_warning(
    tmp_path: Path, server: WebhookServer, answer: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends as without it, at most two seconds later; the warning is in the record, without the address."""
    server.answer = answer
    observer = EventList()
    if answer == "hang":
        monkeypatch.undo()
        monkeypatch.setenv("HOOK", server.address)
    with within(20.0):
        launched = conduct(tmp_path, {"n2": FakeNodeFaults(dies={"3": 0.5})}, observer)
    assert launched.outcome is not None
    assert launched.outcome.code == 1
    seen = observer.list_data("unsent", "why")
    expected = "not all messages are confirmed" if answer == "hang" else "the receiver answered with status 404"
    assert expected in seen[-1]
    (run,) = Runs(tmp_path).all()
    folded = Run.replay(run.id, read_events(run.events))
    assert expected in folded.unsent["notify.webhook"]


@pytest.mark.ci
def test_without_an_address_the_run_goes_on(tmp_path: Path) -> None:
    """What is missing, and how to set it, is the first thing that is shown."""
    observer = EventList()
    launched = conduct(tmp_path, {"n2": FakeNodeFaults(dies={"3": 0.5})}, observer, NotifySettings(env="NO_HOOK"))
    assert launched.outcome is not None
    assert observer.events[0].kind == "unsent"
    assert list_fields(observer.events[0])["why"].startswith("the variable NO_HOOK is not set on ")
    assert list_fields(observer.events[0])["fix"].startswith("read -rs NO_HOOK && export NO_HOOK")
