"""Which tensor of the files is which of the model, by transformers' own rules of renaming and conversion."""

import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import field
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from aboard.diagnoses import AboardError
from aboard.diagnoses import model as models
from aboard.diagnoses.untrusted import visible
from aboard.lazy import dataclass

SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Match:
    """`plain`: the model's name → the file's. `mixed`: tensors that several of the file make, as fused experts are."""

    plain: Mapping[str, str]
    mixed: tuple["Mixture", ...]
    # Names of the model that transformers too would leave to their first values.
    fresh: tuple[str, ...]


@dataclass(kw_only=True)
class Mixture:
    """What one conversion takes from the files; it yields whole tensors, by their names in the model."""

    target: str
    pattern: str
    converter: WeightConverter
    sources: list[tuple[str, str]] = field(default_factory=list)

    def convert(self, read: Callable[[str], torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
        converter = deepcopy(self.converter)
        for source, pattern in self.sources:
            # Called when its turn comes; transformers' own type says Future, its `materialize_tensors` takes both.
            converter.add_tensor(self.target, source, pattern, partial(read, source))  # type: ignore[arg-type]
        made = converter.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def match(model: PreTrainedModel, names: Iterable[str]) -> Match:
    """Every name of the files and of the model is accounted for, or it is an error that lists those that aren't."""
    wanted = model.state_dict()
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    plain: dict[str, str] = {}
    mixed: dict[str, Mixture] = {}
    unexpected: list[str] = []
    for source in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(source, renamings, converters, model.base_model_prefix, wanted)
        if target not in wanted and source in wanted:
            target, pattern = rename_source_key(source, [], [], model.base_model_prefix, wanted)
        if target not in wanted:
            unexpected.append(source)
        elif pattern is None:
            plain[target] = source
        else:
            mixture = mixed.setdefault(target, Mixture(target=target, pattern=pattern, converter=by_pattern[pattern]))
            mixture.sources.append((source, pattern))
    made = {name for each in mixed.values() for name in _targets(each, wanted)}
    missing = [name for name in wanted if not {name, *_tied(model, name)} & (plain.keys() | made)]
    return _accounted(model, plain, tuple(mixed.values()), missing, unexpected)


def tied(model: PreTrainedModel) -> dict[str, str]:
    """A tied name → the name that it is tied to."""
    found: dict[str, str] = model.all_tied_weights_keys
    return found


def _tied(model: PreTrainedModel, name: str) -> set[str]:
    """All names of the parameter that this is one of."""
    source = tied(model).get(name, name)
    return {source, *(other for other, its in tied(model).items() if its == source)}


def _targets(mixture: Mixture, wanted: Mapping[str, Any]) -> Iterable[str]:
    """A conversion is named after the first of its targets; the others differ in the target's own part."""
    first, *others = mixture.converter.target_patterns
    names = [mixture.target, *(mixture.target.replace(first, other) for other in others)]
    return [name for name in names if name in wanted]


def _accounted(
    model: PreTrainedModel, plain: dict[str, str], mixed: tuple[Mixture, ...], missing: list[str], unexpected: list[str]
) -> Match:
    # Rotary tables and positions were once saved by some; they are computed now (transformers does the same).
    passing = [*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"]  # noqa: SLF001 - transformers' contract with its models
    optional = [*(model._keys_to_ignore_on_load_missing or ())]  # noqa: SLF001 - as above
    unexpected = [name for name in unexpected if not _any(passing, name)]
    fresh = tuple(name for name in missing if _any(optional, name))
    missing = [name for name in missing if name not in fresh]
    if missing or unexpected:
        raise AboardError(
            models.NAMES,
            f"the weights don't fit a {type(model).__name__}: "
            + "; ".join(
                f"{what}: {', '.join(map(visible, found[:SHOWN]))}"
                f"{f' and {len(found) - SHOWN} more' if len(found) > SHOWN else ''}"
                for what, found in (("missing", missing), ("not known", unexpected))
                if found
            ),
        )
    return Match(plain=plain, mixed=mixed, fresh=fresh)


def _any(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
