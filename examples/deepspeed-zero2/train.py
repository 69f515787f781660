"""DeepSpeed ZeRO-2 on a tiny model with random data."""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the deepspeed launcher")
    parser.add_argument("--steps", type=int, default=8)
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    deepspeed.init_distributed()
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    features = torch.randn(args.steps * 4 * world_size, 16)
    dataset = TensorDataset(features, features.sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, model_parameters=model.parameters(), training_data=dataset
    )

    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.mse_loss(engine(inputs.to(engine.device)), targets.to(engine.device))
        engine.backward(loss)
        engine.step()
        # The mean over all ranks; each rank has seen other samples.
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        print(f"step {step} loss {mean.item() / world_size:.4f}", flush=True)

    print(f"ZeRO stage {engine.zero_optimization_stage()}, local rank {args.local_rank}", flush=True)
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
