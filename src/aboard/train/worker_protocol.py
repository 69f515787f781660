"""How a module of this room answers whoever started it: one JSON object, which is what was asked for or an error."""

import json
import sys
from collections.abc import Callable
from typing import Any

from aboard.diagnoses import AboardError
from aboard.diagnoses.errors import pack_error

REFUSED_EXIT_CODE = 3


def write_reply(act: Callable[[], dict[str, Any]]) -> int:
    """The exit code; the object is on stdout."""
    try:
        reply, code = act(), 0
    except AboardError as error:
        reply, code = {"error": pack_error(error)}, REFUSED_EXIT_CODE
    json.dump(reply, sys.stdout)
    return code
