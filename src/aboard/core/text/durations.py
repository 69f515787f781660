"""Parses durations (`90s`, `10m`, `1h30m`, `2d`) and formats them (`3 min 12 s`, `3.1 ms`)."""

import re

from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration

MINUTE, HOUR, DAY = 60, 3600, 86_400
# Below this many seconds, a duration has one decimal.
TENTHS = 10
MILLI = 1e-3

_UNITS = {"d": DAY, "h": HOUR, "m": MINUTE, "s": 1}
_PART = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)([dhms])")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")


def parse_duration(text: str, *, where: str) -> float:
    """Parses a duration into seconds; refuses a number without a unit, which many users would mean as minutes."""
    if not _WHOLE.fullmatch(text.strip()):
        seen = f"'{escape_text(text)}' is not a duration"
        raise InputError.of(configuration.DURATION, where, seen, option=where)
    return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))


def format_duration(seconds: float) -> str:
    """At most two units: `4.1 s`, `42 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`."""
    if round(seconds, 1) < TENTHS:
        return f"{max(0.0, seconds):.1f} s"
    whole = round(seconds)
    for size, name, below, small in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")):
        if whole >= size:
            many, rest = divmod(whole, size)
            return f"{many} {name} {rest // below} {small}" if rest // below else f"{many} {name}"
    return f"{whole} s"


def format_latency(seconds: float) -> str:
    """The time of one short operation: `2.5 s`, `3.1 ms`, `12 us`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds / MILLI:.1f} ms" if seconds >= MILLI else f"{seconds / MILLI**2:.0f} us"
