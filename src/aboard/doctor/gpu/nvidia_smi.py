"""The output of nvidia-smi and the driver's files: the GPUs and their state, or the error."""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from aboard.core.probes.probe import Probe, ProbeAnswer, ProbeCommand, ProbeFiles, ProbeParseError
from aboard.diagnoses.untrusted import NO_TEXT, Untrusted, escape_text
from aboard.doctor.shared.answer_text import NOT_INSTALLED, extract_files, require_output
from aboard.lazy_dataclass import dataclass

_FIELDS = "index,name,uuid,pci.bus_id,driver_version,ecc.errors.uncorrected.volatile.total"
_LATE = "timed out; a lost GPU or a failing driver can make nvidia-smi hang"
_LONGEST = 80
# What a GPU without the feature says, and what nvidia-smi says without any GPU or driver.
_NO_VALUE = re.compile(r"\[?(?:N/A|Not Supported|Not Available)\]?", re.IGNORECASE)
_REPORTED = re.compile(r"communicate with the NVIDIA driver|No devices were found|NVML|determine the device handle")
_LOST_VALUE = re.compile(r": (GPU is lost|GPU requires reset|Unknown Error)$", re.MULTILINE)
# In the text of one GPU; the names of fixes of the diagnosis `gpu-state`.
GPU_STATES: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        "remap-failed": re.compile(r"Remapping Failure Occurred +: Yes"),
        "remap-pending": re.compile(r"^    Remapped Rows$(?:\n {8}.*)*?\n {8}Pending +: Yes$", re.MULTILINE),
        "recovery": re.compile(r"GPU Recovery Action +: (?!None|N/A)\w"),
        "prohibited": re.compile(r"Compute Mode +: Prohibited"),
        "mig": re.compile(r"^    MIG Mode$\n {8}Current +: Enabled$", re.MULTILINE),
        "width": re.compile(r"Link Width$\n +Max +: 16x$\n +Current +: [1248]x$", re.MULTILINE),
        "fabric": re.compile(
            r"^    Fabric$(?:\n {8}.*)*?\n +(?:Bandwidth +: Degraded|Summary +: Unhealthy)", re.MULTILINE
        ),
    }
)
_REASONS = ("HW Slowdown", "HW Thermal Slowdown", "HW Power Brake Slowdown", "SW Thermal Slowdown")


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU; `uncorrected` is None without ECC memory. `state` is what it reports instead of numbers, if it does."""

    index: int
    model: Untrusted
    uuid: Untrusted
    bus: Untrusted
    driver: Untrusted
    uncorrected: int | None
    state: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class NvidiaSmiOutput:
    """The output of nvidia-smi: the GPUs, or its error message."""

    installed: bool
    gpus: tuple[Gpu, ...] = ()
    complaint: Untrusted = NO_TEXT


@dataclass(frozen=True, kw_only=True)
class GpuDriver:
    """What the kernel module shows, with or without nvidia-smi; `version` is empty when it isn't loaded."""

    version: str
    cards: int
    switches: int


@dataclass(frozen=True, kw_only=True)
class GpuHealth:
    """Why a GPU is throttled, whether it has joined the NVSwitch fabric, and what else is unusual about it.

    `states` are those of `GPU_STATES`; `lost` is what it reports instead of numbers; `ecc` is the mode of its memory.
    """

    bus: str
    slowed: tuple[str, ...]
    fabric: str
    status: str
    states: tuple[str, ...] = ()
    lost: str = ""
    ecc: str = ""


def parse_gpus(answer: ProbeAnswer) -> NvidiaSmiOutput:
    output = require_output(answer, _LATE)
    if output.code == NOT_INSTALLED:
        return NvidiaSmiOutput(installed=False)
    lines = [line for line in output.stdout.splitlines() if line.strip()]
    if output.code == 0 and lines and "No devices were found" not in lines[0]:
        return NvidiaSmiOutput(installed=True, gpus=tuple(_parse_gpu(line) for line in lines))
    complaint = " ".join((output.stdout + " " + output.stderr).split())
    if not complaint or "not a valid field" in complaint:
        raise ProbeParseError(
            escape_text(complaint) or f"nvidia-smi exited with code {output.code} and printed nothing"
        )
    return NvidiaSmiOutput(installed=True, complaint=Untrusted(complaint))


def _parse_gpu(line: str) -> Gpu:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != _FIELDS.count(",") + 1 or not re.fullmatch(r"[0-9]{1,9}", fields[0]):
        raise ProbeParseError(f"unreadable line from nvidia-smi: {escape_text(line)}")
    model, uuid, bus, driver = map(Untrusted, fields[1:5])
    uncorrected = int(fields[5]) if re.fullmatch(r"[0-9]{1,18}", fields[5]) else None
    # A lost GPU is one line among healthy ones, and the exit code is 0.
    state = NO_TEXT if uncorrected is not None or _NO_VALUE.fullmatch(fields[5]) else Untrusted(fields[5][:_LONGEST])
    return Gpu(
        index=int(fields[0]), model=model, uuid=uuid, bus=bus, driver=driver, uncorrected=uncorrected, state=state
    )


def parse_driver(answer: ProbeAnswer) -> GpuDriver:
    files = extract_files(answer)
    text = files.get("/proc/driver/nvidia/version", "")
    version = re.search(r"Kernel Module(?: for \S+)?\s+([0-9]{1,5}(?:\.[0-9]{1,5}){1,3})", text)
    return GpuDriver(
        version=version[1] if version else "",
        cards=sum(path.startswith("/proc/driver/nvidia/gpus/") for path in files),
        switches=sum(path.startswith("/proc/driver/nvidia-nvswitch/devices/") for path in files),
    )


def parse_health(answer: ProbeAnswer) -> tuple[GpuHealth, ...]:
    """From `nvidia-smi -q`, which lists throttling under "Event" since driver 535 and under "Throttle" before."""
    output = require_output(answer, _LATE)
    text = f"{output.stdout}\n{output.stderr}"
    if output.code == NOT_INSTALLED or (output.code != 0 and _REPORTED.search(text)):
        return ()  # the list of GPUs reports the reason
    found = []
    # The text before the first, then the address and the text of each.
    _before, *parts = re.split(r"^GPU ([0-9A-Fa-f]{8}:[0-9A-Fa-f:.]{1,12})$", output.stdout, flags=re.MULTILINE)
    for bus, block in zip(parts[::2], parts[1::2], strict=True):
        own = dict(_split_sections(block))
        reasons = own.get("Clocks Event Reasons", own.get("Clocks Throttle Reasons", {}))
        fabric = own.get("Fabric", {})
        found.append(
            GpuHealth(
                bus=bus,
                slowed=tuple(reason for reason in _REASONS if reasons.get(reason) == "Active"),
                fabric=_parse_fabric_field(fabric, "State"),
                status=_parse_fabric_field(fabric, "Status"),
                states=tuple(name for name, pattern in GPU_STATES.items() if pattern.search(block)),
                lost=lost[1] if (lost := _LOST_VALUE.search(block)) else "",
                ecc=own.get("ECC Mode", {}).get("Current", ""),
            )
        )
    if output.code != 0 and not any(health.lost for health in found):
        raise ProbeParseError(f"nvidia-smi -q ended with exit code {output.code}: {_find_last_line(text)}")
    if not found:
        raise ProbeParseError("no GPU in the output of nvidia-smi -q")
    return tuple(found)


def _find_last_line(text: str) -> str:
    return escape_text(next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output"), 160)


def _parse_fabric_field(fabric: Mapping[str, str], name: str) -> str:
    word = fabric.get(name, "N/A")
    return word if re.fullmatch(r"[\w/ -]{1,40}", word) else "unreadable"


def _split_sections(block: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    """The sections of a GPU, indented by four, each with its names and values, indented further."""
    for part in re.split(r"^ {4}(?=\S)", block, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        if ":" not in title:
            pairs = (line.partition(" : ") for line in rest.splitlines() if line.startswith(" "))
            yield title.strip(), {key.strip(): value.strip() for key, colon, value in pairs if colon and key.strip()}


GPUS = Probe(
    name="gpus",
    question=ProbeCommand(argv=("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")),
    parse=parse_gpus,
)
DRIVER = Probe(
    name="gpu-driver",
    question=ProbeFiles(
        globs=(
            "/proc/driver/nvidia/version",
            "/proc/driver/nvidia/gpus/*/information",
            "/proc/driver/nvidia-nvswitch/devices/*/information",
        )
    ),
    parse=parse_driver,
)
HEALTH = Probe(
    name="gpu-health", question=ProbeCommand(argv=("nvidia-smi", "-q"), timeout=20), parse=parse_health, quick=False
)
