"""Symptoms of a wrongly guessed format: swapped columns, empty prompts, conversations stored as text."""

from collections.abc import Iterator
from re import MULTILINE, compile as compile_pattern

from aboard.diagnoses import NO_FIX, Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import NO_TEXT
from aboard.trainer.data.quality.data_evidence import DataEvidence, format_locations, format_share
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import ExampleRow
from aboard.trainer.data.quality.jq_filters import build_fit_filter, build_swap_filter, has_json_lines, name_output
from aboard.trainer.data.quality.row_statistics import CheckedRow, RowFlag
from aboard.trainer.data.rows import DataRow
from aboard.trainer.diagnoses import data_quality

FORMAT_FLAGS = ("misfit", "answer-alone", "answer-asks", "answers-first", "asks-last", "json-text", "turns-text")
MISFIT, ALONE, ASKS, ANSWERS_FIRST, ASKS_LAST, JSON_TEXT, TURNS_TEXT = FORMAT_FLAGS
# A flag counts only from this many rows on, and only if this share of them has it.
MIN_ROWS, MOST = 20, 0.5
NEARLY_ALL = 0.9

_TURNS = compile_pattern(
    r"^(### (Instruction|Response|Human|Assistant)|(Human|User|Assistant|USER|ASSISTANT): )|<\|im_start\|>|\[INST\]"
    r"|<\|start_header_id\|>|<start_of_turn>",
    MULTILINE,
)
_QUESTION = ("?", "\N{FULLWIDTH QUESTION MARK}", "\N{ARABIC QUESTION MARK}")
# Rows that can be parsed, but not in this format.
_MISFITS = ("row-columns", "row-role", "row-type", "row-tokens")
_SCANNED_CHARACTERS = 4000
_SYSTEM_ROLES = ("system", "developer")


def inspect_row(checked: CheckedRow, _settings: EncodingSettings) -> Iterator[RowFlag]:
    row = checked.row
    if not isinstance(row, DataRow):
        if row.code in _MISFITS:
            yield MISFIT, row.why
    elif row.kind == "chat":
        yield from _flag_chat(row)
    elif row.kind == "pair":
        prompt, answer = (row.prompt or "").rstrip(), (row.completion or "").rstrip()
        if answer and not prompt:
            yield ALONE, NO_TEXT
        elif answer.endswith(_QUESTION) and not prompt.endswith(_QUESTION):
            yield ASKS, NO_TEXT
    elif row.kind == "text" and row.text is not None:
        start = row.text[:_SCANNED_CHARACTERS]
        if start.startswith(('{"', '[{"')):
            yield JSON_TEXT, NO_TEXT
        elif _TURNS.search(start):
            yield TURNS_TEXT, NO_TEXT


def check_format(evidence: DataEvidence) -> Iterator[Finding]:
    """Each flag is harmless in single rows; in most of the rows it shows a wrong format."""
    statistics = evidence.statistics
    pairs, chats, texts = statistics.of("pair"), statistics.of("chat"), statistics.of("text")
    yield from _check_flag(evidence, MISFIT, statistics.rows, MOST, Severity.BLOCK)
    yield from _check_flag(evidence, ALONE, pairs + chats, NEARLY_ALL, Severity.BLOCK)
    yield from _check_flag(evidence, ASKS, pairs, MOST, Severity.WARN)
    yield from _check_flag(evidence, ANSWERS_FIRST, chats, MOST, Severity.WARN)
    yield from _check_flag(evidence, ASKS_LAST, chats, MOST, Severity.WARN)
    yield from _check_flag(evidence, JSON_TEXT, texts, MOST, Severity.BLOCK)
    yield from _check_flag(evidence, TURNS_TEXT, texts, MOST, Severity.WARN)


def _flag_chat(row: DataRow) -> Iterator[RowFlag]:
    turns = [message for message in row.messages or () if message.get("role") not in _SYSTEM_ROLES]
    roles = [message.get("role") for message in turns]
    if "assistant" not in roles:
        return
    prompts = [message for message in turns if message.get("role") != "assistant"]
    if not any(_has_text(message.get("content")) for message in prompts):
        yield ALONE, NO_TEXT
    elif roles[0] == "assistant":
        yield ANSWERS_FIRST, NO_TEXT
    elif roles[-1] == "user":
        yield ASKS_LAST, NO_TEXT


def _has_text(content: object) -> bool:
    return bool(content.strip() if isinstance(content, str) else content)


_MESSAGES = {
    MISFIT: (
        "don't fit the format",
        "These rows would be skipped, because their roles or columns have names that this format doesn't define.",
    ),
    ALONE: (
        "have an answer and an empty prompt",
        "The model would learn to answer without a prompt. The prompt is probably in a column with a different name.",
    ),
    ASKS: (
        "have an answer that ends in a question mark and a prompt that doesn't",
        "The two columns look swapped: the model would learn to write prompts instead of answers.",
    ),
    ANSWERS_FIRST: ("begin with the assistant", "The roles look swapped: the model would learn to speak as the user."),
    ASKS_LAST: (
        "end with an unanswered user turn",
        "The roles look swapped, or the last answers are missing from the file.",
    ),
    JSON_TEXT: (
        "are read as plain text, but the text is JSON",
        "The model would learn JSON syntax. A conversation was probably serialized to a string.",
    ),
    TURNS_TEXT: (
        "are read as plain text, but the text contains conversation turns",
        "The loss would include user turns, and the turn markers belong to a different model's template.",
    ),
}


def _check_flag(evidence: DataEvidence, flag: str, rows: int, least: float, severity: Severity) -> Iterator[Finding]:
    flagged = evidence.statistics.find_flagged(flag)
    if rows < MIN_ROWS or flagged.count < least * rows:
        return
    message, why = _MESSAGES[flag]
    yield data_quality.FORMAT.finding(
        # A format that the user named is only a warning; our own guess may block.
        severity=min(severity, Severity.WARN) if evidence.given else severity,
        nodes=(),
        seen=f"{format_share(flagged.count, rows)} {message}: {format_locations(flagged)}; the"
        f" {'given' if evidence.given else 'detected'} format is {evidence.format}",
        why=why,
        fix=join_fixes(
            data_quality.FORMAT.fix("show", again=evidence.again("show", 2)),
            _build_format_fix(evidence, flag, flagged.examples[0]),
            evidence.allow(data_quality.FORMAT),
        ),
    )


def _build_format_fix(evidence: DataEvidence, flag: str, example: ExampleRow) -> Fix:
    """A command that repairs or splits the file, where one is known."""
    where, fits, swap = example.location, build_fit_filter(evidence.format), build_swap_filter(evidence.format)
    if flag == JSON_TEXT:
        return data_quality.FORMAT.fix("json")
    if not has_json_lines(where):
        return NO_FIX
    if flag == MISFIT and "has the role" in example.note and evidence.format == "messages":
        known = '"system","developer","user","assistant","tool","function"'
        rename = f'(.messages // .conversations)[] |= (if .role | IN({known}) then . else .role = "user" end)'
        kept = name_output(where, "renamed")
        return data_quality.FORMAT.fix("role", filter=rename, file=where.file, kept=kept)
    if flag == MISFIT and fits:
        kept, others = (name_output(where, word) for word in (evidence.format.partition(",")[0], "others"))
        return data_quality.FORMAT.fix(
            "split",
            fits=f"fromjson? | objects | select({fits})",
            rest=f"fromjson? | objects | select({fits} | not)",
            file=where.file,
            kept=kept,
            others=others,
        )
    if flag in {ASKS, ANSWERS_FIRST} and swap:
        return data_quality.FORMAT.fix("swap", filter=swap, file=where.file, kept=name_output(where, "swapped"))
    return NO_FIX
