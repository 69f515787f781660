"""A checkpoint of sharded ranks becomes a directory that transformers loads, bit for bit."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_cases import exported, made, not_exported, saved_after_a_step
from train_crew import Crew

SHAPE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 40,
    "intermediate_size": 72,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "mixtral": {"num_local_experts": 4},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_was_trained_is_what_is_loaded(crew: Crew, tmp_path: Path, family: str) -> None:
    """Tied, untied and with fused experts; in fp32, and in the type that the model came in."""
    model, runs = tmp_path / "model", tmp_path / "runs"
    crew.run(1, partial(made, model, family, **{**SHAPE, **FAMILIES[family]}))
    (model / "tokenizer.json").write_text('{"a": "tokenizer"}')
    (model / "generation_config.json").write_text('{"temperature": 0.6, "do_sample": true}')
    trained = crew.run(2, saved_after_a_step, model, runs, "full")[0]
    [checkpoint] = runs.glob("step-*")
    for dtype, name in (("float32", "torch.float32"), (None, "torch.bfloat16")):
        out = tmp_path / str(dtype)
        [(loaded, tied, config)] = crew.run(1, exported, checkpoint, out, dtype)
        assert loaded.keys() == trained.keys()
        assert [key for key, value in loaded.items() if not value.equal(trained[key].to(value.dtype))] == []
        assert {str(value.dtype) for value in loaded.values()} == {name} == {config}
        assert tied == (family == "llama")
        assert (out / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
        assert json.loads((out / "generation_config.json").read_text())["temperature"] == 0.6
    if family == "llama":
        _stored_once(tmp_path / "float32")
        assert crew.run(1, not_exported, checkpoint, tmp_path / "float32") == ["export-to"]
        next(checkpoint.glob("*.safetensors")).write_bytes(b"")
        assert crew.run(1, not_exported, checkpoint, tmp_path / "other") == ["checkpoint-damaged"]
        assert not (tmp_path / "other").exists()


def _stored_once(folder: Path) -> None:
    """A tied head is not in the file a second time."""
    data = (folder / "model.safetensors").read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
