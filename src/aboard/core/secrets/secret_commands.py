"""Finds passwords in commands and files of known tools: `mysql -pPASSWORD`, `curl -u ada:PASSWORD`, ~/.pgpass."""

import re
from collections.abc import Iterator

from aboard.core.secrets.private_keys import Span

_OPTION = re.compile(
    # As typed, or as the repr of an argument list: `-u ada:…`, `'-u', 'ada:…'`.
    rb"[ \[][\"']?-(?P<option>-(?:user|proxy-user|auth|password-stdin|with-token|creds|dest-creds|src-creds)|[puawk])"
    rb"(?:[\"'],)?[ =]{0,2}"
    rb"(?P<quote>[\"']?)(?P<value>(?<=[\"'])[^\n\"']{4,256}|[^\s\"'|;&-][^\s\"'|;&]{3,256}|(?=[^\w]|\Z))"
)
_JOINED = re.compile(rb"\b(?:mysql|mariadb)[\w-]*\b[^\n|;]*\Z")
_SPACED = re.compile(
    rb"\b(?:(?:docker|podman|nerdctl|buildah|skopeo|helm|crane|oras|apptainer|singularity|az|oc|argocd)\b[^\n|;]*\blogin\b"
    rb"|sshpass|mongo\w*|cqlsh|influx|clickhouse-client|cypher-shell|ipmitool|7za?|rar|unrar|xfreerdp)\b[^\n|;]*\Z"
)
_PASSWORD_OPTIONS = {
    b"p": _SPACED,
    b"a": re.compile(rb"\bredis-cli\b[^\n|;]*\Z"),
    b"w": re.compile(rb"\bldap\w+\b[^\n|;]*\Z"),
    b"k": re.compile(rb"\bopenssl\b[^\n|;]*\Z"),
}
_FETCH = re.compile(rb"\b(?:curl|wget|http|https|xh|smbclient|rpcclient|skopeo)\b[^\n|;]*\Z")
_LOGIN = re.compile(rb"[^\s:%/]{1,64}[:%](?P<password>[^\s/].*)", re.DOTALL)
# The value starts with no blank: thousands of blanks would otherwise be divided in every possible way.
_PIPED = re.compile(
    rb"\b(?:echo|printf)[ \t]{1,64}(?:-\w{1,16}[ \t]{1,64}){0,8}"
    rb"(?P<value>[^\s|$][^\n|$]{3,255}?)[ \t]{0,64}\|[^\n|]{0,200}\Z"
)
_SUDO = re.compile(
    rb"\b(?:echo|printf)[ \t]{1,64}(?P<value>[^\s|$][^\n|$]{3,255}?)[ \t]{0,64}\|[ \t]{0,64}sudo -\w{0,8}s"
)
_PASS = re.compile(rb"pass:(?P<value>[^\s\"']{4,256})")
_IDENTIFIED = re.compile(rb"identified (?:with \S{1,64} )?by (?:password )?[\"'](?P<value>[^\"'\n]{1,256})")
_HTPASSWD = re.compile(rb"htpasswd -\w{0,8}b\w{0,8} \S{1,200} \S{1,64} (?P<value>\S{1,256})")
# A line of ~/.pgpass, a refresh token of Google, a file of Kaggle.
_PGPASS = re.compile(rb"[\w.*-]{1,128}:5432:[\w.*-]{1,64}:[\w.-]{1,64}:(?P<value>[^\s:]{4,256})")
_REFRESH = re.compile(rb"(?<![\w/:])(?P<value>1//0[\w-]{30,512})")
_USER_KEY = re.compile(
    rb"\"username\"\s{0,4}:\s{0,4}\"[^\"\n]{1,64}\",\s{0,4}\"key\"\s{0,4}:\s{0,4}\"(?P<value>[^\"\n]{16,128})"
)
_STATEMENTS = (
    (b"sudo -", _SUDO),
    (b"identified ", _IDENTIFIED),
    (b"htpasswd -", _HTPASSWD),
    (b"openssl", _PASS),
    (b":5432:", _PGPASS),
    (b"1//0", _REFRESH),
    (b'"username"', _USER_KEY),
)
_FARTHEST = 300
# A part of each command's name above.
_TOOLS = (
    b"mysql mariadb login sshpass mongo cqlsh influx clickhouse cypher ipmitool 7z rar freerdp redis-cli http xh ldap"
    b" openssl curl wget client skopeo echo printf".split()
)


def find_command_secrets(low: bytes) -> Iterator[Span]:
    """`low` is the text in lower case."""
    for found in _OPTION.finditer(low):
        before = low[max(0, found.start() - _FARTHEST) : found.start()]
        before = before[before.rfind(b"\n") + 1 :]
        if any(tool in before for tool in _TOOLS):
            yield from _judge_option(found, before)
    for word, pattern in _STATEMENTS:
        if word in low:
            yield from (found.span("value") for found in pattern.finditer(low))


def _judge_option(found: "re.Match[bytes]", before: bytes) -> Iterator[Span]:
    option, value = found["option"], found["value"]
    if option in (b"-password-stdin", b"-with-token"):
        piped = _PIPED.search(before)
        if piped is not None:
            line_start = found.start() - len(before)
            yield line_start + piped.start("value"), line_start + piped.end("value")
    elif not value or value[:1] in b"$-<{":
        return
    elif option in _PASSWORD_OPTIONS:
        joined = found.start("value") - found.end("option") == len(found["quote"])
        if _PASSWORD_OPTIONS[option].search(before) or (option == b"p" and joined and _JOINED.search(before)):
            yield found.span("value")
    elif _FETCH.search(before) and (login := _LOGIN.fullmatch(value)) is not None:
        yield found.start("value") + login.start("password"), found.end("value")
