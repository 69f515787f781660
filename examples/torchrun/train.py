"""Plain PyTorch: DistributedDataParallel on a tiny model that learns to read letters."""

import argparse
import os

import torch
import torch.distributed as dist
from letters import build_model, split_pictures
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()

    local_rank = int(os.environ["LOCAL_RANK"])
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
        device, backend = torch.device("cuda", local_rank), "nccl"
    else:
        device, backend = torch.device("cpu"), "gloo"
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    (pictures, places), _ = split_pictures()
    drawn = torch.randint(len(places), (args.steps * args.batch_size * world_size,))
    dataset = TensorDataset(pictures[drawn], places[drawn])
    sampler = DistributedSampler(dataset, shuffle=True, seed=0)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

    model = build_model().to(device)
    model = DDP(model, device_ids=[local_rank] if device.type == "cuda" else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    for step, (inputs, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % 10 == 0:
            # The mean over all ranks; each rank has seen other samples.
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            print(f"step {step + 1} loss {mean.item() / world_size:.4f}", flush=True)

    if rank == 0:
        torch.save(model.module.state_dict(), "letters.pt")
    print(f"done: rank {rank} of world size {world_size}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
