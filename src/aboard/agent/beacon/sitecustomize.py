"""Python runs this at the start of a rank, in the place of the user's own, which it runs next as if we weren't here.

See `site` in Python's manual. Whatever goes wrong here, the rank starts as it would have without us.
"""

import sys
from contextlib import suppress

with suppress(Exception):
    # By its name, since it stands beside this file: on a node there is no package around it.
    __import__("aboard_beacon").arm(__file__.rpartition("/")[0])

# From here on it is the user's: theirs takes our name, and if there is none, the same ImportError that Python expects
# of a machine without one goes up. The import lock of a module may be taken again by the thread that has it.
sys.modules.pop("sitecustomize", None)
__import__("sitecustomize")
