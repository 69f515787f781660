"""The bare engine in the shortest loop: plain PyTorch on one rank, DDP or FSDP2 on more."""

import torch
import torch.distributed as dist
from shared_setup import CLIP, LAYOUT, LOG_STEPS, STEPS, WORLD, Clock, fused_adamw, list_batches, load_model
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

net = load_model()
if LAYOUT == "full":
    dist.init_process_group("gloo")
    for layer in net.model.layers:
        fully_shard(layer)
    fully_shard(net)
elif WORLD > 1:
    dist.init_process_group("gloo")
    net = DistributedDataParallel(net, gradient_as_bucket_view=True)
optimizer = fused_adamw(net.parameters())
clock = Clock()
for step, ids in zip(range(STEPS), list_batches(), strict=False):
    loss = net(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
    if step % LOG_STEPS == 0:
        print(step, loss.item(), flush=True)
