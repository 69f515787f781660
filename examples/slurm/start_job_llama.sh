#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:2

while [[ $# -gt 0 ]]; do
    case $1 in
        --work-dir)
            export WORK_DIR="$2"
            shift 2
            ;;
        --train-options)
            export TRAIN_OPTIONS="$2"
            shift 2
            ;;
        *)
            echo "unknown option: $1"
            exit 1
            ;;
    esac
done
if [ -z "$WORK_DIR" ]; then
    echo "--work-dir is missing"
    exit 1
fi
mkdir -p "$WORK_DIR/output"

export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR=$(getent ahostsv4 "$MASTER_ADDR" | awk '{ print $1; exit }')
export MASTER_PORT=7010
export GPUS_PER_NODE=2
export CONFIG=$WORK_DIR/accelerate_config.yaml

# Each node gets the config.
srun bash -c "cat > \$CONFIG <<END
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_offload_params: true
main_process_ip: \$MASTER_ADDR
main_process_port: \$MASTER_PORT
mixed_precision: bf16
num_machines: \$SLURM_JOB_NUM_NODES
num_processes: \$((SLURM_JOB_NUM_NODES * GPUS_PER_NODE))
END"
cat $CONFIG

srun bash -c 'accelerate launch --machine_rank=$SLURM_NODEID --config_file=$CONFIG train.py $TRAIN_OPTIONS'
