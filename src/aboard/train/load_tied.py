"""Files that have both a tied weight and the one that it is tied to: one if they are equal, else two."""

from collections.abc import Iterator, Mapping

import torch
from transformers import PreTrainedModel

from aboard.train.load_files import Stored
from aboard.train.load_names import Match, tied


def untied(model: PreTrainedModel, found: Match, files: Mapping[str, Stored]) -> Iterator[str]:
    """Unties, on meta, what the files have with different values, as transformers does; says so for each."""
    for name, source in list(tied(model).items()):
        both = name in found.plain and source in found.plain
        if both and not _equal(files[found.plain[name]], files[found.plain[source]]):
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(parent)
            setattr(module, own, torch.nn.Parameter(torch.empty_like(getattr(module, own))))
            del tied(model)[name]
            model.config.tie_word_embeddings = False
            yield f"{name} and {source} differ in the files, so they aren't tied, whatever config.json says"


def _equal(one: Stored, other: Stored) -> bool:
    if one.shape != other.shape:
        return False
    rows = one.shape[0]
    return all(map(torch.equal, one.rows(0, rows), other.rows(0, rows)))
