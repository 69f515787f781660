"""TRL's DPO on preference pairs, with its own parser: all options of TRL's `dpo.py`, such as --use_peft."""

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


def main():
    script_args, training_args, model_args = TrlParser(
        (ScriptArguments, DPOConfig, ModelConfig)
    ).parse_args_and_config()
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    dataset = load_dataset("json", data_files=script_args.dataset_name, split=script_args.dataset_train_split)

    trainer = DPOTrainer(
        model,
        args=training_args,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=get_peft_config(model_args),
    )
    result = trainer.train()
    trainer.save_model("trained")
    trained = sum(each.numel() for each in trainer.model.parameters() if each.requires_grad)
    print(f"train loss {result.training_loss:.4f}", flush=True)
    print(f"trained weights: {trained}", flush=True)
    print(f"done: rank {training_args.process_index} of world size {training_args.world_size}", flush=True)


if __name__ == "__main__":
    main()
