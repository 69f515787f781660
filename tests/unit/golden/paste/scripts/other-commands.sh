#!/bin/bash
#SBATCH --nodes=2
cp -r data /tmp/data
srun torchrun --nproc-per-node 4 train.py --data /tmp/data
