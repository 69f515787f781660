"""The base class of all faults: a value that says what to break, with `inject` and `heal`."""

import hashlib
import json
from dataclasses import asdict, fields
from typing import ClassVar

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.faults.root_commands import FAULT_STORE
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault of a host; its annotated fields are the options of `aboard sandbox break`."""

    #: Its stable name, as users type it.
    name: ClassVar[str]
    #: Whether it survives a power cycle: changes on disk do, firewall rules and processes do not.
    survives_power: ClassVar[bool] = False
    #: Whether it is a single action (such as a kill) that leaves nothing to heal.
    momentary: ClassVar[bool] = False
    #: The resources that it changes, if its options don't matter for that.
    resources: ClassVar[frozenset[str]] = frozenset()

    def check(self, box: Sandbox, host: Host) -> None:
        """Rejects impossible options before anything is changed."""

    def inject(self, box: Sandbox, host: Host) -> None:
        """Breaks the host; does nothing if it is already broken in this way."""
        raise NotImplementedError

    def heal(self, box: Sandbox, host: Host) -> None:
        """Undoes what `inject` did and nothing else, also after an incomplete `inject`."""
        raise NotImplementedError

    def reapply(self, box: Sandbox, host: Host) -> None:
        """Restores this fault after another fault on this host was injected or healed."""

    @property
    def claims(self) -> frozenset[str]:
        """The resources that it changes; two faults of one host cannot claim the same one."""
        return self.resources or frozenset({self.key})

    @property
    def key(self) -> str:
        """Its name and a digest of its fields; names its tables, files and processes in the host."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{self.name}-{digest[:8]}"

    @property
    def store(self) -> str:
        """The directory on the host's disk for what it takes away."""
        return f"{FAULT_STORE}/{self.key}"

    def describe(self) -> str:
        """Its name and its non-default options, as a user would type them."""
        options = [
            _format_option(item.name, getattr(self, item.name))
            for item in fields(self)
            if _differs_from_default(self, item.name)
        ]
        return " ".join([self.name, *options])


def _format_option(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value is True:
        return flag
    return f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"


def _differs_from_default(fault: Fault, name: str) -> bool:
    default = next(item.default for item in fields(fault) if item.name == name)
    return bool(getattr(fault, name) != default)
