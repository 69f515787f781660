"""Control tokens that appear in the data as text."""

from collections.abc import Iterator
from re import sub

from aboard.diagnoses import NO_FIX, Finding, Fix, join_fixes
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.compressed_files import COMPRESSED_SUFFIXES
from aboard.trainer.data.quality.data_evidence import DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import ExampleRow
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.diagnoses import data_quality

SPECIAL = "special-text"
# No real tokenizer has a longer control token.
_LONGEST = 200


def inspect_row(checked: CheckedRow, settings: EncodingSettings) -> Iterator[RowFlag]:
    if settings.special_text is None:
        return
    for who, text in checked.texts:
        # Fast path: most texts contain no character that a control token starts with.
        if not any(start in text for start in settings.special_starts):
            continue
        match = settings.special_text.search(text)
        if match:
            yield SPECIAL, Untrusted(f"{match[0]} in the {who}")
            return


def check_control_tokens(evidence: DataEvidence) -> Iterator[Finding]:
    """A tokenizer can't distinguish such text from the token: whoever writes it in a prompt poses as another role."""
    flagged = evidence.statistics.find_flagged(SPECIAL)
    if flagged:
        yield data_quality.SPECIAL_TEXT.finding(
            nodes=(),
            seen=f"{format_share(flagged.count, evidence.statistics.rows)} have a control token in their text:"
            f" {format_locations(flagged)}",
            why="The tokenizer encodes this text as the control token: a turn ends in the middle of a sentence, or a"
            " user speaks as the system. Or a chat template was already applied to the rows, and would be"
            " applied twice.",
            fix=join_fixes(_build_removal_fix(flagged.examples[0]), evidence.allow(data_quality.SPECIAL_TEXT)),
        )


def _build_removal_fix(example: ExampleRow) -> Fix:
    """A sed command where the file has lines; brackets and dots are escaped."""
    token = example.note.raw().rpartition(" in the ")[0]
    if example.location.unit != "line" or example.location.file.endswith(COMPRESSED_SUFFIXES) or len(token) > _LONGEST:
        return NO_FIX
    token = sub(r"([][\\/.*^$])", r"\\\1", token)
    return data_quality.SPECIAL_TEXT.fix("mend", script=f"s/{token}//g", file=example.location.file)
