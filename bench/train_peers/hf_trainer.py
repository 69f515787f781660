"""HF's Trainer, and TRL's SFTTrainer on top of it: `python hf_trainer.py hf|trl`."""

import sys
from typing import Any

import datasets
import fsdp_on_cpu  # noqa: F401 - imported for its side effect
from shared_setup import (
    BATCH,
    BETAS,
    CLIP,
    EPSILON,
    FOLDER,
    LAYOUT,
    LEARNING_RATE,
    LOG_STEPS,
    STEPS,
    Clock,
    load_model,
    load_rows,
    require_layout,
)
from transformers import PreTrainedTokenizerFast, Trainer, TrainerCallback, TrainingArguments

settings: dict[str, Any] = {
    "output_dir": str(FOLDER / "hf"),
    "per_device_train_batch_size": BATCH,
    "max_steps": STEPS,
    "learning_rate": LEARNING_RATE,
    "adam_beta1": BETAS[0],
    "adam_beta2": BETAS[1],
    "adam_epsilon": EPSILON,
    "max_grad_norm": CLIP,
    "optim": "adamw_torch_fused",
    "lr_scheduler_type": "constant",
    "logging_steps": LOG_STEPS,
    "save_strategy": "no",
    "report_to": [],
    "use_cpu": True,
    "bf16": False,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "ddp_find_unused_parameters": False,
}
if LAYOUT == "full":
    settings["fsdp"] = "full_shard auto_wrap"
    settings["fsdp_config"] = {"version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}


class Stamp(TrainerCallback):
    """Counts the steps."""

    clock = Clock()

    def on_train_begin(self, *_given: Any, model: Any, **_named: Any) -> None:
        require_layout(model)

    def on_step_end(self, *_given: Any, **_named: Any) -> None:
        self.clock.step()


ids = datasets.Dataset.from_dict({"input_ids": load_rows().tolist()})
if sys.argv[1] == "trl":
    from trl import SFTConfig, SFTTrainer

    length = len(ids[0]["input_ids"])
    tokenizer = PreTrainedTokenizerFast.from_pretrained(FOLDER / "tokenizer")
    SFTTrainer(
        load_model(),
        SFTConfig(**settings, max_length=length, packing=False),
        train_dataset=ids,
        processing_class=tokenizer,
        callbacks=[Stamp()],
    ).train()
else:
    labelled = ids.map(lambda row: {"labels": row["input_ids"]}).with_format("torch")
    Trainer(load_model(), TrainingArguments(**settings), train_dataset=labelled, callbacks=[Stamp()]).train()
