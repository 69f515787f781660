"""A tokenizer for the data check and previews: its begin, end and control tokens, and the text of each token."""

from collections.abc import Sequence

from aboard.diagnoses.untrusted import Untrusted
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.row_statistics import CheckedRow
from aboard.trainer.data.rows import EncodedRow
from aboard.trainer.data.tokenize_workers.encoded_unit import RowEncoder
from aboard.trainer.data.tokens.encoder import Encoder
from aboard.trainer.data.tokens.row_preview import PreviewToken, RowPreview, build_row_preview

# Tokens shown of a row: on request, and beside a finding.
PREVIEW_TOKENS, EXAMPLE_TOKENS = 800, 120


class TokenizerInspector:
    """Inspects an encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._specials = frozenset(encoder.vocabulary.specials.values())

    def settings(self, name: str, *, max_length: int | None) -> EncodingSettings:
        encoder = self.encoder
        names = {number: word for word, number in encoder.vocabulary.specials.items()}
        return EncodingSettings(
            tokenizer=name,
            bos=encoder.vocabulary.bos,
            stops=encoder.stops,
            stop_names=tuple(Untrusted(names.get(stop, str(stop))) for stop in sorted(encoder.stops)),
            specials=tuple(encoder.vocabulary.specials),
            max_length=max_length,
            loss_on=encoder.loss_on,
            marked=None if encoder.template is None else encoder.template.marked,
        )

    def build_preview(
        self, encoded: EncodedRow, *, limit: int | None, most: int = PREVIEW_TOKENS, length: int | None = None
    ) -> RowPreview:
        return build_row_preview(encoded, self._decode, self._specials, limit=limit, most=most, length=length)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=False)


def build_encoding_settings(encoder: RowEncoder) -> EncodingSettings:
    """The settings that a preparation counts with: no length limit, since shards have none."""
    return (
        TokenizerInspector(encoder).settings("", max_length=None)
        if isinstance(encoder, Encoder)
        else EncodingSettings()
    )


def build_item_preview(checked: CheckedRow, inspector: TokenizerInspector | None, limit: int | None) -> RowPreview:
    """A row's tokens, or its texts if there are none."""
    if inspector is not None and isinstance(checked.encoded, EncodedRow):
        return inspector.build_preview(checked.encoded, limit=limit)
    texts = [f"{who}: {text}\n" for who, text in checked.texts]
    return RowPreview(
        location=checked.location, pieces=tuple(PreviewToken(text=Untrusted(text), supervised=False) for text in texts)
    )
