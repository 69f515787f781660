"""Accelerate's training loop, as in its documentation."""

from typing import Any

import fsdp_on_cpu  # noqa: F401 - imported for its side effect
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from shared_setup import (
    BATCH,
    CLIP,
    LAYOUT,
    LOG_STEPS,
    STEPS,
    Clock,
    fused_adamw,
    load_model,
    load_rows,
    require_layout,
)
from torch.utils.data import DataLoader, TensorDataset

plugin: Any = None
if LAYOUT == "full":
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["LlamaDecoderLayer"],
        cpu_ram_efficient_loading=False,
    )
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
net = load_model()
net, optimizer, loader = accelerator.prepare(
    net, fused_adamw(net.parameters()), DataLoader(TensorDataset(load_rows()), batch_size=BATCH, shuffle=True)
)
require_layout(net)
clock = Clock()
step = 0
while step < STEPS:
    for (ids,) in loader:
        loss = net(input_ids=ids, labels=ids, use_cache=False).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(net.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        clock.step()
        if step % LOG_STEPS == 0:
            print(step, loss.item(), flush=True)
        step += 1
