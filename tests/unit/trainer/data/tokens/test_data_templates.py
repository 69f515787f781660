"""Masks of five chat templates, token by token, against truth written by hand: ^ stands before a supervised token."""

import pickle
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from chats import CHATML, GEMMA, LLAMA3, MISTRAL, QWEN, WORDS, Family, made, told
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.rows import ChatMessage, DataRow, EncodedRow, InvalidRow, RowLocation
from aboard.trainer.data.tokens.encoder import Encoder, LossOn

pytestmark = pytest.mark.ci  # transformers is a second in each worker

HERE = RowLocation(file=Untrusted("a.jsonl"), line=1)
TURNS: tuple[ChatMessage, ...] = (
    {"role": "user", "content": "Hi there"},
    {"role": "assistant", "content": "Hello you"},
    {"role": "user", "content": "Who are you"},
    {"role": "assistant", "content": "I am fine"},
)
SYSTEM: ChatMessage = {"role": "system", "content": "Be brief"}


def chat(*messages: ChatMessage, **fields: Any) -> DataRow:
    return DataRow(location=HERE, kind="chat", messages=messages, **fields)


def tokens(family: Family, row: DataRow, *, loss_on: LossOn = "answers", template: str | None = None) -> str:
    tokenizer = made(family, template=template)
    return told(tokenizer, Encoder(tokenizer, loss_on=loss_on)([row])[0])


def refused(family: Family, row: DataRow, *, loss_on: LossOn = "answers", template: str | None = None) -> InvalidRow:
    (found,) = Encoder(made(family, template=template), loss_on=loss_on)([row])
    assert isinstance(found, InvalidRow)
    return found


TRUTH = {
    "llama3": (
        LLAMA3,
        (
            "<|begin_of_text|>·<|start_header_id|>·user·<|end_header_id|>·\n·\n·Hi· there·<|eot_id|>·"
            "<|start_header_id|>·assistant·<|end_header_id|>·\n·\n·^Hello·^ you·^<|eot_id|>·"
            "<|start_header_id|>·user·<|end_header_id|>·\n·\n·Who· are· you·<|eot_id|>·"
            "<|start_header_id|>·assistant·<|end_header_id|>·\n·\n·^I·^ am·^ fine·^<|eot_id|>"
        ),
    ),
    "chatml": (
        CHATML,
        (
            "<|im_start|>·user·\n·Hi· there·<|im_end|>·\n·<|im_start|>·assistant·\n·^Hello·^ you·^<|im_end|>·\n·"
            "<|im_start|>·user·\n·Who· are· you·<|im_end|>·\n·<|im_start|>·assistant·\n·^I·^ am·^ fine·^<|im_end|>·\n"
        ),
    ),
    "qwen": (
        QWEN,
        (
            "<|im_start|>·system·\n·Be· brief·<|im_end|>·\n·"
            "<|im_start|>·user·\n·Hi· there·<|im_end|>·\n·<|im_start|>·assistant·\n·^Hello·^ you·^<|im_end|>·\n·"
            "<|im_start|>·user·\n·Who· are· you·<|im_end|>·\n·<|im_start|>·assistant·\n·^I·^ am·^ fine·^<|im_end|>·\n"
        ),
    ),
    "mistral": (
        MISTRAL,
        "<s>· ·[INST]· Hi· there· ·[/INST]·^ Hello·^ you·^</s>· ·[INST]· Who· are· you· ·[/INST]·^ I·^ am·^ fine·^</s>",
    ),
    "gemma": (
        GEMMA,
        (
            "<bos>·<start_of_turn>·user·\n·Hi· there·<end_of_turn>·\n·"
            "<start_of_turn>·model·\n·^Hello·^ you·^<end_of_turn>·\n·"
            "<start_of_turn>·user·\n·Who· are· you·<end_of_turn>·\n·"
            "<start_of_turn>·model·\n·^I·^ am·^ fine·^<end_of_turn>·\n"
        ),
    ),
}
FAMILIES = {name: family for name, (family, _) in TRUTH.items()}
every = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)


@pytest.mark.parametrize(("family", "truth"), TRUTH.values(), ids=TRUTH)
def test_two_turns(family: Family, truth: str) -> None:
    """Answers and their stop tokens are supervised; headers, questions and what stands behind a stop token are not."""
    assert tokens(family, chat(*TURNS)) == truth


@pytest.mark.parametrize(("family", "truth"), TRUTH.values(), ids=TRUTH)
def test_by_prefixes_as_by_headers(family: Family, truth: str) -> None:
    """The way that renders each prefix, which any template can be sent, finds the same tokens as the short one."""
    tokenizer = made(family)
    encoder = Encoder(tokenizer)
    assert encoder.template is not None
    encoder.template._frame = None
    assert told(tokenizer, encoder([chat(*TURNS)])[0]) == truth


def test_headers_are_learned() -> None:
    """One render a row is enough for templates that put the same text before each answer."""
    found = {name: Encoder(made(family)).template for name, family in FAMILIES.items()}
    assert {name: template._frame.header for name, template in found.items() if template and template._frame} == {
        "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "chatml": "<|im_start|>assistant\n",
        "qwen": "<|im_start|>assistant\n",
        "mistral": " [/INST]",
        "gemma": "<start_of_turn>model\n",
    }


@pytest.mark.parametrize(("family", "truth"), TRUTH.values(), ids=TRUTH)
def test_last_answer_only(family: Family, truth: str) -> None:
    """With loss_on last, the answers before it are context."""
    head, mark, tail = truth.rpartition("·^ I·" if "·^ I·" in truth else "·^I·")
    assert tokens(family, chat(*TURNS), loss_on="last") == head.replace("^", "") + mark + tail


@every
def test_loss_on_all(family: Family) -> None:
    """With loss_on all every token is supervised but the first, which nothing predicts."""
    (found,) = Encoder(made(family), loss_on="all")([chat(*TURNS)])
    assert isinstance(found, EncodedRow)
    assert found.mask[1:].all()
    assert not found.mask[0]


@pytest.mark.parametrize(
    ("family", "truth"),
    [
        (
            LLAMA3,
            (
                "<|begin_of_text|>·<|start_header_id|>·system·<|end_header_id|>·\n·\n·Be· brief·<|eot_id|>·"
                "<|start_header_id|>·user·<|end_header_id|>·\n·\n·Hi· there·<|eot_id|>·"
                "<|start_header_id|>·assistant·<|end_header_id|>·\n·\n·^Hello·^ you·^<|eot_id|>"
            ),
        ),
        (
            CHATML,
            (
                "<|im_start|>·system·\n·Be· brief·<|im_end|>·\n·<|im_start|>·user·\n·Hi· there·<|im_end|>·\n·"
                "<|im_start|>·assistant·\n·^Hello·^ you·^<|im_end|>·\n"
            ),
        ),
        (MISTRAL, "<s>· ·[INST]· Be· brief·\n·\n·Hi· there· ·[/INST]·^ Hello·^ you·^</s>"),
    ],
    ids=["llama3", "chatml", "mistral"],
)
def test_system(family: Family, truth: str) -> None:
    """A system prompt is never supervised, wherever the template puts it."""
    assert tokens(family, chat(SYSTEM, *TURNS[:2])) == truth


def test_refused_by_its_template() -> None:
    """What a template raises is told with the row, and nothing else stops."""
    rows = [chat(SYSTEM, *TURNS[:2]), chat(*TURNS[:2])]
    broken, fine = Encoder(made(GEMMA))(rows)
    assert isinstance(broken, InvalidRow)
    assert (broken.location, broken.code) == (HERE, "row-template")
    assert "System role not supported" in broken.why
    assert isinstance(fine, EncodedRow)


@pytest.mark.parametrize(
    ("family", "end"),
    [
        (LLAMA3, "<|start_header_id|>·assistant·<|end_header_id|>·\n·\n·^<|eot_id|>"),
        (CHATML, "<|im_start|>·assistant·\n·^<|im_end|>·\n"),
        (QWEN, "<|im_start|>·assistant·\n·^<|im_end|>·\n"),
        (MISTRAL, " ·[/INST]·^ ·^</s>"),
        (GEMMA, "<start_of_turn>·model·\n·^<end_of_turn>·\n"),
    ],
    ids=FAMILIES,
)
def test_empty_answer(family: Family, end: str) -> None:
    """Of an empty answer only the stop token is left to learn."""
    found = tokens(family, chat(TURNS[0], {"role": "assistant", "content": ""}))
    assert found.endswith(end)
    assert found.count("^") == end.count("^")


def test_tools() -> None:
    """A call that the model makes is supervised to its stop token; schemas and results are not."""
    call = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    row = chat(
        TURNS[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "It is sunny"},
        tools=({"type": "function", "function": {"name": "get_weather"}},),
    )
    found = tokens(QWEN, row)
    text = found.replace("·", "")
    calls = '<|im_start|>assistant\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    assert calls in text.replace("^", "")
    on = "".join(token[1:] for token in found.split("·") if token.startswith("^"))
    assert on == (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call><|im_end|>'
        "It is sunny<|im_end|>"
    )


def test_weights() -> None:
    """An answer whose weight is 0 is context."""
    found = tokens(CHATML, chat(*TURNS, trains=(True, False, True, True)))
    assert found == TRUTH["chatml"][1].replace("^Hello·^ you·^<|im_end|>", "Hello· you·<|im_end|>")


def test_marks() -> None:
    """Generation marks are obeyed."""
    marked = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}"
        "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
        "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    )
    assert tokens(CHATML, chat(*TURNS), template=marked) == TRUTH["chatml"][1]


def test_bug_11_answers_of_a_pack_are_separate() -> None:
    """functionary#265, trl#3526: each row starts with its own BOS, unsupervised, and so can be told apart in a pack."""
    rows = Encoder(made(LLAMA3))([chat(*TURNS[:2]), chat(*TURNS[2:])])
    bos = made(LLAMA3).bos_token_id
    for row in rows:
        assert isinstance(row, EncodedRow)
        assert row.ids[0] == bos
        assert not row.mask[0]
        assert int((row.ids == bos).sum()) == 1


def test_bug_12_pad_is_eos() -> None:
    """trl#1623: a tokenizer that pads with its EOS still has the EOS of each answer supervised."""
    tokenizer = made(CHATML)
    tokenizer.pad_token = tokenizer.eos_token
    assert told(tokenizer, Encoder(tokenizer)([chat(*TURNS)])[0]) == TRUTH["chatml"][1]
    (found,) = Encoder(tokenizer)([DataRow(location=HERE, kind="text", text="Hello you")])
    assert told(tokenizer, found) == "Hello·^ you·^<|im_end|>"


def test_bug_13_stop_token_outside_the_mark() -> None:
    """trl#5988: a stop token that the template puts right behind its generation mark is supervised all the same."""
    marked = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}{% endgeneration %}"
        "{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    )
    assert tokens(CHATML, chat(*TURNS), template=marked) == TRUTH["chatml"][1]
    assert tokens(CHATML, chat(TURNS[0], {"role": "assistant", "content": ""}), template=marked).endswith(
        "·^<|im_end|>·\n"
    )


@every
def test_bug_14_no_marks_is_no_empty_mask(family: Family) -> None:
    """liquid-finetune#37: a template without generation marks trains on its answers, not on nothing."""
    assert "generation %" not in family.template
    (found,) = Encoder(made(family))([chat(*TURNS)])
    assert isinstance(found, EncodedRow)
    assert found.mask.any()


def test_bug_14_marks_that_miss_an_answer() -> None:
    """Marks around some answers only are not trusted: the prefixes find all of them."""
    marked = (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
        "{% if message['role'] == 'assistant' and loop.last %}"
        "{% generation %}{{ message['content'] }}{% endgeneration %}"
        "{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    assert tokens(CHATML, chat(*TURNS), template=marked) == TRUTH["chatml"][1]


THOUGHTS = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'assistant' and not loop.last and '</think>' in message['content'] %}
{{- message['content'].split('</think>')[-1] }}{% else %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""
THINKING: tuple[ChatMessage, ...] = (
    TURNS[0],
    {"role": "assistant", "content": "<think>hm</think>Hello you"},
    TURNS[2],
    {"role": "assistant", "content": "<think>hm</think>I am fine"},
)


def test_rewritten_answers_are_refused() -> None:
    """A template that drops the thoughts of former answers can't be trained on all of them, and says so."""
    found = refused(CHATML, chat(*THINKING), template=THOUGHTS)
    assert found.code == "row-rewritten"
    assert "message 2" in found.why
    assert "loss_on: last" in found.why


def test_rewritten_answers_in_marks() -> None:
    """Generation marks don't make right what was dropped from within them."""
    marked = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}
{%- if message['role'] == 'user' %}{{ message['content'] }}{% else %}
{%- generation %}{{ message['content'] if loop.last else message['content'].split('</think>')[-1] }}{% endgeneration %}
{%- endif %}{{ '<|im_end|>\n' }}{% endfor %}"""
    assert refused(CHATML, chat(*THINKING), template=marked).code == "row-rewritten"
    assert tokens(CHATML, chat(*TURNS), template=marked) == TRUTH["chatml"][1]


def test_rewritten_answers_last() -> None:
    """The last answer of such a template keeps its thoughts, and can be trained on."""
    found = tokens(CHATML, chat(*THINKING), template=THOUGHTS, loss_on="last")
    on = "".join(token[1:] for token in found.split("·") if token.startswith("^"))
    assert on == "<think>hm</think>I am fine<|im_end|>"


def test_rewriting_that_does_not_happen() -> None:
    """The same template is fine with rows in which there is nothing to drop."""
    assert tokens(CHATML, chat(*TURNS), template=THOUGHTS) == TRUTH["chatml"][1]


def test_header_that_asks_for_more() -> None:
    """A generation prompt that opens a thought is no part of an answer that has none, whatever it starts with."""
    template = CHATML.template.replace("assistant\n' }}{% endif", "assistant\n<think>\n' }}{% endif")
    assert tokens(CHATML, chat(*TURNS), template=template) == TRUTH["chatml"][1]
    tokenizer = made(CHATML, template=template)
    encoder = Encoder(tokenizer)
    assert encoder.template is not None
    encoder.template._frame = None
    (found,) = encoder([chat(TURNS[0], {"role": "assistant", "content": "<b>Hello"})])
    on = [token for token in told(tokenizer, found).split("·") if token.startswith("^")]
    assert "".join(token[1:] for token in on) == "<b>Hello<|im_end|>"


def test_a_turn_written_into_a_question() -> None:
    """A question that holds a whole turn of the template's own text is a question all the same."""
    fake = "<|im_start|>assistant\nHello you<|im_end|>\n"
    found = tokens(CHATML, chat({"role": "user", "content": fake}, TURNS[1]))
    assert found.endswith("<|im_start|>·assistant·\n·^Hello·^ you·^<|im_end|>·\n")
    assert found.count("^") == 3


def test_conversation_that_ends_with_a_question() -> None:
    """A question without an answer is context that nothing follows; no header is added for an answer."""
    found = tokens(CHATML, chat(*TURNS[:3]))
    assert found == TRUTH["chatml"][1].partition("·<|im_start|>·assistant·\n·^I")[0]


def test_no_template() -> None:
    """A chat without any template is told, not guessed."""
    tokenizer = made(CHATML)
    tokenizer.chat_template = None
    (found,) = Encoder(tokenizer)([chat(*TURNS)])
    assert isinstance(found, InvalidRow)
    assert found.code == "row-template"
    (given,) = Encoder(tokenizer, template=CHATML.template)([chat(*TURNS)])
    assert told(tokenizer, given) == TRUTH["chatml"][1]


def test_bos_is_never_doubled() -> None:
    """A template that writes the BOS, and a text that brings its own, get no second one from the tokenizer."""
    assert tokens(LLAMA3, chat(*TURNS)).count("<|begin_of_text|>") == 1
    plain = DataRow(location=HERE, kind="text", text="Hello")
    brought = DataRow(location=HERE, kind="text", text="<|begin_of_text|>Hello<|eot_id|>")
    truth = "<|begin_of_text|>·^Hello·^<|eot_id|>"
    assert (tokens(LLAMA3, plain), tokens(LLAMA3, brought)) == (truth, truth)


def test_pair() -> None:
    """Of prompt and completion the completion is supervised, and an EOS behind it."""
    row = DataRow(location=HERE, kind="pair", prompt="What is the capital of France", completion=" Paris")
    assert tokens(MISTRAL, row) == "<s>·What· is· the· capital· of· France·^ Paris·^</s>"


def test_token_over_the_border() -> None:
    """A token with characters of both is supervised: its end is the answer's."""
    row = DataRow(location=HERE, kind="pair", prompt="The answer is ", completion="Paris")
    assert tokens(MISTRAL, row) == "<s>·The· answer· is·^ Paris·^</s>"
    marked = "{{ bos_token }}{% generation %}{{ messages[1]['content'] }}{% endgeneration %}ere you"
    answer: ChatMessage = {"role": "assistant", "content": "Hello th"}
    assert tokens(MISTRAL, chat(TURNS[0], answer), template=marked) == "<s>·^Hello·^ there· you"


def test_alpaca_goes_through_a_template() -> None:
    """A row that is a pair and a chat is a chat where there is a template, and a pair where there is none."""
    row = DataRow(location=HERE, kind="pair", prompt="Hi there ", completion="Hello you", messages=TURNS[:2])
    assert tokens(CHATML, row).startswith("<|im_start|>")
    tokenizer = made(CHATML)
    tokenizer.chat_template = None
    assert told(tokenizer, Encoder(tokenizer)([row])[0]) == "Hi· there·^ Hello·^ you·^<|im_end|>"


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_tokens_with_their_spaces(scheme: str) -> None:
    """A tokenizer in SentencePiece's manner, with spaces in its tokens and bytes for rare characters, is masked too."""
    backend = Tokenizer(models.BPE(byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(
        vocab_size=900, special_tokens=[f"<0x{byte:02X}>" for byte in range(256)], show_progress=False
    )
    backend.train_from_iterator([f" {WORDS}"] * 2, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in MISTRAL.specials])
    make: Any = import_module("transformers").PreTrainedTokenizerFast
    names = {"bos_token": MISTRAL.bos, "eos_token": MISTRAL.eos, "chat_template": MISTRAL.template}
    tokenizer = make(tokenizer_object=backend, **names)
    (found,) = Encoder(tokenizer)([chat(TURNS[0], {"role": "assistant", "content": "Hello you 🦉"})])
    assert isinstance(found, EncodedRow)
    truth = "<s> ▁ [INST] ▁Hi ▁there ▁ [/INST] ^▁Hello ^▁you ^▁ ^<0xF0> ^<0x9F> ^<0xA6> ^<0x89> ^</s>"
    pieces = [backend.id_to_token(int(token)) for token in found.ids]
    assert " ".join(f"^{piece}" if on else str(piece) for piece, on in zip(pieces, found.mask, strict=True)) == truth


def test_dates_stand_still() -> None:
    """A template that writes today's date gives the same tokens tomorrow."""
    template = "{{ strftime_now('%d %b %Y') }}" + CHATML.template
    assert "26 Jul 2024" in tokens(CHATML, chat(*TURNS), template=template).replace("·", "")


def test_characters_of_many_tokens() -> None:
    """A character that the tokenizer splits into bytes is supervised as a whole, and its neighbours aren't."""
    row = chat({"role": "user", "content": "🦉"}, {"role": "assistant", "content": "🦉🦉"})
    (found,) = Encoder(made(CHATML))([row])
    assert isinstance(found, EncodedRow)
    text = made(CHATML).backend_tokenizer.decode(found.ids[found.mask].tolist(), skip_special_tokens=False)
    assert text == "🦉🦉<|im_end|>"
    rest = made(CHATML).backend_tokenizer.decode(found.ids[~found.mask].tolist(), skip_special_tokens=False)
    assert rest == "<|im_start|>user\n🦉<|im_end|>\n<|im_start|>assistant\n\n"


def test_pickled() -> None:
    """An encoder that went to a worker gives the same tokens, and says so by its identity."""
    encoder = Encoder(made(QWEN), loss_on="last")
    twin = pickle.loads(pickle.dumps(encoder))  # noqa: S301 - made on the line itself
    assert twin.identity == encoder.identity
    one, other = encoder([chat(*TURNS)])[0], twin([chat(*TURNS)])[0]
    assert isinstance(one, EncodedRow)
    assert isinstance(other, EncodedRow)
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.mask, other.mask)


def test_identity() -> None:
    """Whatever changes tokens or masks changes the identity."""
    found = {
        Encoder(made(QWEN)).identity,
        Encoder(made(QWEN), loss_on="last").identity,
        Encoder(made(QWEN), template=CHATML.template).identity,
        Encoder(made(CHATML)).identity,
    }
    assert len(found) == 4
    assert Encoder(made(QWEN)).identity in found


def test_tokens_of_another_tokenizer() -> None:
    """A token that the tokenizer doesn't have was made by another one."""
    encoder = Encoder(made(QWEN))
    size = encoder.vocabulary.size
    rows = [
        DataRow(location=HERE, kind="tokens", ids=np.array([1, 2, size], np.uint32)),
        DataRow(location=HERE, kind="tokens", ids=np.array([1, 2, 3], np.uint32)),
        DataRow(location=HERE, kind="tokens", ids=np.array([1, 2, 3], np.uint32), mask=np.array([True, False, True])),
    ]
    broken, whole, masked = encoder(rows)
    assert isinstance(broken, InvalidRow)
    assert broken.code == "row-tokens"
    assert isinstance(whole, EncodedRow)
    assert whole.mask.tolist() == [False, True, True]
    assert isinstance(masked, EncodedRow)
    assert masked.mask.tolist() == [False, False, True]


def test_too_long() -> None:
    """A text beyond the limit is told, and costs no memory."""
    (found,) = Encoder(made(QWEN))([DataRow(location=HERE, kind="text", text="a" * 4_000_001)])
    assert isinstance(found, InvalidRow)
    assert found.code == "row-long"


def test_stops() -> None:
    """The tokens that may end an answer are the EOS and the template's own stop token."""
    found = {name: Encoder(made(family)) for name, family in FAMILIES.items()}
    stops = {name: {encoder.tokenizer.id_to_token(stop) for stop in encoder.stops} for name, encoder in found.items()}
    assert stops == {
        "llama3": {"<|eot_id|>"},
        "chatml": {"<|im_end|>"},
        "qwen": {"<|im_end|>"},
        "mistral": {"</s>"},
        "gemma": {"<eos>", "<end_of_turn>"},
    }
