"""`aboard report`: what a page shows of a record, and that nothing in a record can become a part of the page itself."""

import json
import re
from base64 import b64decode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from json_documents import read_document
from made_run import make_run
from typed_commands import aboard

from aboard.commands.report.build_report import ReportOptions, build_report
from aboard.commands.report.lateness_map import describe_lateness, fold_lateness
from aboard.commands.report.metric_table import collect_metrics, describe_metrics
from aboard.commands.report.run_settings import compare_settings
from aboard.commands.report.thin_series import choose_rows
from aboard.commands.shared.page.render_page import encode_data, render_page
from aboard.commands.shared.page.write_page import write_page
from aboard.core.run.lateness import LatenessWindow, RankLateness
from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses import AboardError
from aboard.record.metrics_log import MetricsLine
from aboard.record.run_directory import RunDirectory

PAGE = Path(__file__).parents[4] / "src/aboard/commands/shared/page/sources"
HOSTILE = "</script><script>alert(1)</script><!-- \u2028 --> \x1b]0;x\x07 \u202e"


def build(*runs: RunDirectory, output: bool = True) -> dict[str, Any]:
    return {**build_report(runs, ReportOptions(scrub=SecretScrubber(), output=output))}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return make_run(tmp_path / "20261119-0800-brave-otter")


def test_of_repeated_steps_the_last_attempt_is_the_curve_and_the_others_are_aside(run: RunDirectory) -> None:
    metrics = build(run)["runs"][0]["metrics"]
    assert metrics["step"] == (1, 2, 3, 4, 5, 6)
    assert metrics["generation"] == (1, 1, 2, 2, 2, 2)
    assert metrics["columns"]["loss"][2:] == (2.33333, 2.25, 2.2, None)
    assert [(each["attempt"], each["step"]) for each in metrics["lost"]] == [(1, (3, 4))]


def test_the_evaluations_of_a_step_that_was_repeated_are_those_of_the_last_attempt() -> None:
    """Each says its attempt, so that their curve has a gap where a crash was."""
    rows = [(1, 2, {"loss": 1.0}), (1, 2, {"eval_loss": 2.0}), (1, 4, {"loss": 0.9}), (1, 4, {"eval_loss": 1.9})]
    rows += [(2, 3, {"loss": 0.95}), (2, 4, {"loss": 0.8}), (2, 4, {"eval_loss": 1.8})]
    lines = [
        MetricsLine(at=float(place), generation=generation, step=step, figures=figures)
        for place, (generation, step, figures) in enumerate(rows)
    ]
    evaluations = describe_metrics(collect_metrics(lines))["evaluations"]
    assert (evaluations["step"], evaluations["generation"]) == ((2, 4), (1, 2))
    assert evaluations["eval_loss"] == (2.0, 1.8)


def test_the_ledger_adds_up_to_the_wall_time_and_divides_steps(run: RunDirectory) -> None:
    ledger = build(run)["runs"][0]["ledger"]
    assert ledger["wall"] == 100.0
    assert sum(ledger["total"].values()) == pytest.approx(100.0, abs=0.1)
    assert ledger["total"]["repeated"] == pytest.approx(20.0, abs=0.1)
    assert ledger["total"]["forward_backward"] == pytest.approx(0.8 * (38 + 20), abs=1.0)
    for place in range(200):
        assert sum(column[place] for column in ledger["over"].values()) == pytest.approx(0.5, abs=0.01)


def test_each_verdict_has_its_moment(run: RunDirectory) -> None:
    last, first = build(run)["runs"][0]["verdicts"]
    assert (last["code"], last["nodes"], last["ranks"]) == ("slow-rank", ["n2"], [1])
    assert (first["code"], first["at"], first["step"], first["attempt"]) == ("died-killed", 150.0, 4, 1)
    assert first["action"] == "restart"


def test_what_ended_the_last_attempt_is_one_verdict_with_what_was_decided(run: RunDirectory) -> None:
    """The decision has the code of the program, and the finding its words."""
    decided = {
        "code": "train-nonfinite",
        "failure": "program",
        "nodes": ["n2"],
        "seen": "x",
        "fix": "",
        "action": "stop",
    }
    event = {"at": 199.0, "node": "", "kind": "recovering", "data": {**decided, "why": "again", "step": 6}}
    with run.events.open("a") as file:
        file.write(json.dumps(event) + "\n")
    last, first = build(run)["runs"][0]["verdicts"]
    assert (last["code"], last["title"]) == ("train-nonfinite", "a loss or a gradient is not finite")
    assert (last["ranks"], last["action"], last["done"], last["step"]) == ([1], "stop", "again", 6)
    assert first["code"] == "died-killed"


def test_the_heat_map_has_the_late_rank_and_names_it(run: RunDirectory) -> None:
    lateness = build(run)["runs"][0]["lateness"]
    first, second = (memoryview(b64decode(row)).cast("H") for row in lateness["cells"])
    column = int(25.0 / lateness["width"])
    assert second[column] * lateness["unit"] == pytest.approx(0.02, rel=0.01)
    assert (first[column], second[5]) == (0, 0xFFFF)
    assert [(each["rank"], each["node"], each["start"], each["stop"]) for each in lateness["slowest"]] == [
        (1, "n2", 110.0, 140.0)
    ]


def test_only_a_rank_that_stands_out_is_called_slow() -> None:
    """On a busy machine all ranks are late at times; the one that is late for longer is named, with that time."""

    def fold(slow: float) -> list[int]:
        windows = []
        for number in range(30):
            means = [0.02 + 0.005 * ((number + rank) % 3) for rank in range(4)]
            means[2] += slow if 10 <= number < 15 else 0.0
            late = {rank: RankLateness(mean=mean, worst=mean, group="0") for rank, mean in enumerate(means)}
            windows.append(LatenessWindow(at=10.0 * (number + 1), interval=0.1, late=late, measured=((0, 3),)))
        folded = fold_lateness(windows, start=0.0, stop=300.0, ranks=4)
        slowest = describe_lateness(folded, {2: "n3"})["slowest"]
        assert all((each["node"], each["start"], each["stop"]) == ("n3", 100.0, 150.0) for each in slowest)
        return [each["rank"] for each in slowest]

    assert fold(0.0) == []
    assert fold(0.05) == [2]


def test_nothing_is_scrubbed_from_the_heat_map(run: RunDirectory) -> None:
    """A part of its base64 may look like a key, or like the name of the user."""
    cells = build(run)["runs"][0]["lateness"]["cells"]
    users = {word for row in cells for word in re.findall(r"\w{3,}", row)}
    page = build_report([run], ReportOptions(scrub=SecretScrubber(users=users)))
    assert page["runs"][0]["lateness"]["cells"] == cells


def test_nodes_that_differ_are_named(run: RunDirectory) -> None:
    samples = build(run)["runs"][0]["samples"]
    assert samples["differences"] == ["load: 1.0 on n1, 6.0 on n2"]
    assert [each["node"] for each in samples["series"]] == ["n1", "n2"]
    assert set(samples["series"][0]["figures"]["received"]["value"]) == {1e6}


def test_settings_show_no_secret_and_runs_are_compared_by_what_differs(run: RunDirectory, tmp_path: Path) -> None:
    other = make_run(tmp_path / "20261119-0900-calm-heron", rate=0.2)
    page = build(run, other)
    assert page["differences"] == [{"name": "learning_rate", "values": ["0.1", "0.2"]}]
    assert "hf_secret" not in json.dumps(page)
    assert page["runs"][0]["settings"]["$NCCL_DEBUG"] == "INFO"


def test_a_script_is_not_compared_by_the_settings_of_trainings() -> None:
    """It has none of them: a table of a page's length would hide what differs."""
    training = {"program": "aboard.trainer", "seed": "42", "ranks": "4"}
    found = compare_settings([training, {"program": "train.py", "ranks": "4"}, {**training, "lr": "1"}])
    assert [(row["name"], row["values"]) for row in found] == [
        ("program", ["aboard.trainer", "train.py", "aboard.trainer"]),
        ("lr", [None, None, "1"]),
    ]


def test_what_ranks_printed_is_scrubbed_and_can_be_left_out(tmp_path: Path) -> None:
    token = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345"  # noqa: S105 - made up
    run = make_run(tmp_path / "r", said=f"login with {token}")
    shown = build(run)
    assert [(each["rank"], each["node"]) for each in shown["runs"][0]["output"]] == [(1, "n2"), (0, "n1")]
    assert token not in json.dumps(shown)
    assert shown["removed"]["secrets"]
    assert build(run, output=False)["runs"][0]["output"] == []


def test_no_text_of_a_record_can_end_the_data_or_begin_a_script(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", node=HOSTILE[:60], said=HOSTILE)
    page = render_page(build(run), HOSTILE)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert not set("<>&\u2028\u2029\x1b\u202e") & set(data[1])
    assert json.loads(data[1])["runs"][0]["nodes"][1]["name"].startswith("</script>")
    assert page.count("<script") == 2
    assert "<title>&lt;/script&gt;" in page


def test_the_policy_allows_this_script_and_this_style_alone() -> None:
    page = render_page({"runs": []}, "x")
    script, style = (
        re.findall(r"<script>(.*?)</script>", page, re.DOTALL),
        re.findall(r"<style>(.*?)</style>", page, re.DOTALL),
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = re.findall(r"sha256-([^&]*)&", policy[1])
    assert [b64decode(each) for each in allowed] == [sha256(text.encode()).digest() for text in (*script, *style)]
    assert policy[1].startswith("default-src &#x27;none&#x27;;")
    assert "unsafe" not in policy[1]
    assert "http" not in policy[1]
    assert "eval(" not in script[0]


def test_vendored_files_are_those_of_the_release() -> None:
    for line in (PAGE / "vendor/SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert sha256((PAGE / "vendor" / name).read_bytes()).hexdigest() == digest


BROKEN = {"empty": b"", "list": b"[]\n", "torn": b'{"kind": 3}\n\xff\xfe\n{"at":"x"', "deep": b"[" * 100_000}
PARTS = ("plan.json", "events.jsonl", "samples.jsonl", "metrics.jsonl", "lateness.jsonl", "findings.json")


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_a_record_with_a_broken_part_gives_a_page(run: RunDirectory, name: str, content: bytes) -> None:
    (run.path / name).write_bytes(content)
    assert encode_data(build(run))


def test_a_run_without_any_record_gives_a_page(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "r")
    run.make()
    described = build(run)["runs"][0]
    assert described["lateness"] == {"measured": False, "why": "the record has no samples of collectives"}
    assert described["metrics"]["step"] == ()


def test_thinning_keeps_the_extremes_of_each_bucket() -> None:
    column = [float(number % 7) for number in range(10_000)]
    column[4321], column[8765] = 100.0, -100.0
    rows = choose_rows([column], buckets=50)
    assert len(rows) <= 200
    assert {0, 4321, 8765, 9999} <= set(rows)


def test_a_page_replaces_a_page_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_page(path, render_page({"runs": []}, "one").encode(), run="r")
    write_page(path, render_page({"runs": []}, "two").encode(), run="r")
    assert "<title>two</title>" in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "notes.html").write_text("mine")
    with pytest.raises(AboardError, match="was not written by"):
        write_page(tmp_path / "notes.html", b"page", run="r")
    with pytest.raises(AboardError, match="can't be written"):
        write_page(tmp_path / "missing" / "page.html", b"page", run="r")


def test_the_command_writes_a_page_and_says_what_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("20261119-0800-brave-otter", "20261119-0900-calm-heron"):
        (tmp_path / "aboard/runs").mkdir(parents=True, exist_ok=True)
        make_run(tmp_path / "aboard/runs" / name)
    result = aboard("report", "brave")
    assert result.code == 0, result.stderr
    assert "host names" in result.stdout
    assert (tmp_path / "20261119-0800-brave-otter.html").exists()
    assert read_document("report", aboard("report", "--data").stdout)["runs"][0]["id"] == "20261119-0900-calm-heron"
    compared = read_document("report", aboard("report", "--compare", "brave", "calm", "--data").stdout)
    assert [run["id"][-5:] for run in compared["runs"]] == ["otter", "heron"]
    assert aboard("report", "--compare", "brave", "calm", "-o", "both.html").code == 0
    assert aboard("report", "brave", "calm").code == 3


@pytest.mark.ci
def test_code_in_a_text_has_no_backticks_and_a_crash_is_a_gap_in_both_curves(run: RunDirectory, tmp_path: Path) -> None:
    """What is set in code is shown as code; neither the loss nor the evaluation is drawn across a restart."""
    data = build(run)
    shown = data["runs"][0]
    shown["verdicts"][0]["why"] = "run `aboard why` there"
    shown["metrics"]["evaluations"] = {
        "step": (2, 4), "at": (120.0, 170.0), "generation": (1, 2), "eval_loss": (2.0, 1.8)
    }  # fmt: skip
    path = tmp_path / "page.html"
    path.write_text(render_page(data, title="t"), "utf-8", "backslashreplace")
    with Browser() as browser:
        browser.open_page(path)
        assert "aboard why" in browser.evaluate(
            "[...document.querySelectorAll('dd code')].map((each) => each.textContent)"
        )
        assert "`" not in browser.evaluate("document.querySelector('.verdicts').textContent")
        curves = "listTables(page.runs[0], CURVES.find((each) => each.name === 'loss'), 0, false)"
        gaps = browser.evaluate(f"{curves}.filter((each) => !each.pale).map((each) => each.values.indexOf(null))")
        assert gaps[-1] == 1
        assert browser.complaints == []
