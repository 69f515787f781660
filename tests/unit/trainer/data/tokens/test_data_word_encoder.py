"""The quick ways to tokens give what `tokenizers` itself gives, token by token and border by border."""

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from aboard.trainer.data.intake.chat_messages import InvalidRowError
from aboard.trainer.data.tokens.supervised_text import SupervisedText, SupervisedTextEncoder
from aboard.trainer.data.tokens.token_byte_lengths import build_byte_lengths
from aboard.trainer.data.tokens.word_encoder import KNOWN_PATTERNS, WordEncoder, build_word_encoder

TEXTS = [
    "Hello you, who're there? I'm 12345 years old; it's not 3.14. The cats' tails -- they'll see, we've been!",
    "Grüße aus Köln: schöne Straßen, élève, naïve café.\r\n\r\n\tfor i in range(10):\n    print(i)  \n",
    "Привет мир, как дела? 你好世界。こんにちは、안녕하세요 १२३ ١٢٣ ½ Ⅻ 🦉🧑‍🚀 e\u0301\u3000\xa0\x85",
]
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|im_end|>x")
# What patterns treat each in its own way, and characters of every sort.
TRICKY = st.sampled_from(
    [*" \n\t\r\x0b\x0c\x1c\x85\xa0\u2028\u3000\u200b'", *"aZsStTlL09!.ß\u017féǅʰK½Ⅻ一가🦉", "  ", "\r\n"]
)
WORDS = st.sampled_from(
    ["'s", "'LL", "'re", "'\u017f", " Hello", "e\u0301", "ﬆ", "'ﬆ", "12345", "\U00020000", *SPECIALS]
)
STRINGS = st.lists(st.one_of(TRICKY, TRICKY, WORDS, st.characters(exclude_categories=["Cs"])), max_size=40).map("".join)


@cache
def _trained() -> str:
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    found.train_from_iterator(TEXTS * 3, trainer)
    return found.to_str()


def made(pattern: str = KNOWN_PATTERNS[0], *, normalizer: Any = None, prefix: bool = False, **added: bool) -> Tokenizer:
    """A byte-level tokenizer that cuts by the pattern."""
    found = Tokenizer.from_str(_trained())
    if pattern == KNOWN_PATTERNS[0]:
        found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    else:
        cut = pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)
        spell = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)
        found.pre_tokenizer = pre_tokenizers.Sequence([cut, spell])
    found.post_processor = processors.ByteLevel(trim_offsets=False)
    if normalizer is not None:
        found.normalizer = normalizer
    found.add_special_tokens([AddedToken(token, **added) for token in SPECIALS])
    return found


def words(tokenizer: Tokenizer, *, kept: int = 1000) -> WordEncoder | None:
    content = json.loads(tokenizer.to_str())
    return build_word_encoder(content, tokenizer, build_byte_lengths(content, tokenizer), cache_size=kept)


BY_PATTERN = {pattern: made(pattern) for pattern in KNOWN_PATTERNS}
LOOKED_UP = {pattern: words(tokenizer, kept=50) for pattern, tokenizer in BY_PATTERN.items()}
every = pytest.mark.parametrize("pattern", KNOWN_PATTERNS, ids=["gpt2", "gpt4", "qwen"])


@every
@given(text=STRINGS)
def test_words_give_the_tokens_of_tokenizers(pattern: str, text: str) -> None:
    """Whatever the text is, and although the memory overflows again and again; a text may be left to tokenizers."""
    look = LOOKED_UP[pattern]
    assert look is not None
    found = look(text)
    if found is None:
        assert max(text) >= "\U00020000"
    else:
        assert found.tolist() == BY_PATTERN[pattern].encode(text, add_special_tokens=False).ids


@pytest.mark.ci
def test_words_know_every_character() -> None:
    """Each character of the first two planes is what the tokenizer's own pattern takes it for."""
    pattern = KNOWN_PATTERNS[1]
    look = LOOKED_UP[pattern]
    assert look is not None
    for start in range(0, 0x20000, 0x1000):
        codes = [code for code in range(start, start + 0x1000) if not 0xD800 <= code < 0xE000]
        text = "".join(f"a{chr(code)}1" for code in codes)
        found = look(text)
        assert found is not None
        assert found.tolist() == BY_PATTERN[pattern].encode(text, add_special_tokens=False).ids


@st.composite
def passages(draw: st.DrawFn) -> SupervisedText:
    """A text with spans in order, which may be empty and may touch."""
    text = draw(STRINGS)
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pairs = zip(places[::2], places[1::2], strict=False)
    return SupervisedText(text=text, spans=draw(st.sampled_from([None, [pair for pair in pairs if pair[0] < pair[1]]])))


TOKENIZERS = {
    **dict(zip(["gpt2", "gpt4", "qwen"], BY_PATTERN.values(), strict=True)),
    "another-pattern": made(r"\p{L}+|\s+|[^\s\p{L}]+"),
    "nfc": made(normalizer=normalizers.NFC()),
    "nfkd": made(KNOWN_PATTERNS[1], normalizer=normalizers.NFKD()),
    "lowercase": made(normalizer=normalizers.Lowercase()),
    "tokens-take-spaces": made(lstrip=True, rstrip=True),
    "tokens-stand-alone": made(single_word=True),
    "tokens-are-normalized": made(normalizer=normalizers.NFC(), normalized=True),
    "a-space-before": made(KNOWN_PATTERNS[2], prefix=True),
}
WAYS = {name: SupervisedTextEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
BY_BYTES = {name: SupervisedTextEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
BY_PLACES = {name: SupervisedTextEncoder(tokenizer) for name, tokenizer in TOKENIZERS.items()}
for bytes_only, places_only in zip(BY_BYTES.values(), BY_PLACES.values(), strict=True):
    bytes_only._words = places_only._words = places_only._spelling = None


@pytest.mark.ci
@pytest.mark.parametrize("name", TOKENIZERS)
@given(some=st.lists(passages(), min_size=1, max_size=3))
def test_every_way_gives_the_same_tokens_and_masks(name: str, some: list[SupervisedText]) -> None:
    """By words, by bytes and by places, of tokenizers that change the text too; only places are right for all."""
    tokenizer = TOKENIZERS[name]
    results = [ways[name](some) for ways in (BY_PLACES, BY_BYTES, WAYS)]
    for passage, *found in zip(some, *results, strict=True):
        ids = tokenizer.encode(passage.text, add_special_tokens=False).ids
        for each in found:
            assert not isinstance(each, InvalidRowError)
            assert each[0].tolist() == ids
        masks = [each[1] for each in found if not isinstance(each, InvalidRowError)]
        np.testing.assert_array_equal(masks[1], masks[0])
        np.testing.assert_array_equal(masks[2], masks[0])


@pytest.mark.parametrize(
    ("name", "spelled", "by_words"),
    [
        ("gpt2", True, True),
        ("gpt4", True, True),
        ("qwen", True, True),
        ("another-pattern", True, False),
        ("nfc", True, True),
        ("nfkd", True, True),
        ("lowercase", False, False),
        ("tokens-take-spaces", True, False),
        ("tokens-stand-alone", True, False),
        ("tokens-are-normalized", True, False),
        ("a-space-before", False, False),
    ],
)
def test_the_quick_ways_are_taken_where_they_are_right(name: str, spelled: bool, by_words: bool) -> None:  # noqa: FBT001 - a table
    """And not where a token may depend on more than its word, or stand for more than its letters."""
    assert (WAYS[name]._spelling is not None, WAYS[name]._words is not None) == (spelled, by_words)


def test_metaspace_is_left_to_tokenizers() -> None:
    """A tokenizer in SentencePiece's manner has other letters for its spaces."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    content = json.loads(tokenizer.to_str())
    assert build_byte_lengths(content, tokenizer) is None
    assert words(tokenizer) is None
