"""Finds values that are secrets because of their names: `password=…`, `"api_key": "…"`, `--token …`."""

import re
from collections.abc import Callable, Iterator
from enum import IntEnum

from aboard.core.secrets.private_keys import Span
from aboard.core.secrets.secret_tokens import is_random


class NameStrength(IntEnum):
    """How much a name alone says about its value."""

    NOTHING = 0
    # Only a value that looks random is a secret: `session_key`, `pad_token`.
    RANDOM = 1
    # A value that is no word and no number: `token`, `auth`.
    UNUSUAL = 2
    # Any value that isn't plain: `api_key`, `client_secret`.
    NEARLY_ALL = 3
    # Numbers, too: `password`.
    ALL = 4


_NOTHING, _RANDOM, _UNUSUAL, _NEARLY_ALL, _ALL = NameStrength
_SUFFIX = rb"(?:[_-]?(?:value|string|str|base64|b64|hash|raw|text|plain|prod|dev|test|staging|\d{1,3})|[ ]\d)?"
_CLOSE = rb"(?:\\{0,8}[\"'`\]]){0,2}\)?"
# `=`, `: `, ` is `, and `"name": NAME, "value": …`.
_VALUE_FIELD = rb",?[ \t]{0,4}(?:\r?\n[ \t]{0,40})?\\{0,8}[\"']?value\\{0,8}[\"']?[ \t]?[:=]"
_SIGN = (
    rb"[ \t]{0,32}(?P<sign>[=-]>|:=|={1,2}|:|>|\||(?<=[ \t])(?:is|was|are|(?:set|changed|reset) to)\b:?|"
    + _VALUE_FIELD
    # A formatter of JSON may put a quoted value on the next line, YAML a block.
    + rb"|(?<=[\"']),)[ \t]{0,32}(?:\r?\n[ \t]{0,40}(?=[\"'])|[|>][+-]?\r?\n[ \t]{1,40})?(?=[^\s,;)])"
)
# Training logs are full of `tokens: 123` and `tokens 1.2M`.
_NO_NUMBER = rb"(?![\d.,:_+/-]{1,40}[a-z%]{0,3}(?:[\s,;)\]}|/]|\Z))"
# The same at once after the name, since that is where most hits end.
_NO_COUNT = rb"(?!/|(?:[=:] ?| )[\d.,]+[kmgbt]?(?:[\s,;)\]]|\Z))"
_SPACE = rb"(?P<space>[ \t]{1,4})(?=[^\s=:,;.|(/\[-])(?!(?:per|of|to|for|in|and|or|the|is|with|from|at|took|on)[ \t])"


def _compile_name(name: bytes, *, numbers: bool = False) -> "re.Pattern[bytes]":
    """Matches the last word of a name and what leads from it to the value."""
    count, plain = (b"", b"") if numbers else (_NO_COUNT, _NO_NUMBER)
    return re.compile(name + count + _SUFFIX + _CLOSE + rb"(?:" + _SIGN + plain + rb"|" + _SPACE + plain + rb")")


_KEY_KINDS = re.compile(
    rb"(?:api|access|account|secret|private|priv|shared|encryption|decryption|signing|auth|master|client|deploy"
    rb"|license|subscription|service|unseal|hmac|jwt|fernet|aes|consumer|app|application|wandb|hf|openai|anthropic"
    rb"|stripe)[_. -]?\Z"
)
_NAME_CLASS = b"abcdefghijklmnopqrstuvwxyz0123456789_.$-"
# Where a value begins and ends, and whether it is a secret.
_Value = tuple[int, int, bool]
_MODEL_TOKENS = re.compile(
    rb"(?:eos|bos|pad|unk|mask|sep|cls|image|video|audio|special|stop|next|first|last|prev|previous|new|generated|decoded"
    rb"|prompt|input|output|total|num|n|max|min|completion|cached|per|of|end|start|begin|fim|think|tool|chat|vision|text"
    rb"|assistant|system|valid|train|padding|target|draft|reserved|added|vocab|unused|content|batch|trained|seen|a|the"
    rb"|processed|dropped|active|this|that|each|every|page|unknown|expected|unexpected|got|current|sample"
    rb"|sampled)[_. -]{1,2}\Z"
)
_PASS_OWNERS = re.compile(rb"(?:^|[^a-z]|db|user|pg|root|admin|sql|ssh|ftp|smtp|mail|http|proxy|ldap|redis|my|http)\Z")
_PW_OWNERS = re.compile(rb"(?:\A|[^a-z]|bind)\Z")
# `oauth`, but not `pauth`.
_AUTH = re.compile(rb"(?:\A|[^a-np-z])\Z")
_SEEDS = re.compile(rb"(?:seed[ _]|recovery )\Z")

_PLAIN = re.compile(
    rb"(?i)true|false|none|null|nil|nan|undefined|unset|yes|no|on|off|str|int|bool|bytes|string|optional\b.*|\*.*|x{3,}"
    rb"|\.{2,}|\xe2\x80\xa6.*|\[(?:secret|redacted|hidden|masked|left out|filtered|removed)\].*|redacted|hidden|masked"
    rb"|<[^<>]*>?|<\|.*|\$\{.*|\$[a-z_]\w*|\$\(.*|%[a-z_]\w*%|%\(\w+\)s|%s|\{\w*\}?|\{\{.*|\[[a-z0-9_]{1,20}\]?|\(.*|#.*|-+"
    rb"|(?:sha256|md5|sha512|sha1):.*|ssh-\w+|-----begin cert.*|vault:.*|arn:.*|env:.*|file:.*|secretkeyref.*|\\+[nrt]?"
)
_NUMBER = re.compile(rb"[-+]?[\d.,:_/]+(?:e[-+]?\d+)?[a-zA-Z%]{0,3}")
_REFERENCE = re.compile(
    rb"(?:self|args|cfg|conf|config|os|sys|env|environ|settings|options|opts|params|request|ctx|kwargs|getpass|process|data"
    rb"|secrets|obj|cls|state|form|var|local|each|module)[.\[(].*|[A-Za-z_][\w.]*\(.*|[A-Za-z_]\w*\[.*"
)
_IDENTIFIER = re.compile(rb"[A-Za-z_][A-Za-z_.]*")
_PATH = re.compile(rb"(?:~|\.{1,2})?/[\w.@/{}$-]*|[A-Za-z]:\\.*|[a-z0-9+]{1,12}://.*|[\w-]+(?:/[\w-]+)+\.\w{1,5}")
_WORD = re.compile(rb"[A-Z]?[a-z]+|[A-Z]+")
_PROSE_FOLLOWS = re.compile(rb"[.,]?[ \t][a-z]")
_PROSE = frozenset(
    b"must should shall will would may might can cannot is was are were be been not the a an and or of for to in on by"
    b" with from at as it this that your my our its if required missing invalid incorrect expired wrong empty unset"
    b" unknown default changed reset failed denied ok okay set too please enter see use used using auth authentication"
    b" needed mismatch rejected accepted correct valid stored saved read loaded hidden given found only optional basic"
    b" digest bearer plain none both file prompt based protected less expires refreshed revoked provided specified"
    b" never longer shorter always disabled enabled manager policy rotation error warning string bytes already still"
    b" now has had have does do did when where which who how what but because than then there here so no".split()
)
_OPEN = re.compile(rb"(?:[bur]{0,2}|(?:pydantic\.)?secret(?:str|bytes|value)?\()(?P<quote>\"{3}|'{3}|\\{0,8}[\"'`])")
_BARE = re.compile(
    rb"(?:[^\s\"'`,;&<>|(){}\[\]\\]|[,;&|()\[\]{}\\<>](?![\s\"'`,;)}\]<\\]|\Z|[\w.-]{1,32}[\"']?[ ]?[=:])){1,4096}"
)
# The rest of a quoted value that was wrapped, or is written as two texts.
_WRAPPED = re.compile(
    rb"[\"'`]?[ \t]{0,8}\\?\r?\n[ \t]{0,80}[\"'`]?(?P<rest>[\w+/=.~-]{4,1024})(?=\\{0,8}[\"'`](?![ \t]?[:=]))"
)
_ITEM = re.compile(rb"[\"'](?P<item>[^\"'\n]{1,1024})[\"']|(?P<bare>[\w-]{16,1024})|(?P<end>[\])}\n])")
_SCHEME = re.compile(rb"(?:bearer|basic|token|negotiate|digest|apikey|key|aws4-hmac-sha256)[ \t]{1,4}")
_FOR_WHOM = re.compile(
    rb"passw(?:or)?d[ \t](?:for|of)[ \t](?:user[ \t])?[^\s:=]{1,64}(?:[ \t](?:is|was)\b|[ \t]?[:=])[ \t]{1,4}(?=[^\s])"
)
_MACHINE = re.compile(
    rb"(?:machine\s{1,16}\S{1,255}|default)\s{1,16}(?:login\s{1,16}\S{1,255}\s{1,16})?(?:account\s{1,16}\S{1,255}\s{1,16})?"
)
_LOGIN = re.compile(rb"login[ \t]{1,16}\S{1,255}\s{1,16}")
_LETTER = re.compile(rb"[A-Za-z]")
_DIGIT = re.compile(rb"\d")
_LONGEST = 4096
_LONG_VALUE = 256
_SHORTEST = 4
_SHORTEST_UNUSUAL = 8
_LONG_UNUSUAL = 16
_HEX = re.compile(rb"[0-9a-fA-F]{32,}")


_Trust = Callable[[bytes, bytes], NameStrength]
# The last word of a name, and how much it says, by itself and what stands before it.
_RULES: tuple[tuple["re.Pattern[bytes]", _Trust], ...] = (
    (
        _compile_name(rb"pass(?:w(?:or)?ds?|phrases?|codes?)?", numbers=True),
        lambda name, before: (
            _ALL
            if name.startswith((b"passw", b"passp", b"passc"))
            else _UNUSUAL
            if _PASS_OWNERS.search(before)
            else _NOTHING
        ),
    ),
    (
        _compile_name(rb"secrets?(?:[_ -]?(?:access[_ -]?)?keys?(?:[_-]?base)?|[_-]?(?:id|token))?"),
        # What follows in `arn:aws:secretsmanager:…:secret:NAME` is a name.
        lambda _name, before: _NOTHING if before.endswith(b":") and b"arn:" in before else _NEARLY_ALL,
    ),
    (
        _compile_name(rb"token(?:s|ized)?+"),
        lambda _name, before: _RANDOM if _MODEL_TOKENS.search(before) else _UNUSUAL,
    ),
    (
        _compile_name(rb"key(?:s|[_-]?data)?+"),
        lambda _name, before: (
            _NEARLY_ALL if _KEY_KINDS.search(before) else _RANDOM if before[-1:] in b"_-." else _NOTHING
        ),
    ),
    (_compile_name(rb"cred(?:ential)?s?"), lambda _name, _before: _UNUSUAL),
    (
        _compile_name(rb"auth(?:orization|[_-]?header)?"),
        lambda name, before: _UNUSUAL if name.startswith(b"authorization") or _AUTH.search(before) else _NOTHING,
    ),
    (
        _compile_name(rb"pwd?", numbers=True),
        lambda name, before: _UNUSUAL if name.startswith(b"pwd") or _PW_OWNERS.search(before) else _NOTHING,
    ),
    (_compile_name(rb"phrase"), lambda _name, before: _ALL if _SEEDS.search(before) else _NOTHING),
    (_compile_name(rb"mnemonic"), lambda _name, _before: _ALL),
)


def find_assigned_secrets(data: bytes, low: bytes) -> Iterator[Span]:
    """`low` is the same in lower case."""
    for pattern, trust_name in _RULES:
        done = 0
        for found in pattern.finditer(low):
            # Names within a value that was masked or is very long: without this, repeated names take quadratic time.
            if found.start() < done:
                continue
            for start, end, secret in _find_values(data, low, found, trust_name):
                if secret:
                    yield start, end
                if secret or end - start > _LONG_VALUE:
                    done = end
    for found in _FOR_WHOM.finditer(low):
        yield from ((start, end) for start, end, secret in _read_value(data, low, found.end(), _ALL, b":") if secret)


def judge_value(name: bytes, value: bytes, *, typed: bool) -> bool:
    """Whether this value is a secret because of its name; `typed`: of an option or a variable that a user set."""
    low = name.lower() + b"="
    for pattern, trust_name in _RULES:
        for found in pattern.finditer(low + b"x"):
            if found.end() == len(low):
                trust = trust_name(found[0], low[: found.start()])
                if typed and trust is _UNUSUAL:
                    trust = _NEARLY_ALL
                padded = value.ljust(_SHORTEST, b"_") if typed and value.isalnum() else value
                return _is_secret(padded, trust, b"=", quoted=True, follower=b"")
    return False


def _find_values(data: bytes, low: bytes, found: "re.Match[bytes]", trust_name: _Trust) -> Iterator[_Value]:
    start, value_start = found.span()
    before = low[max(0, start - 64) : start]
    trust = trust_name(found[0], before)
    if trust is _NOTHING:
        return
    sign = found["sign"] or b" "
    if sign in (b" ", b"|", b","):
        option = before[len(before.rstrip(_NAME_CLASS)) :].startswith(b"-")
        # Without a dash, a list of names.
        trust = trust if option or sign != b"," else _RANDOM
        sign = b" "
        if option or (trust is _ALL and _is_netrc(low[max(0, start - 600) : start])):
            sign = b"="
    elif found[0].startswith(b"auth"):
        scheme = _SCHEME.match(low, value_start)
        quoted = _OPEN.match(low, value_start)
        if scheme is None and quoted is not None:
            scheme = _SCHEME.match(low, quoted.end())
        if scheme is not None:
            bare = _BARE.match(data, scheme.end())
            if bare is not None:
                yield *bare.span(), True
            return
    yield from _read_value(data, low, value_start, trust, sign)


def _is_netrc(before: bytes) -> bool:
    """Whether a password without a sign belongs to a netrc: `machine HOST login USER password …`."""
    machine = max(before.rfind(b"machine"), before.rfind(b"default"))
    login = before.rfind(b"login")
    return (machine >= 0 and _MACHINE.fullmatch(before, machine) is not None) or (
        login >= 0 and _LOGIN.fullmatch(before, login) is not None
    )


def _read_value(data: bytes, low: bytes, start: int, trust: NameStrength, sign: bytes) -> Iterator[_Value]:
    opened = _OPEN.match(low, start)
    if opened is not None:
        quote = opened["quote"]
        first = opened.end()
        line_end = data.find(b"\n", first, first + _LONGEST)
        limit = line_end if line_end >= 0 else min(len(data), first + _LONGEST)
        last = _find_closing(data, quote, first, limit)
        value, rest = data[first:last], _WRAPPED.match(data, last)
        if rest is not None and _is_secret(value + rest["rest"], trust, sign, quoted=True, follower=b""):
            yield first, rest.end(), True
        else:
            yield first, last, _is_secret(value, trust, sign, quoted=True, follower=b"")
    elif data[start : start + 1] in (b"[", b"("):
        for item in _ITEM.finditer(data, start + 1, min(len(data), start + _LONGEST)):
            if item["end"] is not None:
                return
            name = "item" if item["item"] is not None else "bare"
            secret = _is_secret(item[name], min(trust, _UNUSUAL), sign, quoted=True, follower=b"")
            yield *item.span(name), secret
        # A list without an end.
        yield start, start + _LONGEST, False
    elif (bare := _BARE.match(data, start)) is not None:
        follower = data[bare.end() : bare.end() + 3]
        yield *bare.span(), _is_secret(bare[0], trust, sign, quoted=False, follower=follower)


def _find_closing(data: bytes, quote: bytes, first: int, limit: int) -> int:
    """The end of a quoted value; a quote with more backslashes than the opening one is part of the value."""
    at = first
    while (at := data.find(quote, at, limit)) >= 0:
        if at == first or data[at - 1 : at] != b"\\" or data[at - 2 : at] == b"\\\\":
            return at
        at += len(quote)
    return limit


def _is_secret(value: bytes, trust: NameStrength, sign: bytes, *, quoted: bool, follower: bytes) -> bool:
    value = value.strip()
    if len(value) < _SHORTEST or trust is _NOTHING or _PLAIN.fullmatch(value):
        return False
    if _NUMBER.fullmatch(value):
        return trust is _ALL and value.isdigit() and sign != b" "
    random = is_random(value) or _HEX.fullmatch(value) is not None
    if trust is _RANDOM or random:
        return random
    if _PATH.fullmatch(value) or _is_prose(value, trust) or (not quoted and _is_code_or_prose(value, sign, follower)):
        return False
    if sign == b" " and not (quoted and trust >= _NEARLY_ALL):
        return (
            len(value) >= _SHORTEST_UNUSUAL and _DIGIT.search(value) is not None and _LETTER.search(value) is not None
        )
    return trust > _UNUSUAL or _is_unusual(value)


def _is_prose(value: bytes, trust: NameStrength) -> bool:
    """Whether most words are those that people write about passwords."""
    words = value.lower().split()
    return (len(words) > 1 and trust <= _UNUSUAL) or 2 * sum(word.strip(b".,:") in _PROSE for word in words) > len(
        words
    )


def _is_code_or_prose(value: bytes, sign: bytes, follower: bytes) -> bool:
    """Whether a value without quotes is an expression, or the first word of a sentence."""
    called = sign == b"=" and follower[:1] in (b",", b")") and _IDENTIFIER.fullmatch(value)
    sentence = sign != b"=" and _WORD.fullmatch(value) and _PROSE_FOLLOWS.match(follower)
    return bool(called or sentence or follower[:1] in (b"(", b"[") or _REFERENCE.fullmatch(value))


def _is_unusual(value: bytes) -> bool:
    word = _WORD.fullmatch(value.replace(b"-", b"").replace(b"_", b"")) and len(value) < _LONG_UNUSUAL
    return len(value) >= _SHORTEST_UNUSUAL and not word and value.isascii()
