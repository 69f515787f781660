"""Names of models and data sets: paths on this machine, or repositories of the Hugging Face Hub, which anybody can own.

A path with a typo must not become somebody else's repository.
"""

import re
from typing import Final

# In front of a name, it says that the name is one of the hub.
HUB_PREFIX: Final = "hub:"
_FOLDER: Final = re.compile(
    r"(adapter|artifact|checkpoint|ckpt|corpus|data|dataset|export|model|out|output|result|run|save|saved|tmp|tokenizer"
    r"|train|trained|weight|work)s?",
    re.IGNORECASE,
)
_SAVED: Final = re.compile(r"(last|latest|best|final|checkpoint|ckpt|step|epoch|iter)([-_]?\d+)?", re.IGNORECASE)


def strip_hub_prefix(name: str) -> str:
    return name.removeprefix(HUB_PREFIX)


def is_path(name: str) -> bool:
    """Whether the name can only be a path: a hub name is one word, or two with a slash between them."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


def looks_like_path(name: str) -> bool:
    """Whether the name is or may be a path: `checkpoints/last` is a possible name on the hub, but rarely meant as one.

    A name with the prefix is none.
    """
    if name.startswith(HUB_PREFIX):
        return False
    parts = name.strip("/").split("/")
    return is_path(name) or bool(_FOLDER.fullmatch(parts[0]) or _SAVED.fullmatch(parts[-1]))
