#!/usr/bin/env bash
# 3 ranks on 2 nodes by torchrun. Run each part on its node, all at once: torchrun
# waits for the others, and does not say which are missing.
# The nodes have different numbers of ranks, which torchrun accepts although its manual says otherwise.

# gpu01 (10.0.0.1): node 0, 2 ranks
cd /home/me/project
module load cuda
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=0,2
export GLOO_SOCKET_IFNAME=eth1
export HF_TOKEN="$HF_TOKEN"  # not written down: set it in the shell that runs this
export MOTD='say "hi" to $USER'
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=eth1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export WANDB_API_KEY="$WANDB_API_KEY"  # not written down: set it in the shell that runs this
/opt/venv/bin/python -m torch.distributed.run \
    --nnodes 2 --node-rank 0 --nproc-per-node 2 \
    --master-addr 10.0.0.1 --master-port 29501 \
    --no-python bash -c 'exec /opt/venv/bin/python '"'"'train it.py'"'"' --local_rank="$LOCAL_RANK" "$@"' bash \
    --lr 2e-5 \
    --name 'it'"'"'s $5' \
    --fp16

# gpu02: node 1, 1 rank
cd /home/me/project
module load cuda
export CUDA_DEVICE_ORDER=PCI_BUS_ID
export CUDA_VISIBLE_DEVICES=1
export GLOO_SOCKET_IFNAME=eth1
export HF_TOKEN="$HF_TOKEN"  # not written down: set it in the shell that runs this
export MOTD='say "hi" to $USER'
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=eth1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export WANDB_API_KEY="$WANDB_API_KEY"  # not written down: set it in the shell that runs this
/opt/venv/bin/python -m torch.distributed.run \
    --nnodes 2 --node-rank 1 --nproc-per-node 1 \
    --master-addr 10.0.0.1 --master-port 29501 \
    --no-python bash -c 'exec /opt/venv/bin/python '"'"'train it.py'"'"' --local_rank="$LOCAL_RANK" "$@"' bash \
    --lr 2e-5 \
    --name 'it'"'"'s $5' \
    --fp16
