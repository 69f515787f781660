#!/bin/bash
#SBATCH --nodes=2
srun --ntasks-per-node=1 python prepare.py
srun --ntasks-per-node=1 torchrun --nproc-per-node 4 train.py
