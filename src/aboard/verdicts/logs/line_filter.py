"""A fast filter for lines worth parsing: most of a log is progress, and a gigabyte must be skipped quickly."""

_WORDS = (
    *("rror", "xception", "raceback", "ailed", "ailure", "FAIL", "NCCL WARN", "imed out", "imeout", "IMEOUT", "timed"),
    *("refused", "reset by", "losed", "illed", "illing", "signal", "SIG", "enied", "ot found", "No such", "no socket"),
    *("annot", "an't", "exit", "Xid", "DUE TO", "oom", "OOM", "emory", "ismatch", "nterrupt", "Init ", "Bootstrap"),
    *("Using network", "Using internal", "NET/IB", "NCCL version", "atchdog", "eartbeat", "RDMA", "Root Cause"),
    *("CANCELLED", "ault", "bort", "uplicate", "stuck", "nable", "issing", "nvalid", "space left", "uota", "Read-only"),
    *("responding", "tale", "blocked for", "nan", "NaN", "NAN", "inf", "host  ", "rank  ", "time  ", "exitcode"),
    *("Expired", "Rewound", "CHANGED", "ssert", "llegal", "fallen", "ECC", "NVLink", "SXid", "Slowdown", "Ninja"),
    *("nvalid", "unrecognized", "required", "Gated", "offline", "Offline", "reduction", "ready only", "central"),
    *("Header", "UNAVAIL", "not match", "expects same", "core dumped", "FATAL", "binding", "equal to", "hostfile"),
    *("requested", "torn", "unexpected", "Unexpected", "incomplete", "last enqueued", "throttle", "ultiple Ranks"),
    *("mixed", "incompatible", "insufficient", "too old", "no GPU", "No CUDA", "no CUDA", "no kernel", "lookup"),
    *("loss scale", "ancdata", "new thread", "fork", "bad_alloc", "mmap", "pos ", "not a valid", "have a file"),
    *("local folder", "world size", "sendBytes", "recvValue", "peer", "ordinal", "handle", "Node failure", "Broken"),
    *("No route", "nreachable", "resolve", "kex_", "returned", "ssh:", "command not", "chdir", "execve", "WorkNCCL"),
    *("dump signal", "process down", "nv files", "device driver", "key in", "identification", "network addresses"),
    *("monitoredBarrier", "Terminat", "terminat", "failed", "Enabled", "isabled", "retrying", "mark a variable"),
    *("manag", " PD ", "PENDING", "Reason=", "exhausted"),
)
# Searched one by one: a pattern of all these words is three times as slow.
_TRIGGERS = tuple(dict.fromkeys(_WORDS))
_STEPS = ("loss", "step", "it/s]", "s/it", "iteration", "epoch", "Epoch", "tokens/s", "samples/s", "throughput")
_DIGITS = b"0123456789"
_MOST_SHAPES = 200_000

# Flags of a line.
DULL, PROGRESS, WORTH = 0, 1, 2


class LineFilter:
    """Remembers the shapes of lines without digits, so that a line like a known one is classified for free."""

    def __init__(self) -> None:
        self._shapes: dict[int, int] = {}

    def kind(self, line: bytes) -> int:
        shape = hash(line.translate(None, _DIGITS))
        known = self._shapes.get(shape)
        if known is None:
            if len(self._shapes) >= _MOST_SHAPES:
                self._shapes.clear()
            known = self._shapes[shape] = _classify_line(line.decode("utf-8", "replace"))
        return known


def _classify_line(text: str) -> int:
    worth = any(word in text for word in _TRIGGERS)
    steps = any(word in text for word in _STEPS)
    return (WORTH if worth else DULL) | (PROGRESS if steps else DULL)
