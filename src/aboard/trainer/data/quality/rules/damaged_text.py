"""Text that a program damaged: wrong encoding, escapes, markup, missing letters, another order."""

# ruff: noqa: PLR2004, SIM905 - thresholds stand where they are used; lists of words are easier to read as text
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from re import compile as compile_pattern

from aboard.trainer.data.quality.sampled_texts import (
    RowSign,
    SampledTexts,
    count_function_words,
)
from aboard.trainer.diagnoses import data_quality

_NOT_ASCII = compile_pattern(r"[^\x00-\x7f]{2,40}")
_CODECS = ("cp1252", "latin-1", "cp1251", "mac_roman", "cp437", "gbk", "cp932")
_REPLACED = compile_pattern(r"\ufffd|[^\W\d_]\?[^\W\d_]|[\ue000-\uf8ff]")
_CONTROL = compile_pattern(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]|\u200b.{0,40}\u200b")
_ESCAPED = compile_pattern(
    r"\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\\\[nrt\"]|\\[nrt](?=\W|[A-Z])|\\\"|%[0-9A-F]{2}\S{0,80}%[0-9A-F]{2}"
    r"|=[0-9A-F]{2}=[0-9A-F]{2}|=20\b"
)
_LITERAL = compile_pattern(
    r"\{\"(?:text|content|answer|output|response|completion|message)\": ?\""
    r"|b'|b\"|\(?\['|[\[(]?\{'|<[\w.]+ object at 0x|[A-Z]\w*\((?:text|content|id|role)="
)
# A block of Python whose first statement is on the line of its `def`, and is a statement of its own.
_JOINED_CODE = compile_pattern(
    r"\bdef \w{1,80}\([^()\n]{0,300}\)(?: -> [\w\[\], .|]{1,80})?: (?:\"\"\"|if |for |while |try: |with |\w{1,60} = )"
)
_ENTITY = compile_pattern(r"&(?:[a-z]{2,8}|#\d{2,5}|#x[0-9a-f]{2,5});")
_TAG = compile_pattern(r"</?[a-zA-Z][a-zA-Z0-9]{0,12}(?:\s[^<>]{0,200})?/?>")
_TOKENS = compile_pattern(
    r"<\|[\w ]{1,30}\|>|\[/?INST\]|</?s>|<<?/?SYS>>?|<(?:pad|unk|bos|eos|mask|start_of_turn|end_of_turn)>"
    r"|\[(?:PAD|CLS|SEP|UNK|MASK)\]|\u0120\w|\u2581\w|\w ##\w|\w@@ "
)
_TURNS = compile_pattern(
    r"(?:^|\n)[^\S\n]*(?:###? ?)?(?:Human|User|Assistant|System|Bot|AI|USER|ASSISTANT|Instruction|Response):"
)
_BLOB = compile_pattern(r"[A-Za-z0-9+/_=-]{24,}")
_VOWELS = compile_pattern(r"[aeiouyáéíóúàèìòùäöüâêîôûãõåæøœ]")
_LATIN = compile_pattern(r"[a-zà-öø-ÿœ]{3,}")
_LEFTOVER = compile_pattern(r"\w {2,}\w|\w [.,;:!](?:\s|$)|\( *\)|\"\"")
_JOINED_LETTERS = 30
_WHY = "The model learns to write this damage. A program that exported the text usually caused it; read its source."


def find_encoding_damage(texts: SampledTexts) -> Iterator[RowSign]:
    """What a wrong decoder, a serializer, a scraper or a tokenizer leaves in text."""
    kinds: tuple[tuple[str, Callable[[str], bool], float], ...] = (
        ("are decoded with the wrong character set", _has_mojibake, 0.05),
        ("have lost characters", _has_replacements, 0.1),
        ("contain control characters", _has_controls, 0.05),
        ("contain control tokens or token marks of a tokenizer", _has_tokens, 0.05),
        ("contain turns of a conversation as text", _has_turns, 0.2),
    )
    answers = [at for at, text in enumerate(texts.answers) if text]
    for message, is_damaged, warn in kinds:
        rows = [at for at in answers if is_damaged(texts.answers[at])]
        yield _make_sign(texts, rows, f"{message}, in the answer", warn)
        if len(rows) < warn * len(answers) and "turns" not in message:
            asked = [at for at, row in enumerate(texts.rows) if row.prompt and is_damaged(row.prompt)]
            yield _make_sign(texts, asked, f"{message}, in the prompt", 2 * warn, prompt=True)
    plain = [at for at in answers if "```" not in texts.answers[at] and not texts.asks_for_code[at]]
    escaped = [at for at in plain if _is_escaped(texts.answers[at])]
    yield _make_sign(texts, escaped, "contain escape sequences as text, in the answer", 0.1)
    literals = [at for at in plain if _LITERAL.match(texts.answers[at])]
    yield _make_sign(texts, literals, "are printed values of a program, not text", 0.1)
    joined = [at for at in answers if _JOINED_CODE.search(texts.answers[at]) and "\n" not in texts.answers[at].strip()]
    yield _make_sign(texts, joined, "have code that lost its line breaks", 0.1)
    markup = [at for at in plain if _is_markup(texts.answers[at])]
    yield _make_sign(texts, markup, "contain HTML markup or entities", 0.1)
    asked = [at for at, row in enumerate(texts.rows) if len(_ENTITY.findall(row.prompt)) > 1]
    yield _make_sign(texts, asked, "contain HTML entities, in the prompt", 0.2, prompt=True)


def find_broken_words(texts: SampledTexts) -> Iterator[RowSign]:
    """Letters, spaces or vowels missing; text that runs backwards; words twice, or in a random order."""
    rows = texts.prose
    joined = [
        at
        for at, text in enumerate(texts.answers)
        if any(len(word) > _JOINED_LETTERS and _LATIN.fullmatch(word) for word in texts.words[at])
        and "http" not in text
    ]
    yield _make_sign(texts, joined, "have lost the spaces between words", 0.1)
    bare = [at for at in rows if _has_no_vowels(texts.words[at])]
    yield _make_sign(texts, bare, "have lost vowels", 0.1)
    backward = [at for at in rows if _is_backward(texts.words[at], texts.answers[at])]
    yield _make_sign(texts, backward, "run backwards", 0.1)
    doubled = [
        at
        for at, row in enumerate(texts.rows)
        if (row.repeated and not texts.is_code[at]) or _repeats_words(texts.words[at], texts.answers[at])
    ]
    yield _make_sign(texts, doubled, "contain the same text twice", 0.1)
    shuffled = [at for at in rows if _is_disordered(texts.answers[at])]
    yield _make_sign(texts, shuffled, "have words in an impossible order", 0.25)
    spoiled = _find_missing_letters(texts)
    yield _make_sign(texts, spoiled, "have words with missing letters", 0.3, block=2.0)
    mixed = [at for at in rows if _mixes_letters(texts.answers[at])]
    yield _make_sign(texts, mixed, "have digits or capitals inside words", 0.2)
    foreign = _find_unknown_language(texts)
    yield _make_sign(texts, foreign, "have no words of a language, unlike their prompts", 0.3, block=2.0)
    gaps = [at for at in rows if len(_LEFTOVER.findall(texts.answers[at])) > 1]
    yield _make_sign(texts, gaps, "have gaps where words were removed", 0.3)


def _make_sign(
    texts: SampledTexts, rows: list[int], message: str, warn: float, *, prompt: bool = False, block: float | None = None
) -> RowSign:
    total = sum(bool(text) for text in texts.answers)
    return RowSign(
        diagnosis=data_quality.DAMAGED,
        message=message,
        why=_WHY,
        rows=rows,
        total=max(total, len(rows)),
        warn=warn,
        block=block or (2.0 if prompt else max(0.5, 2 * warn)),
        show_prompt=prompt,
    )


def _has_mojibake(text: str) -> bool:
    """Whether a run of characters is UTF-8 that was decoded as something else."""
    if text.isascii():
        return False
    for run in _NOT_ASCII.findall(text[:600])[:20]:
        for codec in _CODECS:
            try:
                mended = run.encode(codec).decode()
            except (UnicodeEncodeError, UnicodeDecodeError):
                continue
            if len(mended) < len(run):
                return True
    return "\u00e2\u20ac" in text or "\u00c3\u00a9" in text


# Each looks for a character first: most texts have none of them, and patterns with many branches are slow.
def _has_replacements(text: str) -> bool:
    return ("?" in text or not text.isascii()) and _REPLACED.search(text) is not None


def _has_controls(text: str) -> bool:
    return not text.replace("\n", "").isprintable() and _CONTROL.search(text) is not None


def _has_tokens(text: str) -> bool:
    return ("##" in text or any(mark in text for mark in "<[\u0120\u2581@")) and _TOKENS.search(text) is not None


def _has_turns(text: str) -> bool:
    return ":" in text and _TURNS.search(text) is not None


def _is_escaped(text: str) -> bool:
    if not any(mark in text for mark in "\\%="):
        return False
    return len(_ESCAPED.findall(text)) >= (1 if "\n" not in text and len(text) < 200 else 2)


def _is_markup(text: str) -> bool:
    if "<" not in text and "&" not in text:
        return False
    tags = _TAG.findall(text)
    return len(_ENTITY.findall(text)) > 1 or len(tags) > 1 or bool(tags and sum(map(len, tags)) > 0.2 * len(text))


def _has_no_vowels(words: list[str]) -> bool:
    latin = [word for word in words if _LATIN.fullmatch(word)]
    return len(latin) > 3 and sum(not _VOWELS.search(word) for word in latin) > 0.4 * len(latin)


def _is_backward(words: list[str], text: str) -> bool:
    """More function words from right to left than from left to right; or the full stop comes first."""
    forward = count_function_words(words).most_common(1)
    backward = count_function_words(word[::-1] for word in words if len(word) > 1).most_common(1)
    if backward and backward[0][1] > max(1, 1.5 * (forward[0][1] if forward else 0)):
        return True
    return bool(text[0] in ".!?" and text[1:2].isalnum() and not text[1].isdigit())


def _repeats_words(words: list[str], text: str) -> bool:
    if len(words) < 5 or len(set(words)) < 5:
        return False
    twice = sum(one == two for one, two in pairwise(words))
    letters = [char for char in text[:200] if char.isalpha()]
    same = sum(one == two for one, two in zip(letters[::2], letters[1::2], strict=False))
    if twice > 0.3 * len(words) or 2 * same > 0.8 * len(letters):
        return True
    grams = {tuple(words[at : at + 5]) for at in range(len(words) - 4)}
    return len(words) > 20 and len(grams) < 0.55 * (len(words) - 4)


# A word of the first kind is never followed by one of the second in a sentence.
_DETERMINERS = frozenset("the a an my your der die das ein eine le la les une el los las il".split())
_NEVER_NEXT = frozenset("the a an of is and are was to in for with by und ist et est y es con di che".split())
_NEVER_LAST = _DETERMINERS | frozenset("of and with for from und et y con di".split())


def _is_disordered(text: str) -> bool:
    """Words that can't follow each other, or a full stop inside that no sentence follows and none at the end."""
    words = text.split()
    small = text.lower().split()
    pairs = sum(one in _DETERMINERS and two in _NEVER_NEXT for one, two in pairwise(small))
    stops = sum(
        len(one) > 2 and one[-1] in ".!?" and one[-2].islower() and two[0].islower() for one, two in pairwise(words)
    )
    lost = stops and words[-1][-1].isalnum() and text != text.lower()
    return bool(lost) or pairs + (small[-1] in _NEVER_LAST) >= 1 + len(words) // 40


_MIXED = compile_pattern(r"[a-z]\d[a-z]|[a-z]{2}[A-Z][a-z]?[A-Z]?|[a-z][A-Z][a-z][A-Z]|\b\d[a-z]{2}")


def _mixes_letters(text: str) -> bool:
    return len(_MIXED.findall(text)) > max(1, text.count(" ") // 8)


def _find_unknown_language(texts: SampledTexts) -> list[int]:
    """Rows without a function word, if prompts have them and answers as a whole hardly any."""
    rows = [at for at in texts.prose if texts.answers[at].isascii()]
    asked = [word for at in rows for word in texts.prompt_words[at]]
    spoken = [word for at in rows for word in texts.words[at]]
    before, after = (max(count_function_words(words).values(), default=0) for words in (asked, spoken))
    is_lost = (
        before > 0.12 * len(asked)
        and after < 0.04 * len(spoken)
        and len(spoken) > 8 * len(rows)
        and len(set(filter(str.isalpha, spoken))) > 60
    )
    return rows if is_lost else []


def _find_missing_letters(texts: SampledTexts) -> list[int]:
    """Rows with words that lack one letter of a frequent word, or all rows if a frequent letter hardly occurs."""
    spoken = [at for at in texts.prose if _LATIN.search(texts.answers[at].lower())]
    counts = Counter(word for at in spoken for word in texts.words[at])
    known_words = count_function_words(word for at in spoken for word in texts.words[at]).most_common(1)
    if not known_words or known_words[0][1] < 0.06 * counts.total():
        return []
    counts.update(word for words in texts.prompt_words for word in words)
    letters = Counter("".join(word for at in spoken for word in texts.words[at]))
    total = sum(letters[char] for char in "abcdefghijklmnopqrstuvwxyz")
    varied = {word for at in spoken for word in texts.words[at] if len(word) > 2 and word.isalpha()}
    if total > 2000 and len(varied) > 60 and any(letters[char] < 0.012 * total for char in "aeinrst"):
        return spoken
    known = {word for word, count in counts.items() if count >= 3 and len(word) > 4}
    lacking = {
        word[:at] + word[at + 1 :] for word in known for at in range(1, len(word) - 1) if word[at] != word[at - 1]
    }
    lacking -= {word for word in lacking if counts[word] > 2}
    return [
        at for at in spoken if sum(word in lacking for word in texts.words[at]) >= max(1, len(texts.words[at]) // 15)
    ]


FINDERS = (find_encoding_damage, find_broken_words)
