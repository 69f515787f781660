"""Five chat templates as their models have them, written out, and a tokenizer on the spot that has their tokens.

Every word of WORDS, with or without a space before it, is one token, so that a test can write its tokens down.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from aboard.trainer.data.rows import EncodedRow

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

WORDS = (
    "Hi Hello there you are me I am fine and Who What is the capital of France Paris It Be brief user assistant system "
    "model tool Yes No Bye so weather in get_weather sunny name arguments city think hm The answer text one two three"
)


class Family(NamedTuple):
    """A model family's template, and the special tokens that it is made of."""

    template: str
    bos: str | None
    eos: str
    specials: tuple[str, ...]


LLAMA3 = Family(
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
    specials=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    template="""{% for message in messages %}
{% set header = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' %}
{{- bos_token if loop.first }}{{ header + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}""",
)

CHATML = Family(
    bos=None,
    eos="<|im_end|>",
    specials=("<|im_start|>", "<|im_end|>"),
    template="""{% for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
)

QWEN = Family(
    bos=None,
    eos="<|im_end|>",
    specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    template="""{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'Be brief' }}{%- endif %}
    {{- '\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools><|im_end|>\n' }}
{%- elif messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\n' + messages[0]['content'] + '<|im_end|>\n' }}
{%- else %}
    {{- '<|im_start|>system\nBe brief<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first)
           or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\n<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}""",
)

MISTRAL = Family(
    bos="<s>",
    eos="</s>",
    specials=("<s>", "</s>", "[INST]", "[/INST]"),
    template="""{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] %}{%- set turns = messages[1:] %}
{%- else %}
    {%- set turns = messages %}
{%- endif %}
{{- bos_token }}
{%- for message in turns %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' and loop.first and system is defined %}
        {{- ' [INST] ' + system + '\n\n' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'user' %}
        {{- ' [INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- ' ' + message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}""",
)

GEMMA = Family(
    bos="<bos>",
    eos="<eos>",
    specials=("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    template="""{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}""",
)


@cache
def _trained() -> str:
    """A byte-level tokenizer without special tokens, for which each word is one token."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    words = WORDS.split()
    trainer = trainers.BpeTrainer(
        vocab_size=2_000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), min_frequency=1, show_progress=False
    )
    found.train_from_iterator([" " + " ".join(words), *words, *words], trainer)
    return found.to_str()


def made(family: Family, *, template: str | None = None, adds_bos: bool = True) -> "PreTrainedTokenizerFast":
    """The family's tokenizer; it puts its BOS before a text by itself, as Llama's and Gemma's do."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - a second, which other tests needn't wait for

    backend = Tokenizer.from_str(_trained())
    backend.add_special_tokens([AddedToken(token, special=True) for token in family.specials])
    if family.bos and adds_bos:
        pair = [(family.bos, backend.token_to_id(family.bos))]
        backend.post_processor = processors.TemplateProcessing(single=f"{family.bos} $A", special_tokens=pair)
    names: dict[str, Any] = {"bos_token": family.bos} if family.bos else {}
    make: Any = PreTrainedTokenizerFast  # its constructor has no types
    found: PreTrainedTokenizerFast = make(tokenizer_object=backend, eos_token=family.eos, **names)
    found.chat_template = template or family.template
    return found


def told(tokenizer: "PreTrainedTokenizerFast", encoded: object) -> str:
    """The tokens of a row between dots, those that are supervised behind a ^."""
    assert isinstance(encoded, EncodedRow), encoded
    assert encoded.ids.shape == encoded.mask.shape
    tokens = [tokenizer.backend_tokenizer.decode([int(token)], skip_special_tokens=False) for token in encoded.ids]
    return "·".join(("^" if on else "") + token for token, on in zip(tokens, encoded.mask, strict=True))
