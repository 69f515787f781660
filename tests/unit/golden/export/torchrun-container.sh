#!/usr/bin/env bash
# 8 ranks on 2 nodes by torchrun. Run each part on its node, all at once: torchrun
# waits for the others, and does not say which are missing.

# gpu0 (10.0.0.1): node 0, 4 ranks
cd /home/me/project
module load cuda
export GLOO_SOCKET_IFNAME=eth1
export HF_TOKEN="$HF_TOKEN"  # not written down: set it in the shell that runs this
export MOTD='say "hi" to $USER'
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=eth1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export SEED=1
export WANDB_API_KEY="$WANDB_API_KEY"  # not written down: set it in the shell that runs this
# With GPUs, add --nv or --rocm before the image. Bind NCCL's files and caches that the ranks need.
apptainer exec \
    --bind /home/me/project \
    --bind /data \
    --pwd /home/me/project \
    --hostname=x \
    --writable-tmpfs \
    /images/train.sif \
    python3 -m torch.distributed.run \
    --nnodes 2 --node-rank 0 --nproc-per-node 4 \
    --master-addr 10.0.0.1 --master-port 29501 \
    --no-python bash -c 'exec python3 '"'"'train it.py'"'"' --local_rank="$LOCAL_RANK" "$@"' bash \
    --lr 2e-5 \
    --name 'it'"'"'s $5' \
    --fp16

# gpu1 (10.0.0.1): node 1, 4 ranks
cd /home/me/project
module load cuda
export GLOO_SOCKET_IFNAME=eth1
export HF_TOKEN="$HF_TOKEN"  # not written down: set it in the shell that runs this
export MOTD='say "hi" to $USER'
export NCCL_DEBUG=INFO
export NCCL_SOCKET_IFNAME=eth1
export OMP_NUM_THREADS=4
export PYTHONUNBUFFERED=1
export SEED=1
export WANDB_API_KEY="$WANDB_API_KEY"  # not written down: set it in the shell that runs this
docker run --rm --network=host --ipc=host \
    --env GLOO_SOCKET_IFNAME \
    --env HF_TOKEN \
    --env MOTD \
    --env NCCL_DEBUG \
    --env NCCL_SOCKET_IFNAME \
    --env OMP_NUM_THREADS \
    --env PYTHONUNBUFFERED \
    --env SEED \
    --env WANDB_API_KEY \
    --volume /home/me/project:/home/me/project \
    --volume /data:/data \
    --workdir /workspace \
    --gpus=all \
    --hostname=x \
    train:1 \
    python3 -m torch.distributed.run \
    --nnodes 2 --node-rank 1 --nproc-per-node 4 \
    --master-addr 10.0.0.1 --master-port 29501 \
    --no-python bash -c 'exec python3 '"'"'train it.py'"'"' --local_rank="$LOCAL_RANK" "$@"' bash \
    --lr 2e-5 \
    --name 'it'"'"'s $5' \
    --fp16
