#!/usr/bin/env bash
# 3 ranks on 2 nodes by DeepSpeed, which needs pdsh on the machine that runs this.
# Save hostfile and .deepspeed_env in /home/me/project.
# Save setup.sh there on every node: DeepSpeed sources it first.
# gpu01: node 0, 2 of 4 slots
# gpu02: node 1, 1 of 4 slots
# Not written down: put your own values into .deepspeed_env, as NAME=value, for
#   HF_TOKEN WANDB_API_KEY
cd /home/me/project
/opt/venv/bin/python -m deepspeed.launcher.runner --hostfile hostfile --force_multi \
    --include 10.0.0.1:0,2@gpu02:1 \
    --venv_script /home/me/project/setup.sh \
    --master_addr 10.0.0.1 --master_port 29501 \
    ''"'"'train it.py'"'"'' \
    --lr 2e-5 \
    --name 'it'"'"'s \$5' \
    --fp16
