"""Finds private keys in text: from their BEGIN to their END, over many lines, with or without a logger's prefix.

Lines between that are not key material, such as those of other ranks, are left. Where the END never comes, the key
stops at the first line that can't belong to it.
"""

import re
from collections.abc import Iterator

Span = tuple[int, int]

_EDGE = re.compile(
    rb"-{4,5} ?(?P<edge>BEGIN|END) (?:[A-Z0-9]{1,16} ){0,4}(?:PRIVATE KEY(?: BLOCK)?|OpenVPN Static key V1) ?-{4,5}"
)
_ANCHORS = (b"PRIVATE KEY", b"Static key V1")
_PUTTY_ANCHOR = b"Private-Lines"
_PUTTY = re.compile(rb"Private-Lines: ?(\d{1,3})")
# How keys in DER or in OpenSSH's format begin, in base64: their BEGIN may be in a part of the log that is gone.
_DER = re.compile(rb"MII[A-Za-z0-9]{2}[A-Za-z]?IBA(?:AKC|DANBgkqhkiG9w0BAQEFAASC)|b3BlbnNzaC1rZXktdjE")
_DER_ANCHORS = (b"IBAAKC", b"IBADANBgkqhkiG9w0BAQEFAASC", b"b3BlbnNzaC1rZXktdjE")
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="
# What Python, JSON and shells put behind a line of a key: quotes, commas, escaped line ends.
_TRAILER = re.compile(rb"(?:\\+[nrt]|[\s\"'`,+)\]};|\\])*\Z")
_LONGEST_TRAILER = 16
# The rest of a key that is printed as one line: words, or escaped line ends.
_SAME_LINE = re.compile(rb"(?:(?:\\+[nrt]|[ \t\"',]){0,8}[A-Za-z0-9+/=]{16,65536}){0,2000}")
# A short last line has these, or is a word of somebody else.
_NO_WORD = re.compile(rb"[0-9+/=]|[a-z][A-Z]")
_HEADER = re.compile(
    rb"(?:Proc-Type|DEK-Info|Version|Comment|Hash|Charset|MessageID|Subject|X-[\w-]{1,20}): ?[^\r\n]{0,200}\s*\Z"
)
# Lines of a key, of which the first may be cut, too.
_CUT_KEY = re.compile(rb"[A-Za-z0-9+/]{0,76}\r?\n(?:[A-Za-z0-9+/]{64}\r?\n){2,}|(?:[A-Za-z0-9+/]{70}\r?\n){2,}")
_FULL_LINE = 40
_MOST_LINES = 2000
_FARTHEST_END = 262_144
_LONGEST_LINE = 65_536
_DIGITS = re.compile(rb"\d+")
_LONGEST_PREFIX = 1000


def mentions_private_key(data: bytes) -> bool:
    """Whether it is worth looking for keys."""
    return any(anchor in data for anchor in (*_ANCHORS, *_DER_ANCHORS, _PUTTY_ANCHOR))


def find_private_keys(data: bytes, *, cut: bool = False) -> Iterator[Span]:
    """The parts of keys, one for each line; they may repeat and overlap.

    `cut`: the beginning of the text is missing, so that it may begin within a key.
    """
    if cut and (first := _CUT_KEY.match(data)) is not None:
        yield from _find_lines(data, 0, b"", _MOST_LINES, stop=first.end() + _LONGEST_LINE)
    if any(anchor in data for anchor in _ANCHORS):
        yield from _find_blocks(data)
    if _PUTTY_ANCHOR in data:
        for found in _PUTTY.finditer(data):
            stop = found.end() + _LONGEST_LINE
            at = _find_next_line(data, found.end(), stop)
            yield from _find_lines(data, at, _find_prefix(data, found.start()), int(found[1]), stop=stop)
    if any(anchor in data for anchor in _DER_ANCHORS):
        last = 0
        for found in _DER.finditer(data):
            if found.start() >= last:
                for span in _find_body(data, found.start(), len(data), _find_prefix(data, found.start()), ended=False):
                    last = span[1]
                    yield span


def _find_blocks(data: bytes) -> Iterator[Span]:
    last = 0
    edges = list(_EDGE.finditer(data))
    for number, begin in enumerate(edges):
        if begin["edge"] == b"END":
            if number == 0 or edges[number - 1]["edge"] == b"END":
                # Its beginning is in a part that is gone.
                yield from _find_body_before(data, max(last, begin.start() - _FARTHEST_END), begin)
            last = begin.end()
            continue
        follower = edges[number + 1] if number + 1 < len(edges) else None
        # Ranks that print at the same time may nest their keys.
        end = next((edge for edge in edges[number + 1 : number + 9] if edge["edge"] == b"END"), None)
        if end is not None and end.start() - begin.end() > _FARTHEST_END:
            end = None
        prefix = _find_prefix(data, begin.start())
        yield begin.span()
        if end is not None and data.find(b"\n", begin.end(), end.start()) < 0:
            yield begin.start(), end.end()
        elif end is not None:
            yield from _find_body(data, begin.end(), end.start(), prefix, ended=True)
            yield end.span()
        else:
            stop = follower.start() if follower is not None else len(data)
            yield from _find_body(data, begin.end(), stop, prefix, ended=False)
        last = begin.end()


def _find_prefix(data: bytes, start: int) -> bytes:
    """What stands before a key on its first line, with all digits equal: loggers put the time there."""
    first = max(0, start - _LONGEST_PREFIX)
    line_start = max(data.rfind(end, first, start) + 1 for end in (b"\n", b"\r"))
    return _shape_prefix(data[max(first, line_start) : start])


def _shape_prefix(text: bytes) -> bytes:
    return _DIGITS.sub(b"0", text[:_LONGEST_PREFIX]).strip().strip(b"\"'([")


def _find_body(data: bytes, start: int, stop: int, prefix: bytes, *, ended: bool) -> Iterator[Span]:
    rest = _SAME_LINE.match(data, start, stop)
    if rest is not None and rest.end() > start:
        yield rest.span()
        start = rest.end()
    yield from _find_lines(data, _find_next_line(data, start, stop), prefix, _MOST_LINES, stop=stop, ended=ended)


def _find_next_line(data: bytes, start: int, stop: int) -> int:
    """Where the next line begins; `stop` if there is none."""
    return data.find(b"\n", start, min(stop, start + _LONGEST_LINE)) + 1 or stop


def _find_lines(data: bytes, at: int, prefix: bytes, count: int, *, stop: int, ended: bool = False) -> Iterator[Span]:
    """Key material on at most `count` lines from the one at `at` on.

    A key that ended may have lines of others in it; of one that didn't, the first short line is the last.
    """
    stop = min(stop, len(data))
    while at < stop and count > 0:
        line_end = data.find(b"\n", at, min(stop, at + _LONGEST_LINE))
        end = line_end if line_end >= 0 else min(stop, at + _LONGEST_LINE)
        span = _find_material(data, at, end, prefix)
        if span is not None and span[0] < span[1]:
            short = not ended and span[1] - span[0] < _FULL_LINE
            if not short or _NO_WORD.search(data, *span):
                yield span
            if short and span[0] > 0:
                return
        elif span is None and not ended:
            return
        count -= 1
        at = line_end + 1 or stop


def _find_material(data: bytes, start: int, end: int, prefix: bytes) -> Span | None:
    """The key material on this line: empty on a blank line, None if the line is somebody else's."""
    line = data[start:end]
    # A box has blanks up to its edge.
    line = line.rstrip(b" \t\r|")
    trailer = _TRAILER.search(line, max(0, len(line) - _LONGEST_TRAILER))
    text = line[: trailer.start()] if trailer is not None else line
    before = text.rstrip(_BASE64)
    size = len(text) - len(before)
    shape = _shape_prefix(before)
    same = shape == prefix
    if not text.strip() or (same and not size):
        return start, start
    if same or size >= _FULL_LINE or (size >= _FULL_LINE // 2 and shape.endswith(prefix)):
        return start + len(before), start + len(text)
    header = _HEADER.search(line, 0, 1000)
    return (start, start) if header is not None else None


def _find_body_before(data: bytes, first: int, end: "re.Match[bytes]") -> Iterator[Span]:
    """Key material on the lines above an END without a BEGIN."""
    yield end.span()
    prefix = _find_prefix(data, end.start())
    at = data.rfind(b"\n", first, end.start())
    if at < 0:
        return
    # The last line of the key may be short, and PGP's checksum follows it.
    short_lines = 2
    while at > first and short_lines >= 0:
        start = max(data.rfind(b"\n", first, at) + 1, first)
        span = _find_material(data, start, at, prefix)
        if span is None:
            return
        short_lines -= span[1] - span[0] < _FULL_LINE
        if span[0] < span[1] and (short_lines >= 0 or start == first == 0):
            yield span
        if span[1] - span[0] >= _FULL_LINE:
            short_lines = 0
        at = start - 1
