#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --gres=gpu:2

export TRAIN_OPTIONS=""
while [[ $# -gt 0 ]]; do
    case $1 in
        --work-dir)
            # /workspace inside of the container: data, config and output.
            export WORK_DIR="$2"
            shift 2
            ;;
        --image)
            export APPTAINER_IMAGE="$2"
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
if [ -z "$WORK_DIR" ] || [ -z "$APPTAINER_IMAGE" ]; then
    echo "--work-dir or --image is missing"
    exit 1
fi
mkdir -p "$WORK_DIR/output"

# Without this, srun does not inherit --cpus-per-task.
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
  fsdp_version: 2
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer
  fsdp_reshard_after_forward: true
  fsdp_offload_params: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_cpu_ram_efficient_loading: false
main_process_ip: \$MASTER_ADDR
main_process_port: \$MASTER_PORT
mixed_precision: bf16
num_machines: \$SLURM_JOB_NUM_NODES
num_processes: \$((SLURM_JOB_NUM_NODES * GPUS_PER_NODE))
END"
cat $CONFIG

srun bash -c 'apptainer run --nv \
    --bind /etc/nccl.conf:/etc/nccl.conf \
    --bind /etc/crusoe:/etc/crusoe \
    --bind $WORK_DIR:/workspace \
    --pwd /workspace \
    --env HF_HOME=/workspace/cache \
    $APPTAINER_IMAGE \
    accelerate launch --machine_rank=$SLURM_NODEID --config_file=/workspace/accelerate_config.yaml \
    /app/train_causal_lm.py $TRAIN_OPTIONS --output-dir /workspace/output'
