"""GPUs: as many as slots, alike on all nodes, with a driver that works, and in good health.

Only recordings of such machines have proven these rules, so none of them stops a launch.
"""

from aboard.checks.gpu.parity import drivers_differ, models_differ
from aboard.checks.gpu.smi import DRIVER, GPUS, HEALTH
from aboard.checks.gpu.state import (
    NVLINK,
    SERVICE,
    ecc_errors,
    fabric_manager,
    nvlinks_down,
    smi_complains,
    smi_missing,
    throttled,
)
from aboard.checks.gpu.visible import VISIBLE, gpus_hidden
from aboard.checks.gpu.xid import KERNEL_LOG, gpus_gone, log_unreadable, xid_errors
from aboard.checks.unknown import unknown_facts, unknown_stories
from aboard.core.facts import Facts
from aboard.core.rule import Subject
from aboard.diagnoses import gpu
from aboard.diagnoses.catalogue import diagnoses_in

PROBES = (GPUS, DRIVER, VISIBLE, SERVICE, KERNEL_LOG, HEALTH, NVLINK)
# Their rules say more of why there is no answer, and the family declares it.
_TOLD = (GPUS, SERVICE, KERNEL_LOG)


def without_gpu(facts: Facts) -> dict[str, str]:
    """The nodes that have neither a GPU nor a driver for one, so that no rule here has anything to judge."""
    smi, drivers = facts.of(GPUS), facts.of(DRIVER)
    return {
        name: "no NVIDIA GPU and no driver for one"
        for name, driver in drivers.items()
        if name in smi and not smi[name].installed and not driver.version and not driver.cards
    }


SUBJECT = Subject(
    name="gpu",
    title="nothing is wrong with the GPUs, where there are any",
    probes=PROBES,
    rules=(
        xid_errors,
        smi_complains,
        gpus_gone,
        gpus_hidden,
        models_differ,
        drivers_differ,
        fabric_manager,
        ecc_errors,
        throttled,
        nvlinks_down,
        smi_missing,
        log_unreadable,
        unknown_facts(*PROBES),
    ),
    stories=(*diagnoses_in(gpu), *unknown_stories(probe for probe in PROBES if probe not in _TOLD)),
    untested=without_gpu,
)
