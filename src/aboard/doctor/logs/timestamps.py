"""A line's timestamp, parsed from the many formats of logs, as seconds since the year began.

The year is left out, since glog and syslog leave it out too, and one file may mix formats.
"""

import re

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d(?:[.,]\d+)?)"
_FORMS = (
    # 2026-11-15 08:00:00,123 and 2026-11-15T08:00:00.123Z: logging, Slurm, DeepSpeed, NCCL from 2.26, containers.
    re.compile(r"\b\d{4}[-/](?P<month>\d\d)[-/](?P<day>\d\d)[ T_]" + _TIME),
    # E1115 08:00:00.123456 and E321 …: glog, in torch without the zero of the month from 2.3 on.
    re.compile(r"(?<![\w.])[IWEF](?P<month>\d{1,2})(?P<day>\d\d) " + _TIME),
    # 11/15/2026 08:00:00: Hugging Face's examples.
    re.compile(r"\b(?P<month>\d\d)/(?P<day>\d\d)/\d{4} " + _TIME),
    # Nov 15 08:00:00, Sun Nov 15 08:00:00 2026 and Nov 15 2026 08:00:00: syslog, dmesg -T, the Fabric Manager.
    re.compile(rf"\b(?P<name>{'|'.join(_MONTHS)}) +(?P<day>\d{{1,2}}) (?:\d{{4}} )?" + _TIME),
)
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")
# Timestamps are at the start of a line; later ones belong to the message.
_WITHIN = 120


def parse_timestamp(line: str) -> float | None:
    """The first timestamp at the beginning of a line, or None."""
    start = line[:_WITHIN]
    for form in _FORMS if _CLOCK.search(start) else ():
        found = form.search(start)
        if found:
            return _count_seconds(found)
    return None


def _count_seconds(found: re.Match[str]) -> float:
    groups = found.groupdict()
    name = groups.get("name")
    month = _MONTHS.index(name) + 1 if name else int(groups["month"])
    days = (month - 1) * 31 + int(groups["day"]) - 1
    second = float(groups["second"].replace(",", "."))
    return ((days * 24 + int(groups["hour"])) * 60 + int(groups["minute"])) * 60 + second
