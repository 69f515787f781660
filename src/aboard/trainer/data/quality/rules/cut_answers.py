"""Answers that stop or begin in the middle."""

# ruff: noqa: PLR2004 - thresholds stand where they are used
from collections import Counter
from collections.abc import Iterator, Sequence
from json import JSONDecoder
from re import compile as compile_pattern

from aboard.trainer.data.quality.row_sample import MAX_ANSWER
from aboard.trainer.data.quality.sampled_texts import RowSign, SampledTexts, count_function_words
from aboard.trainer.diagnoses import data_quality

_ENDS = frozenset(
    ".!?…:;)]}>\"'`”\u2019»*_|$/\N{IDEOGRAPHIC FULL STOP}\N{FULLWIDTH EXCLAMATION MARK}"
    "\N{FULLWIDTH QUESTION MARK}\N{DEVANAGARI DANDA}\N{ARABIC QUESTION MARK}\N{ARABIC FULL STOP}"
)
_INNER_END = compile_pattern(r"[.!?。] ?[A-ZÀ-Ý\"'(\u0400-\u042f\u3040-\u9fff]")
_STOPPED = compile_pattern(r"(?:^|[^\w])[a-zà-öø-ÿа-я][^\W\d_]*$|[,\-(]$")
_MIN_CUT_LENGTH = 20
_DECODER = JSONDecoder()


def find_cut_answers(texts: SampledTexts) -> Iterator[RowSign]:
    """Many answers of exactly the greatest length, or that stop in the middle of a sentence."""
    rows = [at for at, text in enumerate(texts.answers) if text]
    lengths = Counter(texts.rows[at].length for at in rows)
    flagged: set[int] = set()
    is_open = False
    if rows:
        longest, words = max(lengths), max(texts.rows[at].words for at in rows)
        # A limit makes a spike at the greatest length; a limit in words also leaves articles and prepositions last.
        is_spike = lengths[longest] >= 3 * max(1, lengths[longest - 1], lengths[longest - 2])
        last = count_function_words(texts.words[at][-1] for at in texts.prose).most_common(1)
        is_open = bool(last) and last[0][1] >= 0.06 * len(rows)
        for at in rows:
            row = texts.rows[at]
            full = (is_spike and row.length == longest >= _MIN_CUT_LENGTH) or (is_open and row.words == words)
            if full and row.words > 2 and _STOPPED.search(row.ending):
                flagged.add(at)
        if len({texts.keys[at] for at in flagged}) < 0.7 * len(flagged):
            flagged.clear()
    yield _make_sign(sorted(flagged), len(rows), "have an answer that is cut off at the same length", 0.05)
    prose = [at for at in texts.prose if len(texts.words[at]) > 7]
    sentences = [at for at in prose if _INNER_END.search(texts.answers[at])]
    stopped = [at for at in sentences if _STOPPED.search(texts.rows[at].ending)]
    unended = [at for at in prose if texts.rows[at].ending[-1:] not in _ENDS]
    begun = [at for at in sentences if texts.answers[at][0].islower()]
    if is_open:
        endless = [at for at in unended if _STOPPED.search(texts.rows[at].ending)]
        yield _make_sign(endless, len(prose), "stop without an end", 0.4)
    ends_elsewhere = len(unended) < 0.9 * len(prose)
    stopped = stopped if len(stopped) > len(prose) / 20 else []
    total = max(len(sentences), len(prose) // 2)
    yield _make_sign(stopped, total, "stop in the middle of a sentence", 0.35 if ends_elsewhere else 0.5)
    trailing = [at for at in rows if texts.rows[at].words > 2 and texts.rows[at].ending.endswith(("...", "…"))]
    yield _make_sign(trailing, len(rows), "end with an ellipsis", 0.2)
    middles = [at for at in begun if texts.rows[at].ending[-1:] in ".!?"]
    yield _make_sign(middles, total, "begin in the middle of a sentence", 0.5)
    values = [at for at in rows if texts.answers[at][0] in "{[" and texts.rows[at].length < MAX_ANSWER]
    broken = [at for at in values if not _is_json(texts.answers[at])] if len(values) > len(rows) / 2 else []
    yield _make_sign(broken, len(rows), "have an answer that begins as JSON but isn't", 0.1)
    fences = [at for at in rows if texts.rows[at].length < MAX_ANSWER and texts.answers[at].count("```") % 2]
    yield _make_sign(fences, len(rows), "have a code block without an end", 0.15)


def _make_sign(rows: Sequence[int], total: int, message: str, warn: float) -> RowSign:
    unfinished = data_quality.UNFINISHED
    return RowSign(diagnosis=unfinished, message=message, why=unfinished.explanation, rows=rows, total=total, warn=warn)


def _is_json(text: str) -> bool:
    try:
        _DECODER.raw_decode(text)  # more text may follow: the answer of the next turn
    except (ValueError, RecursionError):
        return False
    return True


FINDERS = (find_cut_answers,)
