"""NCCL's log as a value: its version, the network it chose, its adapters and plugins, and its errors.

Changes from 2.14 to 2.30 are noted beside each pattern. `Using network` is the line that decides; from 2.24 on
`NET/IB : Using` is printed even where no device was found.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.doctor.shared.nccl_lines import ADAPTER, CHANNEL, NETWORK, parse_nccl_line, parse_version
from aboard.lazy_dataclass import dataclass

_HCAS = re.compile(r"^NET/IB ?: Using (.*?);? ?OOB ")
_SOCKET = re.compile(r"^NET/Socket ?: Using (.*)$")
_CARD = re.compile(r"\[\d+\]([\w.@+-]{1,32}):")
# `NET/Plugin : Loaded net plugin X (vN)` in all; the missing one's name stands differently in each.
_LOADED = re.compile(r"^NET/Plugin ?: Loaded net plugin (.+?) \(v\d+\)")
_ABSENT = (
    re.compile(r"^NET/Plugin: Could not find: ([^.]{0,300}?(?:\.so)?[\w.]{0,32}?)\.?(?: Using .*)?$"),
    re.compile(r"^NET/Plugin ?: No plugin found \(([^)]+)\)"),
    re.compile(r"^NET/Plugin ?: Plugin load returned \d+ : (\S+?): "),
)
_WANTED = re.compile(r"^NCCL_NET(?:_PLUGIN)? set by environment to (.+?)\.?$")
_NOT_FOUND = re.compile(r"^Error: network (.+?) not found")
# `NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'`; sockets print it too, where it means nothing.
_DIRECT = re.compile(
    r"^NET/(?!Socket)(.+?) ?: GPU Direct RDMA (?:\(\w+\) )?([Ee]nabled|[Dd]isabled) for HCA \d+ '([\w.:-]{1,64})'"
)
_TOPOLOGY = re.compile(r"^(?:NCCL_TOPO_FILE set by environment to|Loading topology file) (.+)$")
# A WARN up to 2.1x, an INFO since.
_NO_TOPOLOGY = re.compile(r"^Could not open XML topology file (.+?) : (.+)$")
_COMPLETION = re.compile(r"Got completion from peer .{0,400}?(?:with error|status=)\s{0,8}(?:\w{1,64}\()?\d")
_HCA_OF_ERROR = re.compile(r" hca ([\w.:-]{1,64})")
_MOST_NAMED = 20
# The fields that these lines fill: with one text, with names, or with the adapters in a list.
_TEXTS = {"plugin": _LOADED, "topology": _TOPOLOGY}
_NAMES = {"networks": (NETWORK,), "wanted_plugins": (_WANTED,), "absent_plugins": (_NOT_FOUND, *_ABSENT)}
_ADAPTERS = {"hcas": (_HCAS, ADAPTER), "cards": (_SOCKET, _CARD)}


@dataclass(frozen=True, kw_only=True)
class NcclInitLog:
    """The content of one node's log; an empty field was not logged."""

    version: str = ""
    networks: tuple[Untrusted, ...] = ()
    # Network channels that go directly from GPU to adapter.
    direct_channels: int = 0
    hcas: tuple[str, ...] = ()
    no_device: bool = False
    cards: tuple[str, ...] = ()
    plugin: Untrusted = NO_TEXT
    absent_plugins: tuple[Untrusted, ...] = ()
    wanted_plugins: tuple[Untrusted, ...] = ()
    # GPUDirect by adapter.
    direct: Mapping[str, bool] = field(default_factory=dict)
    topology: Untrusted = NO_TEXT
    no_topology: Untrusted = NO_TEXT
    # Completions with an error, counted by adapter ("" where NCCL doesn't name it).
    completions: Mapping[str, int] = field(default_factory=dict)


def parse_init_log(lines: Iterable[Untrusted]) -> NcclInitLog:
    """Parses the known lines and ignores the rest."""
    reader = _Reader()
    for line in lines:
        reader.take(line.raw().strip())
    return reader.log()


class _Reader:
    """Accumulates the log line by line."""

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}
        self.lists: dict[str, dict[str | Untrusted, None]] = defaultdict(dict)
        self.direct: dict[str, bool] = {}
        self.completions: Counter[str] = Counter()
        self.direct_channels = 0

    def take(self, line: str) -> None:
        parsed = parse_nccl_line(line)
        text = line if parsed is None else parsed.text
        if version := parse_version(text):
            self.words["version"] = version
        elif parsed is not None:
            if parsed.level == "WARN" and _COMPLETION.search(text):
                hca = _HCA_OF_ERROR.search(text)
                self.completions[hca[1] if hca else ""] += 1
            self._take_names(text)
            self._take_devices(text)

    def log(self) -> NcclInitLog:
        self.words.update({name: tuple(values)[:_MOST_NAMED] for name, values in self.lists.items()})
        return NcclInitLog(
            **self.words,
            direct=self.direct,
            completions=self.completions,
            direct_channels=self.direct_channels,
        )

    def _take_names(self, text: str) -> None:
        for field_name, patterns in _NAMES.items():
            for pattern in patterns:
                if found := pattern.match(text):
                    self.lists[field_name][Untrusted(found[1].strip())] = None
        for field_name, pattern in _TEXTS.items():
            if found := pattern.match(text):
                self.words[field_name] = Untrusted(found[1])
        if found := _NO_TOPOLOGY.match(text):
            self.words["no_topology"] = Untrusted(f"{found[1]}: {found[2]}")

    def _take_devices(self, text: str) -> None:
        for field_name, (pattern, adapter) in _ADAPTERS.items():
            if found := pattern.match(text):
                self.lists[field_name].update(dict.fromkeys(adapter.findall(found[1])))
        if text.startswith("NET/IB : No device found"):
            self.words["no_device"] = True
        elif found := _DIRECT.match(text):
            self.direct[found[3]] = found[2].lower() == "enabled"
        elif found := CHANNEL.match(text):
            self.direct_channels += found[2] is not None
