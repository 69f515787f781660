"""Python runs this at the start of a rank instead of the user's own `sitecustomize`, which it then runs unchanged.

See `site` in Python's manual. If anything fails here, the rank starts as it would without Aboard.
"""

import sys
from contextlib import suppress

with suppress(Exception):
    # Imported by name from the same directory: on a node it is not part of a package.
    __import__("aboard_beacon").arm(__file__.rpartition("/")[0])

# Imports the user's own module under our name; if there is none, this raises the ImportError that Python expects.
# A module's import lock is reentrant, so the same thread may do this.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
