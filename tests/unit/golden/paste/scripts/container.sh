#!/bin/bash
#SBATCH --nodes=2
srun apptainer run --nv image.sif torchrun --nnodes $SLURM_NNODES --nproc-per-node 8 train.py
