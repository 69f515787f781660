#!/bin/bash
#SBATCH --job-name=20261116-1930-brave-otter
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
#SBATCH --output=/scratch/%j.out
# Aboard finds the job of the run by the end of the comment.
#SBATCH --comment="two words aboard:20261116-1930-brave-otter"
# One task on each node: an agent of Aboard, which starts the ranks there.
#SBATCH --ntasks-per-node=1
# If a node fails, Slurm keeps the job; Aboard reports the node, and stops the run or restarts it.
#SBATCH --no-kill
# 120 s before the time limit, Slurm signals only the command below, which saves and stops.
#SBATCH --signal=B:USR1@120
# A requeued job continues the output of its earlier start.
#SBATCH --open-mode=append
# The job gets the variables of the shell that submits it.
#SBATCH --export=ALL

cd '/home/alice/my project' || exit 3
export XDG_STATE_HOME='/scratch/alice'"'"'s'
# HF_TOKEN has to be set in the shell that submits this script: its value is not written here.
# exec: Slurm's signals reach the process of this script, which has to be Aboard, not bash.
exec /home/alice/venv/bin/python -P -m aboard launch --run 20261116-1930-brave-otter --env HF_TOKEN -- run.sh 'it'"'"'s' '$HOME'
