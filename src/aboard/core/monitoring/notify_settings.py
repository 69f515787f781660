"""Who hears of a run, and of what: the section `notify` of aboard.yaml."""

from aboard.lazy_dataclass import dataclass

EVENTS = ("failure", "recovery", "stall", "end")


@dataclass(frozen=True, kw_only=True)
class NotifySettings:
    """The address of the web hook is a secret: it is the value of the variable `env`, or the content of `file`."""

    env: str = ""
    file: str = ""
    format: str = "json"
    command: tuple[str, ...] = ()
    on: tuple[str, ...] = EVENTS

    @property
    def receivers(self) -> tuple[str, ...]:
        """By the key that names them."""
        named = {"webhook": self.env or self.file, "command": self.command}
        return tuple(name for name, value in named.items() if value)
