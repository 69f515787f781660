"""Exports a checkpoint to a directory that transformers loads: `-m aboard.trainer.model.export CHECKPOINT OUT`."""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion

from aboard.core.decoding import parse_json
from aboard.core.plan.training_settings import Adapter, Training
from aboard.diagnoses import AboardError
from aboard.foreign_files import MOST_JSON, ForeignFileError, open_foreign_file, read_foreign_file
from aboard.lazy_dataclass import dataclass
from aboard.trainer.checkpoint.saved_checkpoint import SavedCheckpoint
from aboard.trainer.diagnoses import checkpoint as checkpoints
from aboard.trainer.model.meta_model import build_on_meta, require_same_shapes
from aboard.trainer.weights.model_files import build_damage_error
from aboard.trainer.weights.safetensors_writer import DTYPES_BY_NAME, LazyTensor, write_safetensors
from aboard.trainer.worker_protocol import write_reply

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# Files of a tokenizer, of any origin; copied unchanged.
TOKENIZER = (
    *("tokenizer*.json", "tokenizer.model*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt"),
    *("spiece.model", "sentencepiece*.model", "*.tiktoken", "tekken.json", "chat_template*"),
    "additional_chat_templates",
)
GENERATION = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """The number of weight files, their bytes and type; `base` is the model that an exported adapter needs."""

    files: int
    bytes: int
    dtype: str
    base: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PreparedExport:
    """What an export will write: tensors into files of this name, and settings."""

    tensors: Mapping[str, LazyTensor]
    dtype: torch.dtype
    write_settings: Callable[[Path], None]
    name: str = "model"
    base: str | None = None
    notes: tuple[str, ...] = ()


def export_model(
    checkpoint: Path,
    model: Path,
    out: Path,
    *,
    dtype: str | None = None,
    tokenizer: Path | None = None,
    merge: bool = False,
    trust_remote_code: bool = False,
) -> ExportedModel:
    """Writes weights as safetensors, config, generation config and tokenizer; the directory appears atomically.

    Of a run with an adapter it writes the adapter for PEFT, or with `merge` the base model with the adapter merged in.
    The default type is that of the model's config; an adapter stays in float32. At most one tensor, or one layer that
    is merged, is in memory at a time.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AboardError(checkpoints.EXPORT_TO, f"{out} already exists and is not empty")
    saved = SavedCheckpoint.open(checkpoint)
    # A checkpoint may come from somebody else, so what it trusts doesn't count.
    training = replace(
        Training.of(saved.marker.training),
        model=str(model),
        attn_implementation="auto",
        trust_remote_code=trust_remote_code,
    )
    if merge and training.adapter is None:
        seen = f"{checkpoint} has all weights: the run trained no adapter that could be merged"
        raise AboardError(checkpoints.EXPORT_MERGE, seen, what=checkpoint, to=out)
    if training.adapter is not None and find_spec("peft") is None:
        raise AboardError(checkpoints.EXPORT_PEFT, "the export of an adapter needs peft, which is not installed here")
    if problems := saved.verify_model():
        raise AboardError(
            checkpoints.DAMAGED,
            f"{checkpoint} can't be exported: {'; '.join(problems[:3])}",
            "export",
            folder=checkpoint.parent,
        )
    chosen = DTYPES[dtype] if dtype else None
    if training.adapter is None:
        prepared = _prepare_model(saved, training, chosen)
    else:
        prepare = _prepare_merged if merge else _prepare_adapter
        prepared = prepare(saved, training, training.adapter, chosen)
    draft = out.with_name(f".{out.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    files, size = write_safetensors(prepared.tensors, draft, name=prepared.name)
    prepared.write_settings(draft)
    _copy_files(tokenizer or model, draft, TOKENIZER)
    if trust_remote_code:
        _copy_files(model, draft, ("*.py",))
    out.parent.mkdir(parents=True, exist_ok=True)
    # Replaces an empty directory at most: the file system rejects any other.
    draft.replace(out)
    return ExportedModel(
        files=files, bytes=size, dtype=_format_dtype(prepared.dtype), base=prepared.base, notes=prepared.notes
    )


def _prepare_model(saved: SavedCheckpoint, training: Training, dtype: torch.dtype | None) -> PreparedExport:
    built = _build_model(saved, training)
    dtype = dtype or _read_default_dtype(Path(training.model))
    specs = {name: saved.marker.tensors[f"model/{name}"] for name in saved.model()}
    shapes = {name: each.shape for name, each in specs.items()}
    dtypes = {name: DTYPES_BY_NAME[each.dtype] for name, each in specs.items()}
    tensors = dict(_list_tensors(built, shapes, dtypes, lambda name: saved.tensor(f"model/{name}"), dtype))
    return PreparedExport(
        tensors=tensors, dtype=dtype, write_settings=partial(_write_settings, built, Path(training.model), dtype)
    )


def _prepare_adapter(
    saved: SavedCheckpoint, training: Training, adapter: Adapter, dtype: torch.dtype | None
) -> PreparedExport:
    # Imported here: PEFT takes seconds, which only runs with an adapter need.
    from aboard.trainer.adapter import export_adapter  # noqa: PLC0415

    adapted = export_adapter.build_adapted(saved, training, adapter)
    model, dtype = Path(training.model), dtype or torch.float32
    return PreparedExport(
        tensors=export_adapter.list_adapter_tensors(saved, adapted, dtype),
        dtype=dtype,
        write_settings=partial(export_adapter.write_adapter_config, adapted, adapter, model),
        name="adapter_model",
        base=export_adapter.find_hub_name(model)[0],
    )


def _prepare_merged(
    saved: SavedCheckpoint, training: Training, adapter: Adapter, dtype: torch.dtype | None
) -> PreparedExport:
    from aboard.trainer.adapter import export_adapter  # noqa: PLC0415 - as above

    adapted = export_adapter.build_adapted(saved, training, adapter)
    model = Path(training.model)
    built = build_on_meta(training, torch.device("cpu"))
    merged = export_adapter.MergedModel(saved, adapted, built, model)
    dtype = dtype or _read_default_dtype(model)
    notes = [f"merged the adapter into {export_adapter.find_hub_name(model)[0]}"]
    if adapter.load_in_4bit:
        notes.append("the adapter was trained on 4-bit weights, and is merged into those before quantization")
    return PreparedExport(
        tensors=dict(_list_tensors(built, merged.shapes, merged.dtypes, merged.read, dtype)),
        dtype=dtype,
        write_settings=partial(_write_settings, built, model, dtype),
        notes=tuple(notes),
    )


def _build_model(saved: SavedCheckpoint, training: Training) -> PreTrainedModel:
    """The model on meta as it was trained; raises if its tensors are not those of the checkpoint."""
    built = build_on_meta(training, torch.device("cpu"))
    if saved.marker.config is not None:
        built.config.tie_word_embeddings = bool(saved.marker.config.get("tie_word_embeddings"))
    stored = {*saved.model(), *saved.marker.ties}
    expected = {name: tuple(tensor.shape) for name, tensor in built.state_dict().items()}
    shapes = {name: saved.marker.tensors[f"model/{saved.marker.ties.get(name, name)}"].shape for name in stored}
    require_same_shapes(training.model, shapes, expected)
    return built


def _list_tensors(
    model: PreTrainedModel,
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, torch.dtype],
    read_whole: Callable[[str], torch.Tensor],
    dtype: torch.dtype,
) -> Iterator[tuple[str, LazyTensor]]:
    """Tensors by their names in the model's own files. If names are converted, all tensors are in memory at once."""

    def read(name: str) -> torch.Tensor:
        tensor = read_whole(name)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    transforms = get_model_conversion_mapping(model, add_legacy=False)
    if any(isinstance(each, WeightConverter) for each in transforms):
        reverted = revert_weight_conversion(model, {name: read(name) for name in shapes})
        for name, tensor in reverted.items():
            yield name, LazyTensor(shape=tuple(tensor.shape), dtype=tensor.dtype, read=tensor.detach)
        return
    for name, shape in shapes.items():
        kind = dtype if dtypes[name].is_floating_point else dtypes[name]
        yield name, LazyTensor(shape=shape, dtype=kind, read=partial(read, name))


def _read_default_dtype(model: Path) -> torch.dtype:
    """The type in config.json, by its current or its former key."""
    content: Mapping[str, Any] = parse_json(read_foreign_file(model / "config.json", MOST_JSON, in_model=True))
    return DTYPES.get(str(content.get("dtype") or content.get("torch_dtype")), torch.bfloat16)


def _format_dtype(dtype: torch.dtype) -> str:
    return next(name for name, each in DTYPES.items() if each is dtype)


def _write_settings(built: PreTrainedModel, model: Path, dtype: torch.dtype, out: Path) -> None:
    config = built.config
    config.architectures = [type(built).__name__]
    config.use_cache = True
    config.dtype = dtype
    config.save_pretrained(out)
    if (model / GENERATION).exists():
        _copy_file(model / GENERATION, out / GENERATION)
    elif built.can_generate():
        built.generation_config.save_pretrained(out)


def _copy_files(folder: Path, out: Path, patterns: tuple[str, ...]) -> None:
    for path in {path for pattern in patterns for path in folder.glob(pattern)}:
        if path.is_dir() and not path.is_symlink():
            (out / path.name).mkdir()
            # Only templates: a link to a file of the same name is followed, and any other name may be that of a key.
            _copy_files(path, out / path.name, ("*.jinja",))
        else:
            _copy_file(path, out / path.name)


def _copy_file(source: Path, target: Path) -> None:
    """Users publish exports: a link must not put another file of theirs into one."""
    try:
        with open_foreign_file(source, in_model=True) as file, target.open("wb") as copy:
            shutil.copyfileobj(file, copy)
    except (ForeignFileError, IsADirectoryError) as error:
        raise build_damage_error(source, str(error.strerror)) from None


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m aboard.trainer.model.export")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES))
    # Where they are on this machine, if the checkpoint was made on one with other homes.
    parser.add_argument("--model", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--merge", action="store_true")
    parser.add_argument("--trust-remote-code", action="store_true")
    args = parser.parse_args(words)

    def act() -> dict[str, Any]:
        training = Training.of(SavedCheckpoint.open(args.checkpoint).marker.training)
        model = args.model or Path(training.model).expanduser()
        tokenizer = args.tokenizer or (Path(training.tokenizer).expanduser() if training.tokenizer else None)
        exported = export_model(
            args.checkpoint,
            model,
            args.out,
            dtype=args.dtype,
            tokenizer=tokenizer,
            merge=args.merge,
            trust_remote_code=args.trust_remote_code,
        )
        return asdict(exported)

    return write_reply(act)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
