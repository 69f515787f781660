"""The loss on the validation bins: one sum over all ranks' tokens, divided by how many there are."""

import torch

from aboard.train.batches import Batches
from aboard.train.peers import Peers
from aboard.train.prefetch import Ahead
from aboard.train.progress import Progress
from aboard.train.step import Maker, Stepper, forward
from aboard.train.stream import Stream


def evaluate(stepper: Stepper, stream: Stream, peers: Peers) -> float:
    """All ranks run as many forwards, those without bins an empty one; the model's mode is left as it was."""
    world, engine = stepper.world, stepper.engine
    rows = stepper.training.per_device_eval_batch_size
    batches = Batches(
        cursor=stream.in_order(),
        counts=stream.counts,
        size=rows * world.size,
        rows=rows,
        total=len(stream),
        rank=world.rank,
        world=world.size,
    )
    make = Maker(read=stream.read, collate=stepper.masks.collate(), device=world.device)
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    supervised = 0
    was = engine.model.training
    engine.model.eval()
    try:
        with torch.no_grad(), Ahead(batches.walk(Progress()), make) as steps:
            for ready in steps:
                supervised = ready.planned.after.supervised
                for micro in ready.micro:
                    total += forward(engine, stepper.masks, micro)
    finally:
        engine.model.train(was)
    return peers.sums([float(total)])[0] / max(1, supervised)
