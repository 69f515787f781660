"""Finds passwords in the options of commands: `mysql -pPASSWORD`, `docker login -p PASSWORD`, `curl -u ada:PASSWORD`."""

import re
from collections.abc import Iterator

from aboard.core.text.private_keys import Span

_OPTION = re.compile(
    rb" -(?P<option>-(?:user|proxy-user|auth|password-stdin|with-token|creds|dest-creds|src-creds)|[puawk])[ =]{0,2}"
    rb"(?P<quote>[\"']?)(?P<value>(?<=[\"'])[^\n\"']{4,256}|[^\s\"'|;&-][^\s\"'|;&]{3,256}|(?=[^\w]|\Z))"
)
_JOINED = re.compile(rb"\b(?:mysql|mariadb)[\w-]*\b[^\n|;]*\Z")
_SPACED = re.compile(
    rb"\b(?:(?:docker|podman|nerdctl|buildah|skopeo|helm|crane|oras|apptainer|singularity|az|oc|argocd)\b[^\n|;]*\blogin\b"
    rb"|sshpass|mongo\w*|cqlsh|influx|clickhouse-client|cypher-shell|ipmitool|7za?|rar|unrar|xfreerdp)\b[^\n|;]*\Z"
)
_OTHERS = {
    b"a": re.compile(rb"\b(?:redis-cli|http|https|xh)\b[^\n|;]*\Z"),
    b"w": re.compile(rb"\bldap\w+\b[^\n|;]*\Z"),
    b"k": re.compile(rb"\bopenssl\b[^\n|;]*\Z"),
}
_FETCH = re.compile(rb"\b(?:curl|wget|http|https|xh|smbclient|rpcclient|skopeo)\b[^\n|;]*\Z")
_LOGIN = re.compile(rb"[^\s:%/]{1,64}[:%](?P<password>[^\s/].*)", re.DOTALL)
_PIPED = re.compile(rb"\b(?:echo|printf)[ \t]+(?:-\w+[ \t]+)*(?P<value>[^\n|$]{4,256}?)[ \t]*\|[^\n|]{0,200}\Z")
_SUDO = re.compile(rb"\b(?:echo|printf)[ \t]+(?P<value>[^\n|$]{4,256}?)[ \t]*\|[ \t]*sudo -\w{0,8}s")
_PASS = re.compile(rb"pass:(?P<value>[^\s\"']{4,256})")
_IDENTIFIED = re.compile(rb"identified (?:with \S{1,64} )?by (?:password )?[\"'](?P<value>[^\"'\n]{1,256})")
_HTPASSWD = re.compile(rb"htpasswd -\w{0,8}b\w{0,8} \S{1,200} \S{1,64} (?P<value>\S{1,256})")
_FARTHEST = 300


def find_command_secrets(low: bytes) -> Iterator[Span]:
    """`low` is the text in lower case."""
    for found in _OPTION.finditer(low):
        option, value = found["option"], found["value"]
        before = low[max(0, found.start() - _FARTHEST) : found.start()]
        before = before[before.rfind(b"\n") + 1 :]
        if option in (b"-password-stdin", b"-with-token"):
            piped = _PIPED.search(before)
            if piped is not None:
                yield (
                    found.start() - len(before) + piped.start("value"),
                    found.start() - len(before) + piped.end("value"),
                )
        elif not value or value[:1] in b"$-<{":
            continue
        elif option == b"p":
            joined = low[found.start("option") + 1 : found.start("option") + 2] not in (b" ", b"=")
            if (joined and _JOINED.search(before)) or _SPACED.search(before):
                yield found.span("value")
        elif option in _OTHERS and _OTHERS[option].search(before):
            login = _LOGIN.fullmatch(value) if option == b"a" and b"redis" not in before else None
            yield (
                (found.start("value") + login.start("password") if login else found.start("value")),
                found.end("value"),
            )
        elif option not in (b"a", b"w", b"k") and _FETCH.search(before):
            login = _LOGIN.fullmatch(value)
            if login is not None:
                yield found.start("value") + login.start("password"), found.end("value")
    if b"sudo -" in low:
        yield from (found.span("value") for found in _SUDO.finditer(low))
    if b"identified " in low:
        yield from (found.span("value") for found in _IDENTIFIED.finditer(low))
    if b"htpasswd -" in low:
        yield from (found.span("value") for found in _HTPASSWD.finditer(low))
    if b"openssl" in low:
        yield from (found.span("value") for found in _PASS.finditer(low))
