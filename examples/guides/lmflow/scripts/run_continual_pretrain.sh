#!/bin/bash
# Has the options and the shape of LMFlow's script of this name.
model_name_or_path=tiny-llama
dataset_path=data/alpaca/train_conversation
output_dir=output_models/continual-pretrain
num_train_epochs=1
per_device_train_batch_size=1
learning_rate=2e-3
deepspeed_args="--master_port=11000"
exp_id=continual-pretrain

while [[ $# -ge 1 ]]; do
  key="$1"
  case ${key} in
    -m|--model_name_or_path)
      model_name_or_path="$2"
      shift
      ;;
    -d|--dataset_path)
      dataset_path="$2"
      shift
      ;;
    -o|--output_model_path)
      output_dir="$2"
      shift
      ;;
    -n|--num_train_epochs)
      num_train_epochs=$2
      shift
      ;;
    --lr|--learning_rate)
      learning_rate=$2
      shift
      ;;
    --deepspeed_args)
      deepspeed_args="$2"
      shift
      ;;
    *)
      echo "error: unknown option \"${key}\"" 1>&2
      exit 1
  esac
  shift
done

project_dir=$(cd "$(dirname $0)"/..; pwd)
log_dir=${project_dir}/log/${exp_id}
mkdir -p ${output_dir} ${log_dir}

deepspeed ${deepspeed_args} \
  examples/finetune.py \
    --model_name_or_path ${model_name_or_path} \
    --dataset_path ${dataset_path} \
    --output_dir ${output_dir} --overwrite_output_dir \
    --num_train_epochs ${num_train_epochs} \
    --learning_rate ${learning_rate} \
    --block_size 64 \
    --per_device_train_batch_size ${per_device_train_batch_size} \
    --deepspeed configs/ds_config_zero3.json \
    --fp16 \
    --run_name ${exp_id} \
    --validation_split_percentage 0 \
    --logging_steps 1 \
    --do_train \
    --ddp_timeout 72000 \
    --save_steps 1000 \
    --weight_decay 0 \
    --dataloader_num_workers 0 \
    --gradient_accumulation_steps 1 \
    --gradient_checkpointing True \
    | tee ${log_dir}/train.log \
    2> ${log_dir}/train.err
