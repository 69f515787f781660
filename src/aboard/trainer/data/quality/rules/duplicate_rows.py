"""Rows that occur more than once, and validation rows that are also training rows."""

from collections.abc import Iterator

import numpy as np

from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, join_fixes
from aboard.trainer.data.intake.data_files import name_new_file
from aboard.trainer.data.quality.data_evidence import SIGNIFICANT_SHARE, DataEvidence, format_share
from aboard.trainer.data.quality.flagged_rows import MAX_EXAMPLES
from aboard.trainer.data.quality.row_fingerprints import RowFingerprints
from aboard.trainer.data.rows import RowLocation
from aboard.trainer.diagnoses import data_quality

# Below 1 % it is worth a line; above this a file was probably included twice.
COPIED_FILE_SHARE = 0.3


def check_duplicates(evidence: DataEvidence) -> Iterator[Finding]:
    """A row that occurs twice is weighted twice and tends to be memorized."""
    prints = evidence.statistics.prints
    hashes = prints.hashes
    order = np.argsort(hashes, kind="stable")
    again = np.flatnonzero(hashes[order][1:] == hashes[order][:-1]) + 1
    if not len(again):
        return
    count, rows = len(again), len(hashes)
    severity = Severity.WARN if count >= SIGNIFICANT_SHARE * rows else Severity.INFO
    if count >= COPIED_FILE_SHARE * rows:
        severity = Severity.BLOCK
    # By location, so that the first ones are reported, whatever their hashes.
    pairs = sorted((int(order[at]), int(order[at - 1])) for at in again)[:MAX_EXAMPLES]
    examples = ", ".join(f"{prints.where(one)} as {prints.where(other)}" for one, other in pairs)
    yield data_quality.DUPLICATES.finding(
        severity=severity,
        nodes=(),
        seen=f"{_format_sampling(prints)}{format_share(count, rows)} are duplicates:"
        f" {examples}{' …' if count > MAX_EXAMPLES else ''}",
        why="Duplicates are weighted twice and tend to be memorized. A whole file that occurs twice is usually a"
        " mistake.",
        fix=join_fixes(_build_dedupe_fix(evidence), evidence.allow(data_quality.DUPLICATES)),
    )


def check_validation_leaks(evidence: DataEvidence) -> Iterator[Finding]:
    """A validation row that is also trained on makes the validation loss meaningless."""
    if evidence.validation is None:
        return
    level = max(evidence.validation.prints.level, evidence.statistics.prints.level)
    validation, trained = evidence.validation.prints.at(level), evidence.statistics.prints.at(level)
    both = np.flatnonzero(np.isin(validation.hashes, trained.hashes))
    if not len(both):
        return
    examples = ", ".join(
        f"{validation.where(int(at))} as {_find_location(trained, validation.hashes[at])}" for at in both[:MAX_EXAMPLES]
    )
    count, rows = len(both), len(validation.hashes)
    yield data_quality.LEAK.finding(
        severity=Severity.BLOCK if count >= SIGNIFICANT_SHARE * rows else Severity.WARN,
        nodes=(),
        seen=f"{_format_sampling(validation)}{format_share(count, rows, 'validation rows')} are also training rows:"
        f" {examples}"
        f"{' …' if count > MAX_EXAMPLES else ''}",
        why="The validation loss then measures memorization, and falls while the model gets worse.",
        fix=join_fixes(_build_leak_fix(evidence), evidence.allow(data_quality.LEAK)),
    )


def _build_dedupe_fix(evidence: DataEvidence) -> Fix:
    if not _has_only_jsonl(evidence.files):
        return NO_FIX
    return data_quality.DUPLICATES.fix("once", files=evidence.files, kept=name_new_file("once"))


def _build_leak_fix(evidence: DataEvidence) -> Fix:
    if len(evidence.validation_files) != 1 or not _has_only_jsonl((*evidence.validation_files, *evidence.files)):
        return NO_FIX
    held, kept = evidence.validation_files[0], name_new_file("train-only")
    return data_quality.LEAK.fix("apart", held=held, files=evidence.files, kept=kept)


def _has_only_jsonl(files: tuple[str, ...]) -> bool:
    """Commands that work on lines are suggested for files of lines only."""
    return all(name.endswith(".jsonl") for name in files)


def _format_sampling(fingerprints: RowFingerprints) -> str:
    return f"in a sample of one in {1 << fingerprints.level} rows: " if fingerprints.level else ""


def _find_location(fingerprints: RowFingerprints, value: np.uint64) -> RowLocation:
    """The location of the first row with this hash."""
    return fingerprints.where(int(np.flatnonzero(fingerprints.hashes == value)[0]))
