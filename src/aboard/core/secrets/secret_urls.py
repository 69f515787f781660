"""Finds passwords, signed parameters and web hooks in URLs, and the values of cookies."""

import re
from collections.abc import Iterator

from aboard.core.secrets.private_keys import Span
from aboard.core.secrets.secret_tokens import is_random

_URL = re.compile(rb"://(?P<rest>[^\s\"'<>`\\]{1,8192})")
_PORT = re.compile(rb"\d{0,5}\Z")
_PLAIN = re.compile(rb"(?i)\[.*|\*+|\$.*|\{.*|%28.*|<.*|\xe2\x80\xa6.*|x{3,}|secret|password|none|pass|pw")
_HOOK = re.compile(rb"hook|/services/t[a-z0-9]{6,}/|/bot(?=\d{6,})")
_SEGMENT = re.compile(rb"(?<=[/:])[A-Za-z0-9_=-]{6,512}")
_LONG_SEGMENT = 20
_PARAMETER = re.compile(
    rb"(?:[?&;#]|%26|%3f|\\u0026)(?:amp;)?(?P<name>[\w.%\[\]-]{0,40}?(?P<kind>key|token|secret|sig|signature|auth|code|passw(?:or)?d"
    rb"|pwd|pass|credential|hmac|ticket|session|sid|jwt|sas|hash))=(?P<value>[^&\s\"'<>`\\#]{4,4096})"
)
_LOOSE = frozenset((b"key", b"code", b"hash", b"session", b"sid", b"ticket", b"pass", b"auth"))
_SIGNATURE = re.compile(rb"sig(?:nature)?=(?P<value>[\w%+/=.~-]{16,600})")
_ENCODED_LOGIN = re.compile(rb"%3a%2f%2f[^\s\"'&%]{0,64}%3a(?P<value>[^\s\"'&/]{1,256}?)%40")
_COOKIE = re.compile(rb"cookies?2?\\{0,8}[\"']?[ \t]{0,4}[:=,][ \t]{0,4}[\"'b\\]{0,3}(?P<pairs>[^\r\n\"']{3,4096})")
_PAIR = re.compile(rb"(?P<name>[\w!#$%&*+.^|~-]{1,128})=(?P<value>[^;\s,\\]{1,4096})")
_ATTRIBUTES = frozenset((b"path", b"expires", b"domain", b"max-age", b"samesite", b"version", b"priority"))
_HOST = re.compile(rb"@(?:tcp\(|unix\(|(?!sha\d)[\w.-]{1,128}:\d{2,5}(?![\w.]))")
_BARE_LOGIN = re.compile(rb"(?:^|[\s\"'=(,])[\w.-]{1,64}:(?P<password>[^\s:@/\"'()]{4,128})\Z")
_LONGEST_LOGIN = 200
_SHORTEST_TOKEN = 16
_SHORTEST_COOKIE = 6


def find_url_secrets(data: bytes, low: bytes) -> Iterator[Span]:
    """`low` is the same in lower case."""
    for found in _URL.finditer(data):
        yield from _find_login(data, *found.span("rest"))
        hook = _HOOK.search(low, *found.span("rest"))
        if hook is not None:
            yield from _find_hook(data, hook.start(), found.end())
        if b"=" in found["rest"]:
            yield from _find_parameters(data, low, *found.span("rest"))
    for found in _HOST.finditer(low):
        yield from _find_bare_login(data, found.start())
    yield from (found.span("value") for found in _SIGNATURE.finditer(low) if re.search(rb"[\d%]", found["value"]))
    if b"%3a%2f%2f" in low:
        yield from (found.span("value") for found in _ENCODED_LOGIN.finditer(low))
    for found in _COOKIE.finditer(low):
        yield from _find_cookies(low, *found.span("pairs"))


def _find_cookies(low: bytes, start: int, end: int) -> Iterator[Span]:
    for pair in _PAIR.finditer(low, start, end):
        if pair["name"] not in _ATTRIBUTES and len(pair["value"]) >= _SHORTEST_COOKIE:
            yield pair.span("value")


def _find_login(data: bytes, start: int, end: int) -> Iterator[Span]:
    """The password before the host; of a login without one, a long token."""
    stop = min((at for at in (data.find(each, start, end) for each in (b"/", b"?", b"#")) if at >= 0), default=end)
    at = data.rfind(b"@", start, stop)
    if at < 0:
        # A password may contain a slash; what follows a port is a path.
        port = data.find(b":", start, stop) + 1
        at = data.rfind(b"@", stop, end) if port and not _PORT.match(data, port, stop) else -1
    if at < 0:
        return
    user, colon, password = data[start:at].partition(b":")
    if colon and password and not _PLAIN.fullmatch(password):
        yield start + len(user) + 1, at
    # The user's name may be a token: that of a Sentry DSN, of a git remote.
    if len(user) >= _SHORTEST_TOKEN and re.search(rb"\d", user) and b"." not in user:
        yield start, start + len(user)


def _find_bare_login(data: bytes, at: int) -> Iterator[Span]:
    """The password of `user:password@host:port`, without a scheme."""
    login = _BARE_LOGIN.search(data[max(0, at - _LONGEST_LOGIN) : at])
    if login is not None and not _PLAIN.fullmatch(login["password"]):
        yield at - len(login["password"]), at


def _find_hook(data: bytes, start: int, end: int) -> Iterator[Span]:
    stop = data.find(b"?", start, end)
    for found in _SEGMENT.finditer(data, start, stop if stop >= 0 else end):
        segment = found[0]
        mixed = not segment.isalpha() and not segment.isdigit() and not segment.startswith(b"bot")
        if mixed or len(segment) >= _LONG_SEGMENT:
            yield found.span()


def _find_parameters(data: bytes, low: bytes, start: int, end: int) -> Iterator[Span]:
    for found in _PARAMETER.finditer(low, start, end):
        value = data[found.start("value") : found.end("value")]
        if _PLAIN.fullmatch(value) or value.isdigit():
            continue
        if found["kind"] not in _LOOSE or is_random(value) or (len(value) >= _SHORTEST_TOKEN and not value.isalpha()):
            yield found.span("value")
