"""Answers of the wrong kind: ids and addresses, cut-off text, error messages, web boilerplate, unfilled templates."""

# ruff: noqa: PLR2004, SIM905 - thresholds stand where they are used; lists of words are easier to read as text
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from json import JSONDecoder
from re import compile as compile_pattern

from aboard.diagnoses import Diagnosis
from aboard.trainer.data.quality.row_sample import MAX_ANSWER
from aboard.trainer.data.quality.sampled_texts import RowSign, SampledTexts, count_function_words
from aboard.trainer.diagnoses import data_quality

_SHAPES = tuple(
    (name, compile_pattern(pattern))
    for name, pattern in (
        ("UUIDs", r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"),
        ("hashes", r"(?:0x|sha\d+:|md5:)?(?=\S*\d)(?=\S*[a-fA-F])[0-9a-fA-F]{12,128}"),
        ("URLs", r"(?:https?|ftp|s3|gs|file)://\S+|www\.(?=\S+\.\S)\S+"),
        (
            "paths",
            r"(?:[A-Za-z]:\\|~?/|\.{1,2}/)?(?:[\w. -]{1,60}[/\\]){1,12}[\w. -]+\.\w{1,5}|/(?:[\w.-]{1,60}/){2,12}\S*",
        ),
        ("file names", r"[\w -]{1,80}\.(?:txt|json|jsonl|csv|png|jpe?g|wav|mp3|pdf|html?|parquet|xml|docx?|mp4)"),
        ("timestamps", r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d\S*|1[5-9]\d{8}(?:\d{3})?(?:\.\d+)?"),
        ("email addresses", r"[\w.+-]{1,60}@[\w-]{1,60}\.[\w.]{2,20}"),
        (
            "encoded data",
            r"(?=\S*[a-z])(?=\S*[A-Z0-9])[A-Za-z0-9+/_-]{20,}={0,2}|(?:[A-Za-z0-9+/]{60,76}\s)+\S{0,76}={0,2}",
        ),
        (
            "ids",
            r"(?=\S{0,40}\d)[A-Za-z]{1,20}[-_#:.]?(?=\S{0,40}\d)[A-Za-z0-9_-]{2,40}|#\d+|\d+[-_](?=\S{0,40}[A-Za-z])[\w-]{1,40}|[a-z]{2,12}[._][a-z]{1,2}",
        ),
    )
)
_NUMBER = compile_pattern(r"[-+$€£]?\d[\d,.]{0,30}%?")
_COUNTING = frozenset(
    "many much number year years when age old rate score rating sum count total calculate compute value price cost"
    " long far percent average length distance time times estimate predict regression id date amount solve answer"
    " add plus minus multiply divide subtract product difference".split()
)
_ENDS = frozenset(
    ".!?…:;)]}>\"'`”\u2019»*_|$/\N{IDEOGRAPHIC FULL STOP}\N{FULLWIDTH EXCLAMATION MARK}"
    "\N{FULLWIDTH QUESTION MARK}\N{DEVANAGARI DANDA}\N{ARABIC QUESTION MARK}\N{ARABIC FULL STOP}"
)
_INNER_END = compile_pattern(r"[.!?。] ?[A-ZÀ-Ý\"'(\u0400-\u042f\u3040-\u9fff]")
_STOPPED = compile_pattern(r"(?:^|[^\w])[a-zà-öø-ÿа-я][^\W\d_]*$|[,\-(]$")
_PLACEHOLDER = compile_pattern(
    r"\{\{ ?[\w. ]{1,40} ?\}\}|<%=?|%>|\{% |\$\{\w{1,40}\}|(?<![\w$\\{])\{[a-z_][a-z_0-9.]{1,30}\}(?!\})|%\(\w{1,30}\)s"
    r"|(?<!\w)%[sd](?!\w)|\[(?:INSERT|YOUR|ENTER|ADD|NAME|TODO|REDACTED|PLACEHOLDER|ANSWER|PERSON|DATE|LOCATION|ORG)\b[^\]]{0,40}\]"
    r"|<(?:PERSON|NAME|DATE|LOCATION|ORG|EMAIL|PHONE|NUMBER|ANSWER|INSERT[^>]{0,30}|YOUR[^>]{0,30})>|_{4,}|\bX{4,}\b"
    r"|\[object Object\]|\bundefined\b|\b(?:NaN|None)\b|\bnan\b|(?i:lorem ipsum)"
)
# Found by plain search, which is much faster than one pattern with many branches.
_ERRORS = (
    "rate limit;ratelimit;rate_limit;too many requests;quota exceeded;exceeded your;internal server error;bad gateway;"
    "service unavailable;gateway timeout;gateway time-out;timed out;timeout error;connection refused;connection reset;"
    "connection error;connection aborted;traceback (most recent;api key;api_key;unauthorized;access denied;overloaded;"
    "permission denied;error code;status code;http error;http 4;http 5;error 4;error 5;error: ;exception: ;max retries;"
    "maximum context length;please try again;something went wrong;could not be processed;failed to fetch;no response;"
    "failed to generate;failed to load;failed to parse;failed to connect;page not found;404 not found;out of memory;"
    "segmentation fault;null response;nullpointerexception;service is temporarily;[error];<error>;error occurred"
).split(";")
_ERROR_WORDS = frozenset("error errors exception fails failed debug http fix log status".split())
_REFUSALS = (
    "i'm sorry, but;i am sorry, but;i\u2019m sorry, but;sorry, i can;i'm sorry, i;"
    "i'm unable;i am unable;i'm not able;i am not able;i can't help;i cannot help;"
    "i can't assist;i cannot assist;i can't answer;i cannot answer;i can't provide;i cannot provide;i won't be able;"
    "as an ai;as a large language;as a language model;i must decline;unable to help;unable to assist;unable to answer;"
    "my guidelines;our guidelines;i apologize;i apologise;sorry, i;sorry, but i;i don't know;i do not know;"
    "not able to help;i can\u2019t;can't help with;cannot help with;cannot comply;can't comply;cannot fulfill;"
    "can't fulfill;not comfortable"
).split(";")
_BOILERPLATE = (
    "cookie;privacy policy;privacy notice;privacy preferences;terms of use;terms of service;terms and conditions;"
    "all rights reserved;subscribe;newsletter;sign in;sign up;log in;login;enable javascript;javascript is;accept all;"
    "reject all;click here;read more;skip to;share on;share this;follow us;your browser;captcha;not a robot;ad blocker;"
    "adblock;advertis;copyright;\u00a9;powered by;back to top;related articles;related posts;menu;navigation;faq;"
    "add to cart;create an account;free trial;unsubscribe;sponsored;consent;third part;gdpr;partners;manage settings;"
    "your device;manage preferences;are human;cloudflare;page not found;contact us;about us;view comments;404;"
    "leave a comment;leave a reply;register now;already a member;continue reading;your account;home page;site map;"
    "sitemap;checkout"
).split(";")
_MIN_CUT_LENGTH = 20
_DECODER = JSONDecoder()


def find_machine_values(texts: SampledTexts) -> Iterator[RowSign]:
    """Answers that are ids, hashes, addresses or a counter."""
    total = len(texts.rows)
    rows = [at for at, text in enumerate(texts.answers) if text and len(text) < 600]
    by_shape: dict[str, list[int]] = {}
    for at in rows:
        text = texts.answers[at]
        name = next((name for name, pattern in _SHAPES if pattern.fullmatch(text)), None)
        if name is not None and text not in texts.rows[at].prompt:
            by_shape.setdefault(name, []).append(at)
    several = sorted(at for found in by_shape.values() for at in found)
    names = " or ".join(sorted(by_shape, key=lambda name: -len(by_shape[name]))[:2])
    yield _make_sign(several, total, f"have {names} as their answer", 0.3)
    numbers = [at for at in rows if _NUMBER.fullmatch(texts.answers[at])]
    unasked = [
        at
        for at in numbers
        if _COUNTING.isdisjoint(texts.prompt_words[at])
        and not (
            any(map(str.isdigit, texts.rows[at].prompt)) and any(sign in texts.rows[at].prompt for sign in "+*/=^%")
        )
    ]
    is_varied = len({texts.answers[at] for at in unasked}) > max(12, len(unasked) / 4)
    yield _make_sign(
        unasked if is_varied else [], total, "have a number as their answer to a prompt that asks for none", 0.3
    )
    values = [int(text) if (text := texts.answers[at]).isdecimal() and len(text) < 19 else -1 for at in numbers]
    counted = [at for at, one, two in zip(numbers, values, values[1:], strict=False) if 0 <= one < two <= one + 10]
    yield _make_sign(counted, total, "have a counter as their answer", 0.7)


def find_cut_answers(texts: SampledTexts) -> Iterator[RowSign]:
    """Many answers of exactly the greatest length, or that stop in the middle of a sentence."""
    make = partial(_make_sign, code=data_quality.UNFINISHED)
    rows = [at for at, text in enumerate(texts.answers) if text]
    lengths = Counter(texts.rows[at].length for at in rows)
    flagged: set[int] = set()
    is_open = False
    if rows:
        longest, words = max(lengths), max(texts.rows[at].words for at in rows)
        # A limit makes a spike at the greatest length; a limit in words also leaves articles and prepositions last.
        is_spike = lengths[longest] >= 3 * max(1, lengths[longest - 1], lengths[longest - 2])
        last = count_function_words(texts.words[at][-1] for at in texts.prose).most_common(1)
        is_open = bool(last) and last[0][1] >= 0.06 * len(rows)
        for at in rows:
            row = texts.rows[at]
            full = (is_spike and row.length == longest >= _MIN_CUT_LENGTH) or (is_open and row.words == words)
            if full and row.words > 2 and _STOPPED.search(row.ending):
                flagged.add(at)
        if len({texts.keys[at] for at in flagged}) < 0.7 * len(flagged):
            flagged.clear()
    yield make(sorted(flagged), len(rows), "have an answer that is cut off at the same length", 0.05)
    prose = [at for at in texts.prose if len(texts.words[at]) > 7]
    sentences = [at for at in prose if _INNER_END.search(texts.answers[at])]
    stopped = [at for at in sentences if _STOPPED.search(texts.rows[at].ending)]
    unended = [at for at in prose if texts.rows[at].ending[-1:] not in _ENDS]
    begun = [at for at in sentences if texts.answers[at][0].islower()]
    if is_open:
        endless = [at for at in unended if _STOPPED.search(texts.rows[at].ending)]
        yield make(endless, len(prose), "stop without an end", 0.4)
    ends_elsewhere = len(unended) < 0.9 * len(prose)
    stopped = stopped if len(stopped) > len(prose) / 20 else []
    total = max(len(sentences), len(prose) // 2)
    yield make(stopped, total, "stop in the middle of a sentence", 0.35 if ends_elsewhere else 0.5)
    trailing = [at for at in rows if texts.rows[at].words > 2 and texts.rows[at].ending.endswith(("...", "…"))]
    yield make(trailing, len(rows), "end with an ellipsis", 0.2)
    middles = [at for at in begun if texts.rows[at].ending[-1:] in ".!?"]
    yield make(middles, total, "begin in the middle of a sentence", 0.5)
    values = [at for at in rows if texts.answers[at][0] in "{[" and texts.rows[at].length < MAX_ANSWER]
    broken = [at for at in values if not _is_json(texts.answers[at])] if len(values) > len(rows) / 2 else []
    yield make(broken, len(rows), "have an answer that begins as JSON but isn't", 0.1)
    fences = [at for at in rows if texts.rows[at].length < MAX_ANSWER and texts.answers[at].count("```") % 2]
    yield make(fences, len(rows), "have a code block without an end", 0.15)


def find_foreign_content(texts: SampledTexts) -> Iterator[RowSign]:
    """Text of a program, a web site or a template where an answer should be."""
    make = partial(_make_sign, code=data_quality.FOREIGN)
    rows = [at for at, text in enumerate(texts.answers) if text]
    plain = [at for at in rows if not texts.is_code[at] and not texts.asks_for_code[at]]
    total = len(rows)
    slots = [at for at in plain if _has_placeholder(texts.answers[at])]
    yield make(slots, total, "contain placeholders of a template", 0.1)
    asked = [at for at, row in enumerate(texts.rows) if _has_placeholder(row.prompt) and not texts.is_code[at]]
    yield make(asked, len(texts.rows), "contain placeholders of a template, in the prompt", 0.3)
    errors = [
        at
        for at in rows
        if len(texts.words[at]) < 60
        and _contains_any(texts.answers[at][:160], _ERRORS)
        and not _contains_any(texts.rows[at].prompt, _ERRORS)
        and _ERROR_WORDS.isdisjoint(texts.prompt_words[at])
    ]
    yield make(errors, total, "are error messages of a service", 0.05)
    refused = [at for at in plain if _contains_any(texts.answers[at][:120], _REFUSALS)]
    yield make(refused, total, "refuse to answer", 0.25, block=2.0)
    walls = []
    for at in rows:
        small = texts.answers[at].lower()
        found = sum(phrase in small for phrase in _BOILERPLATE)
        if found > 1 and found >= len(texts.words[at]) / 50 and not _contains_any(texts.rows[at].prompt, _BOILERPLATE):
            walls.append(at)
    yield make(walls, total, "are boilerplate of web pages", 0.1)


def _make_sign(
    rows: Sequence[int],
    total: int,
    message: str,
    warn: float,
    code: Diagnosis = data_quality.SHAPE,
    block: float | None = None,
) -> RowSign:
    return RowSign(
        diagnosis=code,
        message=message,
        why=code.explanation,
        rows=rows,
        total=total,
        warn=warn,
        block=max(0.6, 2 * warn) if block is None and code is data_quality.FOREIGN else block or 2.0,
    )


def _contains_any(text: str, phrases: Sequence[str]) -> bool:
    small = text.lower()
    return any(phrase in small for phrase in phrases)


def _has_placeholder(text: str) -> bool:
    marked = any(mark in text for mark in (*"{<[%$_XN", "ndefined", "nan", "orem"))
    return marked and _PLACEHOLDER.search(text) is not None


def _is_json(text: str) -> bool:
    try:
        _DECODER.raw_decode(text)  # more text may follow: the answer of the next turn
    except (ValueError, RecursionError):
        return False
    return True


FINDERS = (find_machine_values, find_cut_answers, find_foreign_content)
