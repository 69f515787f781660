"""What several rules need to know about sampled rows, computed once: words, prose or code, language."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from re import compile as compile_pattern

from aboard.diagnoses import NO_FIX, Diagnosis, Finding, Fix, Severity, join_fixes
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality.data_evidence import DataEvidence, format_share
from aboard.trainer.data.quality.flagged_rows import MAX_EXAMPLES
from aboard.trainer.data.quality.jq_filters import build_answer_filter, has_json_lines, name_output
from aboard.trainer.data.quality.row_sample import SampledRow
from aboard.trainer.data.quality.rules.unreadable_rows import build_view_fix
from aboard.trainer.data.rows import RowLocation

# Fewer rows show no pattern.
MIN_ROWS = 20
_SHOWN = 60
_WORD = compile_pattern(r"[^\W_]+(?:['\u2019][^\W_]+)?")
_CODE = compile_pattern(
    r"```|[{};][ \t]{0,4}\n|\n[ \t]{2,8}\S|^[{\[<]|\b(?:def|return|import|function|class|SELECT|FROM|void|const|let)\b"
    r"[^\n]{0,80}[(;:={*]|=>|==|\(\)|\\[a-z]+\{|\$[^ $]|&&|\|\||</|(?:^|\s)--?[a-z]"
)
_CODE_CHARACTERS = compile_pattern(r"[`{};<=\\$&|*\[]|\(\)|\s-|\n[ \t]")
# Enough to recognise the language of a sentence; words that several of these languages share are left out.
_FUNCTION_WORDS = {
    "English": "the of and is to that it for with are this be by from or you your have can not which as on at",
    "German": "der die das und ist nicht ein eine den dem mit für auf von zu sich wird sind auch im als wie oder bei",
    "French": "le les et est une des du dans pour que qui sur pas avec sont il elle au cette ce vous nous plus par",
    "Spanish": "el los las y es una del en por con para que como más su está son se lo pero sus al este esta",
    "Italian": "il gli è una della di che per con non sono del nel anche questo più come alla dei delle ha le si",
    "Portuguese": "o os e é uma da do em para com não que por mais como são no na ao pelo sua seu dos das um",
    "Dutch": "de het een van en is dat op te zijn met voor niet aan ook door wordt om bij naar deze maar dan er",
}
_LANGUAGES: dict[str, list[str]] = {}
for _name, _words in _FUNCTION_WORDS.items():
    for _each in filter(lambda word: len(word) > 1, _words.split()):
        _LANGUAGES.setdefault(_each, []).append(_name)
_LABEL_WORDS = 5


@dataclass(frozen=True, kw_only=True, eq=False)
class SampledTexts:
    """The sampled rows in file order, with the words of each prompt and answer in lower case."""

    rows: tuple[SampledRow, ...]

    @cached_property
    def answers(self) -> list[str]:
        return [row.answer.strip() for row in self.rows]

    @cached_property
    def prompt_words(self) -> list[list[str]]:
        return [_WORD.findall(row.prompt.lower()) for row in self.rows]

    @cached_property
    def words(self) -> list[list[str]]:
        return [_WORD.findall(text.lower()) for text in self.answers]

    @cached_property
    def is_code(self) -> list[bool]:
        return [_CODE_CHARACTERS.search(text) is not None and _CODE.search(text) is not None for text in self.answers]

    @cached_property
    def asks_for_code(self) -> list[bool]:
        """Whether the prompt itself has or requests markup or code, so that the answer may be made of it."""
        wanted = {"html", "xml", "css", "svg", "tag", "code", "function", "script", "template", "regex", "json", "sql"}
        return [
            not wanted.isdisjoint(words) or "<" in row.prompt or "{" in row.prompt or "\\" in row.prompt
            for row, words in zip(self.rows, self.prompt_words, strict=True)
        ]

    @cached_property
    def prose(self) -> list[int]:
        """Rows whose answer is several words and neither code nor labels."""
        return [
            at
            for at, words in enumerate(self.words)
            if len(words) > _LABEL_WORDS and not self.is_code[at] and not self.answers[at].isupper()
        ]

    @cached_property
    def keys(self) -> list[str]:
        """Equal for answers that differ in case, punctuation and white space only."""
        return [" ".join(words) or text for words, text in zip(self.words, self.answers, strict=True)]

    @cached_property
    def prompt_keys(self) -> list[str]:
        return [" ".join(words) or row.prompt.strip() for words, row in zip(self.prompt_words, self.rows, strict=True)]

    @cached_property
    def answered_rows(self) -> list[int]:
        """Rows that have a prompt and an answer."""
        return [at for at, row in enumerate(self.rows) if row.prompt.strip() and self.answers[at]]


def build_texts(evidence: DataEvidence) -> SampledTexts:
    return SampledTexts(
        rows=tuple(sorted(evidence.statistics.sample.rows, key=lambda row: (row.location.file, row.location.line)))
    )


def count_function_words(words: Iterable[str]) -> Counter[str]:
    """How many of the words are function words of a language, for each language."""
    return Counter(name for word in words for name in _LANGUAGES.get(word, ()))


@dataclass(frozen=True, kw_only=True)
class RowSign:
    """Rows that show the same damage; its share decides the severity: below `warn` it is a remark, if `note` is set."""

    diagnosis: Diagnosis
    message: str
    why: str
    rows: Sequence[int]
    total: int
    warn: float
    block: float = 2.0
    note: bool = False
    at_least: int = 4
    show_prompt: bool = False
    removable: bool = False


SignFinder = Callable[[SampledTexts], Iterator[RowSign]]


def report_signs(evidence: DataEvidence, texts: SampledTexts, finders: Iterable[SignFinder]) -> Iterator[Finding]:
    """One finding for each sign that has enough rows."""
    if not texts.rows:
        return
    for find in finders:
        for sign in find(texts):
            severity = _judge_share(sign)
            if severity is not None:
                yield _build_finding(evidence, texts, sign, severity)


def _judge_share(sign: RowSign) -> Severity | None:
    count, total = len(sign.rows), sign.total
    if not count or (total < MIN_ROWS and not sign.note):
        return None
    if count >= sign.block * total and count >= sign.at_least:
        return Severity.BLOCK
    if count >= sign.warn * total and count >= sign.at_least:
        return Severity.WARN
    return Severity.INFO if sign.note else None


def _build_finding(evidence: DataEvidence, texts: SampledTexts, sign: RowSign, severity: Severity) -> Finding:
    shown = [texts.rows[at] for at in sign.rows[:MAX_EXAMPLES]]
    examples = ", ".join(
        f"{row.location} ('{escape_text(row.prompt if sign.show_prompt else row.answer, _SHOWN)}')" for row in shown
    )
    sampled = len(texts.rows) < evidence.statistics.rows - evidence.statistics.broken
    return sign.diagnosis.finding(
        severity=severity,
        nodes=(),
        seen=f"{f'in a sample of {len(texts.rows):,} rows: ' if sampled else ''}"
        f"{format_share(len(sign.rows), sign.total)} {sign.message}: {examples}"
        f"{' …' if len(sign.rows) > MAX_EXAMPLES else ''}",
        why=sign.why,
        fix=join_fixes(
            build_view_fix(shown[0].location, sign.diagnosis),
            _build_removal_fix(evidence, sign, shown[0].location),
            evidence.allow(sign.diagnosis),
        ),
    )


def _build_removal_fix(evidence: DataEvidence, sign: RowSign, location: RowLocation) -> Fix:
    """Removes the rows, where a command can."""
    answered = build_answer_filter(evidence.format)
    if not (sign.removable and answered and has_json_lines(location) and len(sign.rows) < sign.total):
        return NO_FIX
    keep = f"fromjson? | objects | select({answered})"
    return sign.diagnosis.fix("keep", filter=keep, file=location.file, kept=name_output(location, "kept"))
