#!/bin/bash
#SBATCH --job-name=20261116-1930-brave-otter
#SBATCH --partition=gpu
#SBATCH --account=llm
#SBATCH --qos=large
#SBATCH --nodes=512
#SBATCH --gpus-per-node=8
#SBATCH --constraint=h100&rail
#SBATCH --exclude=gpu[0017,0300-0303]
#SBATCH --time=2-00:00:00
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --switches=2@1:00:00
# Aboard finds the job of the run by the end of the comment.
#SBATCH --comment=aboard:20261116-1930-brave-otter
# One task on each node: an agent of Aboard, which starts the ranks there.
#SBATCH --ntasks-per-node=1
# If a node fails, Slurm keeps the job; Aboard reports the node, and stops the run or restarts it.
#SBATCH --no-kill
# 120 s before the time limit, Slurm signals only the command below, which saves and stops.
#SBATCH --signal=B:USR1@120
# In the directory of the job.
#SBATCH --output=slurm-%j.out
# A requeued job continues the output of its earlier start.
#SBATCH --open-mode=append
# The job gets the variables of the shell that submits it.
#SBATCH --export=ALL

cd /lustre/alice/llama || exit 3
# exec: Slurm's signals reach the process of this script, which has to be Aboard, not bash.
exec /home/alice/venv/bin/python -P -m aboard train --run 20261116-1930-brave-otter --resubmit 5 llama.yaml
