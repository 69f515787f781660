"""Matches the tensors of the files with those of the model, by transformers' own renaming and conversion rules."""

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

from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.diagnoses import model_loading as models

MAX_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class WeightMatch:
    """`plain`: the model's name → the file's. `mixed`: tensors assembled from several, as fused experts."""

    plain: Mapping[str, str]
    mixed: tuple["FusedWeights", ...]
    # Names in the model that transformers too would leave initialized.
    fresh: tuple[str, ...]


@dataclass(kw_only=True)
class FusedWeights:
    """One conversion from tensors of the files; it yields whole tensors, by their names in the model."""

    target: str
    pattern: str
    converter: WeightConverter
    sources: list[tuple[str, str]] = field(default_factory=list)

    def convert(self, read: Callable[[str], torch.Tensor], model: PreTrainedModel) -> dict[str, torch.Tensor]:
        converter = deepcopy(self.converter)
        for source, pattern in self.sources:
            # Called when it is needed; transformers' own type says Future, its `materialize_tensors` accepts both.
            converter.add_tensor(self.target, source, pattern, partial(read, source))  # type: ignore[arg-type]
        tensors = converter.convert(self.target, model=model, config=model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in tensors.items()}


def match_weights(model: PreTrainedModel, names: Iterable[str]) -> WeightMatch:
    """Accounts for every name in the files and in the model; raises with those that don't match."""
    expected = model.state_dict()
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    by_pattern = {pattern: each for each in converters for pattern in each.source_patterns}
    plain: dict[str, str] = {}
    mixed: dict[str, FusedWeights] = {}
    unexpected: list[str] = []
    for source in sorted(names, key=dot_natural_key):
        target, pattern = rename_source_key(source, renamings, converters, model.base_model_prefix, expected)
        if target not in expected and source in expected:
            target, pattern = rename_source_key(source, [], [], model.base_model_prefix, expected)
        if target not in expected:
            unexpected.append(source)
        elif pattern is None:
            plain[target] = source
        else:
            mixture = mixed.setdefault(
                target, FusedWeights(target=target, pattern=pattern, converter=by_pattern[pattern])
            )
            mixture.sources.append((source, pattern))
    converted = {name for each in mixed.values() for name in list_targets(each, expected)}
    missing = [name for name in expected if not {name, *_list_aliases(model, name)} & (plain.keys() | converted)]
    return _check_complete(model, plain, tuple(mixed.values()), missing, unexpected)


def get_tied_names(model: PreTrainedModel) -> dict[str, str]:
    """A tied name → the name that it is tied to."""
    names: dict[str, str] = model.all_tied_weights_keys
    return names


def list_targets(mixture: FusedWeights, expected: Mapping[str, Any]) -> Iterable[str]:
    """A conversion is named after the first of its targets; the others differ in the target's own part."""
    first, *others = mixture.converter.target_patterns
    names = [mixture.target, *(mixture.target.replace(first, other) for other in others)]
    return [name for name in names if name in expected]


def _list_aliases(model: PreTrainedModel, name: str) -> set[str]:
    """All names of the same parameter."""
    source = get_tied_names(model).get(name, name)
    return {source, *(other for other, its in get_tied_names(model).items() if its == source)}


def _check_complete(
    model: PreTrainedModel,
    plain: dict[str, str],
    mixed: tuple[FusedWeights, ...],
    missing: list[str],
    unexpected: list[str],
) -> WeightMatch:
    # Some old files contain rotary tables and positions; they are computed now (transformers ignores them, too).
    passing = [*(model._keys_to_ignore_on_load_unexpected or ()), r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"]  # noqa: SLF001 - transformers' contract with its models
    optional = [*(model._keys_to_ignore_on_load_missing or ())]  # noqa: SLF001 - as above
    unexpected = [name for name in unexpected if not _has_match(passing, name)]
    fresh = tuple(name for name in missing if _has_match(optional, name))
    missing = [name for name in missing if name not in fresh]
    if missing or unexpected:
        raise TrainerError(
            models.NAMES,
            f"the weights don't fit a {type(model).__name__}: "
            + "; ".join(
                f"{what}: {', '.join(map(escape_text, found[:MAX_SHOWN]))}"
                f"{f' and {len(found) - MAX_SHOWN} more' if len(found) > MAX_SHOWN else ''}"
                for what, found in (("missing", missing), ("not known", unexpected))
                if found
            ),
        )
    return WeightMatch(plain=plain, mixed=mixed, fresh=fresh)


def _has_match(patterns: Iterable[str], name: str) -> bool:
    return any(re.search(pattern, name) for pattern in patterns)
