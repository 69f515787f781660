"""Attacks on the page of a report, in a real browser: by texts of ranks, nodes, settings, metrics and verdicts."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from made_findings import made_finding
from made_run import make_run

from aboard.commands.check.report_page import render_check
from aboard.commands.report.build_report import ReportOptions, build_report
from aboard.commands.shared.page.render_page import render_page
from aboard.core.cluster.cluster import Cluster
from aboard.core.cluster.contact import UnreachedNode
from aboard.core.cluster.node import Node
from aboard.core.probes.facts import Facts
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import Severity
from aboard.diagnoses.unreachable_reason import UnreachableReason
from aboard.doctor.network.link_rates import RATES, LinkRate, LinkRates
from aboard.record.run_directory import RunDirectory

pytestmark = pytest.mark.xdist_group("browser")

# Ends of elements and of comments, line ends that JSON has and JavaScript may not, and what would run if it were HTML.
HOSTILE = (
    "--></script></style></title><script>attacked=1</script><img src=x onerror='attacked=2'><svg/onload=attacked=3>"
    "<!--<script>{{data}}${attacked=4}`'\"\\\u2028\u2029\ud800\x00\x1b]0;x\x07\u202e<iframe src='//127.0.0.1:9/'>"
)
MARK = "<img src=x onerror"
# What a reader of the record needs to know what it reads.
STRUCTURE = ("kind", "phase", "severity", "group", "stream")
BUTTONS = "document.querySelectorAll('button').forEach((each) => each.click())"
DETAILS = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


def poison(value: Any, text: str = HOSTILE) -> Any:
    """The value with hostile text behind each of its texts, and under a hostile name in each of its objects."""
    if isinstance(value, str):
        return value + text
    if isinstance(value, list):
        return [poison(each, text) for each in value]
    if isinstance(value, dict):
        poisoned = {name: each if name in STRUCTURE else poison(each, text) for name, each in value.items()}
        return {**poisoned, text: 1.0, "__proto__": {"attacked": 5}}
    return value


def poison_record(run: RunDirectory, text: str = HOSTILE) -> None:
    """Every text of a record that is not its structure: a node, a rank or a file may have written any of them."""
    for path in run.path.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(poison(line, text)) + "\n" for line in lines))
    plan = json.loads(run.plan.read_text())
    plan["env"]["ABOARD_TRAINING"] = json.dumps(poison(json.loads(plan["env"]["ABOARD_TRAINING"]), text))
    training = plan["env"].pop("ABOARD_TRAINING")
    plan = poison(plan, text)
    plan["env"]["ABOARD_TRAINING"] = training
    run.plan.write_text(json.dumps(plan))
    run.findings.write_text(json.dumps(poison(json.loads(run.findings.read_text()), text)))


def write_report(path: Path, *runs: RunDirectory) -> Path:
    page = render_page(build_report(runs, ReportOptions(scrub=SecretScrubber())), runs[0].id)
    path.write_bytes(page.encode("utf-8", "backslashreplace"))
    return path


def check_page(browser: Browser, path: Path, charts: int = 1) -> None:
    """It is drawn to its end, its buttons work, and nothing in it ran, was loaded, or became an element."""
    for width, dark in ((1400, False), (400, True)):
        browser.open_page(path, width=width, dark=dark)
        browser.evaluate(f"{DETAILS}; {BUTTONS}; {BUTTONS}")
        assert browser.complaints == []
        assert browser.evaluate("[typeof attacked, ({}).attacked === undefined]") == ["undefined", True]
        assert browser.evaluate("document.querySelectorAll('script').length") == 2
        assert browser.evaluate("document.querySelectorAll('img, svg, iframe, link, object, embed').length") == 0
        assert browser.evaluate("document.querySelectorAll('footer').length") == 1
        assert browser.evaluate("document.querySelectorAll('.panel canvas').length") >= charts
        assert browser.evaluate("document.scrollingElement.scrollWidth") <= width
        assert "[object" not in browser.evaluate("document.body.textContent.split('uPlot')[0]")


def test_no_text_of_a_record_runs_on_its_page(tmp_path: Path, browser: Browser) -> None:
    """Whoever wrote it, it is shown as text: in verdicts, settings, names of nodes and output."""
    run = make_run(tmp_path / "<img src=x onerror=attacked=6>", said=HOSTILE)
    poison_record(run)
    check_page(browser, write_report(tmp_path / "page.html", run), charts=6)
    for part in (".verdict", ".grid", ".output", "h1", ".what", ".words"):
        assert MARK in browser.evaluate(f"document.querySelector('{part}').textContent"), part


def test_no_text_of_a_record_runs_where_runs_are_compared(tmp_path: Path, browser: Browser) -> None:
    """The names of settings that differ, and their values, are shown as text."""
    runs = [make_run(tmp_path / f"run{number}", rate=number / 10) for number in (1, 2)]
    for number, run in enumerate(runs):
        poison_record(run, f"{HOSTILE}{number}")
    check_page(browser, write_report(tmp_path / "page.html", *runs), charts=2)
    assert MARK in browser.evaluate("[...document.querySelectorAll('.grid')].map((each) => each.textContent).join()")


def test_no_text_of_a_node_runs_on_the_page_of_a_check(tmp_path: Path, browser: Browser) -> None:
    """In findings, names of nodes and where the nodes come from; a long name leaves the matrix of links readable."""
    names = ("n1", f"n2{HOSTILE}")
    cluster = Cluster(nodes=tuple(Node(name=name) for name in names), source=HOSTILE)
    silent = UnreachedNode(reason=UnreachableReason.TIMED_OUT, said=HOSTILE)
    rates = LinkRates(links={names: LinkRate(mbit=800.0, segments=10, again=0, rtt=0.001)})
    facts = Facts(cluster=cluster, contacts=dict.fromkeys(names, silent), outcomes={RATES.name: rates})
    words = dict.fromkeys(("code", "seen", "why", "fix"), HOSTILE)
    found = [made_finding(severity=Severity.WARN, nodes=names, **words)]
    path = tmp_path / "check.html"
    text = render_check(facts, (), found, 1.0, SecretScrubber())
    path.write_bytes(text.encode("utf-8", "backslashreplace"))
    check_page(browser, path, charts=0)
    assert browser.evaluate("document.querySelector('.verdict').textContent").count(MARK) >= len(words)


def test_texts_of_a_megabyte_leave_a_page_small_and_readable(tmp_path: Path, browser: Browser) -> None:
    """A line of a rank, and every text of the record that a node or a rank could have made so long."""
    run = make_run(tmp_path / "run", said=f"{'x' * 2**20}\n{HOSTILE * 5000}")
    poison_record(run, "<b>" * (2**20 // 3))
    page = write_report(tmp_path / "page.html", run)
    assert page.stat().st_size < 5 * 2**20
    check_page(browser, page)


def test_a_damaged_record_gives_a_page_that_is_drawn(tmp_path: Path, browser: Browser) -> None:
    """One whose files all end in the middle, one of an older version, and one that has nothing but its directory."""
    torn, old, empty = (make_run(tmp_path / name) for name in ("torn", "old", "empty"))
    for path in torn.path.glob("*.json*"):
        os.truncate(path, path.stat().st_size // 2)
    old.metrics.unlink()
    old.lateness.unlink()
    samples = [json.loads(line) for line in old.samples.read_text().splitlines()]
    for step, sample in enumerate(samples, 1):
        metrics = {"step": step, "loss": 1.0 / step}
        sample["figures"] = {"node": {"load": 1.0}, "children": {"0": {"step": step, "metrics": metrics}}}
    old.samples.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    for path in empty.path.glob("*.json*"):
        path.unlink()
    for run, charts in ((torn, 1), (old, 2), (empty, 0)):
        check_page(browser, write_report(tmp_path / f"{run.id}.html", run), charts=charts)
