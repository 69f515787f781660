"""DeepSpeed: ZeRO-1 beside DDP, ZeRO-3 beside FSDP2."""

import deepspeed
from shared_setup import BATCH, CLIP, LAYOUT, LOG_STEPS, STEPS, Clock, fused_adamw, list_batches, load_model

net = load_model()
engine, *_ = deepspeed.initialize(
    model=net,
    optimizer=fused_adamw(net.parameters()),
    config={
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": 3 if LAYOUT == "full" else 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": STEPS,
    },
)
clock = Clock()
for step, ids in zip(range(STEPS), list_batches(), strict=False):
    loss = engine(input_ids=ids, labels=ids, use_cache=False).loss
    engine.backward(loss)
    engine.step()
    clock.step()
    if step % LOG_STEPS == 0:
        print(step, loss.item(), flush=True)
