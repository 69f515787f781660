"""No text from outside makes a regular expression slow: each is pumped with texts that are made from its own parts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from deadlines import slowness
from pattern_pumps import PumpTime, UsedPattern, find_patterns, time_pattern

from aboard.core.slurm import job_state
from aboard.diagnoses.catalogue import all_diagnoses
from aboard.doctor.logs.log_scanner import LINE_LIMIT as SCANNED
from aboard.doctor.slurm import slurm_jobs
from aboard.engine.slurm import submit_job
from aboard.transport import ssh_log
from aboard.transport.subprocess_stream import LINE_LIMIT

PACKAGE = Path(__file__).parents[4] / "src" / "aboard"
SIZE, LARGE = 16_384, 262_144
MOST_SECONDS = 0.05
# Patterns that meet only texts of at most so many characters, and why.
BOUNDED = {
    "aboard.core.secrets.private_keys._TRAILER": (16, "_find_material searches the end of a line"),
    "aboard.core.secrets.private_keys._HEADER": (1000, "_find_material searches the beginning of a line"),
    "aboard.core.secrets.secret_commands._PIPED": (300, "_FARTHEST bytes before an option"),
    "aboard.trainer.data.intake.source_chunks: \"Unknown split .* Should be one of \\\\['(.*)'\\\\]\\\\.\"": (
        300,
        "escape_text",
    ),
    "aboard.trainer.data.tokens.word_encoder: '(?<=\\\\[)([^]]*)a'": (1000, "our own KNOWN_PATTERNS"),
    "aboard.diagnoses.output_patterns._PART": (1000, "our own patterns"),
    "aboard.commands.why.diagnosis_view._COMMAND": (1000, "our own fixes"),
}


def _list_patterns() -> Iterator[UsedPattern]:
    yield from find_patterns(PACKAGE)
    for code, diagnosis in all_diagnoses().items():
        for message in diagnosis.messages:
            yield UsedPattern(f"{code}: {message.pattern}", message.regex, frozenset({"search"}), longest=SCANNED)
    for words, _variant in submit_job._REFUSALS:
        yield UsedPattern(f"submit_job: {words}", re.compile(words), frozenset({"search"}))
    for words, _meaning in job_state._PENDING_REASONS:
        yield UsedPattern(f"job_state: {words}", re.compile(words), frozenset({"fullmatch"}))
    for words, *_rest in slurm_jobs._WAITING:
        yield UsedPattern(f"slurm_jobs: {words}", re.compile(words, re.IGNORECASE), frozenset({"fullmatch"}))
    for _reason, patterns in ssh_log._REASONS:
        regex = re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE)
        yield UsedPattern(f"ssh_log: {'|'.join(patterns)}", regex, frozenset({"search"}), longest=LINE_LIMIT)


def _time_slow(used: UsedPattern) -> PumpTime | None:
    """How long it takes, if that is too long."""
    longest, _why = BOUNDED.get(used.name, (used.longest, ""))
    worst = time_pattern(used, min(SIZE, longest), min(LARGE, longest), limit=2.0)
    most = MOST_SECONDS * slowness()
    return worst if worst.seconds > most or worst.larger > most * max(1.0, min(LARGE, longest) / SIZE) else None


@pytest.mark.ci
def test_no_pattern_takes_more_than_linear_time() -> None:
    """Each takes at most 50 ms for 16 KB, and 16 times that for 16 times as much, or has a reason to be exempt."""
    patterns = list(_list_patterns())
    assert {used.name for used in patterns} >= BOUNDED.keys()
    slow = [used for used in patterns if _time_slow(used)]
    # Once more: CPU seconds are longer while another process uses the same core.
    assert not {used.name: worst for used in slow if (worst := _time_slow(used))}


@pytest.mark.ci
@pytest.mark.parametrize("pattern", [r"Using (.+?)\s*$", r"\[PG [^\]]*Rank", r"NVRM: .*GPU .*fell", r"\d+[\d,-]*: x"])
def test_a_slow_pattern_would_be_seen(pattern: str) -> None:
    """The look above has teeth: each of these takes the square of the length on some text."""
    used = UsedPattern("slow", re.compile(pattern), frozenset({"search"}))
    assert time_pattern(used, SIZE, 4 * SIZE, limit=0.4).larger > 4 * MOST_SECONDS
