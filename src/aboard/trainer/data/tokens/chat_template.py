"""Renders a conversation with a chat template, and locates the answers in the text.

An answer's span starts where generation would start (after the header of its turn) and ends with its stop token, which
must be learned or the model never stops; what the template writes after that (a newline) belongs to no answer.
The first of three methods that applies finds the spans:

marks     the template has {% generation %} marks, one for each answer; a stop token right after a mark is included
headers   one render: the header and the stop token seen in a trial conversation surround each answer
prefixes  the conversation is rendered up to each answer, and what it adds is the answer; slow, right for any template

The last also detects templates that render an answer differently once later turns follow (they drop its thoughts, or
move the system prompt): the model would learn text that it never generates, so such a row is rejected.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.intake.chat_messages import InvalidRowError
from aboard.trainer.data.rows import ChatMessage

# Templates that write today's date would give different tokens each day; the Llama templates default to this date.
TEMPLATE_DATE = date(2024, 7, 26)

Span = tuple[int, int]

_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")
_CLOCK = re.compile(r"""strftime_now\(\s{0,20}(['"])(.{0,100}?)\1\s{0,20}\)""")
_TRIAL_QUESTION, _TRIAL_ANSWER = "qzask", "qzanswer"


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """What the template writes around an answer; `lead` is a leading space that the model generates, too."""

    header: str
    lead: str
    stop: str


class ChatTemplate:
    """Renders conversations; `tokens` are the names that templates use (bos_token, …), `specials` their texts."""

    def __init__(self, text: str, *, tokens: Mapping[str, str], specials: Sequence[str]) -> None:
        self.text = text
        self.marked = bool(_MARK.search(text))
        self._text = _CLOCK.sub(lambda call: repr(TEMPLATE_DATE.strftime(call[2])), text)
        self._tokens = dict(tokens)
        self._specials = tuple(specials)
        self._frame: _Frame | None = None
        self.stop, self._frame = self._detect_frame()

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Any] | None = None, *, ask: bool = False) -> str:
        """The conversation as text; with `ask`, also the header of the next answer."""
        return self._render_spans(messages, tools, ask=ask)[0]

    def answers(
        self, messages: Sequence[ChatMessage], tools: Sequence[Any] | None, wanted: Sequence[int]
    ) -> tuple[str, list[Span]]:
        """The conversation as text, and the spans of the wanted messages, which are answers."""
        every = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
        text, marks = self._render_spans(messages, tools, marks=self.marked and bool(wanted))
        if not wanted:
            return text, []
        if len(marks) == len(every):
            return text, [self._adjust_marked_span(text, marks[every.index(at)], messages, tools, at) for at in wanted]
        framed = self._find_framed_spans(text, messages, every)
        if framed is not None:
            return text, [framed[every.index(at)] for at in wanted]
        return text, [self._find_added_span(text, messages, tools, at) for at in wanted]

    def _render_spans(
        self, messages: Sequence[ChatMessage], tools: Sequence[Any] | None, *, ask: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        # Imported here: it takes a second, which reading text needn't wait for.
        from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415

        render: Any = render_jinja_template  # it returns a pair, but its annotation says str
        try:
            texts, spans = render(
                conversations=[list(messages)],
                tools=list(tools) if tools else None,
                chat_template=self._text,
                return_assistant_tokens_mask=marks,
                add_generation_prompt=ask,
                **self._tokens,
            )
        except MemoryError:  # for `RenderLimits`
            raise
        except Exception as error:  # noqa: BLE001 - a template is somebody else's program: it may raise anything
            why = " ".join(str(error).split()) or type(error).__name__
            raise InvalidRowError("row-template", f"the chat template rejects it: {why}") from None
        return texts[0], list(spans[0]) if spans else []

    def _detect_frame(self) -> tuple[str, _Frame | None]:
        """The stop token and frame of an answer from a trial of two turns; a frame only if prefixes confirm it."""
        turns = [
            {"role": role, "content": f"{word}{turn}"}
            for turn in (1, 2)
            for role, word in (("user", _TRIAL_QUESTION), ("assistant", _TRIAL_ANSWER))
        ]
        stop = ""
        try:
            question_only, one, text = self.render(turns[:1]), self.render(turns[:2]), self.render(turns)
            at = one.find(_TRIAL_ANSWER)
            stop = self._first_special(one, at + len(_TRIAL_ANSWER) + 1) if at >= 0 else ""
            slow = [self._find_added_span(text, turns, None, turn) for turn in (1, 3)]
        except InvalidRowError:  # it needs more than a plain conversation; each row will be rendered by prefixes
            return stop, None
        start = slow[0][0]
        # Mistral's answers have no header of their own: the end of the question precedes them.
        header = one[len(question_only) : start] or one[one.find(_TRIAL_QUESTION) + len(_TRIAL_QUESTION) + 1 : start]
        if not stop or not header.strip() or not one.startswith(question_only) or start > at:
            return stop, None
        self._frame = _Frame(header=header, lead=one[start:at], stop=stop)
        return stop, self._frame if self._find_framed_spans(text, turns, [1, 3]) == slow else None

    def _first_special(self, text: str, at: int) -> str:
        """The special token right after a position, with the spaces before it; None if other text comes first."""
        rest = text[at:]
        lead = len(rest) - len(rest.lstrip())
        specials = [token for token in self._specials if token and rest.startswith(token, lead)]
        return rest[:lead] + max(specials, key=len) if specials else ""

    def _adjust_marked_span(
        self, text: str, span: Span, messages: Sequence[ChatMessage], tools: Sequence[Any] | None, at: int
    ) -> Span:
        start, end = span
        if messages[at]["content"].strip() not in text[start:end]:
            self._find_added_span(text, messages, tools, at)  # raises if the answer was rewritten
        if self.stop and text.startswith(self.stop, end) and not text.endswith(self.stop, start, end):
            return start, end + len(self.stop)
        return span

    def _find_framed_spans(self, text: str, messages: Sequence[ChatMessage], every: Sequence[int]) -> list[Span] | None:
        """The spans if each answer appears unchanged between its header and its stop token; else None."""
        frame = self._frame
        if frame is None or text.count(frame.header) != len(every):
            return None
        spans: list[Span] = []
        start = 0
        for at in every:
            message = messages[at]
            start = text.find(frame.header, start) + len(frame.header)
            content = message["content"]
            if len(message) != len(("role", "content")):
                return None
            for body in (frame.lead + content, frame.lead + content.strip()):
                if text.startswith(body, start) and text.startswith(frame.stop, start + len(body)):
                    spans.append((start, start + len(body) + len(frame.stop)))
                    break
            else:
                return None
        return spans

    def _find_added_span(
        self, text: str, messages: Sequence[ChatMessage], tools: Sequence[Any] | None, at: int
    ) -> Span:
        """What the answer adds to the conversation before it, verified to be in the whole conversation, too."""
        content = messages[at]["content"].strip()
        whole = text if at == len(messages) - 1 else self.render(messages[: at + 1], tools)
        start = self._start(whole, messages[:at], tools, content)
        end = count_common_prefix(whole, text)
        if end < len(whole):
            # Only the text after the answer may differ: some templates end the last turn differently.
            content_start = whole.find(content, start) if content else -1
            if content_start < 0 or content_start + len(content) > end:
                raise InvalidRowError("row-rewritten", _format_rewritten(at))
        body = text[start:end].rstrip()
        return start, start + len(body) if body.endswith(self._specials) else end

    def _start(self, whole: str, before: Sequence[ChatMessage], tools: Sequence[Any] | None, content: str) -> int:
        """The start of the answer in the conversation that ends with it."""
        content_start = whole.rfind(content) if content else -1
        if not before:
            if content_start < 0:
                raise InvalidRowError("row-template", "the conversation starts with an answer that the template omits")
            return content_start
        with_header = self.render(before, tools, ask=True)
        if whole.startswith(with_header):
            return len(with_header)
        # The generation prompt may contain more than an answer's own header, such as an empty thought.
        plain = self.render(before, tools)
        if not whole.startswith(plain):
            raise InvalidRowError("row-rewritten", _format_rewritten(len(before)))
        same = count_common_prefix(with_header, whole)
        return max(len(plain), min(same, whole.find(content, len(plain))) if content_start >= len(plain) else same)


def count_common_prefix(one: str, other: str) -> int:
    """The length of the common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle)
    return low


def _format_rewritten(at: int) -> str:
    return (
        f"the chat template renders message {at + 1} differently once other turns follow (it drops reasoning, or"
        " moves the system prompt), so the model would learn text that it never generates; train on the last answer "
        "only: loss_on: last"
    )
