"""Every code that a rule can emit or an error can have has its story, read off the source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from aboard.diagnoses import AboardError, errors
from aboard.verdicts.errors import ERRORS as STORIES
from aboard.verdicts.told import TOLD

ROOMS = Path(__file__).parents[2] / "src" / "aboard"
JUDGES = (ROOMS / "checks", ROOMS / "data" / "gate")
# These have a `code` of another kind (Broken has that of a row), or are the stories themselves.
OTHERS = {"Diagnosis", "Output", "Broken"}
ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, AboardError)}
CODE = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def emitted(source: str) -> Iterator[str]:
    """What stands behind `code=` in a file, as patterns; for a variable, every word there that looks like a code."""
    tree = ast.parse(source)
    stories = {id(part) for call in _calls(tree) if _name(call) == "Diagnosis" for part in ast.walk(call)}
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


def raised(source: str) -> Iterator[str]:
    """The codes of errors in a file: first words of our errors, named constants, and what is told in plain data."""
    parts = list(ast.walk(ast.parse(source)))
    constants = {
        target.id: part.value.value
        for part in parts
        if isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant)
        for target in part.targets
        if isinstance(target, ast.Name)
    }
    for call in (part for part in parts if isinstance(part, ast.Call)):
        ours = _name(call) in ERRORS or _of_a_parent(call)
        given = [*call.args[:1]] if ours else [word.value for word in call.keywords if word.arg == "code"]
        for value in given if _name(call) not in OTHERS else ():
            named = constants.get(value.id) if isinstance(value, ast.Name) else getattr(value, "value", None)
            if isinstance(named, str) and CODE.fullmatch(named):
                yield named
    for part in parts:
        if isinstance(part, ast.Dict):
            for key, value in zip(part.keys, part.values, strict=True):
                told = getattr(key, "value", None) == "code" and getattr(value, "value", None)
                if isinstance(told, str) and CODE.fullmatch(told):
                    yield told


@cache
def _raised_in_rooms() -> list[tuple[Path, str]]:
    """Read once: all our source takes seconds."""
    return [(path, code) for path in ROOMS.rglob("*.py") for code in raised(path.read_text("utf-8"))]


def _calls(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


def _of_a_parent(call: ast.Call) -> bool:
    """`super().__init__(…)`; told by its parts, since to write each call out takes seconds for all rooms."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"):
            return True
    return False


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
Diagnosis(code="host-told")
Output(code=0)
"""
    assert set(emitted(source)) == {r"host\-clock", r"reach\-.+", r"host\-a", r"host\-b", r"reach\-handed\-on"}


def test_every_error_has_its_story() -> None:
    """Whatever a command ends with, `aboard why CODE` has more of it: in all rooms, by file."""
    told = {story.code for subject in TOLD for story in subject.stories}
    missing = sorted(f"{path.relative_to(ROOMS)}: {code}" for path, code in _raised_in_rooms() if code not in told)
    assert missing == []


def test_errors_are_found_however_they_are_written() -> None:
    """Raised, made for others to raise, by a constant's name, in a class of its own, and as plain data."""
    source = """
CODE = "data-named"
raise AboardError("data-plain", "seen", fix="fix")
def made(): return InputError(CODE, [])
class Lost(WireError):
    def __init__(self): super().__init__("wire-own", "seen", fix="fix")
told = {"code": "data-told"}
Failed(code="data-failed")
ValueError("no-code")
Diagnosis(code="data-story")
AboardError(f"reach-{reason}", "seen", fix="fix")
"""
    assert set(raised(source)) == {"data-named", "data-plain", "wire-own", "data-told", "data-failed"}


def test_stories_of_errors_are_whole() -> None:
    """A symptom, a reason and something to do, for each of them."""
    for subject in STORIES:
        for story in subject.stories:
            assert all((story.title, story.explanation, story.remedy, *story.symptoms, story.symptoms)), story.code
