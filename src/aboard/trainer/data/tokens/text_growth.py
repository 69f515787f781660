"""How much longer a tokenizer makes a text: a file of a few hundred bytes can ask for more than any memory has."""

from math import prod
from pathlib import Path
from typing import Any

from aboard.core.decoding import DecodeError, decode_with, parse_json
from aboard.diagnoses import AboardError
from aboard.diagnoses.untrusted import escape_text
from aboard.foreign_files import read_foreign_file
from aboard.trainer.diagnoses import data

# Real ones replace a space by a mark, or a quote by another.
MOST_GROWTH = 1000
# The largest real ones have 40 MB.
_MOST_BYTES = 1 << 30
# Of sentencepiece's table: the longest decomposition of Unicode is shorter.
_TABLE_GROWTH = 32


def refuse_growth(file: Path) -> None:
    """Refuses a tokenizer.json whose replacements multiply, before it is loaded, which applies them to its own tokens.

    One that is not JSON is left to the loader, which says what is wrong.
    """
    try:
        growth = decode_with(_measure_file, read_foreign_file(file.resolve(), _MOST_BYTES))
    except (OSError, DecodeError):
        return
    if growth > MOST_GROWTH:
        path = escape_text(str(file), 400)
        seen = f"the replacements in {path} make a text up to {growth:.3g} times as long, more than {MOST_GROWTH:,}"
        raise AboardError(data.TOKENIZER, seen, "broken", file=file)


def _measure_file(data: bytes) -> float:
    content = parse_json(data)
    return max(measure_growth(content.get(part)) for part in ("normalizer", "decoder"))


def measure_growth(step: Any) -> float:
    """The most by which a normalizer or decoder multiplies the length of a text; sequences multiply."""
    if step is None or step.get("type") not in ("Sequence", "Replace", "Precompiled"):
        return 1.0
    if step["type"] == "Precompiled":
        return _TABLE_GROWTH
    if step["type"] == "Sequence":
        return prod(map(measure_growth, step.get("normalizers") or step.get("decoders") or ()), start=1.0)
    found, content = step.get("pattern", {}).get("String"), len(step.get("content", ""))
    # A regular expression can match between any two characters.
    return max(1.0, content / len(found)) if found else content + 1.0
