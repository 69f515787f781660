"""Whether the hub can be asked at all: known in two seconds, where its own client tries for a minute."""

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

_SECONDS = 2.0
_PORTS = {"http": 80, "https": 443}


def hub_reachable(seconds: float = _SECONDS) -> bool:
    """Whether the hub, or the proxy before it, takes a connection; never where the user has set it offline."""
    from huggingface_hub import constants  # noqa: PLC0415 - takes half a second, for nothing where paths are given

    if constants.HF_HUB_OFFLINE:
        return False
    hub = urlsplit(constants.ENDPOINT)
    proxy = getproxies().get(hub.scheme)
    if proxy and not proxy_bypass(hub.hostname or ""):
        hub = urlsplit(proxy if "//" in proxy else f"//{proxy}", scheme=hub.scheme)
    taken = threading.Event()

    def dial() -> None:
        port = hub.port or _PORTS.get(hub.scheme, 443)
        try:
            socket.create_connection((hub.hostname or "", port), timeout=seconds).close()
        except OSError:
            return
        taken.set()

    # In a thread, since a name server that doesn't answer can't be given a time-out; it ends by itself.
    dialling = threading.Thread(target=dial, daemon=True)
    dialling.start()
    dialling.join(seconds)
    return taken.is_set()
