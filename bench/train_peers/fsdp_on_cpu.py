"""Makes Accelerate use its FSDP plugin on CPUs, where it silently ignores it."""

from functools import wraps
from typing import Any

from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

_before = AcceleratorState.__init__


@wraps(_before)
def _init(self: Any, *given: Any, fsdp_plugin: Any = None, **named: Any) -> None:
    _before(self, *given, fsdp_plugin=fsdp_plugin, **named)
    if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin


AcceleratorState.__init__ = _init
