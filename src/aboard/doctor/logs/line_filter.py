"""Which lines of a log are worth parsing: those of trouble, of progress, and those that say how the run ended."""

import re

from aboard.doctor.logs.line_prefixes import split_terminal_line
from aboard.doctor.logs.pattern_keywords import WordIndex

# Most of a log is progress, and a gigabyte must be skipped quickly: only a line with one of these words is parsed.
_WORDS = (
    *("rror", "xception", "raceback", "ailed", "ailure", "FAIL", "NCCL WARN", "imed out", "imeout", "IMEOUT"),
    *("timed", "refused", "reset by", "losed", "illed", "illing", "signal", "SIG", "enied", "ot found", "No such"),
    *("no socket", "annot", "an't", "exit", "Xid", "DUE TO", "oom", "OOM", "emory", "ismatch", "nterrupt"),
    *("Init ", "Bootstrap", "Using network", "Using internal", "NET/IB", "NCCL version", "atchdog", "eartbeat"),
    *("RDMA", "Root Cause", "CANCELLED", "ault", "bort", "uplicate", "stuck", "nable", "issing", "nvalid"),
    *("space left", "uota", "Read-only", "responding", "tale", "blocked for", "nan", "NaN", "NAN", "inf"),
    *("host  ", "rank  ", "time  ", "exitcode", "Expired", "Rewound", "CHANGED", "ssert", "llegal", "fallen"),
    *("ECC", "NVLink", "SXid", "Slowdown", "Ninja", "unrecognized", "required", "Gated", "offline", "Offline"),
    *("reduction", "ready only", "central", "Header", "UNAVAIL", "not match", "expects same", "core dumped"),
    *("FATAL", "binding", "equal to", "hostfile", "requested", "torn", "unexpected", "Unexpected", "incomplete"),
    *("last enqueued", "throttle", "ultiple Ranks", "mixed", "incompatible", "insufficient", "too old", "no GPU"),
    *("No CUDA", "no CUDA", "no kernel", "lookup", "loss scale", "ancdata", "new thread", "fork", "bad_alloc"),
    *("mmap", "pos ", "not a valid", "have a file", "local folder", "world size", "sendBytes", "recvValue"),
    *("peer", "ordinal", "handle", "Node failure", "Broken", "No route", "nreachable", "resolve", "kex_"),
    *("returned", "ssh:", "command not", "chdir", "execve", "WorkNCCL", "dump signal", "process down", "nv files"),
    *("device driver", "key in", "identification", "network addresses", "monitoredBarrier", "Terminat"),
    *("terminat", "failed", "Enabled", "isabled", "retrying", "mark a variable", "manag", " PD ", "PENDING"),
    *("Reason=", "exhausted", "WARN", "CRITICAL", "anic", "<0>", "<1>", "<2>", "<3>", "ERR", "Oops", "BUG:"),
    *("on-zero", "tarting", "ever ", "ould not", "ouldn't", "ailing", "behind", "rejected", "limit ", "Rank  0"),
    *("ABORT", "set by environment", "set to", "NET/OFI", "PMI", "amdgpu", "omponent:", "mporting docker"),
    *(" via NET/", " via P2P", " via SHM", "et plugin", "/Plugin", "coll channels", "internal tuner", "GDR "),
    *("GPU Direct",),
)
_TRIGGERS = WordIndex(_WORDS)
_SEVERE = re.compile(r"(?:^|[\s:>\]])[EF]\d{3,4} \d\d:|\[[EF](?:\d{3,4} [\d:.]+)?(?:\]| \S+:\d+\])")
_STEPS = re.compile(
    r"\b(?:lm[- ])?loss\b|_loss\b|(?<!slurm)step|it/s\]|s/it|iteration|[Ee]poch|tokens/s|samples/s|throughput"
    r"|\bbusbw:"
)
# What launchers, schedulers, frameworks and benchmarks print after a run that ended well.
_CLOSING = re.compile(
    r"(?i:exit(?:ed)?(?: with)?(?: exit)?[ _](?:code|status)\b\D{0,4}|\bret(?:urn)?_?code[ =:]{1,3})0(?::0)?(?![\d.])"
    r"|exits successfully|\btrain_runtime\b|(?i:\btraining (?:is )?(?:completed?|done|finished)\b)"
    r"|(?i:\b(?:finished|completed) training\b)|`?Trainer\.fit`? stopped|after training is done"
    r"|^(?:\d+: )?RESULT,|ENDING TIMING RUN|\bAvg bus bandwidth\b|\"run_stop\".*\"success\"|JobState=COMPLETED"
    r"|\bState=COMPLETED|\bJob (?:\S+ )?(?:succeeded|completed|finished)\b|(?i:^(?:all )?done[.!]?$)"
)
_CLOSING_WORDS = (
    *("xit", "ode", "uccess", "train_runtime", "raining", "Trainer.fit", "RESULT,", "ENDING", "Avg bus", "COMPLETED"),
    *("ucceeded", "ompleted", "inished", "done"),
)
_STEP_WORDS = ("loss", "step", "it/s]", "s/it", "iteration", "poch", "tokens/s", "samples/s", "throughput", "busbw:")
_DIGITS = b"0123456789"
_MOST_LINE_SHAPES = 200_000
_MOST_WATCHED = 20_000
_TIMES_GROWN = 3
# Of a flood of one shape, lines beyond these many are only sampled: enough for each of many ranks to be seen.
_PARSED_WHOLE = 20_000
_SAMPLED = 64
_CLOCK = re.compile(rb"\d{4}-\d\d-\d\d[ T_][\d:.,]+|\d\d:\d\d:\d\d[.,\d]*|\[ *\d+\.\d{6}\]|\bE?\d{4} |\b20\d\d\b")
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_INTEGER = re.compile(r"\d+")

# Flags of a line: it has words of a failure, it is a step, it may say that the run ended, one of its numbers grows.
DULL, STEP, WORTH, CLOSES, GROWS = 0, 1, 2, 4, 8
_UNDECIDED = 16


class LineFilter:
    """Remembers the shapes of lines without digits, so that a line like a known one is classified for free."""

    def __init__(self) -> None:
        self._shapes: dict[int, int] = {}
        self._counts: dict[int, int] = {}
        self._watched: dict[int, tuple[int, tuple[float, ...]]] = {}

    def kind(self, line: bytes) -> int:
        shape = hash(line.translate(None, _DIGITS))
        known = self._shapes.get(shape)
        if known is None:
            known = _classify_line(line)
            if len(self._shapes) >= _MOST_LINE_SHAPES:
                return known
            if known == DULL and len(self._watched) < _MOST_WATCHED:
                known = _UNDECIDED
            self._shapes[shape] = known
        if known == _UNDECIDED:
            return self._watch(shape, line)
        if known & WORTH:
            count = self._counts[shape] = self._counts.get(shape, 0) + 1
            if count > _PARSED_WHOLE and count % _SAMPLED:
                return known & ~WORTH
        return known

    def _watch(self, shape: int, line: bytes) -> int:
        """A shape whose numbers grow each of the first times is progress of whatever program prints it."""
        numbers = tuple(float(number) for number in _NUMBER.findall(_CLOCK.sub(b"", line[:400])))
        times, before = self._watched.get(shape, (0, ()))
        if before and not (len(before) == len(numbers) and any(map(float.__gt__, numbers, before))):
            times = -1
        if times < 0 or not numbers or times + 1 == _TIMES_GROWN:
            self._watched.pop(shape, None)
            self._shapes[shape] = GROWS if numbers and times >= 0 else DULL
            return self._shapes[shape]
        self._watched[shape] = times + 1, numbers
        return DULL


def is_closing_line(text: str) -> bool:
    """Whether a line says that a run, a benchmark or a process ended well."""
    return _CLOSING.search(text) is not None


def is_step_line(text: str) -> bool:
    """Whether a line reports a step of training, or of a benchmark."""
    named = any(word in text for word in _STEP_WORDS)
    return named and _STEPS.search(text) is not None and any(char.isdecimal() for char in text)


def _classify_line(line: bytes) -> int:
    text = line.decode("utf-8", "replace")
    worth = _TRIGGERS.find(text) or _SEVERE.search(text)
    steps = is_step_line(text)
    closes = any(word in text for word in _CLOSING_WORDS)
    # Most lines with such a word end nothing, whatever their numbers are.
    closes = closes and any(is_closing_line(_INTEGER.sub("0", part)) for part in split_terminal_line(line))
    return (WORTH if worth else DULL) | (STEP if steps else DULL) | (CLOSES if closes else DULL)
