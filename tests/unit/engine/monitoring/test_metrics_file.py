"""The real conductor over simulated nodes writes a file that the real node_exporter, promtool and alert rules take."""

import asyncio
import os
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from time import time

import pytest
from deadlines import wait_until
from made_events import made_event
from simulated_runs import EventList, conduct_simulated

from aboard.core.monitoring.notify_settings import NotifySettings
from aboard.core.run.recovery.recovery_policy import RecoverySettings
from aboard.engine.monitoring import metrics_file
from aboard.engine.monitoring.metrics_file import MetricsFile
from aboard.record.run_record import Record
from aboard.record.runs import Runs
from aboard.testing.fake_supervisor import FakeNodeFaults
from aboard.testing.simulated_transport import run_simulator

DOCS = Path(__file__).parents[4] / "docs" / "monitoring.md"
PROGRAMS = f"/opt/aboard-prometheus/usr/bin:{os.environ['PATH']}"


class FileReader(EventList):
    """Keeps what the file contained at each tick."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._folder = folder

    def tick(self, now: float) -> None:
        self.texts += [path.read_text() for path in self._folder.glob("*.prom")]


def conduct(tmp_path: Path, folder: Path, observer: EventList) -> None:
    """Rank 3 is killed, restarts, and is killed again."""

    async def run() -> None:
        async with run_simulator() as simulator:
            faults = {"n2": FakeNodeFaults(kills={"1/3": 1.0, "2/3": 1.0})}
            await conduct_simulated(
                *(tmp_path / "runs", simulator, ("n1", "n2"), faults, NotifySettings(), observer),
                recovery=RecoverySettings(restarts=1),
                textfile=str(folder),
            )

    (tmp_path / "runs").mkdir(exist_ok=True)
    asyncio.run(run())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(metrics_file, "WRITE_SECONDS", 0.1)
    (tmp_path / "textfile").mkdir()
    before = os.umask(0o077)
    yield tmp_path / "textfile"
    os.umask(before)


def read_value(text: str, name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)}.* (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else None


@pytest.mark.ci
def test_a_file_has_the_figures_of_a_run_and_at_its_end_only_how_it_ended(tmp_path: Path, folder: Path) -> None:
    """Other users can read it, whatever the umask; what runs of long ago left behind is removed."""
    old, other = folder / "aboard-old.prom", folder / "others.prom"
    for path in (old, other):
        path.touch()
        os.utime(path, (0, time() - 2 * metrics_file.KEPT_SECONDS))
    observer = FileReader(folder)
    conduct(tmp_path, folder, observer)
    live = [text for text in observer.texts if "aboard_updated" in text]
    assert 4 in [read_value(text, "aboard_ranks") for text in live]
    assert {read_value(text, "aboard_attempt") for text in live} == {1.0, 2.0}
    (path,) = (each for each in folder.iterdir() if each != other)
    last = path.read_text()
    assert "aboard_ranks" not in last
    assert read_value(last, "aboard_run_exit_code") == 137
    assert read_value(last, "aboard_verdicts_total") == 2
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_script_without_ranks_leaves_its_exit_code(tmp_path: Path, folder: Path) -> None:
    """As a run does."""
    record = Record.open(Runs(tmp_path).open_or_create("20261116-1950-calm-crane"), ranks=1)
    with MetricsFile(str(folder), record, EventList()) as metrics:
        metrics.event(made_event("finished", node="", at=5.0, code=0, why="", monitored=False))
    record.close()
    last = (folder / "aboard-20261116-1950-calm-crane.prom").read_text()
    assert read_value(last, "aboard_run_exit_code") == 0
    assert read_value(last, "aboard_run_end_timestamp_seconds") == 5


@pytest.mark.ci
def test_a_directory_that_is_missing_is_a_warning_of_the_run(tmp_path: Path, folder: Path) -> None:
    """Once, with what to type; the run goes on."""
    observer = FileReader(folder)
    conduct(tmp_path, folder / "missing", observer)
    (why,) = observer.list_data("unsent", "why")
    assert (
        why == f"metrics.textfile: can't write in {folder}/missing on {os.uname().nodename}: No such file or directory"
    )
    assert "finished" in [event.kind for event in observer.events]


def find_program(name: str) -> str:
    found = shutil.which(name, path=PROGRAMS)
    assert found is not None, "run scripts/install-prometheus"
    return found


def call_promtool(*words: str, text: str | None = None) -> str:
    ran = subprocess.run(
        [find_program("promtool"), *words], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"
    return ran.stdout + ran.stderr


@pytest.mark.nightly
def test_node_exporter_exports_what_the_conductor_writes(tmp_path: Path, folder: Path) -> None:
    """The real exporter scrapes the live and the last figures without an error, and promtool has no objection."""
    observer = FileReader(folder)
    conduct(tmp_path, folder, observer)
    (path,) = folder.iterdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    options = ("--collector.disable-defaults", "--collector.textfile", f"--web.listen-address={address}")
    argv = [find_program("prometheus-node-exporter"), *options, f"--collector.textfile.directory={folder}"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def scrape() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as response:
                return str(response.read().decode())
        except OSError:
            return ""

    try:
        wait_until(scrape, 20, "an answer of node_exporter")
        for text in (next(text for text in reversed(observer.texts) if "aboard_updated" in text), path.read_text()):
            path.write_text(text)
            assert call_promtool("check", "metrics", text=text) == ""
            exported = scrape()
            assert read_value(exported, "node_textfile_scrape_error") == 0
            wanted = {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}
            assert wanted <= {line.partition("{")[0] for line in exported.splitlines()}
    finally:
        process.terminate()
        process.wait()


TESTED_RULES = """\
rule_files: [rules.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'aboard_updated_timestamp_seconds{run="lost"}', values: '0x60'}
      - {series: 'aboard_updated_timestamp_seconds{run="stuck"}', values: '0+60x60'}
      - {series: 'aboard_last_progress_timestamp_seconds{run="stuck"}', values: '0x60'}
      - {series: 'aboard_checkpoint_timestamp_seconds{run="stuck"}', values: '0+60x60'}
      - {series: 'aboard_run_exit_code{run="bad"}', values: '1x60'}
      - {series: 'aboard_run_end_timestamp_seconds{run="bad"}', values: '0x60'}
      - {series: 'aboard_run_exit_code{run="stopped"}', values: '130x60'}
      - {series: 'aboard_run_end_timestamp_seconds{run="stopped"}', values: '0x60'}
      - {series: 'aboard_standing_verdict{run="slow",code="slow-rank"}', values: '1x60'}
    alert_rule_test:
      - {eval_time: 30m, alertname: AboardConductorLost, exp_alerts: [{exp_labels: {run: lost}}]}
      - {eval_time: 30m, alertname: AboardNoProgress, exp_alerts: [{exp_labels: {run: stuck}}]}
      - {eval_time: 30m, alertname: AboardNoCheckpoint, exp_alerts: []}
      - {eval_time: 30m, alertname: AboardRunFailed, exp_alerts: [{exp_labels: {run: bad}}]}
      - {eval_time: 30m, alertname: AboardRunStuck, exp_alerts: [{exp_labels: {run: slow, code: slow-rank}}]}
"""


@pytest.mark.nightly
def test_the_alert_rules_of_the_docs_fire_when_they_should(tmp_path: Path) -> None:
    """Promtool takes them as they stand on the page, and evaluates them over an hour of figures."""
    (rules,) = re.findall(r"^```yaml\n(groups:\n.*?)^```", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    (tmp_path / "tests.yml").write_text(TESTED_RULES)
    assert "5 rules found" in call_promtool("check", "rules", str(tmp_path / "rules.yml"))
    call_promtool("test", "rules", str(tmp_path / "tests.yml"))
