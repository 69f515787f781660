"""The health of GPUs and their driver: a driver version mismatch, a lost GPU, bad memory, heat, and NVLink."""

import re
from collections.abc import Iterator

from aboard.core.probes.facts import Facts
from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand
from aboard.core.text.input_text import format_count, format_list
from aboard.diagnoses import Finding, Severity
from aboard.diagnoses.untrusted import Untrusted
from aboard.doctor.gpu import diagnoses as gpu
from aboard.doctor.gpu.nvidia_smi import DRIVER, GPUS, HEALTH, GpuDriver
from aboard.doctor.shared.answer_text import NOT_INSTALLED, require_output
from aboard.doctor.shared.majority import find_most_common
from aboard.lazy_dataclass import dataclass

_MAX_COMPLAINT_LENGTH = 160
_LOST = re.compile(r"is lost|fallen off|determine the device handle|requires reset|Unknown Error")


@dataclass(frozen=True, kw_only=True)
class NvLinks:
    """How many NVLinks of a GPU are up, and how many it has."""

    gpu: int
    model: Untrusted
    up: int
    all: int


def parse_nvlinks(answer: ProbeAnswer) -> tuple[NvLinks, ...]:
    """From `nvidia-smi nvlink -s`; a machine without NVLink, GPUs or the program has none."""
    printed = require_output(answer, "nvidia-smi nvlink timed out").stdout
    found = []
    for block in re.split(r"^(?=GPU [0-9])", printed, flags=re.MULTILINE):
        head = re.match(r"GPU ([0-9]{1,3}): (.*?)(?: \(UUID.*)?$", block, re.MULTILINE)
        if head:
            links = re.findall(r"^[ \t]+Link [0-9]{1,3}: (.+)$", block, re.MULTILINE)
            up = [link for link in links if re.match(r"[0-9.]+ GB/s", link) and not re.match(r"0(\.0+)? ", link)]
            found.append(NvLinks(gpu=int(head[1]), model=Untrusted(head[2]), up=len(up), all=len(links)))
    return tuple(found)


def parse_service_state(answer: ProbeAnswer) -> str:
    """The state from `systemctl is-active`; empty without systemd."""
    output = require_output(answer, "systemctl timed out")
    word = output.stdout.strip()
    return word if output.code != NOT_INSTALLED and re.fullmatch(r"[a-z-]{1,20}", word) else ""


def find_lost_gpus(facts: Facts) -> dict[str, Finding]:
    """Nodes with a GPU that no longer responds on the PCI bus: in the error of nvidia-smi, or in place of a number."""
    said: dict[str, str] = {}
    for name, health in facts.of(HEALTH).items():
        for card in health:
            if card.lost:
                said[name] = f"the GPU at {card.bus} reports: {card.lost}"
    for name, smi in facts.of(GPUS).items():
        if smi.complaint.match(_LOST):
            said[name] = smi.complaint.visible(_MAX_COMPLAINT_LENGTH)
        for each in smi.gpus:
            if each.state.match(_LOST):
                said[name] = f"GPU {each.index} at {each.bus.visible(20)} reports: {each.state.visible()}"
    return {
        name: gpu.LOST.finding(nodes=(name,), seen=seen, fix=gpu.LOST.fix(node=name)) for name, seen in said.items()
    }


def find_smi_errors(facts: Facts) -> Iterator[Finding]:
    """When nvidia-smi fails, CUDA will fail too, later and with another message."""
    drivers, answers = facts.of(DRIVER), facts.of(GPUS)
    # A login node with the driver's programs and no GPU is fine, unless its peers have GPUs.
    somewhere = any(smi.gpus for smi in answers.values())
    for name, smi in answers.items():
        driver = drivers.get(name)
        if "version mismatch" in smi.complaint:
            yield _build_mismatch_finding(name, smi.complaint, driver)
        elif smi.complaint and not smi.complaint.match(_LOST) and (somewhere or driver is None or driver.cards):
            yield gpu.SMI.finding(
                nodes=(name,),
                seen=f"nvidia-smi reports: {smi.complaint.visible(_MAX_COMPLAINT_LENGTH)}",
                fix=gpu.SMI.fix(node=name),
            )
        for each in smi.gpus:
            if each.state and not each.state.match(_LOST):
                seen = f"GPU {each.index} reports {each.state.visible()} instead of its number of memory errors"
                yield gpu.SMI.finding(nodes=(name,), seen=seen, fix=gpu.SMI.fix(node=name))


def _build_mismatch_finding(name: str, complaint: Untrusted, driver: GpuDriver | None) -> Finding:
    loaded = f"; the version of the loaded kernel module is {driver.version}" if driver and driver.version else ""
    return gpu.DRIVER_MISMATCH.finding(
        nodes=(name,), seen=complaint.visible(_MAX_COMPLAINT_LENGTH) + loaded, fix=gpu.DRIVER_MISMATCH.fix(node=name)
    )


def find_missing_smi(facts: Facts) -> Iterator[Finding]:
    """A loaded driver without nvidia-smi doesn't mean `no GPUs`: the number is unknown."""
    drivers = facts.of(DRIVER)
    for name, smi in facts.of(GPUS).items():
        driver = drivers.get(name)
        if not smi.installed and driver is not None and driver.version:
            yield gpu.UNKNOWN_GPUS.finding(
                nodes=(name,),
                seen=f"driver {driver.version} is loaded and lists {format_count(driver.cards, 'GPU')}, but nvidia-smi"
                " is not installed",
                fix=gpu.UNKNOWN_GPUS.fix(node=name),
            )


def find_ecc_errors(facts: Facts) -> Iterator[Finding]:
    """Uncorrectable memory errors have already terminated a program since the last boot."""
    for name, smi in facts.of(GPUS).items():
        bad = [card for card in smi.gpus if card.uncorrected]
        if bad:
            yield gpu.ECC.finding(
                nodes=(name,),
                seen="uncorrectable memory errors since the last boot: "
                + format_list([f"GPU {card.index} has {card.uncorrected}" for card in bad]),
                fix=gpu.ECC.fix(gpu=bad[0].index, node=name),
            )


def find_throttled_gpus(facts: Facts) -> Iterator[Finding]:
    """An overheated or underpowered GPU makes every rank wait for it, and nothing else shows it."""
    for name, gpus in facts.of(HEALTH).items():
        slow = [f"{health.bus} ({', '.join(health.slowed)})" for health in gpus if health.slowed]
        if slow:
            yield gpu.THROTTLED.finding(
                nodes=(name,), seen=f"currently throttled: {format_list(slow, 4)}", fix=gpu.THROTTLED.fix(node=name)
            )


_STATE_WORDS = {
    "remap-failed": "could not replace bad memory rows, and needs repair",
    "remap-pending": "has bad memory rows that only a reset replaces",
    "recovery": "asks for a reset, or for a reboot of the node",
    "prohibited": "is in compute mode Prohibited: CUDA programs can't use it",
    "mig": "is divided by MIG: ranks see parts of it, which NCCL can't connect",
    "width": "has fewer PCIe lanes than it could",
    "fabric": "has degraded NVLink bandwidth, or is unhealthy in the NVSwitch fabric",
    "ecc-off": "has ECC off, unlike other GPUs here: errors in its memory go unnoticed",
}


def find_unusual_states(facts: Facts) -> Iterator[Finding]:
    """States that a GPU reports itself, and that stop or slow the ranks on it."""
    every = facts.of(HEALTH)
    corrected = any(card.ecc == "Enabled" for cards in every.values() for card in cards)
    for name, cards in every.items():
        for state, words in _STATE_WORDS.items():
            off = state == "ecc-off" and corrected
            bad = [card.bus for card in cards if state in card.states or (off and card.ecc == "Disabled")]
            if bad:
                yield gpu.STATE.finding(
                    nodes=(name,),
                    seen=f"the GPU at {bad[0]} {words}" + (f"; and {len(bad) - 1} more" if len(bad) > 1 else ""),
                    fix=gpu.STATE.fix(state, gpu=bad[0], node=name)
                    if state in {"remap-pending", "prohibited", "mig", "ecc-off"}
                    else gpu.STATE.fix(state, node=name),
                )


def find_fabric_manager_problems(facts: Facts) -> Iterator[Finding]:
    """Machines with NVSwitches need their fabric manager before CUDA works at all."""
    health, services = facts.of(HEALTH), facts.of(SERVICE)
    for name, driver in facts.of(DRIVER).items():
        states = {(card.fabric, card.status) for card in health.get(name, ())}
        joined = bool(states) and all(state == ("Completed", "Success") for state in states)
        waiting = sorted(f"{state}/{status}" for state, status in states if state not in {"N/A", "Not Supported"})
        service = services.get(name)
        if joined or not (driver.switches or waiting):
            continue
        # A VM's fabric manager runs on its host; then only the GPUs' state shows it.
        down = bool(driver.switches) and service not in {None, "", "active"}
        if down or waiting:
            yield _build_manager_finding(name, driver.switches, service or "", waiting)
        elif driver.switches and service == "":
            yield gpu.UNKNOWN_FABRIC_MANAGER.finding(
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"{driver.switches} NVSwitches; the fabric manager could not be checked without systemd",
                why="CUDA doesn't start without the fabric manager.",
                fix=gpu.UNKNOWN_FABRIC_MANAGER.fix(node=name),
            )


def _build_manager_finding(name: str, switches: int, service: str, waiting: list[str]) -> Finding:
    seen = [f"{switches} NVSwitches"] if switches else []
    seen += [f"nvidia-fabricmanager is {service}"] if service else []
    seen += [f"the GPUs' fabric state is {format_list(waiting)}"] if waiting else []
    return gpu.FABRIC_MANAGER.finding(nodes=(name,), seen=", ".join(seen), fix=gpu.FABRIC_MANAGER.fix(node=name))


def find_down_nvlinks(facts: Facts) -> Iterator[Finding]:
    """A GPU with fewer NVLinks than identical GPUs slows down the ring on its node."""
    every = facts.of(NVLINK)
    by_model: dict[Untrusted, dict[str, int]] = {}
    for name, gpus in every.items():
        for links in gpus:
            by_model.setdefault(links.model, {})[f"{name}/{links.gpu}"] = links.up
    usually = {model: find_most_common(ups, better=int) or 0 for model, ups in by_model.items()}
    for name, gpus in every.items():
        # Not `fewer than it has`: a bridge between two GPUs leaves some of their links unused by design.
        bad = [links for links in gpus if links.up < usually[links.model]]
        if bad:
            yield gpu.NVLINK.finding(
                nodes=(name,),
                seen=format_list([f"GPU {links.gpu} has {links.up} NVLinks up" for links in bad])
                + f"; identical GPUs have {usually[bad[0].model]}",
                fix=gpu.NVLINK.fix(node=name),
            )


NVLINK = Probe(
    name="nvlink",
    question=ProbeCommand(argv=("nvidia-smi", "nvlink", "-s"), timeout=20),
    parse=parse_nvlinks,
    quick=False,
)
SERVICE = Probe(
    name="fabric-manager",
    question=ProbeCommand(argv=("systemctl", "is-active", "nvidia-fabricmanager")),
    parse=parse_service_state,
)
