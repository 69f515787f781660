#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:4
module load singularity
export PATH=/opt/tools/bin:$PATH
export NCCL_IB_TIMEOUT=50 HF_HOME=/nowhere
export SINGULARITY_BIND=/scratch
IFS=',' read -ra GPUS <<< "$SLURM_JOB_GPUS"
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
for ((i=0; i<${#nodes[@]}; i++))
do
    srun --nodes=1 --ntasks=1 -w "${nodes[$i]}" \
    singularity run --nv \
    --home $HOME:/home/trainer \
    --bind $SCRATCH/cache:/.hf_cache,$SCRATCH/data:/datasets:ro \
    --env HF_HOME=/.hf_cache --env MASTER_ADDR=${nodes[0]} \
    --bind $PWD:/workspace --bind /tmp/$SLURM_JOB_ID:/scratch/job \
    --pwd /workspace \
    image.sif \
    torchrun --master_addr "${nodes[0]}" --node_rank $i --nnodes $SLURM_NTASKS --nproc-per-node=${#GPUS[@]} \
        cli/train.py --data_path /datasets/prompt.jsonl &
done
wait
