#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
srun apptainer exec --nv --bind /data image.sif bash -c 'cd /data/run-$SLURM_JOB_ID && python -u train.py --lr 1'
