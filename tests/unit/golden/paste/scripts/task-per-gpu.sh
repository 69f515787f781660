#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --gres=gpu:4
#SBATCH --ntasks-per-node=4
#SBATCH --mem=0
#SBATCH --time=0-02:00:00
conda activate my_env
export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
srun python3 train.py --data $SCRATCH/d
