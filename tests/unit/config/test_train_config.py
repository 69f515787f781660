"""The sections `train` and `data` as a person writes them: what is used, what is refused, where it stands."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from aboard.commands.command_line import cli
from aboard.config.schema.aboard_yaml import DataSection, derive_source_name
from aboard.config.schema.data_settings import SourceSettings
from aboard.config.schema.huggingface_names import explain_foreign_key
from aboard.config.schema.train_section import TrainSection
from aboard.core.plan.training_settings import ADAPTER_SETTINGS, TRAIN_SETTINGS, DataPart, Training
from aboard.diagnoses import AboardError, InputError
from aboard.trainer.settings.train_settings import TrainSettings, load_train_settings

TRAINER = Path(__file__).parents[3] / "src" / "aboard" / "trainer"
# The names of transformers 5's TrainingArguments, and of trl's SFTConfig: what people paste.
THEIRS = re.findall(
    r"\w+",
    """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs
warmup_steps optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules
gradient_accumulation_steps average_tokens_across_devices max_grad_norm label_smoothing_factor bf16 fp16 bf16_full_eval
fp16_full_eval tf32 gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
torch_compile_mode use_liger_kernel liger_kernel_config use_cache neftune_noise_alpha torch_empty_cache_steps
auto_find_batch_size logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to run_name project trackio_space_id
trackio_bucket_id trackio_static_space_id eval_strategy eval_steps eval_delay per_device_eval_batch_size
prediction_loss_only eval_on_start eval_do_concat_batches eval_use_gather_object eval_accumulation_steps
include_for_metrics batch_eval_metrics save_only_model save_strategy save_steps save_on_each_node save_total_limit
enable_jit_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
load_best_model_at_end metric_for_best_model greater_is_better ignore_data_skip restore_callback_states_from_checkpoint
full_determinism seed data_seed use_cpu accelerator_config parallelism_config dataloader_drop_last
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context dataloader_in_order remove_unused_columns label_names train_sampling_strategy
length_column_name ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend
ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics do_train do_eval do_predict resume_from_checkpoint
local_rank model_init_kwargs trust_remote_code router_aux_loss_coef chat_template_path dataset_text_field dataset_kwargs
dataset_num_proc eos_token max_length truncation_mode shuffle_dataset packing packing_strategy padding_free
pad_to_multiple_of eval_packing completion_only_loss assistant_only_loss loss_type activation_offloading pad_token
warmup_ratio overwrite_output_dir evaluation_strategy logging_dir group_by_length fp16_opt_level no_cuda
""",
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    Path("train.jsonl").write_text("{}\n")
    Path("held.jsonl").write_text("{}\n")
    return tmp_path


def written(train: str = "", data: str = "", *sets: str, file: str = "aboard.yaml") -> TrainSettings:
    """A file whose every section has what is needed, and these lines besides."""
    lines = ["data:", "  files: train.jsonl", *_indented(data), "train:", "  model: ./model", *_indented(train)]
    Path(file).write_text("\n".join(lines) + "\n")
    return load_train_settings([file], sets)


def refused(train: str = "", data: str = "") -> list[tuple[str, str, str]]:
    with pytest.raises(InputError) as caught:
        written(train, data)
    return [(problem.where, problem.seen, problem.fix) for problem in caught.value.problems]


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in text.splitlines()]


def test_what_is_left_out_has_the_default_that_the_trainer_has() -> None:
    """There is one place for defaults: the value that ranks get."""
    words = written()
    made = words.training(
        model="m", tokenizer="t", data=[DataPart(name="data", shards="s", bins="b")], validation=[], bf16=False
    )
    plain = Training(
        model="m",
        tokenizer="t",
        data=(DataPart(name="data", shards="s", bins="b"),),
        output_dir=str(Path("output").absolute()),
        max_length=2048,
        bf16=False,
    )
    assert made == plain


def test_every_setting_of_a_training_can_be_written_and_no_other() -> None:
    """But for those that are found on the way: the data's parts, and the tokenizer, which is data's."""
    elsewhere = {"data", "validation", "max_length", "tokenizer"}
    assert {field.name for field in fields(Training)} - elsewhere == set(TrainSection.model_fields)
    assert {"validation", "max_length", "tokenizer"} <= set(DataSection.model_fields)


def test_every_setting_is_described_and_documented() -> None:
    """In the schema, for editors, and in docs/train.md."""
    page = (TRAINER.parents[2] / "docs" / "train.md").read_text("utf-8")
    for name, setting in {**TRAIN_SETTINGS, **ADAPTER_SETTINGS}.items():
        assert setting.help.endswith(".")
        assert re.search(rf"`{name}\b", page), name


def test_no_dead_knobs() -> None:
    """Every setting that can be written is read somewhere in the trainer, or by what the value itself works out."""
    files = [*TRAINER.rglob("*.py"), TRAINER.parent / "core" / "plan" / "training_settings.py"]
    read = {name for file in files for name in _read_of_training(file)}
    assert sorted(name for name in TrainSection.model_fields if name not in read) == []


def _read_of_training(file: Path) -> Iterator[str]:
    """What is taken of something that is called a training; in its own file that is self."""
    named = {"training", "_training", *(["self"] if file.name == "training_settings.py" else [])}
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Attribute):
            owner = getattr(node.value, "id", getattr(node.value, "attr", ""))
            if owner in named:
                yield node.attr


def test_values_win_in_the_order_of_the_last_word() -> None:
    """--set over the file, the file over the default; and each says where it stood."""
    words = written("learning_rate: 1e-5\nseed: 3", "", "train.seed=7")
    told = {choice.name: (choice.value, choice.source) for choice in words.choices}
    assert told["train.learning_rate"] == (1e-5, "aboard.yaml:5:18")
    assert told["train.seed"] == (7, "--set train.seed")
    assert told["train.weight_decay"] == (0.0, "default")
    assert told["data.tokenizer"] == (str(Path("model").absolute()), "derived: from the model's directory")
    assert told["train.bf16"] == (None, "default: true on GPUs that support it, false on CPUs")


@pytest.mark.parametrize(
    ("file", "typed", "used"),
    [
        ("num_train_epochs: 3", "max_steps=2", {"max_steps": 2, "num_train_epochs": 1.0}),
        ("max_steps: 2", "num_train_epochs=3", {"max_steps": None, "num_train_epochs": 3.0}),
        ("warmup_ratio: 0.1", "warmup_steps=5", {"warmup_steps": 5, "warmup_ratio": 0.0}),
        ("gradient_accumulation_steps: 4", "global_batch_size=8", {"global_batch_size": 8}),
        ("global_batch_size: 8", "gradient_accumulation_steps=4", {"global_batch_size": None}),
    ],
)
def test_what_is_typed_wins_over_its_alternative_in_the_file(file: str, typed: str, used: dict[str, object]) -> None:
    """Two keys for the same thing are refused only where one place says both."""
    found = written(file, "", f"train.{typed}")
    assert {name: found.settings[name] for name in used} == used
    dropped, _, _ = file.partition(":")
    assert dropped not in found.given
    (source,) = [each.source for each in found.choices if each.name == f"train.{dropped}"]
    assert "aboard.yaml" not in source
    with pytest.raises(InputError, match="both set the warmup"):
        written("seed: 1", "", "train.warmup_steps=2", "train.warmup_ratio=0.1")


@pytest.mark.parametrize(
    ("train", "typed", "steps", "epochs"),
    [
        ("max_steps: 5\nnum_train_epochs: 3", (), 5, 1.0),
        ("max_steps: -1\nnum_train_epochs: 3", (), None, 3.0),
        ("max_steps: 5", ("train.max_steps=-1",), None, 1.0),
        ("num_train_epochs: 3", ("train.max_steps=-1",), None, 3.0),
        ("num_train_epochs: 3", ("train.max_steps=5", "train.num_train_epochs=2"), 5, 1.0),
    ],
)
def test_steps_override_epochs_as_in_hf(train: str, typed: tuple[str, ...], steps: int | None, epochs: float) -> None:
    """-1 steps are none; what does not count is printed as such."""
    found = written(train, "", *typed)
    assert (found.settings["max_steps"], found.settings["num_train_epochs"]) == (steps, epochs)
    (shown,) = [each for each in found.choices if each.name == "train.num_train_epochs"]
    assert (shown.source == "not used: max_steps is set") == (steps is not None)


@pytest.mark.parametrize(
    ("train", "data"),
    [
        ("", ""),
        ("max_steps: 10\nwarmup_ratio: 0.1\nlr_scheduler_type: wsd\ndecay_ratio: 0.2", "validation: held.jsonl"),
        ("adapter: {r: 8, dropout: 0.1, target_modules: [q_proj, v_proj], modules_to_save: lm_head}", ""),
        ("adapter: {load_in_4bit: true}\nsharding: none", ""),
        ("optim: adafactor\nlr_scheduler_type: polynomial\npower: 2.0\nmin_lr_ratio: 0.1", ""),
        ("global_batch_size: 8\nlr_scheduler_type: constant\nbf16: true\neval_steps: 5", "validation: held.jsonl"),
    ],
)
def test_what_is_printed_can_be_used_as_a_file(train: str, data: str) -> None:
    """`aboard train --print-config > all.yaml` is the same training, with everything written out."""
    words = written(train, data)
    shown = CliRunner().invoke(cli, ["train", "--print-config"])
    assert shown.exit_code == 0
    Path("all.yaml").write_text(shown.output)
    again = load_train_settings(["all.yaml"])
    assert (again.settings, again.data.files, again.bf16) == (words.settings, words.data.files, words.bf16)
    assert (again.output_dir, again.max_length, again.packing) == (words.output_dir, words.max_length, words.packing)


@pytest.mark.parametrize(
    ("key", "theirs", "ours"),
    [
        ("lr_scheduler_type", "constant_with_warmup", "constant"),
        ("lr_scheduler_type", "warmup_stable_decay", "wsd"),
        ("optim", "adamw_torch_fused", "adamw"),
        ("optim", "adamw_torch_8bit", "adamw_8bit"),
    ],
)
def test_their_name_of_the_same_thing_is_accepted(key: str, theirs: str, ours: str) -> None:
    """What was typed is refused only where it means something else."""
    assert written(f"{key}: {theirs}").settings[key] == ours


def test_every_name_of_theirs_has_an_answer() -> None:
    """It is ours too, or it is said what to write instead, or why it isn't there; nothing is silently ignored."""
    assert [
        name for name in THEIRS if name not in TrainSection.model_fields and explain_foreign_key(name) is None
    ] == []
    assert [name for name in TrainSection.model_fields if explain_foreign_key(name) is not None] == []


def test_names_of_theirs_are_answered_at_their_lines() -> None:
    """All at once, each with what to write."""
    told = refused("lr: 1e-5\nfp16_opt_level: O1\noptim_args: x\nmax_length: 512\nlerning_rate: 1")
    assert [where for where, _, _ in told] == [f"aboard.yaml:{line}:3" for line in (5, 6, 7, 8, 9)]
    assert told[0][2] == "write learning_rate: …"
    assert told[1][2] == "write fp16: true"
    assert "no settings but learning_rate" in told[2][1]
    assert "`data` section" in told[3][2]
    assert told[4][2] == "did you mean 'learning_rate'?"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("warmup_steps: 5\nwarmup_ratio: 0.1", "both set the warmup"),
        ("bf16: true\nfp16: true", "both set the precision"),
        ("fp16: true\nchunked_loss: true", "before fp16's loss scale is applied"),
        ("cpu_offload: true\nsharding: none", "but train.sharding is none"),
        ("decay_ratio: 0.1", "decay_ratio only applies to wsd, and the schedule is cosine"),
        ("min_lr_ratio: 0.1\nlr_scheduler_type: constant", "the schedule is constant"),
        ("warmup_steps: 5\nmax_steps: 5", "there are only 5 steps"),
        ("warmup_ratio: 0.6\ndecay_ratio: 0.6\nlr_scheduler_type: wsd", "is 1.2, more than 1"),
        ("warmup_ratio: 1.0", "training would end after the warmup"),
        ("eval_steps: 5", "there is no data.validation"),
        ("per_device_eval_batch_size: 5", "there is no data.validation"),
        ("load_best_model_at_end: true", "compares evaluations, but there is no data.validation"),
        ("early_stopping_patience: 3", "compares evaluations, but there is no data.validation"),
        ("early_stopping_threshold: 0.1", "there is no early_stopping_patience"),
        ("metric_for_best_model: accuracy", "always the one with the lowest eval_loss"),
        ("save_total_limit: 0", "0 would keep no checkpoint"),
        ("from_scratch: true\nresume: ./out/step-000010", "train.resume specifies a checkpoint"),
        ("bf16: maybe", 'train.bf16 must be true or false, not "maybe"'),
        ("learning_rate: high", 'train.learning_rate must be a number, not "high"'),
        ("learning_rate: .nan", "train.learning_rate must be a number"),
        ("max_steps: -2", "train.max_steps is -2"),
        ("max_steps: 0", "0 would train nothing"),
        ("eval_steps: 0.1", "must be a whole number"),
        ("adam_beta2: 1.0", "train.adam_beta2 is 1.0"),
        ("lr_scheduler_type: exponential", "use one of cosine, cosine_with_restarts, linear"),
        ("lr_scheduler_type: reduce_lr_on_plateau", "would depend on evaluations instead of the step"),
        ("lr_scheduler_type: cosine_with_min_lr", "has a different name in Aboard"),
        ("num_cycles: 2", "num_cycles only applies to cosine_with_restarts, and the schedule is cosine"),
        ("power: 2.0\nlr_scheduler_type: linear", "power only applies to polynomial, and the schedule is linear"),
        ("min_lr_ratio: 0.1\nlr_scheduler_type: inverse_sqrt", "the schedule is inverse_sqrt"),
        ("optim: lion", "use one of adamw, adafactor, muon, adamw_8bit"),
        ("optim: adafactor\nadam_beta1: 0.8", "is a setting of AdamW, and the optimizer is adafactor"),
        ("optim: adafactor\nadam_beta1: 0.0", "is a setting of AdamW, and the optimizer is adafactor"),
        ("optim: muon\ncpu_offload: true", "the matrix products of muon would take too long"),
        ("optim: muon\nadapter: {r: 8}", "orthogonalizes updates of whole matrices"),
        ("adapter: {r: 8}\nfrom_scratch: true", "which an adapter would leave frozen"),
        ("adapter: {type: dora}", "dora is an option of lora"),
        ("adapter: {type: qlora}", "qlora is an option of lora"),
        ("adapter: {load_in_4bit: true}\nsharding: full", "can't be sharded: they are packed bytes"),
        ("adapter: {load_in_4bit: true}\nsharding: hybrid", "train.sharding is hybrid, but weights of"),
        ("adapter: {load_in_4bit: true}\ncpu_offload: true", "train.cpu_offload moves shards to host memory"),
        ("adapter: {load_in_4bit: true}\ntorch_compile: true", "train.torch_compile has not been proven"),
        ("adapter: {load_in_4bit: true, use_dora: true}", "load_in_4bit has not been proven with DoRA"),
        ("adapter: {type: ia3}", "train.adapter.type"),
        ("adapter: {lora_alpha: 8}", "'lora_alpha' has a different name in Aboard"),
        ("lora_r: 8", "'lora_r' has a different name in Aboard"),
        ("load_in_4bit: true", "'load_in_4bit' has a different name in Aboard"),
        ("load_in_8bit: true", "'load_in_8bit' is not supported: a base model is quantized in one way"),
        ("adapter: {dropout: 1.0}", "train.adapter.dropout is 1.0"),
        ("sharding: zero3", "use one of auto, full, hybrid, none"),
    ],
)
def test_what_can_not_be(lines: str, said: str) -> None:
    """It is refused with its reason and with what to write, before anything is looked at."""
    told = refused(lines)
    assert len(told) == 1
    assert said in told[0][1]
    assert told[0][0].startswith("aboard.yaml:")
    assert told[0][2]


def test_a_number_in_a_fix_is_the_one_that_was_typed() -> None:
    """It is repeated without its unit; where no number was typed the fix has none."""
    fixes = {
        "save_steps: 20 steps": "write save_steps: 20",
        "save_steps: 2.5": "write save_steps as a whole number",
        "save_steps: 64k": "write save_steps as a whole number",
        "learning_rate: 2e-4x": "write learning_rate: 2e-4",
        "learning_rate: 1,5": "write learning_rate as a number",
        "learning_rate: high": "write learning_rate as a number",
        "save_steps: 10%": "write save_steps as a whole number",
        "bf16: on": "write bf16: true, or bf16: false",
    }
    assert {lines: refused(lines)[0][2] for lines in fixes} == fixes


def saved_adapter(**changed: object) -> None:
    content = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "lora_dropout": 0.1, "target_modules": ["v", "q"]}
    Path("lora").mkdir(exist_ok=True)
    Path("lora/adapter_config.json").write_text(json.dumps({**content, "bias": "none", **changed}))
    Path("lora/adapter_model.safetensors").touch()


def test_an_adapter_to_continue_brings_its_settings() -> None:
    """Only dropout may differ: it is a setting of the training."""
    saved_adapter()
    adapter = written("adapter: {path: lora, dropout: 0.2}").settings["adapter"]
    assert (adapter.r, adapter.alpha, adapter.dropout, adapter.target_modules) == (8, 16.0, 0.2, ("q", "v"))
    assert adapter.path == str(Path("lora").absolute())
    told = refused("adapter: {path: lora, r: 16}")
    assert "train.adapter.r is 16, but the adapter in" in told[0][1]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"peft_type": "IA3"}, "an adapter of type IA3, not LORA"),
        ({"layers_to_transform": [1]}, "layers_to_transform: [1], which is not supported"),
        ({"bias": "all"}, 'bias: "all", which is not supported'),
        ({"init_lora_weights": "pissa"}, "which is not supported"),
        ({"lora_alpha": None}, "lacks r, lora_alpha or target_modules"),
    ],
)
def test_an_adapter_of_another_kind_is_refused(changed: dict[str, object], said: str) -> None:
    """What it computes would be something else than LoRA of all its targets."""
    saved_adapter(**changed)
    with pytest.raises(AboardError) as raised:
        written("adapter: {path: lora}")
    assert raised.value.code == "adapter-files"
    assert said in raised.value.seen


def test_pickled_weights_of_an_adapter_are_not_read() -> None:
    """Loading them can run code."""
    saved_adapter()
    Path("lora/adapter_model.safetensors").rename("lora/adapter_model.bin")
    with pytest.raises(AboardError) as raised:
        written("adapter: {path: lora}")
    assert "has no adapter_model.safetensors" in raised.value.seen


def test_a_share_of_the_data_is_validation() -> None:
    """It counts as a validation set, is printed as it was written, and can't be all, nothing, or one of several."""
    found = written("eval_steps: 5", "validation: 2.5%")
    assert (found.data.validation, found.data.validation_share) == ((), 0.025)
    (shown,) = [each.value for each in found.choices if each.name == "data.validation"]
    assert shown == "2.5%"
    for wrong, said in (("100%", "no row for training"), ("0%", "no row for validation"), ("[2%, a]", "with files")):
        ((_, seen, fix),) = refused("", f"validation: {wrong}")
        assert said in seen
        assert fix.startswith("write validation: 2%")


def test_what_is_needed_is_named_all_at_once() -> None:
    """No model, no data, and two keys for the warmup: three problems, in the order of their lines."""
    Path("aboard.yaml").write_text("train:\n  warmup_steps: 1\n  warmup_ratio: 0.1\n")
    with pytest.raises(InputError) as caught:
        load_train_settings(["aboard.yaml"])
    assert [problem.seen for problem in caught.value.problems][:2] == [
        "train.model is not set",
        "data.files is not set",
    ]
    assert len(caught.value.problems) == 3


def test_a_path_that_is_not_there_is_no_name_of_the_hub() -> None:
    """./modle is a slip of the pen, org/name may be on the hub."""
    with pytest.raises(InputError, match=r"./modle does not exist next to this file"):
        written("", "", "train.model=./modle")
    assert written("", "", "train.model=org/name").model == "org/name"


def test_paths_start_where_the_file_stands(tmp_path: Path) -> None:
    """As everywhere in aboard.yaml; a config.json stands for its directory."""
    Path("sub/m").mkdir(parents=True)
    Path("sub/m/config.json").write_text("{}")
    Path("sub/t.jsonl").write_text("{}\n")
    text = (
        "data: {files: t.jsonl}\ntrain: {model: ./m/config.json, from_scratch: true, output_dir: out, resume: ./old}\n"
    )
    Path("sub/a.yaml").write_text(text.replace("from_scratch: true, ", ""))
    words = load_train_settings(["sub/a.yaml"])
    assert words.model == str(tmp_path / "sub" / "m")
    assert words.output_dir == str(tmp_path / "sub" / "out")
    assert words.settings["resume"] == str(tmp_path / "sub" / "old")
    assert words.data.files == ("sub/t.jsonl",)


def test_without_a_file_it_is_said_what_to_write() -> None:
    """And what to type."""
    error = CliRunner().invoke(cli, ["train"]).exception
    assert isinstance(error, AboardError)
    assert error.code == "train-file"
    assert "docs/train.md" in error.fix


MIX = """\
data:
  files:
    - path: train.jsonl
      weight: 3
    - {path: [held.jsonl, org/more], name: extra, weight: 0.5}
train: {model: ./model}
"""


def mixed(text: str = MIX) -> TrainSettings:
    Path("mix.yaml").write_text(text)
    return load_train_settings(["mix.yaml"])


def test_sources_are_mixed_by_weight() -> None:
    """Each has a name of its own, or that of its path; without weights there is one source of all paths."""
    assert mixed().data.sources == (
        SourceSettings(name="train", files=("train.jsonl",), weight=3.0),
        SourceSettings(name="extra", files=("held.jsonl", "org/more"), weight=0.5),
    )
    assert mixed().data.files == ("train.jsonl", "held.jsonl", "org/more")
    assert written("", "").data.sources == (SourceSettings(name="data", files=("train.jsonl",)),)


def test_a_split_a_subset_and_a_revision_of_a_data_set() -> None:
    """Without weights all entries are one source; what is printed is the same; HF's `name` is explained."""
    found = mixed(
        """\
data:
  files: [{path: org/web, split: dev, subset: en}, train.jsonl]
  validation: [{path: [org/web], revision: refs/pr/1}]
train: {model: ./model}
"""
    )
    files = ("org/web?split=dev&subset=en", "train.jsonl")
    assert found.data.sources == (SourceSettings(name="data", files=files),)
    assert found.data.validation == ("org/web?revision=refs/pr/1",)
    Path("all.yaml").write_text(CliRunner().invoke(cli, ["train", "mix.yaml", "--print-config"]).output)
    again = load_train_settings(["all.yaml"]).data
    assert (again.sources, again.validation) == (found.data.sources, found.data.validation)
    for wrong, said, write in (
        ("{path: org/web, name: en}", "a source's name in a mix", "write subset: en"),
        ("{path: org/web, split: 'train[:10%]'}", "slices and sums are not supported", "write split: train"),
        ("{path: org/web, revision: a b}", "is not a name on the Hub", "write a commit"),
    ):
        with pytest.raises(InputError) as caught:
            mixed(f"data:\n  files: [{wrong}]\ntrain: {{model: ./model}}\n")
        (problem,) = caught.value.problems
        assert said in problem.seen
        assert problem.fix.startswith(write)


@pytest.mark.parametrize(
    ("path", "name"),
    [("a/chats.jsonl.gz", "chats"), ("more/", "more"), ("org/web", "web"), (".hidden", ".hidden"), ("/", "/")],
)
def test_a_source_is_called_as_its_path_is(path: str, name: str) -> None:
    """Without directories and without what tells the format."""
    assert derive_source_name(path) == name


def test_a_mix_is_printed_as_it_can_be_written() -> None:
    """One line for each source; what is printed is the same mix."""
    words = mixed()
    shown = CliRunner().invoke(cli, ["train", "mix.yaml", "--print-config"]).output
    assert '    - {name: train, path: ["train.jsonl"], weight: 3.0}\n' in shown
    Path("all.yaml").write_text(shown)
    assert load_train_settings(["all.yaml"]).data.sources == words.data.sources


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("dataset_config", "subset: …"), ("dataset_split", "split: …"), ("dataset_revision", "revision: …")],
)
def test_who_names_a_data_set_elsewhere_is_told_how_it_is_written_here(theirs: str, ours: str) -> None:
    """Names of TRL's and transformers' scripts."""
    ((_, _, fix),) = refused(f"{theirs}: x")
    assert fix.endswith(f"files: [{{path: OWNER/NAME, {ours}}}]")


@pytest.mark.parametrize("theirs", ["datasets", "dataset_mixture", "dataset_mixer", "interleave_probs"])
def test_who_mixes_elsewhere_is_told_how_it_is_written_here(theirs: str) -> None:
    """Names of Axolotl, TRL, the alignment handbook and LLaMA-Factory."""
    ((_, _, fix),) = refused(f"{theirs}: 1")
    assert "files: [{path: …, weight: 1}, …]" in fix


def test_a_mix_that_can_not_be_is_told_all_at_once() -> None:
    """A weight that is none, a key that is none, an entry without a weight, a name twice: each at its place."""
    with pytest.raises(InputError) as caught:
        mixed(
            """\
data:
  files:
    - {path: train.jsonl, weight: 0}
    - {path: a/train.parquet, weight: -1}
    - {path: held.jsonl, weigth: 2}
    - more.jsonl
    - {path: [], weight: .inf, name: train}
    - 7
"""
        )
    assert [(problem.where, problem.seen, problem.fix) for problem in caught.value.problems] == [
        ("mix.yaml:3:35", "data.files[0].weight is 0", "write a number that is more than 0"),
        (
            "mix.yaml:4:14",
            "data.files: 'train' is also the name of the source at mix.yaml:3:14",
            "rename one of them: name: train-2",
        ),
        ("mix.yaml:4:39", "data.files[1].weight is -1", "write a number that is more than 0"),
        ("mix.yaml:5:7", "data.files[2] has no 'weight'", "add a line: weight: …"),
        ("mix.yaml:5:26", "unknown key 'weigth' in data.files[2]", "did you mean 'weight'?"),
        (
            "mix.yaml:6:7",
            "data.files: more.jsonl has no weight, but other files do",
            "write {path: more.jsonl, weight: 1}, or remove all weights",
        ),
        ("mix.yaml:7:14", "data.files[4].path is empty", "set a value for path, or remove it"),
        ("mix.yaml:7:26", "data.files[4].weight must be a number, not .inf", "write weight as a number"),
        (
            "mix.yaml:7:38",
            "data.files: 'train' is also the name of the source at mix.yaml:3:14",
            "rename one of them: name: train-2",
        ),
        (
            "mix.yaml:8:7",
            "data.files[5] must be a path or a mapping, not 7",
            "use train.jsonl, or {path: train.jsonl, weight: 1}",
        ),
    ]
