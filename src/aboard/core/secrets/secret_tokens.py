"""Finds tokens and keys that are secrets wherever they stand: with a provider's prefix, or random and named."""

import binascii
import re
from collections.abc import Collection, Iterator
from string import ascii_letters, digits

# Runs of letters, digits, - and _. From config/gitleaks.toml of github.com/gitleaks/gitleaks:
_GITLEAKS_RUNS = rb"""
huggingface=hf_[A-Za-z0-9]{16,} huggingface=api_org_[A-Za-z0-9]{16,} github=gh[pousr]_[A-Za-z0-9]{20,}
github=github_pat_\w{20,} gitlab=gl[a-z]{2,8}-[\w-]{16,} aws=(?:AKIA|ASIA|ABIA|ACCA)[A-Za-z0-9]{12,}
alibaba=LTAI[A-Za-z0-9]{12,} google=AIza[\w-]{30,} databricks=dapi[a-f0-9]{32} slack=xox[a-z]-[A-Za-z0-9-]{10,}
slack=xapp-[A-Za-z0-9-]{16,} anthropic=sk-ant-[\w-]{16,} openai=sk-(?:proj|svcacct|admin)-[\w-]{16,}
pypi=pypi-[A-Za-z][\w-]{16,} npm=npm_[A-Za-z0-9]{24,} rubygems=rubygems_[a-f0-9]{32,} clojars=CLOJARS_[a-f0-9]{40,}
age=AGE-SECRET-KEY-\w{16,} digitalocean=do[opr]_v\d_[a-f0-9]{16,} shopify=shp[a-z]{2,3}_[a-fA-F0-9]{24,}
stripe=[srp]k_(?:live|test)_\w{10,} square=sq0[a-z]{3}-[\w-]{16,} facebook=EAA[A-Z][A-Za-z0-9]{24,}
twilio=SK[a-f0-9]{32} mailgun=key-[a-f0-9]{32} newrelic=NRAK-[A-Z0-9]{20,} postman=PMAK-[a-f0-9-]{24,}
atlassian=AT[AC]TT3[\w-]{16,} sentry=sntry[a-z]_[\w-]{16,} grafana=gls?[ac]_\w{20,} 1password=ops_eyJ[\w-]{16,}
1password=A3-[A-Z0-9]{5,6}-[A-Z0-9-]{20,} notion=ntn_[A-Za-z0-9]{20,} linear=lin_(?:api|oauth)_[A-Za-z0-9]{16,}
adobe=p8e-[A-Za-z0-9]{20,} pulumi=pul-[a-f0-9]{32,} dynatrace=dt0[a-z]\d\d[\w-]{16,}
"""
# From the providers' own documentation, or the tokens that they issue:
_PROVIDER_RUNS = rb"""
aws=(?:AROA|AIDA)[A-Za-z0-9]{12,} tencent=AKID[A-Za-z0-9]{12,} google=GOCSPX-[\w-]{16,} databricks=dose[a-f0-9]{32}
openrouter=sk-or-[\w-]{16,} nvidia=nvapi-[\w-]{20,} wandb=wandb_v\d_[\w-]{16,} kaggle=KGAT_[A-Za-z0-9]{16,}
kaggle=kgat_[A-Za-z0-9]{16,} langsmith=lsv2_[a-z]{2}_\w{20,} runpod=rpa_[A-Z0-9]{20,} nuget=oy2[a-z0-9]{43}
docker=dckr_[po]at_[\w-]{16,} stripe=whsec_\w{16,} tailscale=tskey-[\w-]{12,} supabase=sbp_[a-f0-9]{32,}
deepseek=sk-[a-f0-9]{32} nostr=nsec1[a-z0-9]{40,} figma=figd_[\w-]{16,} hubspot=pat-[a-z]{2}\d-[a-f0-9-]{30,}
"""
# Tokens with dots, from the same two sources.
_GITLEAKS_DOTTED = rb"""
vault=hv[sbr]\.[\w-]{20,4096} sendgrid=SG\.[\w-]{16,64}\.[\w-]{16,64}
doppler=dp\.[a-z]{2,5}\.(?:[a-z0-9_]{1,20}\.)?[A-Za-z0-9]{30,64}
jwt=eyJ[\w-]{8,4096}\.[\w-]{8,4096}(?:\.[\w-]{0,4096}){0,3} terraform=[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,128}
dynatrace=dt0[a-z]\d\d\.[A-Z0-9]{24}\.[A-Z0-9]{64}
"""
_PROVIDER_DOTTED = rb"""
google=ya29\.[\w.-]{20,4096} paseto=v\d\.(?:local|public)\.[\w-]{20,4096}
discord=[MNO][\w-]{22,28}\.[\w-]{6,7}\.[\w-]{27,40}(?![\w.-])
"""


def _compile_rows(rows: bytes) -> "re.Pattern[bytes]":
    return re.compile(b"|".join(row.partition(b"=")[2] for row in rows.split()))


PREFIXED_RUN = _compile_rows(_GITLEAKS_RUNS + _PROVIDER_RUNS)
DOTTED_TOKEN = _compile_rows(_GITLEAKS_DOTTED + _PROVIDER_DOTTED)


# Nearly all tokens have a run of this many letters, digits, - and _; most words of a log are shorter.
_SHORTEST_RUN = 16
_RUN = b"a" * _SHORTEST_RUN
_LETTERS = ascii_letters.encode()
_ALPHANUMERIC = _LETTERS + digits.encode()
_RUN_CLASS = bytes(ord("a") if byte in _ALPHANUMERIC + b"_-" else ord(" ") for byte in range(256))
_REST_OF_RUN = re.compile(rb"a+")
_LONGEST = 4096
_PLAIN_RUN = re.compile(rb"[a-z_-]+|[A-Z_-]+|[0-9_-]+")
_HEX = re.compile(rb"[0-9a-f-]{16,}|[0-9A-F-]{16,}")
# Three in a hundred ids of AWS have no digit.
_AWS_ID = re.compile(rb"(?:AKIA|ASIA|AROA|AIDA)[A-Z]{16}")
# The id and the key as a table or a tuple has them.
_AWS_PAIR = re.compile(rb"A[KS]IA[A-Z0-9]{16}[\s\"',:;|]{1,16}(?P<key>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+=])")
_AZURE_SECRET = re.compile(rb"(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}(?![\w~.-])")
# Where one of them can begin.
_PREFIX_STARTS = re.compile(rb"(?:\A|[_-])(?=[a-zA-Z][a-zA-Z0-9_-])")
_DOTTED_CLASS = _ALPHANUMERIC + b"._-"
_GENERIC_PREFIX = re.compile(rb"[A-Za-z][A-Za-z0-9]{0,11}(?:[_-][A-Za-z0-9]{1,10}){0,3}?[_-](?=[A-Za-z0-9])")
# Words that make a random value after them a secret.
_NAMES = frozenset(
    b"jwt psk otp sid session sessionid session_id sess phpsessid jsessionid pat sas dsn webhook credential assertion"
    b" bearer basic negotiate apikey wandb comet neptune clearml mlflow api token key secret auth login".split()
)
_SIGNS = b" \t\"'\\:=]"
_TELEGRAM = re.compile(rb"\d{8,10}:\Z")
_JWK = re.compile(rb"\"(?:d|p|q|dp|dq|qi|k)\\{0,8}\"[ \t]?:[ \t]?\\{0,8}\"\Z")
_TRACKER = re.compile(rb"(?i)\b(?:wandb|comet|neptune|clearml|api[ _-]?key)\b(?P<between>[^\n]{0,40})\Z")
# The line before one that has only a key: a prompt, or where to find the key.
_PROMPT_WORDS = (b"API key", b"API Key", b"api key", b"api_key", b"/authorize", b"wandb login")
_PROMPT = re.compile(rb"(?:" + b"|".join(_PROMPT_WORDS) + rb")(?P<between>[^\n]{0,80})\n[ \t]{0,8}\Z")
# A call whose argument is usually a secret: Client("…"), wandb.login('…'), Api("https://host", "…").
_CALL = re.compile(
    rb"(?:[Cc]lient|[Ll]ogin|[Aa]pi|API|[Aa]uthenticate|OpenAI|Anthropic|Groq)"
    rb"\((?:[^()\n]{0,60},)? ?[bfru]?\\{0,8}[\"']\Z"
)
_COMMIT = re.compile(rb"(?i)commit|sha|\brev|hash|\bref|head|\bgit\b|digest|version|\bid\b|run|@")
_BASE64 = _ALPHANUMERIC + b"+/"
_BASE64_RIGHT = re.compile(rb"[A-Za-z0-9+/_-]*={0,2}")
_TEXT = re.compile(rb"[\t\n\r -~]+")
_CLASSES = bytes.maketrans(_ALPHANUMERIC, b"l" * 26 + b"U" * 26 + b"d" * 10)
_UNCLASSED = bytes(byte for byte in range(256) if byte not in _ALPHANUMERIC)
# A share of characters that a name has less of.
_MOST_CHANGES = 0.25
_MOSTLY = 0.8
_SEPARATORS = re.compile(rb"[_-]")
_LETTERS_PER_SEPARATOR = 12
_SHORT_WORD = re.compile(rb"(?<![\w.-])[A-Za-z]{1,5}\.\Z")
_LONG_RUN = 32
_FEW_LETTERS = 7
_TRACKER_DIGITS = 40
_LONG_TWO_CLASSES = 20
_SHORTEST_ENCODED = 20
_CONTEXT = 80
_LINE_ENDS = (b"", b"\n", b"\r")
_QUOTES = (b'"', b"'", b"\\")


def find_tokens(data: bytes, known: Collection[bytes] = ()) -> Iterator[tuple[int, int, bytes]]:
    """Where tokens begin and end; the third item is text that has to contain a secret for the token to be one.

    `known` are runs of keys that were found elsewhere.
    """
    for pair in _AWS_PAIR.finditer(data):
        yield *pair.span("key"), b""
    if b"Q~" in data:
        yield from ((*secret.span(), b"") for secret in _AZURE_SECRET.finditer(data))
    encoded_until = 0
    for start, end in _find_runs(data):
        if known and data[start:end] in known:
            yield *_find_base64(data, start, end), b""
        elif _HEX.fullmatch(data, start, end) is not None:
            if _is_tracker_key(data, start, end):
                yield start, end, b""
        elif _PLAIN_RUN.fullmatch(data, start, end) is None or _AWS_ID.fullmatch(data, start, end) is not None:
            yield from _judge_run(data, start, end)
            if start >= encoded_until and end - start >= _SHORTEST_ENCODED and not data[start:end].islower():
                first, encoded_until, text = _decode_base64(data, start, end)
                if text:
                    yield first, encoded_until, text


def list_runs(data: bytes) -> list[bytes]:
    """The long words in a key, without those that are in other texts, too."""
    return [data[start:end] for start, end in _find_runs(data) if not _PLAIN_RUN.fullmatch(data, start, end)]


def asks_for_key(text: bytes) -> bool:
    """Whether a line after one of these may be a key."""
    return any(word in text for word in _PROMPT_WORDS)


def is_random(value: bytes) -> bool:
    """Whether letters and digits alternate: in CamelCase at every sixth letter, in a random value at every other."""
    classes = value.translate(_CLASSES, _UNCLASSED)
    upper, lower = classes.count(b"U"), classes.count(b"l")
    changes = classes.count(b"ld") + classes.count(b"dl") + classes.count(b"Ud") + classes.count(b"dU")
    if b"d" not in classes or len(classes) < _MOSTLY * len(value):
        return False
    if upper and lower:
        return len(value) >= _SHORTEST_RUN and changes + classes.count(b"lU") >= _MOST_CHANGES * len(value)
    if len(set(value.translate(None, _UNCLASSED + digits.encode()))) < _FEW_LETTERS:
        return False
    return len(value) >= _LONG_TWO_CLASSES and changes >= _MOST_CHANGES * len(value) and _HEX.fullmatch(value) is None


def _find_runs(data: bytes) -> Iterator[tuple[int, int]]:
    classes = data.translate(_RUN_CLASS)
    start = classes.find(_RUN)
    while start >= 0:
        rest = _REST_OF_RUN.match(classes, start)
        end = rest.end() if rest is not None else start + 1
        yield start, end
        start = classes.find(_RUN, end)


def _is_tracker_key(data: bytes, start: int, end: int) -> bool:
    """Forty hexadecimal digits are a commit, unless a tracker's name, a prompt for a key or a call precedes them."""
    if end - start >= _LONG_RUN and _is_argument(data, start, end):
        return True
    if end - start != _TRACKER_DIGITS:
        return False
    tracker = _TRACKER.search(data, max(0, start - _CONTEXT), start)
    if tracker is None and data[end : end + 1] in _LINE_ENDS:
        tracker = _PROMPT.search(data, max(0, start - 2 * _CONTEXT), start)
    return tracker is not None and _COMMIT.search(tracker["between"]) is None


def _is_argument(data: bytes, start: int, end: int) -> bool:
    after = data[end : end + 1]
    return after in _QUOTES and _CALL.search(data, max(0, start - _CONTEXT), start) is not None


def _judge_run(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
    run = data[start : min(end, start + _LONGEST)]
    for separator in _PREFIX_STARTS.finditer(run):
        if (found := PREFIXED_RUN.match(data, start + separator.end(), end)) is not None:
            yield found.start(), end, b""
            return
    before, after = data[max(0, start - 1) : start], data[end : end + 1]
    if before == b"." or after == b".":
        left = data[max(0, start - _CONTEXT) : start]
        dotted = DOTTED_TOKEN.match(data, start - len(left) + len(left.rstrip(_DOTTED_CLASS)))
        if dotted is not None:
            yield *dotted.span(), b""
    if is_random(run) and (
        _is_named(data, start) or _is_argument(data, start, end) or _is_prefixed(data, start, run, after)
    ):
        yield start, end, b""


def _is_named(data: bytes, start: int) -> bool:
    """Whether the word before makes a random value a secret."""
    context = data[max(0, start - _CONTEXT) : start]
    name = context.rstrip(_SIGNS)
    if len(name) < len(context) and name[len(name.rstrip(_LETTERS)) :].lower() in _NAMES:
        return True
    if context.endswith(b":"):
        return _TELEGRAM.search(context) is not None and data.startswith(b"AA", start)
    return _JWK.search(context) is not None and b"kty" in data[max(0, start - _LONGEST) : start + _LONGEST]


def _is_prefixed(data: bytes, start: int, run: bytes, after: bytes) -> bool:
    """Whether it has the usual form of a provider's token: a short word, one of -_. and a random rest."""
    before = data[max(0, start - 1) : start]
    if before == b".":
        return (
            len(run) >= _LONG_RUN
            and after not in (b".", b"/", b"(")
            and _SHORT_WORD.search(data[max(0, start - 8) : start]) is not None
        )
    prefix = _GENERIC_PREFIX.match(run)
    if prefix is None or before in (b"/", b".", b"+") or after in (b".", b"/", b"(", b"<"):
        return False
    rest = run[prefix.end() :]
    # A name with many parts is no token, unless one of them is.
    parts = _SEPARATORS.split(rest)
    whole = [rest] if _LETTERS_PER_SEPARATOR * (len(parts) - 1) <= len(rest) else parts
    return any(len(part) >= _SHORTEST_RUN and is_random(part) for part in whole)


def _find_base64(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The whole base64 around a run."""
    left = data[max(0, start - 100) : start]
    right = _BASE64_RIGHT.match(data, end)
    return start - len(left) + len(left.rstrip(_BASE64)), right.end() if right is not None else end


def _decode_base64(data: bytes, start: int, end: int) -> tuple[int, int, bytes]:
    """The whole base64 around a run, and its text; no text if it encodes something else, such as an image."""
    first, last = _find_base64(data, start, end)
    for begin in dict.fromkeys((first, start)):
        text = _decode_text(data[begin : begin + 64])
        if text:
            return begin, last, _decode_text(data[begin : min(last, begin + 16 * _LONGEST)]) or text
    return first, last, b""


def _decode_text(encoded: bytes) -> bytes:
    standard = encoded.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
    standard = standard[: len(standard) - (len(standard) % 4 == 1)]
    try:
        text = binascii.a2b_base64(standard + b"=" * (-len(standard) % 4))
    except binascii.Error:
        return b""
    return text if _TEXT.fullmatch(text) else b""
