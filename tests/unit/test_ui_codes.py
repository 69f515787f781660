"""Every code that a rule can emit has its story, read off the source of the rules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from aboard.verdicts.told import TOLD

ROOMS = Path(__file__).parents[2] / "src" / "aboard"
JUDGES = (ROOMS / "checks", ROOMS / "data" / "gate")
# These have a `code` of another kind, or are the stories themselves.
OTHERS = {"Story", "Output"}


def emitted(source: str) -> Iterator[str]:
    """What stands behind `code=` in a file, as patterns; for a variable, every word there that looks like a code."""
    tree = ast.parse(source)
    stories = {id(part) for call in _calls(tree) if _name(call) == "Story" for part in ast.walk(call)}
    handed_on = False
    for call in _calls(tree):
        for keyword in call.keywords:
            if keyword.arg == "code" and _name(call) not in OTHERS:
                yield from _patterns(keyword.value)
                handed_on |= isinstance(keyword.value, ast.Name)
    if handed_on:
        names = "|".join(subject.name for subject in TOLD)
        for part in ast.walk(tree):
            word = part.value if isinstance(part, ast.Constant) and id(part) not in stories else None
            if isinstance(word, str) and re.fullmatch(rf"({names})-[a-z0-9-]+", word):
                yield re.escape(word)


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _patterns(value: ast.expr) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(code)):
            yield re.escape(code)
        case ast.JoinedStr(values=parts):
            yield "".join(re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+" for part in parts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _patterns(body)
            yield from _patterns(orelse)


def test_every_code_has_its_story() -> None:
    """Lists, by file, what `aboard why` could not explain."""
    told = [story.code for subject in TOLD for story in subject.stories]
    missing = sorted(
        f"{path.relative_to(ROOMS)}: {pattern}"
        for room in JUDGES
        for path in room.rglob("*.py")
        for pattern in emitted(path.read_text("utf-8"))
        if not any(re.fullmatch(pattern, code) for code in told)
    )
    assert missing == []


def test_codes_are_found_however_they_are_written() -> None:
    """Plain, made up of parts, one of two, handed on in a variable; a story's own code isn't one that is emitted."""
    source = """
Finding(code="host-clock")
Finding(code=f"reach-{reason}")
replace(finding, code="host-a" if worse else "host-b")
def made(code): return Finding(code=code)
made("reach-handed-on")
Story(code="host-told")
Output(code=0)
"""
    assert set(emitted(source)) == {r"host\-clock", r"reach\-.+", r"host\-a", r"host\-b", r"reach\-handed\-on"}
