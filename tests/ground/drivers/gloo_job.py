"""A small training job over gloo; FATE says how rank FATE_RANK ends, and FATE_AT when."""

import os
import signal
import sys
import threading
import time

RANK = int(os.environ["RANK"])
FATED = os.environ.get("FATE_RANK") == str(RANK)


def fate(at: str) -> None:
    if not FATED or os.environ.get("FATE_AT") != at:
        return
    how = os.environ["FATE"]
    if how == "raise":
        raise ValueError("a bad batch")
    if how == "exit":
        sys.exit(3)
    if how == "wait":
        time.sleep(600)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[how])


fate("start")

import torch  # noqa: E402 - what is slow comes after the first fate
import torch.distributed as dist  # noqa: E402 - as above

fate("before")
if os.environ.get("FATE_AT") == "during":
    # The fated one is inside while the others are not: it waits for them when it meets its end.
    if FATED:
        threading.Timer(0.5, fate, ["during"]).start()
    else:
        time.sleep(2)
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(int(os.environ.get("STEPS", "5"))):
    if step == 2:
        fate("after")
    model(torch.ones(1, 4)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    time.sleep(float(os.environ.get("STEP_SECONDS", "0.05")))
    print(f"step {step}", flush=True)
print(f"world {dist.get_world_size()}", flush=True)
dist.destroy_process_group()
