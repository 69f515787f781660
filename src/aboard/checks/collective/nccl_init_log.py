"""NCCL's log as a value: its version, the network it chose, the transport of each channel, and its warnings.

Lines are `host:pid:tid [dev] NCCL INFO …`; a WARN is preceded by its source location, from 2.26 on by the time.
Changes from 2.14 to 2.30 are noted beside each pattern. `Using network` is the line that decides; from 2.24 on
`NET/IB : Using` is printed even where no device was found.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from aboard.diagnoses.untrusted import NO_TEXT, Untrusted
from aboard.lazy_dataclass import dataclass

_PREFIX = re.compile(r"^(?:\[[^\]]*\] )?(?:\S+:\d+:\d+ )?(?:\[\d+\] )?(?:\S+:\d+ (?:\(\S+\) )?)?NCCL (INFO|WARN) (.*)$")
# Without a prefix up to 2.22, with one later.
_VERSION = re.compile(r"^NCCL version (\d+\.\d+(?:\.\d+)?)")
# `Bootstrap : Using` up to 2.23, `Bootstrap: Using` since; `eth0:10.0.0.1<0>`, or an IPv6 address.
_BOOTSTRAP = re.compile(r"^Bootstrap ?: Using ([\w.@+-]{1,32}):")
_NETWORK = re.compile(r"^Using network (.+)$")
_HCAS = re.compile(r"^NET/IB ?: Using (.*?);? ?OOB ")
# `[0]mlx5_0:1/IB`, `={[0] mlx5_0:1/IB, …}` in 2.20 to 2.23, `:rail:plane` before the slash in 2.30.
_HCA = re.compile(r"([A-Za-z][\w.-]{0,63}):\d{1,9}(?::[\w-]{1,64}){0,8}/(IB|RoCE)")
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
# `Channel 00/0 : 0[3000] -> 8[3000] [send] via NET/IB/0(1)/GDRDMA(PCI)/Shared`, `00/16 :` in some, `P2P/IPC`, `SHM/…`.
_CHANNEL = re.compile(r"^Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(send|receive)\])? via (\S.*)$")
_TOPOLOGY = re.compile(r"^(?:NCCL_TOPO_FILE set by environment to|Loading topology file) (.+)$")
# A WARN up to 2.1x, an INFO since.
_NO_TOPOLOGY = re.compile(r"^Could not open XML topology file (.+?) : (.+)$")
_COMPLETION = re.compile(r"Got completion from peer .{0,400}?(?:with error|status=)\s{0,8}(?:\w{1,64}\()?\d")
_HCA_OF_ERROR = re.compile(r" hca ([\w.:-]{1,64})")
# Warnings that every healthy log may have.
_NOISE = ("Call to bind failed", "iommu", "HSA_FORCE_FINE_GRAIN_PCIE", "NET/Plugin")
_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class NcclInitLog:
    """The content of one node's log; an empty field was not logged."""

    version: str = ""
    bootstrap: str = ""
    networks: tuple[Untrusted, ...] = ()
    # The number of channels by transport: `NET/IB`, `NET/Socket`, `P2P`, `SHM`.
    transports: Mapping[Untrusted, int] = field(default_factory=dict)
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
    warnings: tuple[Untrusted, ...] = ()


def parse_init_log(lines: Iterable[Untrusted]) -> NcclInitLog:
    """Parses the known lines and ignores the rest."""
    reader = _Reader()
    for line in lines:
        reader.take(line.raw().strip())
    return reader.log()


class _Reader:
    """Accumulates the log line by line."""

    def __init__(self) -> None:
        self.words: dict[str, str | Untrusted] = {}
        self.lists: dict[str, dict[str | Untrusted, None]] = {}
        self.transports: dict[Untrusted, int] = {}
        self.direct: dict[str, bool] = {}
        self.completions: dict[str, int] = {}
        self.direct_channels = 0
        self.no_device = False

    def take(self, line: str) -> None:
        if found := _VERSION.search(line):
            self.words["version"] = found[1]
            return
        prefix = _PREFIX.match(line)
        if prefix is None:
            return
        kind, text = prefix[1], prefix[2]
        if found := _VERSION.search(text):
            self.words["version"] = found[1]
        elif kind == "WARN":
            self._warn(text)
        self._net(text)
        self._plugin(text)
        self._graph(text)

    def log(self) -> NcclInitLog:
        words: dict[str, Any] = dict(self.words)
        words.update({name: tuple(values)[:_MOST_NAMED] for name, values in self.lists.items()})
        return NcclInitLog(
            **words,
            transports=self.transports,
            direct=self.direct,
            completions=self.completions,
            direct_channels=self.direct_channels,
            no_device=self.no_device,
        )

    def _net(self, text: str) -> None:
        if found := _BOOTSTRAP.match(text):
            self.words["bootstrap"] = found[1]
        elif found := _NETWORK.match(text):
            self._add("networks", Untrusted(found[1]))
        elif text.startswith("NET/IB : No device found"):
            self.no_device = True
        elif found := _HCAS.match(text):
            for name, _layer in _HCA.findall(found[1]):
                self._add("hcas", name)
        elif found := _SOCKET.match(text):
            for card in _CARD.findall(found[1]):
                self._add("cards", card)
        elif found := _DIRECT.match(text):
            self.direct[found[3]] = found[2].lower() == "enabled"
        elif found := _CHANNEL.match(text):
            self._channel(found[4])

    def _plugin(self, text: str) -> None:
        if found := _LOADED.match(text):
            self.words["plugin"] = Untrusted(found[1])
        elif found := _WANTED.match(text):
            self._add("wanted_plugins", Untrusted(found[1]))
        elif found := _NOT_FOUND.match(text):
            self._add("absent_plugins", Untrusted(found[1]))
        else:
            for pattern in _ABSENT:
                if found := pattern.match(text):
                    self._add("absent_plugins", Untrusted(found[1].strip()))

    def _graph(self, text: str) -> None:
        if found := _NO_TOPOLOGY.match(text):
            self.words["no_topology"] = Untrusted(f"{found[1]}: {found[2]}")
        elif found := _TOPOLOGY.match(text):
            self.words["topology"] = Untrusted(found[1])

    def _warn(self, text: str) -> None:
        if _COMPLETION.search(text):
            hca = _HCA_OF_ERROR.search(text)
            name = hca[1] if hca else ""
            self.completions[name] = self.completions.get(name, 0) + 1
        if not any(word in text for word in _NOISE):
            self._add("warnings", Untrusted(text))

    def _channel(self, way: str) -> None:
        parts = way.split("/")
        name = Untrusted("/".join(parts[:2]) if parts[0] == "NET" else parts[0])
        self.transports[name] = self.transports.get(name, 0) + 1
        self.direct_channels += name.startswith("NET/") and "GDRDMA" in way

    def _add(self, name: str, value: str | Untrusted) -> None:
        self.lists.setdefault(name, {})[value] = None
