"""A practice cluster of real hosts on one Linux machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aboard.sandbox.host import Host
    from aboard.sandbox.sandbox import Sandbox, down
    from aboard.sandbox.state import names

__all__ = ["Host", "Sandbox", "down", "names"]


def __getattr__(name: str) -> Any:
    # Late: `enter` lives in this package too, runs once per command in a host, and would pay 70 ms for it.
    if name not in __all__:
        raise AttributeError(name)
    from aboard.sandbox import host, sandbox, state  # noqa: PLC0415 - the reason is above

    return {"Host": host.Host, "Sandbox": sandbox.Sandbox, "down": sandbox.down, "names": state.names}[name]
