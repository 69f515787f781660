"""A tokenizer as the gate and the eye need it: which tokens begin, end and control, and what each looks like."""

from collections.abc import Sequence

from aboard.data.gate.tally import Item
from aboard.data.gate.terms import Terms
from aboard.data.rows import Encoded
from aboard.data.tokens.encode import Encoder
from aboard.data.tokens.pieces import Piece, Shown, shown
from aboard.data.workshop.unit import Encode
from aboard.diagnoses.untrusted import Untrusted

# Tokens of a row that are shown: to one who asked for rows, and beside a finding.
SHOWN, BESIDE = 800, 120


class Glass:
    """Looks through an encoder."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self._specials = frozenset(encoder.vocabulary.specials.values())

    def terms(self, name: str, *, max_length: int | None) -> Terms:
        encoder = self.encoder
        names = {number: word for word, number in encoder.vocabulary.specials.items()}
        return Terms(
            tokenizer=name,
            bos=encoder.vocabulary.bos,
            stops=encoder.stops,
            stop_names=tuple(Untrusted(names.get(stop, str(stop))) for stop in sorted(encoder.stops)),
            specials=tuple(encoder.vocabulary.specials),
            max_length=max_length,
            loss_on=encoder.loss_on,
            marked=None if encoder.template is None else encoder.template.marked,
        )

    def shown(self, encoded: Encoded, *, limit: int | None, most: int = SHOWN, length: int | None = None) -> Shown:
        return shown(encoded, self._decode, self._specials, limit=limit, most=most, length=length)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.encoder.tokenizer.decode(ids, skip_special_tokens=False)


def terms_of(encode: Encode) -> Terms:
    """What a preparation counts by: no limit of length, for shards have none."""
    return Glass(encode).terms("", max_length=None) if isinstance(encode, Encoder) else Terms()


def shown_item(item: Item, glass: Glass | None, limit: int | None) -> Shown:
    """A row's tokens, or its texts where there are none."""
    if glass is not None and isinstance(item.encoded, Encoded):
        return glass.shown(item.encoded, limit=limit)
    said = [f"{who}: {text}\n" for who, text in item.texts]
    return Shown(where=item.where, pieces=tuple(Piece(text=Untrusted(text), supervised=False) for text in said))
