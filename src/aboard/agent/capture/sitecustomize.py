"""Python runs this in a captured script instead of the user's own `sitecustomize`, which it then runs unchanged.

See `site` in Python's manual. If anything fails here, the program starts as it would without Aboard.
"""

import sys

# On a node these are files of one directory, and no package.
_folder = __file__.rpartition("/")[0]
_arm = None
try:  # noqa: SIM105 - contextlib costs each Python of a script 2 ms to import
    _arm = __import__("aboard_capture").arm
except Exception:  # noqa: BLE001, S110 - such as the SyntaxError of a Python that is too old
    pass
# Children have it from the environment.
sys.path[:] = [part for part in sys.path if part != _folder]
sys.path_importer_cache.pop(_folder, None)
if _arm is not None:
    _arm()

# Imports the user's own module under our name; if there is none, this raises the ImportError that Python expects.
# A module's import lock is reentrant, so the same thread may do this.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
