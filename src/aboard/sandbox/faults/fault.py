"""What a fault is: a value that says what to break, and two verbs."""

import hashlib
import json
from dataclasses import asdict, fields
from typing import ClassVar

from aboard.lazy_dataclass import dataclass
from aboard.sandbox.host import Host
from aboard.sandbox.sandbox import Sandbox


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that can be wrong with a host; its annotated fields are the options of `aboard sandbox break`."""

    #: Its stable name, as it is typed.
    name: ClassVar[str]
    #: Whether a power cycle leaves it as it is: what lies on the disk does, rules and processes don't.
    survives_power: ClassVar[bool] = False
    #: Whether it is over as soon as it has happened, so that nothing is left to heal.
    momentary: ClassVar[bool] = False

    def check(self, box: Sandbox, host: Host) -> None:
        """Refuse what can't be done, before anything is touched."""

    def inject(self, box: Sandbox, host: Host) -> None:
        """Break it; what is broken already in this way stays so."""
        raise NotImplementedError

    def heal(self, box: Sandbox, host: Host) -> None:
        """Undo what `inject` did and nothing else; fine after half an `inject`, too."""
        raise NotImplementedError

    def hold(self, box: Sandbox, host: Host) -> None:
        """Called after another fault came or went on this host: what that took away is put back."""

    @property
    def claims(self) -> frozenset[str]:
        """What it holds for itself; two faults of one host never claim the same thing."""
        return frozenset({self.key})

    @property
    def key(self) -> str:
        """Its name and a digest of its fields: names its traces in a host (tables, files, processes)."""
        digest = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return f"{self.name}-{digest[:8]}"

    def describe(self) -> str:
        """Its name and what isn't as by default, as a user would type it."""
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
