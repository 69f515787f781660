"""Encodes rows as tokens and loss masks.

A chat is encoded as its template renders it; a pair as prompt and completion concatenated; both as one text, so that
token boundaries are the tokenizer's own. A token is supervised if any of its characters belongs to an answer. Text and
pairs get the tokenizer's BOS once and an EOS at the end, which is supervised; a chat gets neither, since its template
writes them. The first token of a row is never supervised: nothing predicts it.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
import tokenizers

from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.intake.chat_messages import InvalidRowError
from aboard.trainer.data.rows import DataRow, EncodedRow, Ids, InvalidRow, Mask
from aboard.trainer.data.tokens.chat_template import TEMPLATE_DATE, ChatTemplate, Span
from aboard.trainer.data.tokens.render_limits import RenderLimitError, RenderLimits
from aboard.trainer.data.tokens.supervised_text import SupervisedText, SupervisedTextEncoder, TokensAndMask
from aboard.trainer.data.tokens.tokenizer_parts import Vocabulary, load_vocabulary
from aboard.trainer.diagnoses import data

LossOn = Literal["answers", "last", "all"]

# The longest text that is encoded as one; it takes up to 0.3 GB.
MAX_TEXT_LENGTH = 4_000_000
# Incremented when tokens or masks for the same input change, so that older caches are not used.
_EDITION = 2


class Encoder:
    """Encodes rows as tokens and masks, in batches; picklable, so that each worker has its own.

    `tokenizer` is a path, a hub name, or a transformers tokenizer; `template` is a Jinja text that replaces its own.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        template: str | None = None,
        loss_on: LossOn = "answers",
        trust_remote_code: bool = False,
    ) -> None:
        self._set(load_vocabulary(tokenizer, trust_remote_code=trust_remote_code), template, loss_on)

    def _set(self, vocabulary: Vocabulary, template: str | None, loss_on: LossOn) -> None:
        self.vocabulary = vocabulary
        self.custom_template = template
        self.loss_on = loss_on
        self.tokenizer = tokenizers.Tokenizer.from_str(vocabulary.json)
        self._passages = SupervisedTextEncoder(self.tokenizer)
        self.template = self._build_template(template or vocabulary.plain)
        with_tools = template or vocabulary.with_tools
        self._with_tools = (
            self.template if with_tools == (template or vocabulary.plain) else self._build_template(with_tools)
        )

    def __getstate__(self) -> tuple[Vocabulary, str | None, LossOn]:
        return self.vocabulary, self.custom_template, self.loss_on

    def __setstate__(self, state: tuple[Vocabulary, str | None, LossOn]) -> None:
        self._set(*state)

    @property
    def identity(self) -> str:
        """A hash of all that affects tokens and masks: part of the cache key."""
        parts = [_EDITION, asdict(self.vocabulary), self.custom_template, self.loss_on, str(TEMPLATE_DATE)]
        return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    @property
    def stops(self) -> frozenset[int]:
        """The tokens that may end an answer: EOS, and the stop token of the chat template."""
        text = self.template.stop.strip() if self.template else ""
        tokens = {self.vocabulary.eos, self.vocabulary.specials.get(text)}
        return frozenset(token for token in tokens if token is not None)

    def __call__(self, rows: Sequence[DataRow]) -> list[EncodedRow | InvalidRow]:
        """One result per row, in order; a row that can't be encoded gives an InvalidRow with the reason."""
        results: dict[int, EncodedRow | InvalidRow] = {}
        texts: dict[int, SupervisedText] = {}
        with RenderLimits() as limits:
            for at, row in enumerate(rows):
                try:
                    if row.kind == "tokens":
                        results[at] = self._copy_tokens(row)
                    else:
                        texts[at] = limits.run(partial(self._write_text, row))
                except InvalidRowError as error:
                    results[at] = InvalidRow(location=row.location, code=error.code, why=error.why)
                except RenderLimitError as error:
                    raise self._make_limit_error(f"for {row.location}", error) from None
        for at, tokens in zip(texts, self._passages(list(texts.values())), strict=True):
            results[at] = self._finish_row(rows[at], tokens)
        return [results[at] for at in range(len(rows))]

    def _build_template(self, text: str | None) -> ChatTemplate | None:
        if not text:
            return None
        build = partial(ChatTemplate, text, tokens=self.vocabulary.names, specials=tuple(self.vocabulary.specials))
        try:
            with RenderLimits() as limits:
                return limits.run(build)
        except RenderLimitError as error:
            raise self._make_limit_error("for a trial conversation of two turns", error) from None

    def _make_limit_error(self, what: str, error: RenderLimitError) -> AboardError:
        whose = "the tokenizer's chat template" if self.custom_template is None else "the chat template (data.template)"
        return AboardError(data.TEMPLATE_LIMIT, f"{whose} needs {error} {what}")

    def _copy_tokens(self, row: DataRow) -> EncodedRow:
        ids = row.ids if row.ids is not None else np.empty(0, np.uint32)
        if len(ids) and ids.max() >= self.vocabulary.size:
            last = self.vocabulary.size - 1
            why = f"it has token {ids.max()}, but the tokenizer's last token is {last}: is this the right tokenizer?"
            raise InvalidRowError("row-tokens", why)
        mask = np.ones(len(ids), np.bool_) if row.mask is None else row.mask.copy()
        mask[:1] = False
        return EncodedRow(location=row.location, ids=ids, mask=mask)

    def _write_text(self, row: DataRow) -> SupervisedText:
        spans: list[Span] | None
        if self._is_rendered(row):
            text, spans = self._render_chat(row)
        elif row.kind == "text":
            text, spans = row.text or "", None
        else:
            prompt = row.prompt or ""
            text = prompt + (row.completion or "")
            spans = [(len(prompt), len(text))]
        if len(text) > MAX_TEXT_LENGTH:
            why = f"{len(text):,} characters; the limit for one text is {MAX_TEXT_LENGTH:,}"
            raise InvalidRowError("row-long", why)
        return SupervisedText(text=text, spans=None if self.loss_on == "all" else spans)

    def _is_rendered(self, row: DataRow) -> bool:
        """Whether a template writes the row's text, with its own BOS and EOS."""
        return bool(row.messages and (self.template or row.kind == "chat"))

    def _render_chat(self, row: DataRow) -> tuple[str, list[Span]]:
        template = self._with_tools if row.tools else self.template
        if template is None:
            raise InvalidRowError("row-template", "the tokenizer has no chat template; set one with template: FILE")
        return template.answers(row.messages or (), row.tools, self._select_answers(row))

    def _select_answers(self, row: DataRow) -> list[int]:
        """The messages that the loss is on."""
        if self.loss_on == "all":
            return []
        trains = row.trains or (True,) * len(row.messages or ())
        pairs = enumerate(zip(row.messages or (), trains, strict=True))
        answers = [at for at, (message, may) in pairs if may and message["role"] == "assistant"]
        return answers[-1:] if self.loss_on == "last" else answers

    def _finish_row(self, row: DataRow, tokens: TokensAndMask | InvalidRowError) -> EncodedRow | InvalidRow:
        if isinstance(tokens, InvalidRowError):
            return InvalidRow(location=row.location, code=tokens.code, why=tokens.why)
        ids, mask = tokens if self._is_rendered(row) else self._add_bos_eos(*tokens)
        if not len(ids):
            return InvalidRow(location=row.location, code="row-empty", why=Untrusted("it has no tokens"))
        mask[0] = False
        return EncodedRow(location=row.location, ids=ids, mask=mask)

    def _add_bos_eos(self, ids: Ids, mask: Mask) -> tuple[Ids, Mask]:
        """Adds BOS and EOS, unless the text has its own."""
        before = np.array(self.vocabulary.before, np.uint32)
        if np.array_equal(ids[: len(before)], before):
            before = before[:0]
        eos = self.vocabulary.eos
        behind = [] if eos is None or (len(ids) and ids[-1] == eos) else [eos]
        whole: Ids = np.concatenate([before, ids, np.array(behind, np.uint32)])
        full: Mask = np.concatenate([np.zeros(len(before), np.bool_), mask, np.ones(len(behind), np.bool_)])
        return whole, full
