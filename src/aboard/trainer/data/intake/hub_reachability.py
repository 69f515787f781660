"""Whether the hub is reachable: known in two seconds, while its own client retries for a minute."""

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_TIMEOUT = 2.0
_PORTS = {"http": 80, "https": 443}


def is_hub_reachable(seconds: float = _TIMEOUT) -> bool:
    """Whether the hub, or the proxy in front of it, accepts a connection; False if the user has set offline mode."""
    from huggingface_hub import constants  # noqa: PLC0415 - takes half a second, for nothing where paths are given

    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    proxy = getproxies().get(hub.scheme)
    if proxy and not proxy_bypass(hub.hostname or ""):
        hub = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme=hub.scheme)
    connected = threading.Event()

    def dial() -> None:
        port = hub.port or _PORTS.get(hub.scheme, 443)
        try:
            socket.create_connection((hub.hostname or "", port), timeout=seconds).close()
        except OSError:
            return
        connected.set()

    # In a thread, since name resolution has no timeout; it ends by itself.
    dialer = threading.Thread(target=dial, daemon=True)
    dialer.start()
    dialer.join(seconds)
    return connected.is_set()
