"""Parses the NVIDIA driver's errors in the kernel log (Xid of GPUs, SXid of switches), and says what they mean."""

import re
from enum import Enum

from aboard.diagnoses import Fix, RunFailure
from aboard.doctor.gpu import diagnoses as gpu
from aboard.lazy_dataclass import dataclass


class FaultyPart(Enum):
    """What is at fault: the program, a part of the GPU, or unknown."""

    PROGRAM = "program"
    MEMORY = "memory"
    LINK = "link"
    BUS = "bus"
    PROCESSOR = "processor"
    OTHER = "other"
    UNKNOWN = "unknown"


_DIAGNOSES = {FaultyPart.MEMORY: gpu.ECC, FaultyPart.LINK: gpu.NVLINK, FaultyPart.BUS: gpu.LOST}


@dataclass(frozen=True, kw_only=True)
class XidMeaning:
    """`ends`: all work on the GPU stops. `follows`: it only reports the outcome of an earlier error."""

    what: str
    part: FaultyPart = FaultyPart.OTHER
    ends: bool = False
    follows: bool = False

    @property
    def diagnosis(self) -> RunFailure:
        """The diagnosis of this error; one without its own shares the general Xid diagnosis."""
        return _DIAGNOSES.get(self.part, gpu.XID)

    @property
    def code(self) -> str:
        return self.diagnosis.code

    @property
    def harms(self) -> bool:
        """Whether the GPU is at fault; an unknown error doesn't count."""
        return self.part not in (FaultyPart.PROGRAM, FaultyPart.UNKNOWN)

    @property
    def gone(self) -> bool:
        """Whether the GPU stays unusable until the node is rebooted."""
        return self.part in (FaultyPart.BUS, FaultyPart.PROCESSOR)


def _make_program_fault(what: str, *, follows: bool = False) -> XidMeaning:
    return XidMeaning(what=what, part=FaultyPart.PROGRAM, follows=follows)


# https://docs.nvidia.com/deploy/xid-errors, the catalogue; the names are in the driver's own nverror.h.
XIDS: dict[int, XidMeaning] = {
    13: _make_program_fault("an application error on the graphics engine"),
    31: _make_program_fault("an application error: invalid memory access"),
    43: _make_program_fault("an application error; the GPU is unaffected"),
    45: _make_program_fault("a program was terminated; the GPU is fine", follows=True),
    48: XidMeaning(what="an uncorrectable memory error", part=FaultyPart.MEMORY, ends=True),
    62: XidMeaning(what="its microcontroller halted", ends=True),
    63: XidMeaning(what="a memory row is marked for remapping; reset the GPU to remap it", part=FaultyPart.MEMORY),
    64: XidMeaning(what="a memory row could not be remapped", part=FaultyPart.MEMORY),
    74: XidMeaning(what="an NVLink error", part=FaultyPart.LINK),
    79: XidMeaning(what="it has fallen off the bus", part=FaultyPart.BUS, ends=True),
    92: XidMeaning(what="many correctable memory errors", part=FaultyPart.MEMORY),
    94: XidMeaning(what="a memory error, contained to one program", part=FaultyPart.MEMORY, ends=True),
    95: XidMeaning(what="a memory error that affected all programs", part=FaultyPart.MEMORY, ends=True),
    119: XidMeaning(what="its system processor (GSP) doesn't respond", part=FaultyPart.PROCESSOR, ends=True),
    120: XidMeaning(what="its system processor (GSP) failed", part=FaultyPart.PROCESSOR, ends=True),
    140: XidMeaning(what="an unrecoverable memory error", part=FaultyPart.MEMORY, ends=True),
    **dict.fromkeys(range(144, 151), XidMeaning(what="an NVLink error", part=FaultyPart.LINK)),
    154: XidMeaning(what="the driver requests a reset or a reboot", follows=True),
    155: XidMeaning(what="an NVLink error", part=FaultyPart.LINK),
}
_UNKNOWN = XidMeaning(what="see NVIDIA's list of Xids", part=FaultyPart.UNKNOWN)
_SWITCH = XidMeaning(what="a fatal error in an NVSwitch or its link", part=FaultyPart.LINK, ends=True)
_NO_START = XidMeaning(what="the driver could not initialize it", part=FaultyPart.BUS, ends=True)

_DEVICE = r"(?P<device>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})(?:\.[0-7])?"
_XID = re.compile(
    rf"NVRM: Xid \((?:PCI:)?{_DEVICE}\):? (?P<number>\d{{1,4}})\b"
    r"(?:, pid='?(?P<pid>\d{1,9})\b'?)?(?:.*\bprevious Xid (?P<previous>\d{1,4})\b)?"
)
# A switch repeats each error with its registers; only the first line has the severity.
_SXID = re.compile(rf"SXid \(PCI:{_DEVICE}\): (?P<number>\d{{1,6}}), Fatal\b")
_LOST_DEVICE = re.compile(rf"GPU (?:at )?(?:PCI:)?{_DEVICE}")
_HOW = re.compile(r"fallen off the bus|RmInitAdapter failed")


@dataclass(frozen=True, kw_only=True)
class GpuError:
    """One error line: the PCI address of the GPU or switch, the error's number if any, and the affected program."""

    device: str
    meaning: XidMeaning
    number: int | None = None
    pid: int | None = None
    switch: bool = False

    @property
    def name(self) -> str:
        """`Xid 79`, `SXid 20034`; "" for an error without a number."""
        return f"{'S' * self.switch}Xid {self.number}" if self.number is not None else ""


def parse_gpu_error(line: str) -> GpuError | None:
    """Parses a line of the kernel log; None if it isn't a GPU error, or a harmless one."""
    if found := _XID.search(line):
        number, pid = int(found["number"]), found["pid"]
        meaning = find_xid_meaning(number)
        if found["previous"] is not None and meaning.follows:
            # The line of the original error may have left the log.
            number, meaning = int(found["previous"]), find_xid_meaning(int(found["previous"]))
        return GpuError(device=_get_device(found), meaning=meaning, number=number, pid=int(pid) if pid else None)
    if found := _SXID.search(line):
        return GpuError(device=_get_device(found), meaning=_SWITCH, number=int(found["number"]), switch=True)
    return _parse_numberless_error(line.partition("NVRM: ")[2])


def find_xid_meaning(xid: int) -> XidMeaning:
    return XIDS.get(xid, _UNKNOWN)


def build_gpu_fix(error: GpuError, node: str) -> Fix:
    """The fix for this error on its node."""
    if not error.meaning.harms:
        return gpu.XID.fix("program", node=node)
    if error.meaning.gone:
        return gpu.XID.fix("gone", device=error.device, node=node)
    if error.meaning.part is FaultyPart.LINK:
        return gpu.XID.fix("link", node=node)
    return gpu.XID.fix("reset", device=error.device, node=node)


def _parse_numberless_error(text: str) -> GpuError | None:
    device = _LOST_DEVICE.search(text)
    how = _HOW.search(text, device.end()) if device else None
    if device is None or how is None:
        return None
    return GpuError(device=_get_device(device), meaning=XIDS[79] if how[0].startswith("fallen") else _NO_START)


def _get_device(found: re.Match[str]) -> str:
    return found["device"].lower()
