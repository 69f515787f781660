"""Every rank gets its part, and all parts together are the model that transformers loads."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from deadlines import slowness
from model_cases import (
    Seen,
    bytes_read,
    first_weights,
    gathered_apart,
    loads_as_transformers,
    made,
    pickled,
    refusal,
    seen,
    without_weights,
)
from train_cases import trained
from train_crew import Crew, run_alone

from aboard.core.plan.training_settings import Training
from aboard.diagnoses import AboardError
from aboard.trainer.memory.worker import answer_request
from aboard.trainer.weights.weight_files import open_weights

SHAPE: dict[str, Any] = {
    # Odd on purpose: rows don't divide by 2, 3 or 4, and a third or fourth rank may have none of a tensor.
    "vocab_size": 131,
    "hidden_size": 40,
    "intermediate_size": 70,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "qwen2": {"tie_word_embeddings": False},
    "gemma2": {"head_dim": 10, "sliding_window": 8},
}
# Ranks, and the nodes that they pretend to be on.
WORLDS = ((1, 1), (2, 1), (3, 1), (4, 2))
# Four ranks on two nodes shard in every way, and the last of them has none of some tensors; 2 and 3 are nightly.
EVERY_TIME = {(1, 1), (4, 2)}
NEAR = 1e-5


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory, crew: Crew) -> Path:
    """A small model of each family in bf16, over several files."""
    folder = tmp_path_factory.mktemp("library")
    for family, own in FAMILIES.items():
        crew.run(1, partial(made, folder / family, family, **{**SHAPE, **own}))
    return folder


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(world, id=f"{world[0]}-ranks", marks=[] if world in EVERY_TIME else pytest.mark.nightly)
        for world in WORLDS
    ],
)
def sights(request: pytest.FixtureRequest, crew: Crew, library: Path) -> list[list[Seen]]:
    """What each rank of one world saw: one job a world."""
    ranks, nodes = request.param
    return crew.run(ranks, seen, library, list(FAMILIES), nodes=nodes)


def each(sights: list[list[Seen]]) -> list[Seen]:
    return [one for rank in sights for one in rank]


def test_weights_and_buffers_are_those_of_transformers(sights: list[list[Seen]]) -> None:
    """Bit for bit, whatever the layout, also where rows don't divide and a rank has none."""
    assert [(one.family, one.sharding, one.wrong) for one in each(sights) if one.wrong] == []
    assert [(one.family, one.sharding, one.wrong_buffers) for one in each(sights) if one.wrong_buffers] == []


def test_all_layouts_were_tried(sights: list[list[Seen]]) -> None:
    """One rank shards nothing; four on two nodes shard in full, within nodes, and not at all."""
    wanted = {1: {"none"}, 4: {"full", "hybrid", "none"}}.get(len(sights), {"full", "none"})
    assert {one.sharding for one in each(sights)} == wanted


def test_bug_8_weights_are_kept_in_fp32(sights: list[list[Seen]]) -> None:
    """Files in bf16 become fp32 weights; with bf16, only the computing is in bf16, and gradients are fp32."""
    assert {kind for one in each(sights) for kind in one.dtypes} == {"torch.float32"}
    for one in each(sights):
        assert one.half == {"weight torch.float32", "gradient torch.float32", "logits torch.bfloat16"}, one.sharding


def test_bug_10_the_norm_is_that_of_one_process(sights: list[list[Seen]]) -> None:
    """Gradients of uneven micro-batches are summed over ranks, and their norm counts each once, tied and copied too."""
    for one in each(sights):
        assert abs(one.norm) < NEAR, (one.family, one.sharding)
        assert one.gradients < NEAR, (one.family, one.sharding)


def test_thrift_changes_nothing(sights: list[list[Seen]]) -> None:
    """Recomputed activations, weights gathered twice and gradients reduced at once give the same gradients."""
    assert max(abs(one.norm_thrifty) for one in each(sights)) < NEAR


def test_bug_15_a_tied_head_stays_one(sights: list[list[Seen]]) -> None:
    """After a step, head and embedding are still one parameter where they are tied, and two where they aren't."""
    for one in each(sights):
        assert one.one_tied == (one.family != "qwen2"), (one.family, one.sharding)


def test_each_rank_reads_its_part(sights: list[list[Seen]]) -> None:
    """Sharded in full, all ranks together read the files once; unsharded, each reads all."""
    for family in FAMILIES:
        for index, one in enumerate(sights[0]):
            if one.family == family and one.sharding in {"full", "none"}:
                read = [rank[index].read for rank in sights]
                whole = next(two.read for two in sights[0] if two.family == family and two.sharding == "none")
                assert sum(read) == whole * (1 if one.sharding == "full" else len(sights))


SCRATCH: dict[str, set[str]] = {family: set() for family in FAMILIES}


def test_new_weights_are_the_same_everywhere(sights: list[list[Seen]]) -> None:
    """From scratch, the model is one and the same on any number of ranks and in any layout."""
    for one in each(sights):
        SCRATCH[one.family].add(one.scratch)
    assert {family: len(found) for family, found in SCRATCH.items()} == dict.fromkeys(FAMILIES, 1)


def test_new_weights_are_drawn_as_the_model_says(crew: Crew, tmp_path: Path) -> None:
    """Matrices have the deviation of the config, norms are ones, and no two tensors are alike."""
    crew.run(1, partial(made, tmp_path / "new", "qwen2", **{**SHAPE, "initializer_range": 0.05}))
    [found] = crew.run(1, first_weights, tmp_path / "new")
    matrices = {name: of for name, of in found.items() if name.endswith("weight") and "norm" not in name}
    assert all(abs(deviation - 0.05) < 0.005 for _, deviation in matrices.values())
    assert len(set(matrices.values())) == len(matrices)
    assert {of for name, of in found.items() if "norm" in name} == {(1.0, 0.0)}


def test_the_kernel_says_so_too(crew: Crew, tmp_path: Path) -> None:
    """By the kernel's count of bytes, a rank of four reads about a quarter of the files."""
    larger = {"vocab_size": 20_000, "hidden_size": 160, "intermediate_size": 640, "num_hidden_layers": 4}
    crew.run(1, partial(made, tmp_path / "larger", "llama", **{**SHAPE, **larger}))
    files = sum(path.stat().st_size for path in (tmp_path / "larger").glob("*.safetensors"))
    for told, counted in crew.run(4, bytes_read, tmp_path / "larger", "full"):
        assert told < 0.26 * files
        # What is looked at to see that all ranks have the same files, headers and config are the rest.
        assert counted < told + 16 * 4096 * 40 + (1 << 20)


# -- what isn't plain -------------------------------------------------------------------------------------------------


def test_experts_that_are_fused_load(crew: Crew, tmp_path: Path) -> None:
    """A mixture's files have a tensor for each expert and the model one for all: put together, and said."""
    experts = {"intermediate_size": 72, "num_local_experts": 4}
    crew.run(1, partial(made, tmp_path / "mixtral", "mixtral", **{**SHAPE, **experts}))
    [(wrong, notes)] = crew.run(1, loads_as_transformers, tmp_path / "mixtral")
    assert wrong == []
    assert any("assembled from several" in note for note in notes)


def test_weights_that_differ_are_not_tied(crew: Crew, library: Path, tmp_path: Path) -> None:
    """Files that have both a head and an embedding win over a config that says they are one; as in transformers."""
    folder = _copy(library / "qwen2", tmp_path / "both")
    _config(folder, tie_word_embeddings=True)
    [(wrong, notes)] = crew.run(1, loads_as_transformers, folder)
    assert wrong == []
    assert any("differ in the files" in note for note in notes)


def test_old_files_load(crew: Crew, library: Path, tmp_path: Path) -> None:
    """A model that has only what torch.save wrote is read by its rows, too."""
    folder = _copy(library / "llama", tmp_path / "old")
    crew.run(1, pickled, folder)
    assert [wrong for wrong, _ in crew.run(1, loads_as_transformers, folder)] == [[]]


def test_a_missing_or_strange_tensor_is_named(crew: Crew, library: Path, tmp_path: Path) -> None:
    """Nothing is left to chance: names that the model lacks and names that the files lack are listed."""
    folder = _copy(library / "qwen2", tmp_path / "renamed")
    index = folder / "model.safetensors.index.json"
    for path in folder.glob("*.safetensors"):
        # As long, so that nothing else of the file changes.
        path.write_bytes(path.read_bytes().replace(b"model.layers.1.mlp.up_proj", b"model.layers.1.mlp.up_porj"))
    index.write_text(index.read_text().replace("layers.1.mlp.up_proj", "layers.1.mlp.up_porj"))
    [said] = crew.run(1, refusal, folder)
    assert said.startswith("model-names: ")
    assert "missing: model.layers.1.mlp.up_proj.weight" in said
    assert "not known: model.layers.1.mlp.up_porj.weight" in said


def test_another_shape_is_refused(crew: Crew, library: Path, tmp_path: Path) -> None:
    """A config that doesn't belong to the weights is refused with both shapes."""
    folder = _copy(library / "llama", tmp_path / "wide")
    _config(folder, intermediate_size=80)
    [said] = crew.run(1, refusal, folder)
    assert said.startswith("model-shapes: ")
    assert "[70, 40] in the files and [80, 40] according to config.json" in said


def test_a_cut_file_is_refused(crew: Crew, library: Path, tmp_path: Path) -> None:
    """A download that ended early is told by its file, before anything is trained."""
    folder = _copy(library / "llama", tmp_path / "cut")
    path = max(folder.glob("*.safetensors"))
    path.write_bytes(path.read_bytes()[:-10])
    [said] = crew.run(1, refusal, folder)
    assert said.startswith(f"model-damaged: {path}")


@pytest.mark.parametrize("name", ["/etc/hostname", "../other/model.safetensors", 7])
def test_an_index_names_only_files_of_its_model(tmp_path: Path, name: object) -> None:
    """Whoever wrote a model can't choose a file that a fix tells to remove."""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(AboardError, match="it refers to a file outside its directory") as error:
        open_weights(tmp_path)
    again = "then download the model again: hf download ORG/NAME, or git lfs pull in a clone"
    assert error.value.fix == f"rm {index}   # {again}"


def test_a_quantized_model_is_refused(crew: Crew, library: Path, tmp_path: Path) -> None:
    """Its weights can't be trained."""
    folder = _copy(library / "llama", tmp_path / "quantized")
    _config(folder, quantization_config={"quant_method": "gptq", "bits": 4})
    [said] = crew.run(1, refusal, folder)
    assert said.startswith("model-quantized: ")


def test_hybrid_wants_even_nodes(crew: Crew, library: Path) -> None:
    """Three ranks on nodes of two and one can't copy shards from node to node."""
    said = crew.run(3, partial(refusal, library / "llama", uneven=True))
    assert {one.split(":")[0] for one in said} == {"sharding-uneven"}
    assert "2 and 1" in said[0]


def test_ranks_with_other_files_are_named(crew: Crew, library: Path, tmp_path: Path) -> None:
    """A node that has another version of the model would spoil it silently: it is refused, by its rank."""
    _copy(library / "llama", tmp_path / "rank-2")
    for name in ("rank-0", "rank-1"):
        _copy(library / "qwen2", tmp_path / name)
    said = crew.run(3, partial(refusal, tmp_path, own=True))
    assert all(one.startswith("model-differs: ") and "rank 2 has" in one for one in said)


def _copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def _config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


# What a rank does, and what the head imports and asks for; then whether any of it has brought DeepSpeed along.
WITHOUT_DEEPSPEED = """
import json, os, sys
import aboard.commands.train.show_training, aboard.commands.launch.launch_modes
from accelerate.utils import is_deepspeed_available
from aboard.trainer.__main__ import main
from aboard.trainer.memory.worker import answer_request
assert is_deepspeed_available()
answer_request({"training": json.loads(os.environ["ABOARD_TRAINING"]), "ranks": {"n1": 1}, "memory": None})
assert main() == 0
print(sorted(name for name in sys.modules if name.startswith("deepspeed")))
"""


def test_training_does_not_import_deepspeed(settled: Callable[..., Training]) -> None:
    """Where it is installed, transformers and accelerate know it; its import takes seconds, and prints warnings."""
    assert find_spec("deepspeed") is not None
    assert run_alone(find_deepspeed, settled(max_steps=1)) == ([], [])


def find_deepspeed(training: Training) -> tuple[list[str], list[str]]:
    """The modules of DeepSpeed that this process has, before and after a training and a memory estimate."""
    before = [name for name in sys.modules if name.startswith("deepspeed")]
    trained(training)
    answer_request({"training": asdict(training), "ranks": {"n1": 1}, "memory": None})
    return before, [name for name in sys.modules if name.startswith("deepspeed")]


@pytest.mark.nightly
def test_deepspeed_is_not_imported(settled: Callable[..., Training], tmp_path: Path) -> None:
    """As above, in processes that find another version first, and with what the head imports."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "deepspeed-0.19.0.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.0\n"
    (tmp_path / "deepspeed-0.19.0.dist-info" / "METADATA").write_text(about)
    training = json.dumps(asdict(settled(max_steps=1, output_dir=str(tmp_path / "out"))))
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "ABOARD_TRAINING": training, "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-c", WITHOUT_DEEPSPEED]
    ran = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120 * slowness())
    assert (ran.returncode, ran.stdout.splitlines()[-1:]) == (0, ["[]"]), ran.stdout + ran.stderr


def test_an_untied_embedding_and_head_are_gathered_on_their_own(crew: Crew, library: Path) -> None:
    """The embedding before the first layer and once, the head once around all chunks; its gradient is sent first."""
    units, calls = crew.run(2, partial(gathered_apart, library / "qwen2", chunked_loss=True))[0]
    assert units == ["root", "model.embed_tokens", "lm_head"]
    forward = ["unshard root", "unshard embed_tokens", "unshard 0", "unshard 1", "unshard lm_head"]
    backward = ["unshard 1", "post_backward lm_head", "unshard 0", "post_backward 1", "post_backward 0"]
    assert calls == [*forward, *backward, "post_backward root", "post_backward embed_tokens"]


def test_a_tied_embedding_is_gathered_with_the_rest(crew: Crew, library: Path) -> None:
    """It is the head, too: once, for the whole step."""
    units, calls = crew.run(2, partial(gathered_apart, library / "llama"))[0]
    assert units == ["root"]
    assert calls.count("unshard root") == 1


def test_layers_are_gathered_further_ahead_if_asked(crew: Crew, tmp_path: Path) -> None:
    """With prefetch_layers: 2, a layer's backward begins with the weights of the two before it on their way."""
    crew.run(1, partial(without_weights, tmp_path, "qwen2", **{**SHAPE, "num_hidden_layers": 4}))
    for ahead, begun in ((1, ["unshard 2"]), (2, ["unshard 2", "unshard 1"])):
        _, calls = crew.run(2, partial(gathered_apart, tmp_path, prefetch_layers=ahead, reduce_dtype="bfloat16"))[0]
        assert calls[calls.index("post_backward lm_head") + 1 : calls.index("post_backward 3")] == begun
