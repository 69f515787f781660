"""DeepSpeed ZeRO-2 on a tiny model that learns to read letters."""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from letters import build_model, split_pictures
from torch import nn
from torch.utils.data import TensorDataset

# As train_micro_batch_size_per_gpu in ds_config.json.
BATCH_SIZE = 16


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the deepspeed launcher")
    parser.add_argument("--steps", type=int, default=100)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    (pictures, places), _ = split_pictures()
    drawn = torch.randint(len(places), (args.steps * BATCH_SIZE * world_size,))
    dataset = TensorDataset(pictures[drawn], places[drawn])
    model = build_model()
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset
    )

    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(engine(inputs.to(engine.device)), targets.to(engine.device))
        engine.backward(loss)
        engine.step()
        if (step + 1) % 10 == 0:
            # The mean over all ranks; each rank has seen other samples.
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(f"step {step + 1} loss {mean.item() / world_size:.4f}", flush=True)

    if rank == 0:  # with ZeRO-2, each rank has all weights
        torch.save(engine.module.state_dict(), "letters.pt")
    print(f"ZeRO stage {engine.zero_optimization_stage()}, local rank {args.local_rank}", flush=True)
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
