"""The reply of a worker module to the process that started it: one JSON object with the result or an error."""

import json
import sys
from collections.abc import Callable
from typing import Any

from aboard.core.exit_codes import EXIT_ERROR
from aboard.diagnoses import AboardError
from aboard.diagnoses.errors import pack_error


def write_reply(act: Callable[[], dict[str, Any]]) -> int:
    """Writes the object to stdout and returns the exit code."""
    try:
        reply, code = act(), 0
    except AboardError as error:
        reply, code = {"error": pack_error(error)}, EXIT_ERROR
    json.dump(reply, sys.stdout)
    return code
