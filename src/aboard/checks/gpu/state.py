"""The state of GPUs and their driver: a driver in two versions, a lost GPU, bad memory, heat, and NVLink."""

import re
from collections.abc import Iterator

from aboard.checks.gpu.smi import DRIVER, GPUS, HEALTH, NOT_STARTED, Driver, Smi
from aboard.checks.listed import listed
from aboard.checks.usual import usual_or_best
from aboard.core.facts import Facts
from aboard.core.probe import Answer, Command, Output, Probe, Unparsed
from aboard.core.words import many
from aboard.diagnoses import Finding, Severity, gpu
from aboard.diagnoses.untrusted import Untrusted
from aboard.lazy import dataclass

_SHOWN = 160
_LOST = re.compile(r"is lost|fallen off|determine the device handle")


@dataclass(frozen=True, kw_only=True)
class Links:
    """How many NVLinks of a GPU are up, and how many it has."""

    gpu: int
    model: Untrusted
    up: int
    all: int


def parse_links(answer: Answer) -> tuple[Links, ...]:
    """From `nvidia-smi nvlink -s`; a machine without NVLink, GPUs or the program has none."""
    if not isinstance(answer, Output) or answer.timed_out:
        raise Unparsed("nvidia-smi nvlink did not answer in time")
    found = []
    for block in re.split(r"^(?=GPU [0-9])", answer.stdout, flags=re.MULTILINE):
        head = re.match(r"GPU ([0-9]{1,3}): (.*?)(?: \(UUID.*)?$", block, re.MULTILINE)
        if head:
            links = re.findall(r"^\s+Link [0-9]{1,3}: (.+?)\s*$", block, re.MULTILINE)
            up = [link for link in links if re.match(r"[0-9.]+ GB/s", link) and not re.match(r"0(\.0+)? ", link)]
            found.append(Links(gpu=int(head[1]), model=Untrusted(head[2]), up=len(up), all=len(links)))
    return tuple(found)


def parse_service(answer: Answer) -> str:
    """The one word of `systemctl is-active`; empty where there is no systemd to ask."""
    if not isinstance(answer, Output) or answer.timed_out:
        raise Unparsed("systemctl did not answer in time")
    word = answer.stdout.strip()
    return word if answer.code != NOT_STARTED and re.fullmatch(r"[a-z-]{1,20}", word) else ""


def lost_gpus(facts: Facts) -> dict[str, Finding]:
    """Nodes with a GPU that no longer answers on the PCI bus."""
    return {name: _lost(name, smi) for name, smi in facts.of(GPUS).items() if smi.complaint.match(_LOST)}


def _lost(name: str, smi: Smi) -> Finding:
    return gpu.LOST.finding(nodes=(name,), seen=smi.complaint.visible(_SHOWN), fix=gpu.LOST.fix(node=name))


def smi_complains(facts: Facts) -> Iterator[Finding]:
    """nvidia-smi that fails is what CUDA will say too, in other words and later."""
    drivers, answers = facts.of(DRIVER), facts.of(GPUS)
    # A login node with the driver's programs and no GPU is what it is, unless its peers have GPUs.
    somewhere = any(smi.gpus for smi in answers.values())
    for name, smi in answers.items():
        driver = drivers.get(name)
        if "version mismatch" in smi.complaint:
            yield _driver_mismatch(name, smi.complaint, driver)
        elif smi.complaint and not smi.complaint.match(_LOST) and (somewhere or driver is None or driver.cards):
            yield gpu.SMI.finding(
                nodes=(name,), seen=f"nvidia-smi says: {smi.complaint.visible(_SHOWN)}", fix=gpu.SMI.fix(node=name)
            )


def _driver_mismatch(name: str, complaint: Untrusted, driver: Driver | None) -> Finding:
    loaded = f"; the loaded kernel module is {driver.version}" if driver and driver.version else ""
    return gpu.DRIVER_MISMATCH.finding(
        nodes=(name,), seen=complaint.visible(_SHOWN) + loaded, fix=gpu.DRIVER_MISMATCH.fix(node=name)
    )


def smi_missing(facts: Facts) -> Iterator[Finding]:
    """No nvidia-smi beside a loaded driver isn't `no GPUs`: it is an unknown."""
    drivers = facts.of(DRIVER)
    for name, smi in facts.of(GPUS).items():
        driver = drivers.get(name)
        if not smi.installed and driver is not None and driver.version:
            yield gpu.UNKNOWN_GPUS.finding(
                nodes=(name,),
                seen=f"driver {driver.version} is loaded, with {many(driver.cards, 'GPU')}, but there is"
                " no nvidia-smi to ask",
                fix=gpu.UNKNOWN_GPUS.fix(node=name),
            )


def ecc_errors(facts: Facts) -> Iterator[Finding]:
    """Memory that returned wrong bits has already ended a program since the last boot."""
    for name, smi in facts.of(GPUS).items():
        bad = [card for card in smi.gpus if card.uncorrected]
        if bad:
            yield gpu.ECC.finding(
                nodes=(name,),
                seen="memory errors that could not be corrected since the last boot: "
                + listed([f"GPU {card.index} has {card.uncorrected}" for card in bad]),
                fix=gpu.ECC.fix(gpu=bad[0].index, node=name),
            )


def throttled(facts: Facts) -> Iterator[Finding]:
    """A hot or underfed GPU makes every rank wait for it, and says so nowhere else."""
    for name, gpus in facts.of(HEALTH).items():
        slow = [f"{health.bus} ({', '.join(health.slowed)})" for health in gpus if health.slowed]
        if slow:
            yield gpu.THROTTLED.finding(
                nodes=(name,), seen=f"slowed down right now: {listed(slow, 4)}", fix=gpu.THROTTLED.fix(node=name)
            )


def fabric_manager(facts: Facts) -> Iterator[Finding]:
    """Machines with NVSwitches need their fabric manager before CUDA works at all."""
    health, services = facts.of(HEALTH), facts.of(SERVICE)
    for name, driver in facts.of(DRIVER).items():
        states = {(card.fabric, card.status) for card in health.get(name, ())}
        joined = bool(states) and all(state == ("Completed", "Success") for state in states)
        waiting = sorted(f"{state}/{status}" for state, status in states if state not in {"N/A", "Not Supported"})
        service = services.get(name)
        if joined or not (driver.switches or waiting):
            continue
        # A guest has GPUs of a switched machine whose fabric manager runs in its host; then only the state tells.
        down = bool(driver.switches) and service not in {None, "", "active"}
        if down or waiting:
            yield _no_manager(name, driver.switches, service or "", waiting)
        elif driver.switches and service == "":
            yield gpu.UNKNOWN_FABRIC_MANAGER.finding(
                severity=Severity.INFO,
                nodes=(name,),
                seen=f"{driver.switches} NVSwitches, and no systemd to ask whether the fabric manager runs",
                why="Without it CUDA doesn't start.",
                fix=gpu.UNKNOWN_FABRIC_MANAGER.fix(node=name),
            )


def _no_manager(name: str, switches: int, service: str, waiting: list[str]) -> Finding:
    seen = [f"{switches} NVSwitches"] if switches else []
    seen += [f"nvidia-fabricmanager is {service}"] if service else []
    seen += [f"the GPUs' fabric state is {listed(waiting)}"] if waiting else []
    return gpu.FABRIC_MANAGER.finding(nodes=(name,), seen=", ".join(seen), fix=gpu.FABRIC_MANAGER.fix(node=name))


def nvlinks_down(facts: Facts) -> Iterator[Finding]:
    """A GPU with fewer NVLinks than its like makes the ring between the GPUs of its node slower."""
    every = facts.of(NVLINK)
    by_model: dict[Untrusted, dict[str, int]] = {}
    for name, gpus in every.items():
        for links in gpus:
            by_model.setdefault(links.model, {})[f"{name}/{links.gpu}"] = links.up
    usually = {model: usual_or_best(ups, better=int) or 0 for model, ups in by_model.items()}
    for name, gpus in every.items():
        # Not `fewer than it has`: a bridge between two cards leaves some of their links unused by design.
        bad = [links for links in gpus if links.up < usually[links.model]]
        if bad:
            yield gpu.NVLINK.finding(
                nodes=(name,),
                seen=listed([f"GPU {links.gpu} has {links.up} NVLinks up" for links in bad])
                + f", its like have {usually[bad[0].model]}",
                fix=gpu.NVLINK.fix(node=name),
            )


NVLINK = Probe(
    name="nvlink", question=Command(argv=("nvidia-smi", "nvlink", "-s"), timeout=20), parse=parse_links, quick=False
)
SERVICE = Probe(
    name="fabric-manager",
    question=Command(argv=("systemctl", "is-active", "nvidia-fabricmanager")),
    parse=parse_service,
)
