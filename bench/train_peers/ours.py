"""`python -m aboard.trainer` itself, with a clock on its optimizer."""

import runpy

from shared_setup import Clock
from torch.optim.optimizer import register_optimizer_step_post_hook

clock = Clock()
register_optimizer_step_post_hook(lambda *_: clock.step())
runpy.run_module("aboard.trainer", run_name="__main__", alter_sys=True)
