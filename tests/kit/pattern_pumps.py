"""Regular expressions of the package, and texts on which a backtracking matcher would take longest on each of them."""

import ast
import builtins
import importlib
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

# Private modules of the standard library, which type checkers don't know.
sre: Any = importlib.import_module("re._constants")
sre_parser: Any = importlib.import_module("re._parser")
sre_compiler: Any = importlib.import_module("re._compiler")

_METHODS = {"search", "match", "fullmatch", "finditer", "findall", "sub", "subn", "split"}
_EVERYWHERE = {"finditer", "findall", "sub", "subn", "split"}
# ASCII, a blank that only `\s` of Unicode takes, a letter and a digit beyond ASCII.
_LETTERS = [*map(chr, range(128)), "\u2003", "\u00e9", "\u0664"]
_ENDS = ("", "\x00", "\n")
_FILTER_SIZE = 400
_MOST_PREFIXES, _MOST_LETTERS = 8, 8

_Calls = dict[str, set[str]]
# The letters that each part of a pattern takes.
_KNOWN_SETS: dict[str, frozenset[str]] = {}


class UsedPattern(NamedTuple):
    name: str
    regex: "re.Pattern[Any]"
    methods: frozenset[str]
    longest: int = 262_144


class PumpTime(NamedTuple):
    """How long the pattern takes on its worst text."""

    seconds: float
    larger: float
    method: str
    text: str


class _TooLongError(Exception):
    pass


def find_patterns(package: Path) -> list[UsedPattern]:
    """Patterns that a module compiles or holds, and those that are written in a call of `re`; each with its uses."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(package.rglob("*.py"))}
    calls = {path: _find_calls(tree) for path, tree in trees.items()}
    everywhere: _Calls = {}
    for each in calls.values():
        for name, methods in each.items():
            everywhere.setdefault(name, set()).update(methods)
    found: dict[tuple[str, int], UsedPattern] = {}
    for path, tree in trees.items():
        if not any(_imports_re(node) for node in ast.walk(tree)):
            continue
        parts = path.relative_to(package.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        # What imports torch has its patterns in plain sight.
        values = {"re": re} if parts[1] == "train" else vars(importlib.import_module(module))
        named = dict(_walk_values(values))
        for name, regex in named.items():
            known = calls[path].get(name) if name.startswith("_") else everywhere.get(name)
            # One of a table is used by the name of a loop's variable.
            others = {method for owner, used in calls[path].items() if owner not in {*named, "re"} for method in used}
            others.discard("split")  # of a str, most likely
            methods = known or others or {"search", "fullmatch"}
            _add(found, UsedPattern(f"{module}.{name}", regex, frozenset(methods)))
        for method, regex in _find_inline(values, tree):
            if method == "compile":
                found.setdefault(
                    _key(regex), UsedPattern(f"{module}: {regex.pattern!r}", regex, frozenset({"fullmatch"}))
                )
                continue
            _add(found, UsedPattern(f"{module}: {regex.pattern!r}", regex, frozenset({method})))
    return list(found.values())


def time_pattern(used: UsedPattern, size: int, larger: int, *, limit: float) -> PumpTime:
    """The CPU time of one use on a text of that size, and on a larger one: the worst of all texts that may be.

    Short texts of every kind are tried first; `limit` seconds for each text are the most that is measured.
    """
    suspects = [
        (_time_once(used.regex, method, make(min(size, _FILTER_SIZE)), limit), method, make)
        for make in _make_texts(used.regex)
        for method in used.methods
    ]
    # The best of three: an interruption makes a harmless text look slow, and must not take the place of a slow one.
    first = sorted(suspects, key=lambda each: -each[0])[:8]
    first = [
        (
            min(seconds, *(_time_once(used.regex, method, make(min(size, _FILTER_SIZE)), limit) for _ in range(2))),
            method,
            make,
        )
        for seconds, method, make in first
    ]
    timed = []
    for _seconds, method, make in sorted(first, key=lambda each: -each[0])[:2]:
        seconds = _time_once(used.regex, method, make(size), limit)
        for _again in range(2):
            # The best of three, where a better one would change the verdict.
            if limit / 60 < seconds < limit:
                seconds = min(seconds, _time_once(used.regex, method, make(size), limit))
        timed.append((seconds, method, make))
    seconds, method, make = max(timed, key=lambda each: each[0])
    text = make(size)
    # What is so fast that even the square of its growth would be harmless is not measured again.
    is_worth_it = larger > size and limit / 2000 < seconds < limit
    later = _time_once(used.regex, method, make(larger), limit) if is_worth_it else seconds
    return PumpTime(seconds, later, method, f"{text[:80]!r} … {text[-20:]!r}")


def _time_once(regex: "re.Pattern[Any]", method: str, text: Any, limit: float) -> float:
    started = time.thread_time()
    try:
        with _end_after(limit):
            if method in _EVERYWHERE:
                for _match in regex.finditer(text):
                    pass
            else:
                getattr(regex, method)(text)
    except _TooLongError:
        return limit
    return time.thread_time() - started


@contextmanager
def _end_after(seconds: float) -> Iterator[None]:
    def give_up(_signal: int, _frame: FrameType | None) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _imports_re(node: ast.AST) -> bool:
    plain = isinstance(node, ast.Import) and any(each.name == "re" for each in node.names)
    return plain or (isinstance(node, ast.ImportFrom) and node.module == "re")


def _key(regex: "re.Pattern[Any]") -> tuple[str, int]:
    return repr(regex.pattern), regex.flags


def _add(found: dict[tuple[str, int], UsedPattern], used: UsedPattern) -> None:
    key = _key(used.regex)
    before = found.get(key)
    found[key] = before._replace(methods=before.methods | used.methods) if before else used


def _find_calls(tree: ast.AST) -> _Calls:
    calls: _Calls = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in _METHODS:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else owner.attr if isinstance(owner, ast.Attribute) else ""
            calls.setdefault(name, set()).add(node.attr)
    return calls


def _walk_values(values: Mapping[str, object]) -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    for name, value in values.items():
        if not name.startswith("__"):
            yield from _walk_value(name, value, 0)


def _walk_value(name: str, value: object, depth: int) -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    if isinstance(value, re.Pattern):
        yield name, value
    elif depth < 4:
        parts: Sequence[object] = ()
        if isinstance(value, dict):
            parts = (*value.keys(), *value.values())
        elif isinstance(value, tuple | list | set | frozenset):
            parts = tuple(value)
        elif not isinstance(value, type) and type(value).__module__.startswith("aboard."):
            names = (*getattr(type(value), "__slots__", ()), *getattr(value, "__dict__", {}))
            parts = tuple(getattr(value, each, None) for each in names)
        for number, part in enumerate(parts):
            yield from _walk_value(f"{name}.{number}", part, depth + 1)


def _find_inline(values: Mapping[str, object], tree: ast.AST) -> Iterator[tuple[str, "re.Pattern[Any]"]]:
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in {*_METHODS, "compile"}
            and node.args
        ):
            continue
        flags = [each for each in (*node.args[1:], *(word.value for word in node.keywords)) if _names_flags(each)]
        source = f"re.compile({ast.unparse(node.args[0])}, {ast.unparse(flags[0]) if flags else 0})"
        if isinstance(node.args[0], ast.Name | ast.Attribute) and ast.unparse(node.args[0]) not in values:
            # From a table that the test names.
            continue
        with suppress(AttributeError, TypeError):
            yield node.func.attr, eval(source, dict(values), _Words(values))  # noqa: S307 - our own source


def _names_flags(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "re" for each in ast.walk(node))


def _make_texts(regex: "re.Pattern[Any]") -> list[Callable[[int], Any]]:
    is_bytes = isinstance(regex.pattern, bytes)
    source = regex.pattern.decode("latin-1") if is_bytes else regex.pattern
    flags = regex.flags & ~re.LOCALE
    if is_bytes:
        flags = (flags & ~re.UNICODE) | re.ASCII
    tree = sre_parser.parse(source, flags)
    pieces = _Pieces(flags)
    pieces.walk(tree, "")
    prefixes = list(dict.fromkeys(["", *pieces.prefixes]))[:_MOST_PREFIXES]
    pumps = dict.fromkeys(["a", *pieces.choose_letters(), *pieces.bodies, *(each for each in prefixes if each)])
    texts: dict[tuple[str, str, str], None] = {}
    for pump in pumps:
        for end in _ENDS:
            texts["", pump, end] = None
    for prefix in prefixes:
        for pump in dict.fromkeys([*pieces.choose_letters()[:4], *pieces.bodies[:4]]):
            texts[prefix, pump, "\x00"] = None

    def make(prefix: str, pump: str, end: str) -> Callable[[int], Any]:
        def text(size: int) -> Any:
            made = prefix + pump * (size // len(pump)) + end
            return made.encode("latin-1", "replace") if is_bytes else made

        return text

    return [make(*each) for each in texts]


class _Words(dict[str, str]):
    """A value for each name that only a function knows."""

    def __init__(self, known: Mapping[str, object]) -> None:
        super().__init__()
        self._known = known

    def __missing__(self, name: str) -> str:
        if name in self._known or hasattr(builtins, name):
            raise KeyError(name)
        return "a"


class _Pieces:
    """What a parsed pattern is made of: a text that leads to each repetition, and what each one repeats."""

    def __init__(self, flags: int) -> None:
        self._flags = flags
        self._groups: dict[int, str] = {}
        self.prefixes: list[str] = []
        self.bodies: list[str] = []
        self._sets: list[frozenset[str]] = []

    def walk(self, tree: Any, prefix: str) -> str:
        """Collects the pieces and returns a text that the tree matches, behind the prefix."""
        for op, value in tree:
            prefix += self._walk_node(op, value, prefix)
        return prefix

    def _walk_node(self, op: Any, value: Any, prefix: str) -> str:  # noqa: C901, PLR0911 - one line for each kind of node
        if op in {sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT}:
            least, most, body = value
            one: str = self.walk(body, prefix)[len(prefix) :]
            if most > 1:
                self.prefixes.append(prefix)
                if one:
                    self.bodies.append(one)
            return one * min(max(int(least), 1), 40)
        if op is sre.SUBPATTERN:
            group, _on, _off, body = value
            text = self.walk(body, prefix)[len(prefix) :]
            self._groups[group] = text
            return text
        if op is sre.ATOMIC_GROUP:
            return self.walk(value, prefix)[len(prefix) :]
        if op is sre.BRANCH:
            texts = [self.walk(branch, prefix)[len(prefix) :] for branch in value[1]]
            self.prefixes.extend(prefix + text for text in texts[:8] if text)
            return max(texts, key=len)
        if op in {sre.ASSERT, sre.ASSERT_NOT}:
            self.walk(value[1], prefix)
            return ""
        if op is sre.GROUPREF:
            return self._groups.get(value, "")
        if op is sre.GROUPREF_EXISTS:
            return self.walk(value[1], prefix)[len(prefix) :]
        if op is sre.AT:
            return ""
        return self._choose(op, value)

    def _choose(self, op: Any, value: Any) -> str:
        key = repr((op, value, self._flags))
        if key not in _KNOWN_SETS:
            one = sre_parser.SubPattern(sre_parser.State())
            one.append((op, value))
            compiled = sre_compiler.compile(one, self._flags)
            _KNOWN_SETS[key] = frozenset(letter for letter in _LETTERS if compiled.fullmatch(letter))
        letters = _KNOWN_SETS[key]
        self._sets.append(letters)
        liked = [letter for letter in "a1 /=:-.\"'_" if letter in letters]
        return (liked or sorted(letters) or ["a"])[0]

    def choose_letters(self) -> list[str]:
        """One letter for each combination of sets that it belongs to: those of most sets are tried first."""
        kinds: dict[tuple[bool, ...], str] = {}
        sets = list(dict.fromkeys(self._sets))
        for letter in _LETTERS:
            kind = tuple(letter in each for each in sets)
            if any(kind):
                kinds.setdefault(kind, letter)
        return [
            letter for _count, letter in sorted((-sum(kind), letter) for kind, letter in kinds.items())[:_MOST_LETTERS]
        ]
