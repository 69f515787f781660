"""All rules of the data check: the inspectors of single rows, and the rules over the statistics."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from aboard.core.evidence.consequences import fold_consequences
from aboard.core.text.input_text import find_nearest
from aboard.diagnoses import Finding, Fix, InputError, Problem, sort_by_severity
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.diagnoses.untrusted import escape_text
from aboard.trainer.data.quality.data_evidence import DataEvidence
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import ExampleRow
from aboard.trainer.data.quality.row_sample import RowSample
from aboard.trainer.data.quality.row_statistics import CheckedRow, DataStatistics, RowInspector, count_rows
from aboard.trainer.data.quality.rules import (
    answer_dependence,
    control_tokens_in_text,
    cut_answers,
    damaged_text,
    double_bos,
    duplicate_rows,
    format_mismatch,
    missing_stop_token,
    truncated_answers,
    unmarked_template,
    unreadable_rows,
    unsupervised_rows,
)
from aboard.trainer.data.quality.sampled_texts import build_texts, report_signs
from aboard.trainer.diagnoses import data, data_quality

DataRule: TypeAlias = Callable[[DataEvidence], Iterator[Finding]]

ROW_INSPECTORS: tuple[RowInspector, ...] = (
    unreadable_rows.inspect_row,
    unmarked_template.inspect_row,
    unsupervised_rows.inspect_row,
    missing_stop_token.inspect_row,
    double_bos.inspect_row,
    truncated_answers.inspect_row,
    control_tokens_in_text.inspect_row,
    format_mismatch.inspect_row,
)

_SIGN_FINDERS = (*answer_dependence.FINDERS, *damaged_text.FINDERS, *cut_answers.FINDERS)


def check_sampled_rows(evidence: DataEvidence) -> Iterator[Finding]:
    """What rows say: one sample of them for all signs."""
    yield from report_signs(evidence, build_texts(evidence), _SIGN_FINDERS)


RULES: tuple[DataRule, ...] = (
    unreadable_rows.check_no_rows,
    unreadable_rows.check_unreadable_rows,
    unreadable_rows.check_empty_rows,
    unmarked_template.check_template,
    unsupervised_rows.check_supervision,
    missing_stop_token.check_stop_token,
    double_bos.check_double_bos,
    truncated_answers.check_truncated_answers,
    format_mismatch.check_format,
    duplicate_rows.check_validation_leaks,
    duplicate_rows.check_duplicates,
    control_tokens_in_text.check_control_tokens,
    check_sampled_rows,
)

# The flags of the rows that show a finding of this code.
FLAGS_BY_CODE = {
    data_quality.EMPTY.code: (unreadable_rows.EMPTY,),
    data_quality.TEMPLATE.code: (unmarked_template.ANSWERS_NOT_FOUND, unsupervised_rows.UNSUPERVISED),
    data_quality.NO_LOSS.code: (unsupervised_rows.UNSUPERVISED,),
    data_quality.EOS.code: (missing_stop_token.HIDDEN, missing_stop_token.ENDLESS),
    data_quality.DOUBLE_BOS.code: (double_bos.DOUBLE_BOS,),
    data_quality.CUT.code: (truncated_answers.LOST, truncated_answers.CUT),
    data_quality.SPECIAL_TEXT.code: (control_tokens_in_text.SPECIAL,),
    data_quality.FORMAT.code: format_mismatch.FORMAT_FLAGS,
}

CODES = tuple(diagnosis.code for diagnosis in list_diagnoses(data_quality))


def collect_statistics(
    items: Iterable[CheckedRow], settings: EncodingSettings, *, prints: bool = True, earlier: RowSample | None = None
) -> DataStatistics:
    """Counts what the data check needs from these rows; the statistics of several calls add up."""
    return count_rows(items, settings, ROW_INSPECTORS, prints=prints, earlier=earlier)


def check_data(evidence: DataEvidence, allowed: Iterable[str] = ()) -> list[Finding]:
    """Findings, worst first, without allowed codes; a finding that another one explains is folded under it."""
    allowed_codes = frozenset(allowed)
    findings = [finding for rule in RULES for finding in rule(evidence) if finding.code not in allowed_codes]
    return sort_by_severity(fold_consequences(findings, list_diagnoses(data_quality)))


def find_examples(findings: Iterable[Finding], statistics: DataStatistics) -> dict[str, ExampleRow]:
    """For each finding that shows in a row, the first such row."""
    found = {}
    for finding in findings:
        candidates = [
            example
            for flag in FLAGS_BY_CODE.get(finding.code, ())
            for example in statistics.find_flagged(flag).examples
        ]
        if candidates:
            found[finding.code] = candidates[0]
    return found


def check_allowed_codes(allowed: Iterable[str]) -> tuple[str, ...]:
    """Returns the codes unchanged; raises InputError for each unknown one."""
    codes = tuple(allowed)
    problems = [
        Problem(
            where="--allow",
            seen=f"'{escape_text(code)}' is not a finding code of the data check",
            fix=_suggest_codes(code),
        )
        for code in codes
        if code not in CODES
    ]
    if problems:
        raise InputError(data.ALLOW, problems)
    return codes


def _suggest_codes(code: str) -> Fix:
    near = find_nearest(code, CODES)
    return data.ALLOW.fix("near", code=near) if near else data.ALLOW.fix("known", codes=CODES)
