#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
export IMAGE=${IMAGE:-"./train.sif"}
export MASTER_ADDR=$(nslookup "$(hostname)" | grep -oP '(?<=Address: ).*')
export CONFIG=config.yaml
srun bash -c "((\$SLURM_PROCID)) || cat <<END > \"\$CONFIG\"
distributed_type: MULTI_GPU
main_process_ip: '\$MASTER_ADDR'
main_process_port: 7010
num_machines: \$SLURM_JOB_NUM_NODES
num_processes: \$((SLURM_JOB_NUM_NODES * 2))
END"
srun bash -c 'apptainer run --nv \
  --bind $CONFIG:/mnt/config.yaml --bind /etc/nccl.conf:/etc/nccl.conf \
  $IMAGE accelerate launch --machine_rank=$SLURM_NODEID --config_file=/mnt/config.yaml /app/train.py --batch-size 1'
