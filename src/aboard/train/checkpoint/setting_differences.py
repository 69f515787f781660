"""What is set otherwise than when the checkpoint was made: shown, and refused where it would be another training."""

from collections.abc import Iterator, Mapping
from typing import Any

from aboard.diagnoses import AboardError
from aboard.diagnoses.trainer import checkpoint
from aboard.diagnoses.untrusted import escape_text
from aboard.lazy_dataclass import dataclass
from aboard.train.checkpoint.commit_marker import CommitMarker

# Settings that decide which token comes when, or what a token is; the reason is for the user.
_SECTIONS = {"max_length": "data", "seed": "train"}
_REFUSED = {
    "max_length": "the bins were made for another length, so the cursor points elsewhere",
    "seed": "the order of the data follows from it: samples would come twice, and others never",
}
# Where the run is now, and what is compared by content below.
_OWN = {"resume", "output_dir", "data", "model", "tokenizer"}
# Of the model's configuration: how it was loaded or is run, not what it computes.
_LOADED = {
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}


@dataclass(frozen=True, kw_only=True)
class SettingDifference:
    """One setting; `refused` says why it can't be changed on the way, `keep` what to set to keep it."""

    name: str
    old: object
    new: object
    refused: str | None = None
    keep: str | None = None

    def __str__(self) -> str:
        return f"{self.name}: {escape_text(str(self.old))} → {escape_text(str(self.new))}"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What this run would continue with, in the marker's terms."""

    training: Mapping[str, Any]
    step_size: int
    world: int
    sharding: str
    versions: Mapping[str, str]
    data: str
    config: Mapping[str, Any] | None


def find_differences(marker: CommitMarker, now: RunSettings) -> list[SettingDifference]:
    """Everything that isn't as it was, refused or not."""
    changes = [
        *_compare_steps(marker, now),
        *_compare_data(marker, now),
        *_compare_config(marker, now),
        *_compare_settings(marker, now),
    ]
    if (marker.world, marker.sharding) != (now.world, now.sharding):
        old, new = f"{marker.world} ({marker.sharding})", f"{now.world} ({now.sharding})"
        changes.append(SettingDifference(name="ranks", old=old, new=new))
    changes += _list_changes("version of ", marker.versions, now.versions)
    return changes


def refuse_differences(changes: list[SettingDifference], where: str) -> None:
    """Raises if any of them makes it another training."""
    refused = [each for each in changes if each.refused]
    if refused:
        lines = "\n".join(f"  {each}: {each.refused}" for each in refused)
        keep = [each.keep for each in refused if each.keep]
        raise AboardError(
            checkpoint.DIFFERS,
            f"{where} can't be continued with these settings:\n{lines}",
            "keep" if keep else "back",
            keep=keep,
        )


def _compare_steps(marker: CommitMarker, now: RunSettings) -> Iterator[SettingDifference]:
    if marker.step_size != now.step_size:
        yield SettingDifference(
            name="sequences per step",
            old=marker.step_size,
            new=now.step_size,
            refused="a step would be another amount of data, and the learning rate wouldn't fit it",
            keep=f"train.global_batch_size={marker.step_size}",
        )


def _compare_data(marker: CommitMarker, now: RunSettings) -> Iterator[SettingDifference]:
    # Sequences of another length are other sequences: that is said once.
    if marker.data != now.data and marker.training.get("max_length") == now.training.get("max_length"):
        yield SettingDifference(
            name="data",
            old=marker.data[:12],
            new=now.data[:12],
            refused="the prepared data has another content, packing or mix, so the cursor points elsewhere",
        )


def _compare_config(marker: CommitMarker, now: RunSettings) -> Iterator[SettingDifference]:
    """Only what both know: another version of transformers adds settings, and they have their defaults."""
    old, new = marker.config or {}, now.config or {}
    for name in sorted(old.keys() & new.keys() - _LOADED):
        if old[name] != new[name]:
            # What a run may well change: where padding is, and how much is dropped.
            free = name.endswith("_token_id") or "dropout" in name
            why = None if free else "it is another model"
            yield SettingDifference(name=f"model's {name}", old=old[name], new=new[name], refused=why)


def _compare_settings(marker: CommitMarker, now: RunSettings) -> Iterator[SettingDifference]:
    old = {name: value for name, value in marker.training.items() if name not in _OWN}
    new = {name: value for name, value in now.training.items() if name not in _OWN}
    for each in _list_changes("", old, new):
        why = _REFUSED.get(each.name)
        keep = f"{_SECTIONS[each.name]}.{each.name}={each.old}" if why else None
        yield SettingDifference(name=each.name, old=each.old, new=each.new, refused=why, keep=keep)


def _list_changes(kind: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[SettingDifference]:
    return [
        SettingDifference(name=f"{kind}{name}", old=old[name], new=new[name])
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    ]
