"""A bounded sample of rows as text, in runs of neighbouring rows: what rules over the meaning of rows judge."""

from collections.abc import Iterable
from dataclasses import field
from json import dumps

from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.rows import DataRow, RowLocation

MAX_ROWS = 320
# Neighbours stay together, so that answers which belong to the row before or after them show.
_RUN_BITS = 4
_MAX_PROMPT, MAX_ANSWER, _MAX_ENDING = 500, 800, 60
_MAX_COUNTED = 20_000
_MIN_REPEATED = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledRow:
    """What a row asks and answers, shortened; plain text has no prompt. `length` and `words` are those of the answer.

    `blanks` counts answers without a visible character. `repeated` says that the answer contains the same text twice.
    """

    location: RowLocation
    kind: str
    prompt: str
    answer: str
    ending: str
    length: int
    words: int
    blanks: int = 0
    repeated: bool = False
    system: str = ""

    @property
    def rank(self) -> tuple[int, str, int]:
        """Decides which rows are kept: by runs of lines in random order, whatever the order of addition."""
        return _mix_bits(self.location.line), self.location.file.raw(), self.location.line


@dataclass(frozen=True, kw_only=True)
class RowSample:
    """At most `MAX_ROWS` rows; `bound` is the highest number of a run that can still be in it, None if any can."""

    rows: tuple[SampledRow, ...] = field(default=())

    @property
    def bound(self) -> int | None:
        return self.rows[-1].rank[0] if len(self.rows) == MAX_ROWS else None

    def __add__(self, other: "RowSample") -> "RowSample":
        if not self.rows or not other.rows:
            return self if self.rows else other
        return RowSample(rows=_keep_first((*self.rows, *other.rows)))


def sample_rows(rows: Iterable[DataRow], bound: int | None = None) -> RowSample:
    """Samples the rows; those above the bound would be dropped when samples are added, and cost nothing."""
    return RowSample(
        rows=_keep_first(
            _shorten_row(row)
            for row in rows
            if row.kind != "tokens" and (bound is None or _mix_bits(row.location.line) <= bound)
        )
    )


def strip_blank(text: str) -> str:
    """Without white space and invisible characters around it."""
    return text.strip().strip("\ufeff\u200b\u200c\u200d\u2060\u00ad\x00").strip()


def _keep_first(rows: Iterable[SampledRow]) -> tuple[SampledRow, ...]:
    return tuple(sorted(rows, key=lambda row: row.rank)[:MAX_ROWS])


def _mix_bits(line: int) -> int:
    """A number that looks random, the same for a run of neighbouring lines."""
    mixed = ((line - 1 >> _RUN_BITS) * 0x9E3779B97F4A7C15 + 0x7F4A7C15) & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 27) >> 16


def _shorten_row(row: DataRow) -> SampledRow:
    prompt, answers, system = row.prompt or "", [row.completion or row.text or ""], ""
    if row.messages is not None:
        asked, answers, told = [], [], []
        for at, message in enumerate(row.messages):
            role, content = message.get("role"), message.get("content")
            text = content if isinstance(content, str) else ""
            if role == "assistant" and (row.trains is None or row.trains[at]):
                calls = message.get("tool_calls")
                if calls:
                    text += dumps(calls, ensure_ascii=False, default=str)[:MAX_ANSWER]
                answers.append(text)
            elif role in {"system", "developer"}:
                told.append(text)
            else:
                asked.append(text)
        prompt, system = "\n".join(asked), "\n".join(told)
    answer = "\n".join(answers)
    return SampledRow(
        location=row.location,
        kind=row.kind,
        prompt=_drop_surrogates(prompt[:_MAX_PROMPT]),
        answer=_drop_surrogates(answer[:MAX_ANSWER]),
        ending=_drop_surrogates(answer.rstrip()[-_MAX_ENDING:]),
        length=len(answer),
        words=len(answer[:_MAX_COUNTED].split()),
        blanks=sum(not strip_blank(each) for each in answers),
        repeated=_find_repetition(answer[:_MAX_COUNTED].strip()),
        system=_drop_surrogates(system[:_MAX_ENDING]),
    )


def _find_repetition(text: str) -> bool:
    """Whether the second half of the text, or its last third, is its beginning once more."""
    if len(text) < _MIN_REPEATED:
        return False
    lengths = {(len(text) - gap) // parts for parts in (2, 3) for gap in range(5)}
    return any(text.startswith(text[-length:]) for length in lengths)


def _drop_surrogates(text: str) -> str:
    """Half of a surrogate pair can't be stored as UTF-8."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
