"""A data set of the Hugging Face hub by its name, through `datasets`: downloaded once, or from its cache."""

import re
from dataclasses import replace
from typing import Any

from aboard.data.intake.chunks import Chunk
from aboard.data.intake.columnar import arrow_chunks, arrow_rows
from aboard.data.intake.online import hub_reachable
from aboard.diagnoses import AboardError, data
from aboard.diagnoses.untrusted import Untrusted, visible

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_ENDING = re.compile(r"\.(jsonl?|ndjson|parquet|arrow|idx|bin|txt|csv)(\.\w+)?$", re.IGNORECASE)


def is_hub_name(text: str) -> bool:
    """Whether a path that is not there may be a name on the hub: owner/name, with no ending of a file."""
    return bool(_NAME.fullmatch(text)) and not _ENDING.search(text)


def hub_chunks(name: str, *, config: str | None, split: str, every: int) -> list[Chunk]:
    """The chunks of a hub data set's split, over the arrow files in which `datasets` keeps it."""
    found = _loaded(name, config, split)
    chunks: list[Chunk] = []
    shown, rows = Untrusted(f"hub:{name}/{split}"), 0
    for file in found.cache_files:
        cut = arrow_chunks(shown, file["filename"], every=every)
        chunks += [replace(chunk, first=chunk.first + rows) for chunk in cut]
        rows += arrow_rows(file["filename"])
    return chunks


def _loaded(name: str, config: str | None, split: str) -> Any:
    import datasets  # noqa: PLC0415 - takes seconds to import, which a local file needn't wait for

    if not datasets.config.HF_HUB_OFFLINE and not hub_reachable():
        # Else each of its files is tried for half a minute before the cache is looked into.
        datasets.config.HF_HUB_OFFLINE = True
    try:
        return datasets.load_dataset(name, config, split=split)
    except Exception as error:  # `datasets` raises whatever its downloader, its parsers and its builders raise
        seen = f"the data set '{name}' can't be had from the hub: {visible(' '.join(str(error).split()), 300)}"
        raise AboardError(data.HUB, seen, name=name) from error
