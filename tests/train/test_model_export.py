"""A checkpoint of sharded ranks becomes a directory that transformers loads, bit for bit."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from model_cases import exported, exported_adapter, made, not_exported, refused_export, saved_after_a_step
from train_crew import Crew

from aboard.core.plan.training_settings import Adapter

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


QWEN = {**SHAPE, "tie_word_embeddings": False}
GPT2 = {"vocab_size": 131, "n_embd": 40, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2}
ADAPTERS: dict[str, tuple[str, dict[str, Any], Adapter]] = {
    "dora": ("qwen2", QWEN, Adapter(r=4, alpha=6.0, use_dora=True, modules_to_save=("lm_head",))),
    "rslora": ("llama", SHAPE | FAMILIES["llama"], Adapter(r=4, use_rslora=True, target_modules=("q_proj", "up_proj"))),
    "lora": ("qwen2", QWEN, Adapter(r=3, alpha=0.5, target_modules=r".*layers\.1\..*(k|down)_proj")),
    "transposed": ("gpt2", GPT2, Adapter(r=4, target_modules=("c_attn", "c_proj"))),
    "experts": ("mixtral", SHAPE | FAMILIES["mixtral"], Adapter(r=4, target_modules=("q_proj", "o_proj"))),
}
# PEFT writes where the base was loaded from, and a set in any order.
ANY_ORDER = ("target_modules",)


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in ("dora", "transposed") else pytest.mark.nightly) for kind in ADAPTERS],
)
def test_an_adapter_is_what_peft_loads(crew: Crew, tmp_path: Path, kind: str) -> None:
    """PEFT computes what was trained and saves the same files; merged by Aboard or by PEFT, it is the same model."""
    family, shape, adapter = ADAPTERS[kind]
    model = tmp_path / "model"
    crew.run(1, partial(made, model, family, **shape))
    [found] = crew.run(1, exported_adapter, model, tmp_path / "out", adapter)
    assert found.moved > 1e-3
    assert found.loaded < 1e-6
    assert found.merged < 1e-6
    assert found.differing == []
    assert found.merged_names == found.base_names
    for config in (found.config, found.expected_config):
        for name in ANY_ORDER:
            config[name] = sorted(config[name])
    assert found.config == found.expected_config
    assert found.config["base_model_name_or_path"] == str(model)
    assert (found.config["task_type"], found.config["inference_mode"]) == ("CAUSAL_LM", True)


def test_an_export_of_another_base_is_refused(crew: Crew, tmp_path: Path) -> None:
    """With and without --merge; and without an adapter there is nothing to merge."""
    model, runs = tmp_path / "model", tmp_path / "runs"
    crew.run(1, partial(made, model, "qwen2", **QWEN))
    crew.run(1, saved_after_a_step, model, runs / "lora", "none", Adapter(r=2))
    crew.run(1, saved_after_a_step, model, runs / "full", "none")
    lora, full = (next((runs / name).glob("step-*")) for name in ("lora", "full"))
    [(code, seen)] = crew.run(1, refused_export, full, tmp_path / "out", ["--merge"])
    assert (code, "trained no adapter" in seen) == ("export-merge", True)
    weights = next(model.glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for options in ([], ["--merge"]):
        [(code, seen)] = crew.run(1, refused_export, lora, tmp_path / "out", options)
        assert (code, "trained on other base weights" in seen) == ("export-model", True)
    assert not (tmp_path / "out").exists()


def _stored_once(folder: Path) -> None:
    """A tied head is not in the file a second time."""
    data = (folder / "model.safetensors").read_bytes()
    names = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names
