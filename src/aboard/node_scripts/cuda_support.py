"""What a node with GPUs runs to learn whether its torch can use them, without importing torch, which takes seconds.

It runs as ranks do, since their container and library path decide which libcuda they load.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def describe_cuda() -> dict[str, Any]:
    return dict(describe_torch(), **ask_driver())


def describe_torch() -> dict[str, str]:
    """The versions of torch and of the CUDA or HIP that it was built for, from its version.py; empty where unknown."""
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        spec = None
    text = ""
    if spec is not None and spec.origin:
        try:
            with open(os.path.join(os.path.dirname(spec.origin), "version.py"), encoding="utf-8") as file:
                text = file.read(65536)
        except OSError:
            return {}
    found = {}
    for name, variable in (("torch", "__version__"), ("cuda", "cuda"), ("hip", "hip")):
        value = re.search(r"^%s\b[^=\n]*= *['\"]([^'\"]+)" % variable, text, re.MULTILINE)
        if value:
            found[name] = value.group(1)[:100]
    return found


def ask_driver() -> dict[str, Any]:
    """The newest CUDA version that the driver supports, as 12040 for 12.4, and the error of cuInit."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return {"error": str(error)[:300]}
    version, devices = ctypes.c_int(0), ctypes.c_int(0)
    code = library.cuDriverGetVersion(ctypes.byref(version))
    # It waits for the driver to wake every GPU: seconds without persistence mode.
    code = code or library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(devices))
    answer = {"supported": version.value, "code": code, "devices": devices.value}  # type: dict[str, Any]
    if code:
        text = ctypes.c_char_p()
        library.cuGetErrorString(code, ctypes.byref(text))
        answer["error"] = (text.value or b"unknown error").decode("utf-8", "replace")[:300]
    return answer


if __name__ == "__main__":
    print(json.dumps(describe_cuda()))
