"""Answers that don't depend on their row: empty, the same everywhere, or the prompt again."""

# ruff: noqa: PLR2004 - thresholds stand where they are used
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from re import compile as compile_pattern

from aboard.trainer.data.quality.row_sample import strip_blank
from aboard.trainer.data.quality.sampled_texts import RowSign, SampledTexts
from aboard.trainer.diagnoses import data_quality

_LABEL_WORDS, _LABEL_CHARACTERS = 4, 40
# A set of labels: this many values cover nearly all rows.
_MOST_LABELS, _NEARLY_ALL = 25, 0.95
_SENTENCE_WORDS, _AFFIX_WORDS = 6, 7
_PLACEHOLDERS = compile_pattern(
    r"(?:none|nan|null|undefined|n/?a|nil|\[object object\]|<na>|#n/a|#ref!|#value!|todo|tbd|\.{2,}|…|-+|_+|\?+|"
    r"\[\]|\{\}|''|\"\"|empty|missing|placeholder|lorem ipsum.*)\.?"
)
_NUMBER = compile_pattern(r"\d+")
_REPLACED_WHY = "The model learns this text instead of answers. A failed export or a default value usually causes it."


def find_blank_answers(texts: SampledTexts) -> Iterator[RowSign]:
    """Nothing but white space, or the word that a program writes for nothing."""
    make = partial(RowSign, diagnosis=data_quality.BLANK, total=len(texts.rows))
    rows = [at for at, row in enumerate(texts.rows) if row.blanks]
    yield make(
        message="have an answer without text",
        why="The model learns to say nothing. Often the answers are in a column with a different name.",
        rows=rows,
        warn=0.01,
        block=0.2,
        note=True,
        at_least=1,
        removable=True,
    )
    missing = [at for at, text in enumerate(texts.answers) if text and _PLACEHOLDERS.fullmatch(text[:60].lower())]
    yield make(
        message="have a placeholder instead of an answer",
        why=_REPLACED_WHY,
        rows=missing,
        warn=0.05 if _count_sentences(texts) > len(texts.rows) / 3 else 0.4,
        block=0.5,
    )
    silent = [at for at, row in enumerate(texts.rows) if row.kind != "text" and not strip_blank(row.prompt)]
    yield make(
        message="have an answer and no prompt",
        why="The model learns to answer without a question. Often the prompts are in a column with a different name.",
        rows=[at for at in silent if texts.answers[at]] if len(silent) < 0.9 * len(texts.rows) else (),
        warn=0.05,
        block=0.5,
    )


def find_same_answers(texts: SampledTexts) -> Iterator[RowSign]:
    """One answer, or one form letter, for many different prompts."""
    rows = texts.answered_rows
    if not rows:
        yield from _find_form_letters(texts)
    if len({texts.prompt_keys[at] for at in rows}) < len(rows) / 4:
        return
    yield from _find_common_key(rows, [texts.keys[at] for at in rows])
    if len({texts.keys[at] for at in rows}) < len(rows) / 2:
        return
    yield from _find_form_letters(texts)
    long = [at for at in rows if len(texts.words[at]) > 2 * _AFFIX_WORDS and not texts.is_code[at]]
    for part, where in ((slice(2 * _AFFIX_WORDS), "begin"), (slice(-_AFFIX_WORDS, None), "end")):
        shared = Counter(" ".join(texts.words[at][part]) for at in long).most_common(1)
        same = [at for at in long if shared and " ".join(texts.words[at][part]) == shared[0][0]]
        yield RowSign(
            diagnosis=data_quality.SAME,
            message=f"have answers that {where} with the same words",
            why="The model learns these words first. Remove them, unless every answer should have them.",
            rows=same,
            total=len(rows),
            warn=0.5,
        )


def find_contradictions(texts: SampledTexts) -> Iterator[RowSign]:
    """Equal prompts with different answers: the model can learn only their average."""
    rows = texts.answered_rows
    answers: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    keys = {at: (texts.rows[at].system, texts.prompt_keys[at]) for at in rows}
    for at in rows:
        answers[keys[at]].add(texts.keys[at])
    flagged = sorted((at for at in rows if len(answers[keys[at]]) > 1), key=lambda at: -len(answers[keys[at]]))
    groups = len({keys[at] for at in flagged})
    yield RowSign(
        diagnosis=data_quality.CONTRADICTION,
        message=f"have a prompt that other rows answer differently ({groups} such prompts)",
        why="The model can't learn which answer is right. Often the part that distinguishes the prompts got lost.",
        rows=flagged,
        total=len(rows),
        warn=0.1,
        block=0.5 if len(flagged) > 20 * groups else 2.0,
        show_prompt=True,
    )


def find_echoes(texts: SampledTexts) -> Iterator[RowSign]:
    """The answer is the prompt, or contains all of it."""
    rows = texts.answered_rows
    make = partial(RowSign, diagnosis=data_quality.ECHO, total=len(rows))
    yield make(
        message="have an answer that equals the prompt",
        why="The model learns to repeat the question. Probably a column was copied twice.",
        rows=[at for at in rows if texts.keys[at] == texts.prompt_keys[at]],
        warn=0.05,
        block=0.5,
    )
    others = [at for at in rows if texts.keys[at] != texts.prompt_keys[at]]
    spoken = [at for at in others if not texts.is_code[at]]
    leaked = [at for at in spoken if texts.prompt_keys[at] in texts.keys[at]]
    # A completion of code may repeat the code above it, but not a question of one line.
    asked = [at for at in others if texts.is_code[at] and "\n" not in texts.rows[at].prompt.strip()]
    leaked += [at for at in asked if texts.keys[at].startswith(texts.prompt_keys[at])]
    yield make(
        message="have an answer that contains the whole prompt",
        why="The model learns to repeat the question before it answers.",
        rows=sorted(at for at in leaked if len(texts.prompt_words[at]) >= _LABEL_WORDS),
        warn=0.15,
        block=0.7,
    )
    told = [
        at
        for at in spoken
        if len(texts.words[at]) >= _SENTENCE_WORDS and texts.rows[at].prompt.rstrip().endswith(texts.answers[at])
    ]
    yield make(
        message="have a prompt that already contains the answer",
        why="The model learns to copy, and can't answer when the prompt doesn't contain the answer.",
        rows=told,
        warn=0.3,
        show_prompt=True,
    )


def _find_common_key(rows: Sequence[int], keys: Sequence[str]) -> Iterator[RowSign]:
    counts = Counter(keys)
    if not counts:
        return
    common, count = counts.most_common(1)[0]
    covered = sum(number for _, number in counts.most_common(_MOST_LABELS))
    is_label = common.count(" ") < _LABEL_WORDS and len(common) <= _LABEL_CHARACTERS
    labels = covered >= _NEARLY_ALL * len(rows) and len(counts) <= max(2, len(rows) / 4)
    warn, block = (0.8, 0.97) if labels else (0.2, 0.8) if is_label else (0.08, 0.5)
    same = [at for at, key in zip(rows, keys, strict=True) if key == common]
    if count < warn * len(rows) and not labels:
        # Several canned sentences that alternate.
        canned = {key for key, number in counts.items() if number >= max(4, 0.02 * len(rows)) and key.count(" ") >= 4}
        same = [at for at, key in zip(rows, keys, strict=True) if key in canned]
        warn, block = 0.2, 2.0
    yield RowSign(
        diagnosis=data_quality.SAME,
        message="have the same answer",
        why="The answers don't depend on their prompts. " + _REPLACED_WHY,
        rows=same,
        total=len(rows),
        warn=warn,
        block=block,
    )


def _find_form_letters(texts: SampledTexts) -> Iterator[RowSign]:
    """The same sentence but for words of the prompt and numbers; worse if nothing in it is about the prompt."""
    rows = texts.answered_rows or list(range(len(texts.rows)))
    fits_own = bool(texts.answered_rows) and _fit_prompts(texts)
    least = 2 * _SENTENCE_WORDS if fits_own or not texts.answered_rows else _SENTENCE_WORDS
    with_numbers = fits_own and sum(bool(_NUMBER.search(texts.rows[at].prompt)) for at in rows) > len(rows) / 3
    forms = {at: _mask_prompt(texts, at, keep_numbers=with_numbers) for at in rows if not texts.is_code[at]}
    counts = Counter(form for form in forms.values() if form.count(" ") >= least)
    common = counts.most_common(1)[0][0] if counts else ""
    yield RowSign(
        diagnosis=data_quality.SAME,
        message="have the same answer but for words of the prompt and numbers",
        why="The answers don't depend on their prompts. " + _REPLACED_WHY,
        rows=[at for at, form in forms.items() if form == common] if common else (),
        total=len(rows),
        warn=0.9 if fits_own else 0.2,
        block=2.0 if fits_own or not texts.answered_rows else 0.6,
    )


def _mask_prompt(texts: SampledTexts, at: int, *, keep_numbers: bool) -> str:
    """The answer's words, with those of the prompt and numbers masked."""
    known = {word for word in texts.prompt_words[at] if len(word) > 3 or not word.isascii()}
    masked = (
        "_" if word in known or (not keep_numbers and any(map(str.isdigit, word))) else word for word in texts.words[at]
    )
    words: list[str] = []
    for word in masked:
        if word != "_" or not words or words[-1] != "_":
            words.append(word)
    return " ".join(words)


def _count_sentences(texts: SampledTexts) -> int:
    return sum(len(words) > _LABEL_WORDS for words in texts.words)


def _fit_prompts(texts: SampledTexts) -> bool:
    """Whether answers share more words with their own prompt than with that of the next row."""
    rows = texts.answered_rows
    asked = [set(texts.prompt_words[at]) for at in rows]
    said = [set(texts.words[at]) for at in rows]
    own = sum(len(one & two) for one, two in zip(said, asked, strict=True))
    return own > 1.25 * sum(len(one & two) for one, two in zip(said, [*asked[1:], *asked[:1]], strict=True))


FINDERS = (
    find_blank_answers,
    find_same_answers,
    find_contradictions,
    find_echoes,
)
