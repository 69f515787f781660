"""The bare engine on the same shape as `aboard train`: FSDP2 in the shortest loop, on rows of random tokens.

bare_fsdp.py MODEL TOKENS STEPS [compile]
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM

MODEL, TOKENS, STEPS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
WARM = STEPS // 2


def report(**values):
    print("first-gpu-day " + json.dumps(values), flush=True)


torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
config = AutoConfig.from_pretrained(MODEL)
with torch.device("meta"):
    net = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
net.gradient_checkpointing_enable({"use_reentrant": False})
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for layer in net.model.layers:
    if "compile" in sys.argv:
        layer.compile()
    fully_shard(layer, mp_policy=policy)
fully_shard(net, mp_policy=policy)
net.to_empty(device="cuda")
with torch.no_grad():
    for name, parameter in net.named_parameters():
        own = parameter.to_local()
        own.fill_(1.0) if "norm" in name else own.normal_(0.0, 0.02)
# On meta its frequencies have no values.
net.model.rotary_emb = type(net.model.rotary_emb)(config).cuda()
net.train()
optimizer = torch.optim.AdamW(net.parameters(), 1e-5, (0.9, 0.95), fused=True)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, STEPS + 1):
    ids = torch.randint(4, 900, (1, TOKENS), generator=generator).cuda(non_blocking=True)
    loss = net(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if step == WARM:
        torch.cuda.synchronize()
        began = time.perf_counter()
torch.cuda.synchronize()
seconds = (time.perf_counter() - began) / (STEPS - WARM)
reserved = torch.cuda.max_memory_reserved()
if dist.get_rank() == 0:
    rate = TOKENS * dist.get_world_size() / seconds
    report(tokens_per_second=rate, step_seconds=seconds, reserved=reserved, loss=loss.item())
dist.destroy_process_group()
