"""How a module of this room answers whoever started it: one JSON object, which is what was asked for or an error."""

import json
import sys
from collections.abc import Callable
from typing import Any

from aboard.diagnoses import AboardError
from aboard.diagnoses.errors import pack_error

REFUSED = 3


def answered(act: Callable[[], dict[str, Any]]) -> int:
    """The exit code; the object is on stdout."""
    try:
        told, code = act(), 0
    except AboardError as error:
        told, code = {"error": pack_error(error)}, REFUSED
    json.dump(told, sys.stdout)
    return code
