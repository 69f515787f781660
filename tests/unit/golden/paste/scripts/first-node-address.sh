#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH --nodes=4          # four machines
#SBATCH --ntasks=4
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4

names=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )
first=${names[0]}
address=$(srun --nodes=1 --ntasks=1 -w "$first" hostname --ip-address)
echo Address: $address
export LOGLEVEL=INFO

srun torchrun \
--nnodes 4 \
--nproc_per_node 1 \
--rdzv_id $RANDOM \
--rdzv_backend c10d \
--rdzv_endpoint $address:29500 \
/shared/train.py 50 10
