#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=40
#SBATCH --hint=nomultithread
#SBATCH --gres=gpu:a100:8
#SBATCH --time 20:00:00
#SBATCH --output=logs/%x-%j.out
#SBATCH --partition=gpu

set -x -e
source $HOME/venv/bin/activate
cd $HOME/work
log() { echo "$(date) $1"; }
log "start"

GPUS_PER_NODE=8
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=6000
LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes $SLURM_NNODES \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT \
    --rdzv_backend c10d \
    --tee 3"
CMD="pretrain.py --lr ${LR:-1e-4} --name run-$SLURM_JOB_ID"
if [[ "$DEBUG" == 1 && $GPUS_PER_NODE -gt 1 ]]; then
    CMD="$CMD --verbose"
fi
srun --jobid $SLURM_JOBID bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee -a main_log.txt
log "end"
