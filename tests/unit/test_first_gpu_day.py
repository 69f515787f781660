"""The first day on GPUs: which runs fit, how a day continues, and what of a hostile node reaches page and bundle."""

import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from secret_corpus import CORPUS, read_corpus

from first_gpu_day.command import BUNDLE, COLUMN, PAGE, RUNS, perform_run, perform_runs, write_day
from first_gpu_day.day_page import format_table
from first_gpu_day.day_run import DayRun, Outcome, Result, choose_runs, load_results, save_result
from first_gpu_day.fault_runs import FAULTS, judge_verdict
from first_gpu_day.gpu_day import MARK, MOST_TEXT, SIMULATED, GpuDay, parse_reports, read_number
from first_gpu_day.training_runs import compare_losses

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'>"
ESCAPES = "\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp.exe\x00"
TOKEN = "hf_" + "abcdefghijKLMNOPQRSTUVWXYZ01234567"


def make_run(name: str, minutes: float = 1, drop: int = 0, **more: Any) -> DayRun:
    perform = more.pop("perform", lambda _day: Outcome(state="as expected", seen=f"{name} ran"))
    return DayRun(name=name, minutes=minutes, drop=drop, proves="nothing", perform=perform, **more)


def make_day(folder: Path) -> GpuDay:
    folder.mkdir(exist_ok=True)
    return GpuDay(folder=folder, cluster={}, sizes=SIMULATED, simulated=True, nodes=("n1", "n2"), slots=2)


def list_names(runs: list[DayRun]) -> list[str]:
    return [run.name for run in runs]


def test_the_last_of_the_least_important_runs_is_dropped_first() -> None:
    """And nothing is dropped that fits; runs that are done take no time."""
    runs = [make_run("a"), make_run("b", drop=2), make_run("c", drop=1), make_run("d", drop=2)]
    assert [list_names(each) for each in choose_runs(runs, (), 4)] == [["a", "b", "c", "d"], []]
    assert [list_names(each) for each in choose_runs(runs, (), 2)] == [["a", "c"], ["d", "b"]]
    assert [list_names(each) for each in choose_runs(runs, ("a", "b"), 2)] == [["c", "d"], []]
    assert [list_names(each) for each in choose_runs(runs, (), 0)] == [[], ["d", "b", "c", "a"]]


def test_a_run_is_dropped_with_what_it_needs() -> None:
    """A comparison without its other half would prove nothing."""
    runs = [make_run("a", drop=3), make_run("b", needs=("a",)), make_run("c", needs=("b",)), make_run("d")]
    assert [list_names(each) for each in choose_runs(runs, (), 3)] == [["d"], ["c", "b", "a"]]


def test_the_whole_day_takes_two_hours_at_most_and_names_are_unique() -> None:
    """Without the runs that are dropped first; each run comes after those that it needs."""
    kept, dropped = choose_runs(RUNS, (), 120)
    assert sum(run.minutes for run in kept) <= 120
    assert all(run.drop >= 3 for run in dropped), list_names(dropped)
    names = list_names(list(RUNS))
    assert len(set(names)) == len(names)
    for number, run in enumerate(RUNS):
        assert set(run.needs) <= set(names[:number]), run.name


def test_the_table_says_what_asks_and_what_is_dropped_first() -> None:
    """Before anything is run."""
    runs = [make_run("a"), make_run("b", drop=1, question="kill -9"), make_run("c", minutes=9, drop=2)]
    assert format_table(runs[:2], runs[2:], 1, 5).splitlines()[1:] == [
        "    1        2  a                    nothing",
        "    1        1  b                    nothing  (asks first)",
        "    9      now  c                    nothing",
        "2 of 5 minutes; 1 run done already",
    ]


def test_a_day_continues_where_it_was_interrupted(tmp_path: Path) -> None:
    """What has a result is not run again; what was interrupted is; a damaged result is none."""
    ran: list[str] = []

    def note(_day: GpuDay, name: str) -> Outcome:
        ran.append(name)
        if name == "b" and ran.count("b") == 1:
            raise KeyboardInterrupt
        return Outcome(state="as expected", seen="ran", figures={"x": 1.5})

    runs = [make_run(name, perform=partial(note, name=name)) for name in "abc"]
    with pytest.raises(KeyboardInterrupt):
        perform_runs(make_day(tmp_path), runs, minutes=60, ask=lambda _question: True)
    again = make_day(tmp_path)
    again.results = load_results(tmp_path / "results", runs)
    assert list(again.results) == ["a"]
    assert again.figure("a", "x") == 1.5
    perform_runs(again, runs, minutes=60, ask=lambda _question: True)
    assert ran == ["a", "b", "b", "c"]
    path = tmp_path / "results" / "c.json"
    path.write_text(path.read_text().replace("as expected", "splendid"))
    assert list(load_results(tmp_path / "results", runs)) == ["a", "b"]


def test_what_does_not_fit_is_dropped_and_has_no_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So that it is run on another day."""
    day = make_day(tmp_path)
    perform_runs(day, [make_run("a"), make_run("b", minutes=3, drop=1)], minutes=2, ask=lambda _question: True)
    assert list(day.results) == ["a"]
    assert "dropped    b: it takes 3 minutes" in capsys.readouterr().out


def test_a_fault_is_injected_only_after_a_yes(tmp_path: Path) -> None:
    """And a run whose data are missing, or that breaks, has a reason as its result."""
    day = make_day(tmp_path)
    asked = []

    def refuse(question: str) -> bool:
        asked.append(question)
        return False

    def fail(_day: GpuDay) -> Outcome:
        raise ValueError(ESCAPES)

    assert perform_run(day, make_run("a", question="kill -9"), refuse).state == "not run"
    assert asked == ["kill -9"]
    assert perform_run(day, make_run("b", needs=("z",)), refuse).seen == "it needs z, which has no result"
    outcome = perform_run(day, make_run("c", perform=fail), refuse)
    assert outcome.state == "failed"
    assert outcome.seen.isprintable()


@pytest.mark.parametrize(
    ("kind", "changed", "wrong"),
    [
        ("kill", {}, {}),
        ("kill", {"ranks": []}, {}),
        ("kill", {"code": "run-raised"}, {"cause": "wrong: run-raised"}),
        ("kill", {"nodes": ["n1", "n2"]}, {"node": "wrong: ['n1', 'n2']"}),
        ("kill", {"ranks": [2]}, {"ranks": "wrong: [2]"}),
        ("kill", {"nodes": None, "code": SCRIPT + ESCAPES}, {"cause": None, "node": "wrong: None"}),
        ("memory", {"code": "run-raised", "seen": "raised OutOfMemoryError: CUDA out of memory"}, {}),
        ("memory", {"code": "run-raised", "seen": "raised KeyError: 'x'"}, {"cause": "wrong: run-raised"}),
    ],
)
def test_a_verdict_is_judged_against_what_was_injected(
    kind: str, changed: dict[str, Any], wrong: dict[str, str | None]
) -> None:
    """Its cause, its node and its ranks, each for itself; one code for all exceptions is not enough."""
    fault = next(each for each in FAULTS if each.kind == kind)
    finding = {"code": "run-killed", "nodes": ["n2"], "ranks": [3], "seen": "rank 3 was killed", **changed}
    judged = judge_verdict(fault, finding, node="n2", ranks=[3])
    assert {name for name, word in judged.items() if word != "right"} == set(wrong)
    assert all(str(word).isprintable() for word in judged.values())
    assert all(judged[name] == word for name, word in wrong.items() if word)


def test_losses_are_compared_step_by_step_with_those_of_the_cpu(tmp_path: Path) -> None:
    """One that is far from the CPU's, or that the CPU doesn't have, is a difference."""
    day = make_day(tmp_path)
    figures = {"loss 1": 4.0, "loss 2": 2.0}
    day.results["finetune-cpu"] = Result(
        name="finetune-cpu", state="as expected", seen="", seconds=1, at=0, figures=figures, texts={}
    )
    near, far, more = ({1: 4.0, 2: 2.001}, {1: 4.0, 2: 2.1}, {1: 4.0, 3: 1.0})
    states = [compare_losses(day, losses, {}, {}, words="").state for losses in (near, far, more)]
    assert states == ["as expected", "differs", "differs"]


@pytest.mark.parametrize(
    "name", ["nccl-tests", "torchtitan", "attention-flash", "attention-flex", "compiled", "bare-compiled"]
)
def test_what_the_nodes_lack_is_not_run_and_says_why(tmp_path: Path, name: str) -> None:
    """Before anything is launched: one node without it is enough."""
    day = make_day(tmp_path)
    both = {"n1 packages": "flash_attn 2.8, triton 3.5", "n1 tools": "all_reduce_perf", "n2 packages": "torch 2.13.0"}
    for needed, figures in (("machines", both), ("shape", {"shape": "8B"})):
        day.results[needed] = Result(
            name=needed, state="as expected", seen="", seconds=1, at=0, figures=figures, texts={}
        )
    outcome = perform_run(day, next(run for run in RUNS if run.name == name), lambda _question: False)
    assert outcome.state == "not run"
    assert re.search("all_reduce_perf|--torchtitan|flash_attn|triton", outcome.seen)


class Elements(HTMLParser):
    """All elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def write_hostile_day(folder: Path, *texts: str, name: str = "machines", **more: Any) -> tuple[GpuDay, dict[str, str]]:
    """A day whose one result is what a hostile node wrote, in every place; and the files of its bundle."""
    day = make_day(folder)
    text = "\n".join(texts)
    day.results[name] = Result(
        name=name,
        state="as expected",
        seen=more.get("seen", text),
        seconds=1.0,
        at=0.0,
        figures={text: text, "huge": 1e300, "n1 gpus": text},
        texts={text: text, "../../../etc/passwd": text, "nvidia-smi": text},
    )
    write_day(day, RUNS)
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress((folder / BUNDLE).read_bytes()))) as tar:
        files = {each.name: tar.extractfile(each) for each in tar.getmembers()}
        return day, {name: file.read().decode() for name, file in files.items() if file is not None}


def test_what_a_node_writes_is_no_markup_and_no_escape_sequence(tmp_path: Path) -> None:
    """On the page, in the Markdown column, and in each file of the bundle, whose names stay in its directory."""
    _, files = write_hostile_day(tmp_path, SCRIPT, ESCAPES, "| a | `b` | [c](javascript:d) |")
    page = Elements((tmp_path / PAGE).read_text())
    assert not page.tags & {"script", "img", "a", "iframe", "link", "form", "object", "base"}
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "href")}
    assert "default-src 'none'" in (tmp_path / PAGE).read_text()
    rows = [line for line in (tmp_path / COLUMN).read_text().splitlines() if line.startswith("| machines")]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [4]
    assert "<script" not in rows[0]
    assert not re.search(r"(?<!\\)[`\[\]*_]", rows[0])
    for name, text in files.items():
        assert re.fullmatch(r"first-gpu-day/([a-z-]+/)?[A-Za-z0-9.-]+", name), name
        assert ".." not in name.split("/"), name
        assert all(line.isprintable() for line in text.splitlines()), name
    assert (tmp_path / BUNDLE).stat().st_mode & 0o777 == 0o600


def test_secrets_users_and_serial_numbers_stay_out_of_page_and_bundle(tmp_path: Path) -> None:
    """Also those that are split over a figure's name and text, and addresses, which get other ones."""
    serial = "        Serial Number                     : 1652823054567"
    uuid = "GPU 0: NVIDIA H100 (UUID: GPU-5d3c1a2b-1234-5678-9abc-def012345678)"
    home = "/home/borrowed.person/.ssh/id_rsa at 10.20.30.40"
    _, files = write_hostile_day(tmp_path, f"export HF_TOKEN={TOKEN}", serial, uuid, home, "password=hunter2secret")
    everything = "".join([*files.values(), (tmp_path / PAGE).read_text(), (tmp_path / COLUMN).read_text()])
    for secret in (TOKEN, "1652823054567", "5d3c1a2b", "borrowed.person", "10.20.30.40", "hunter2secret"):
        assert secret not in everything, secret
    removed = json.loads(files["first-gpu-day/removed.json"])
    assert removed["serial numbers"] == 2
    assert removed["secrets"] > 0


def test_the_secrets_of_the_corpus_stay_out_of_raw_outputs(tmp_path: Path) -> None:
    """As in any other bundle."""
    cases = [case for case in read_corpus(CORPUS) if case.secret]
    missed = []
    for number, case in enumerate(cases[:: max(1, len(cases) // 40)]):
        _, files = write_hostile_day(tmp_path / str(number), case.text, seen="it ran")
        raw = files["first-gpu-day/machines/nvidia-smi.txt"]
        if str(case.secret) in raw or str(case.secret) in files["first-gpu-day/results.json"]:
            missed.append(case.id)
    assert missed == []


def test_a_huge_output_is_cut(tmp_path: Path) -> None:
    """Its end is kept: a bundle is for mail."""
    line = "x" * 10_000
    _, files = write_hostile_day(tmp_path, *[line] * 200, "the last line")
    raw = files["first-gpu-day/machines/nvidia-smi.txt"]
    assert len(raw) < MOST_TEXT
    assert raw.endswith("the last line\n")
    assert "characters are left out" in raw
    assert len((tmp_path / PAGE).read_text()) < 50_000


def test_a_node_does_not_decide_how_large_the_bundle_is(tmp_path: Path) -> None:
    """Neither by the number of its figures nor by that of its texts."""
    day = make_day(tmp_path)
    many = {f"name {number}": "text" for number in range(2000)}
    day.results["machines"] = Result(
        name="machines", state="as expected", seen="x", seconds=1, at=0, figures=many, texts=many
    )
    write_day(day, RUNS)
    with tarfile.open(tmp_path / BUNDLE) as tar:
        assert len(tar.getnames()) < 50
    assert (tmp_path / PAGE).read_text().count("<dt>") < 100


@pytest.mark.parametrize(
    "value", ["[1", "null", "[]", '"x"', "NaN", '{"a":' * 2000, '{"bus": 1' + "0" * 400 + "}", '{"bus": [[]]}', "{}"]
)
def test_a_report_that_is_no_report_is_ignored(value: str) -> None:
    """Whatever a rank prints behind the mark."""
    reports = parse_reports([{"text": MARK + value, "node": "n1", "ranks": [0]}])
    assert all(read_number(each.get("bus")) is None for each in reports)


def test_only_finite_numbers_are_numbers() -> None:
    """A report may have any value where a figure is expected."""
    values: list[Any] = [1, 2.5, True, "3", None, float("nan"), float("inf"), 10**400, [4], {}]
    assert [read_number(value) for value in values] == [1.0, 2.5, *[None] * 8]


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    """With raw outputs of any characters."""
    figures: Mapping[str, float | str] = {"a": 1.0, "b": "two"}
    result = Result(name="a", state="differs", seen="x", seconds=1, at=2, figures=figures, texts={"raw": ESCAPES})
    save_result(tmp_path, result)
    assert load_results(tmp_path, [make_run("a")]) == {"a": result}


def test_the_hook_runs_the_sitecustomize_behind_it(tmp_path: Path) -> None:
    """And does nothing in processes that are no ranks."""
    hooks = Path(__file__).parents[2] / "bench" / "first_gpu_day" / "programs" / "hooks"
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.behind = True\n")
    path = os.pathsep.join([str(hooks), str(tmp_path)])
    program = "import sys; print(sys.behind, any(type(each).__name__ == 'TorchUsers' for each in sys.meta_path))"
    found = []
    for more in ({}, {"RANK": "0"}):
        env = {"PYTHONPATH": path, "FIRST_GPU_DAY": '{"stop": 3}', "PATH": os.environ["PATH"], **more}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
        found.append(done.stdout.strip())
    assert found == ["True False", "True True"]
