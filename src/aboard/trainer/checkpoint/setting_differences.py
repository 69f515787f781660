"""Settings that changed since the checkpoint: reported, and refused if they make it a different training."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from aboard.core.plan.declared_setting import Setting
from aboard.core.plan.training_settings import ADAPTER_SETTINGS, SETTINGS
from aboard.diagnoses import TrainerError
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.commit_marker import CommitMarker, RunSettings
from aboard.trainer.diagnoses import checkpoint

# Of the model's configuration: how it is loaded or run, not what it computes.
_LOADED = {
    *("_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
    *("dtype", "torch_dtype", "transformers_version", "use_cache"),
}


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """One setting; `refused` says why it can't change during a training run, `keep` is the setting that keeps it."""

    name: str
    old: object
    new: object
    refused: str | None = None
    keep: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {escape_text(str(self.old))} → {escape_text(str(self.new))}"


def find_differences(marker: CommitMarker, settings: RunSettings) -> list[SettingDifference]:
    """All settings that changed, refused or not."""
    changes = [
        *_compare_batches(marker, settings),
        *_compare_adapter(marker, settings),
        *_compare_config(marker, settings),
        *_compare_settings(marker, settings),
    ]
    if (marker.world, marker.sharding) != (settings.world, settings.sharding):
        old, new = f"{marker.world} ({marker.sharding})", f"{settings.world} ({settings.sharding})"
        changes.append(SettingDifference(name="ranks", old=old, new=new))
    changes += _list_changes("version of ", marker.versions, settings.versions)
    return changes


def refuse_differences(changes: list[SettingDifference], where: str) -> None:
    """Raises if any of them makes it a different training."""
    refused = [each for each in changes if each.refused]
    if refused:
        lines = "\n".join(f"  {each}: {each.refused}" for each in refused)
        keep = [each.keep for each in refused if each.keep]
        raise TrainerError(
            checkpoint.DIFFERS,
            f"{where} can't be continued with these settings:\n{lines}",
            "keep" if keep else "back",
            keep=keep,
        )


def _compare_batches(marker: CommitMarker, settings: RunSettings) -> Iterator[SettingDifference]:
    if marker.step_size != settings.step_size:
        yield SettingDifference(
            name="sequences per step",
            old=marker.step_size,
            new=settings.step_size,
            refused="a step would use a different amount of data, so the learning rate would no longer fit",
            keep=f"train.global_batch_size={marker.step_size}",
        )
    # Sequences of another length are different sequences: report that once.
    if marker.data != settings.data and marker.training.get("max_length") == settings.training.get("max_length"):
        yield SettingDifference(
            name="data",
            old=marker.data[:12],
            new=settings.data[:12],
            refused="the prepared data has different content, packing or mix, so the data position would be wrong",
        )


def _compare_adapter(marker: CommitMarker, settings: RunSettings) -> Iterator[SettingDifference]:
    old, new = marker.training.get("adapter"), settings.training.get("adapter")
    # A crafted marker may have anything there.
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old is not new:
            have, want = ("all weights" if each is None else "an adapter" for each in (old, new))
            why = f"the checkpoint has {have}, and this run trains {want}"
            yield SettingDifference(name="trained", old=have, new=want, refused=why)
        return
    for each in _list_changes("", old, new):
        reason = ADAPTER_SETTINGS.get(each.name, Setting()).at_resume or None
        name = f"adapter.{each.name}"
        # `--set` takes no lists.
        keep = f"train.{name}={_format_value(each.old)}" if reason and not isinstance(each.old, list) else None
        yield SettingDifference(name=name, old=each.old, new=each.new, refused=reason, keep=keep)
    if marker.base and settings.base and marker.base != settings.base:
        yield SettingDifference(
            name="base model",
            old=marker.base[:12],
            new=settings.base[:12],
            refused="these adapters were trained on other base weights",
        )


def _compare_config(marker: CommitMarker, settings: RunSettings) -> Iterator[SettingDifference]:
    """Only settings that both have: another version of transformers adds settings with defaults."""
    old, new = marker.config or {}, settings.config or {}
    for name in sorted(old.keys() & new.keys() - _LOADED):
        if old[name] != new[name]:
            # A run may change padding tokens and dropout.
            free = name.endswith("_token_id") or "dropout" in name
            why = None if free else "it is a different model"
            yield SettingDifference(name=f"model's {name}", old=old[name], new=new[name], refused=why)


def _compare_settings(marker: CommitMarker, settings: RunSettings) -> Iterator[SettingDifference]:
    # Checkpoints from before there was a choice are of AdamW.
    for each in _list_changes("", {"optim": "adamw", **marker.training}, settings.training):
        setting = SETTINGS.get(each.name, Setting())
        if setting.at_resume is not None:  # else it says where the run is now, or is compared by content above
            keep = f"{setting.section}.{each.name}={each.old}" if setting.at_resume else None
            refused = setting.at_resume or None
            yield SettingDifference(name=each.name, old=each.old, new=each.new, refused=refused, keep=keep)


def _list_changes(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[SettingDifference]:
    return [
        SettingDifference(name=f"{kind}{name}", old=old[name], new=new[name])
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]


def _format_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
