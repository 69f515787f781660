"""Lines that look like trouble although no known message matches: how bad they look, and which to show."""

import re
from collections.abc import Iterable

from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.logs.line_filter import is_step_line
from aboard.doctor.logs.line_prefixes import ParsedLogLine
from aboard.doctor.logs.tracebacks import is_exception_line
from aboard.lazy_dataclass import dataclass

# How bad a line looks. Words alone, wrappers and warnings count only at the end of a log that says nothing else.
FATAL, ERROR, WORDS, WRAPPER, MILD = 5, 4, 3, 2, 1
_MOST = 1_000
_REPEATED = 3
_NEAR_END = 60

_FATAL = re.compile(
    r"(?i:kernel panic|panic - not syncing|\bpanic:|segfault at|segmentation fault|fatal python error|core dumped)"
    r"|\bOops:|\bBUG: |terminate called|^(?:Aborted|Bus error|Illegal instruction)\b|SIGSEGV|SIGABRT|SIGBUS"
    r"|Assertion .{1,300} failed|(?i:general protection fault)|\bmachine check\b|Hardware Error"
)
_ERROR = re.compile(
    r"NCCL (?:WARN|ERROR) |\[(?:E|F|ERR|ERROR|FATAL|CRITICAL|error|fatal|critical)\]|<[0-3]>\[?"
    r"|\b(?:ERROR|FATAL|CRITICAL)\b(?:[:\s|\]]| -)|(?:^|[\s:])(?i:fatal error|fatal|error)(?:\(\w{1,60}\))?:(?=\s)"
    r"|^(?:kern|daemon|user|syslog) +:(?:emerg|alert|crit|err) |^[0-3],\d+,\d+,|\bMPI_ABORT\b|PMI\w{0,9} (?:error|fail)"
    r"|(?i:unhandled exception|uncaught exception)|\bhardware error\b"
)
_WORDS = re.compile(
    r"\b(?:[Ff]ail(?:ed|ure|ing)\b|FAIL(?:ED|URE)?\b|[Uu]nable to\b|[Cc]an(?:not|'t)\b|[Cc]ould(?:n'?t| not)\b"
    r"|[Ee]rror\b|[Ii]nvalid\b|[Rr]efused\b|[Dd]enied\b|not (?:found|permitted|supported|available)\b|mismatch"
    r"|[Tt]imed? ?out\b|non-zero status|[Aa]bort(?:ed|ing)?\b|[Nn]o such (?:file|device)|exhausted\b|rejected\b"
    r"|limit \d* ?reached|[Uu]nreachable\b|stuck\b|[Cc]rash(?:ed)?\b)|(?:Error|Exception)\b|before \w+ initialization"
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|^(?:kern|daemon) +:warn |\[(?:W|WARN|WARNING)\]|^4,\d+,\d+,|<4>\[")
# Warnings that only advise, in words of NCCL and RCCL.
_ADVICE = re.compile(
    r"(?:can|may|could) (?:lead to|impact|cause|reduce|result in)|for best performance|[Cc]onsider \w+ing\b"
)
# What passes a failure on: the reason is in a line before, mostly that of an inner program.
_WRAPPER = re.compile(
    r"child \d+ failed with error|failed to import docker image|printing contents of log file|spank|required plugin"
    r"|write to unblock task|CalledProcessError|ChildFailedError|RayTaskError|non-zero exit status|SignalException"
    r"|CheckpointException|NCCL INFO \S{1,200} -> \d|error in: /|\bmake(?:\[\d+\])?: \*\*\*|error_file: |Root Cause"
    r"|\[INFO\]|couldn't start container|signal dumping|Stack trace of the failed collective not found"
    r"|Failed to execute operation|unhandled (?:system|cuda) error|Traceback \(most recent"
)
# Messages with such words in runs that are well; Python prints the second after the program's own end.
_HARMLESS = re.compile(
    r"\b(?:no|0|zero|without|ignor\w*|suppress\w*) (?:\w+ )?(?:error|failure|fault)s?\b|exception ignored in"
    r"|(?:errors?|failures?|failed)['\"]?\s*[:=]\s*['\"]?(?:0\b|none\b|false\b|null\b)|error[\w-]{0,40}=\S"
    r"|\berror (?:rate|time|handl)|\w_(?:error|fail)|NCCL INFO|out of bounds values|on[_-]error|ERROR: ld\.so"
    r"|exit(?:ed with)? (?:code|status)\D{0,3}0\b|(?:raise|log|report|error)[_ -](?:level|file)|warnings?\.warn",
    re.IGNORECASE,
)


@dataclass(slots=True, kw_only=True)
class Trouble:
    """The first line of its shape, its source, the lines before it, and when such a line came last."""

    text: Untrusted
    weight: int
    file: int
    line: int
    at: float | None
    node: str
    rank: int | None
    before: tuple[Untrusted, ...]
    seen_at: int
    last_at: int
    moves: int
    first_moves: int = 0
    count: int = 1


def weigh_trouble(parsed: ParsedLogLine, whole: str) -> int:
    """How bad an unmatched line looks: one of the constants above, or 0."""
    text = parsed.text
    if _FATAL.search(text):
        return FATAL
    if _HARMLESS.search(text):
        return 0
    if _WRAPPER.search(text):
        return WRAPPER
    return _weigh_marks(parsed, whole)


def _weigh_marks(parsed: ParsedLogLine, whole: str) -> int:
    text = parsed.text
    if parsed.level[:1] in ("I", "D") and not _WORDS.search(text):
        return 0
    if parsed.mild or _ADVICE.search(text):
        return MILD
    marked = parsed.level[:1] in ("E", "F", "C") or _ERROR.search(text) or _ERROR.search(whole)
    if marked or is_exception_line(text):
        return ERROR
    if is_step_line(text):
        return 0
    if _WARNING.search(whole):
        return MILD
    return WORDS if _WORDS.search(text) else 0


def rank_troubles(
    troubles: Iterable[Trouble], *, lines: int, closed_at: int, moved_at: int, moves: int, survived: int
) -> list[Trouble]:
    """The worst first, the earliest of equals; what the run survived, or what came after its end, is none."""
    found = []
    for each in troubles:
        after = moves - each.moves
        if each.weight >= ERROR:
            # Buffers delay the lines of other ranks, so some progress after a line says little.
            over = after > survived or each.last_at < closed_at or (after >= _REPEATED and moved_at > lines - _NEAR_END)
            # What came often, each time with progress behind it, ended nothing the last time either.
            often = each.count >= _REPEATED and each.moves - each.first_moves >= _REPEATED * each.count
            over = over or (often and moved_at > each.last_at)
        elif each.weight >= WRAPPER:
            over = closed_at > 0 or moved_at > each.last_at or each.last_at < lines - _NEAR_END
        else:
            late = each.count >= _REPEATED and each.last_at >= lines - _NEAR_END // 6
            over = not late or closed_at > 0 or moved_at > each.last_at
        if not over:
            found.append(each)
    return sorted(found, key=lambda each: (-each.weight, each.file, each.line))


def thin_out(troubles: dict[int, Trouble]) -> None:
    """Of too many shapes, keeps the first of the worst and the newest."""
    if len(troubles) >= _MOST:
        worst = sorted(troubles, key=lambda shape: -troubles[shape].weight)[: _MOST // 4]
        kept = {*worst, *list(troubles)[-_MOST // 4 :]}
        for shape in [shape for shape in troubles if shape not in kept]:
            del troubles[shape]
