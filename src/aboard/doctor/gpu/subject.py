"""GPUs: as many as slots, alike on all nodes, with a working driver, and healthy.

These rules are tested on recordings only, so none of them stops a launch.
"""

from aboard.core.probes.check_subject import Subject
from aboard.core.probes.facts import Facts
from aboard.diagnoses.catalogue import list_diagnoses
from aboard.doctor.gpu import diagnoses as gpu, hardware_health
from aboard.doctor.gpu.count_and_model_parity import find_differing_drivers, find_differing_models
from aboard.doctor.gpu.cuda_support import CUDA, find_cuda_problems
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS, HEALTH
from aboard.doctor.gpu.visible_devices import VISIBLE, find_hidden_gpus
from aboard.doctor.gpu.xid_errors import KERNEL_LOG, find_lost_or_missing_gpus, find_unreadable_log, find_xid_errors
from aboard.doctor.shared.unknown_answers import list_unknown_diagnoses, make_unknown_rule

PROBES = (GPUS, DRIVER, VISIBLE, CUDA, hardware_health.SERVICE, KERNEL_LOG, HEALTH, hardware_health.NVLINK)
# These have rules and diagnoses of their own for a missing answer.
_WITH_OWN_UNKNOWN = (GPUS, hardware_health.SERVICE, KERNEL_LOG)


def list_nodes_without_gpu(facts: Facts) -> dict[str, str]:
    """The nodes with neither a GPU nor a driver, on which these rules have nothing to check."""
    smi, drivers = facts.of(GPUS), facts.of(DRIVER)
    return {
        name: "no NVIDIA GPU and no driver for one"
        for name, driver in drivers.items()
        if name in smi and not smi[name].installed and not driver.version and not driver.cards
    }


SUBJECT = Subject(
    name="gpu",
    title="all GPUs are present, alike and healthy",
    probes=PROBES,
    rules=(
        find_xid_errors,
        hardware_health.find_smi_errors,
        find_lost_or_missing_gpus,
        find_hidden_gpus,
        find_cuda_problems,
        find_differing_models,
        find_differing_drivers,
        hardware_health.find_fabric_manager_problems,
        hardware_health.find_ecc_errors,
        hardware_health.find_unusual_states,
        hardware_health.find_throttled_gpus,
        hardware_health.find_down_nvlinks,
        hardware_health.find_missing_smi,
        find_unreadable_log,
        make_unknown_rule(*PROBES),
    ),
    diagnoses=(
        *list_diagnoses(gpu),
        *list_unknown_diagnoses(probe for probe in PROBES if probe not in _WITH_OWN_UNKNOWN),
    ),
    untested=list_nodes_without_gpu,
)
