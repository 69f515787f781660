"""A practice cluster of real hosts on one Linux machine."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aboard.sandbox.host import Host
    from aboard.sandbox.sandbox import Sandbox, take_down_sandbox
    from aboard.sandbox.saved_state import list_sandboxes

__all__ = ["Host", "Sandbox", "list_sandboxes", "take_down_sandbox"]


def __getattr__(name: str) -> Any:
    # Late: `run_in_host` is in this package too, runs once per command in a host, and would pay 70 ms for it.
    if name not in __all__:
        raise AttributeError(name)
    from aboard.sandbox import host, sandbox, saved_state  # noqa: PLC0415 - the reason is above

    return {
        "Host": host.Host,
        "Sandbox": sandbox.Sandbox,
        "take_down_sandbox": sandbox.take_down_sandbox,
        "list_sandboxes": saved_state.list_sandboxes,
    }[name]
