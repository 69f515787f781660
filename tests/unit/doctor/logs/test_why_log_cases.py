"""Recorded logs, each with the verdict that it must get, also in the wrappings that launchers put around lines."""

import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations
from pathlib import Path
from random import Random

import pytest

from aboard.commands.why.diagnosis_view import ALL_SUBJECTS
from aboard.diagnoses import Finding, Severity, catalogue
from aboard.diagnoses.catalogue import KnownMessage, all_diagnoses, list_families, list_output_patterns
from aboard.diagnoses.output_patterns import PatternSource
from aboard.doctor.container import diagnoses as containers, image_diagnoses as container_images
from aboard.doctor.logs.judge_log import judge_log
from aboard.doctor.logs.line_prefixes import split_terminal_line
from aboard.doctor.logs.log_scanner import LogScanner
from aboard.doctor.logs.pattern_keywords import extract_keywords
from faults_recorded import Case, load_cases, score_cases

CASES = load_cases()
Wrap = Callable[[bytes], bytes]
WRAPS: dict[str, Wrap] = {
    "srun --label": lambda line: b"0: " + line,
    "a container's log": lambda line: b"2026-08-04T10:11:12.000000001Z stderr F " + line,
    "kubectl --prefix": lambda line: b"[pod/train-worker-0/pytorch] " + line,
    "colours": lambda line: b"\x1b[31m" + line + b"\x1b[0m",
    "carriage returns": lambda line: line + b"\r",
    "a progress bar before it": lambda line: b"\r 10%|#   | 1/10 [00:01]\r 20%|##  | 2/10 [00:02]\r" + line,
    "pdsh": lambda line: b"zz9: " + line,
    "torchrun --tee": lambda line: b"[default0]:" + line,
}


def _judged(case: Case, wrap: Wrap | None = None, *, all_lines: bool = False) -> list[Finding]:
    reader = LogScanner(all_lines=all_lines)
    for name in case.logs:
        reader.begin(name)
        for line in Path(name).read_bytes().split(b"\n"):
            reader.take(wrap(line) if wrap else line)
    return judge_log(reader.reading())


def _alarms(findings: Iterable[Finding]) -> list[str]:
    return [finding.code for finding in findings if finding.severity > Severity.INFO]


@pytest.mark.parametrize("group", dict.fromkeys(case.group for case in CASES))
def test_each_log_gets_its_verdict(group: str) -> None:
    """The right cause, node and rank; a healthy log gets nothing above info."""
    scored = score_cases([case for case in CASES if case.group == group])
    assert [str(score) for score in scored if not score.right] == []


@pytest.mark.ci
@pytest.mark.parametrize("wrap", WRAPS)
def test_no_wrapping_changes_a_verdict(wrap: str) -> None:
    """Prefixes, colours and progress bars are the launcher's, not the message's."""
    wrong = {case.name: _alarms(_judged(case, WRAPS[wrap]))[:1] for case in CASES}
    wanted = {case.name: [all_diagnoses()[case.code].code] if case.code else [] for case in CASES}
    assert wrong == wanted


Shuffle = Callable[[int], None]
FAMILIES = ((), (containers, container_images))


@pytest.fixture
def shuffle(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shuffle]:
    """Shuffles the modules of the catalogue, and the declarations in each; both are restored afterwards."""
    all_diagnoses()
    families = [sys.modules[name] for name in list_families()]
    declared = {module: list(vars(module)) for module in families}

    def forget() -> None:
        all_diagnoses.cache_clear()
        list_output_patterns.cache_clear()

    def reorder(seed: int) -> None:
        random = Random(seed)  # noqa: S311 - only the order of a test
        order = random.sample(families, len(families))
        monkeypatch.setattr(catalogue, "list_families", lambda: [module.__name__ for module in order])
        for module, names in declared.items():
            for name in random.sample(names, len(names)):
                vars(module)[name] = vars(module).pop(name)
        forget()

    yield reorder
    for module, names in declared.items():
        for name in names:
            vars(module)[name] = vars(module).pop(name)
    monkeypatch.undo()
    forget()


def _rank(known: KnownMessage) -> tuple[int, int]:
    diagnosis, message = known
    return diagnosis.precedence if message.precedence is None else message.precedence, message.weight


@pytest.mark.parametrize("families", FAMILIES, ids=["all", "containers"])
def test_patterns_are_tried_in_the_declared_order(families: tuple[object, ...], shuffle: Shuffle) -> None:
    """Neither the names of modules nor the order of declarations matter."""
    orders = []
    codes = []
    for seed in range(6):
        shuffle(seed)
        codes.append(list(all_diagnoses()))
        orders.append([(known.code, message.pattern) for known, message in list_output_patterns(
            PatternSource.LOG | PatternSource.DEATH, *families)])  # fmt: skip
    assert codes[0] != codes[1]
    assert all(order == orders[0] for order in orders)


@pytest.mark.ci
@pytest.mark.parametrize("seed", range(3))
def test_no_verdict_depends_on_the_order_of_modules(seed: int, shuffle: Shuffle) -> None:
    """Each recorded case gets the same findings, whatever the order of modules and of declarations."""
    findings = [_judged(case) for case in CASES]
    shuffle(seed)
    assert [_judged(case) for case in CASES] == findings
    assert not [str(scored) for scored in score_cases(CASES) if not scored.right]


def test_no_text_has_two_diagnoses_of_equal_precedence() -> None:
    """Where two diagnoses match a recorded line or a symptom, their numbers decide, not their codes."""
    texts = {text for case in CASES for name in case.logs for line in Path(name).read_bytes().split(b"\n")
             for text in split_terminal_line(line)}  # fmt: skip
    texts |= {symptom for diagnosis in all_diagnoses().values() for symptom in diagnosis.symptoms}
    known = list_output_patterns(PatternSource.LOG)
    for text in texts:
        matches = [each for each in known if each[1].regex.search(text)]
        for one, other in combinations(matches, 2):
            assert one[0] is other[0] or _rank(one) != _rank(other), (one[0].code, other[0].code, text)


def test_every_refusal_of_a_container_has_a_number_of_its_own() -> None:
    """A runtime prints several lines: of two that match, on whichever line, the smaller number decides."""
    messages = list_output_patterns(PatternSource.LOG | PatternSource.DEATH, containers, container_images)
    numbers = {(_rank(known)[0], known[0].code) for known in messages}
    assert len({number for number, _ in numbers}) == len(numbers)


@pytest.mark.ci
def test_lines_that_are_passed_by_hold_nothing() -> None:
    """A look at every line finds no more than a look at those with a word that matters."""
    for case in CASES:
        assert _judged(case) == _judged(case, all_lines=True), case.name


def test_a_pattern_never_fits_a_line_without_its_words() -> None:
    """The words by which patterns are skipped are none that a fitting line could lack."""
    lines = [text for case in CASES for name in case.logs for line in Path(name).read_bytes().split(b"\n")
             for text in split_terminal_line(line)]  # fmt: skip
    for diagnosis, message in list_output_patterns(PatternSource.LOG):
        words = extract_keywords(message.pattern)
        for text in lines:
            assert not words or not message.regex.search(text) or any(word in text.lower() for word in words), (
                diagnosis.code
            )


def test_every_message_has_a_story() -> None:
    """`aboard why CODE` tells of each code that a log can get."""
    told = {story.code for subject in ALL_SUBJECTS for story in subject.diagnoses}
    assert {diagnosis.code for diagnosis, _ in list_output_patterns(PatternSource.LOG)} <= told


@pytest.mark.ci
def test_fixes_have_no_blank_that_breaks() -> None:
    """Each verdict has something to type, or is only an echo; no brace is left over."""
    for case in CASES:
        for finding in _judged(case):
            assert "{" not in finding.fix.replace('{"enabled"', ""), case.name
            assert finding.fix or finding.code in ("run-followed", "log-interrupted"), case.name


def test_there_are_enough_of_them() -> None:
    """At least 20 that need GPUs or InfiniBand, 30 others, 15 healthy; about a third is held out."""
    groups = [case.group for case in CASES]
    assert groups.count("gpu") >= 20
    assert groups.count("plain") >= 30
    assert groups.count("healthy") >= 15
    assert 0.2 < sum(case.held_out for case in CASES) / len(CASES) < 0.5
