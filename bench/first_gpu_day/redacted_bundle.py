"""What leaves the machine, if the user sends it: results, raw outputs and the page, redacted, in one archive."""

import gzip
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aboard.core.secrets.secret_scrubber import SecretScrubber
from aboard.diagnoses.untrusted import Untrusted
from first_gpu_day.day_run import DayRun, Result
from first_gpu_day.gpu_day import MOST_TEXT

ROOT = "first-gpu-day"
_LONGEST_LINE = 2000
# A node decides how many there are.
_MOST_FILES, _MOST_FIGURES = 40, 200
# What identifies a device of the owner's: of a GPU, an adapter, a board.
_DEVICES = re.compile(
    r"(?P<uuid>\b(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27})"
    r"|(?P<name>(?:Serial Number|Board Part Number|Module ID|Node GUID|System GUID|Port GUID|System image GUID)\s*: *)"
    r"(?P<value>\S.*)"
)


class DayRedactor:
    """Redacts a day's texts: keys, tokens, users, homes, addresses, and the serial numbers of devices."""

    def __init__(self, users: Sequence[str]) -> None:
        self._scrub = SecretScrubber(users=users, hide_addresses=True)
        self._devices: dict[str, str] = {}

    @property
    def removed(self) -> Counter[str]:
        return self._scrub.removed + Counter({"serial numbers": len(self._devices)})

    def text(self, text: str) -> str:
        """The end of the text, line by line, without control characters."""
        short = (
            text
            if len(text) <= MOST_TEXT
            else f"… {len(text) - MOST_TEXT} characters are left out\n{text[-MOST_TEXT:]}"
        )
        lines = self._scrub.text(_DEVICES.sub(self._hide_device, short)).splitlines()
        return "".join(f"{Untrusted(line.expandtabs()).visible(_LONGEST_LINE)}\n" for line in lines)

    def result(self, result: Result) -> dict[str, Any]:
        """All of a result but its texts, which are files of their own."""
        kept = {key: value for key, value in asdict(result).items() if key != "texts"}
        kept["figures"] = dict(list(result.figures.items())[:_MOST_FIGURES])
        found: dict[str, Any] = self._scrub.value(_visit(kept, lambda text: _DEVICES.sub(self._hide_device, text)))
        return found

    def _hide_device(self, found: re.Match[str]) -> str:
        value = found["uuid"] or found["value"].strip()
        if value in ("N/A", "[N/A]"):
            return found[0]
        hidden = self._devices.setdefault(value, f"[device {len(self._devices) + 1}]")
        return hidden if found["uuid"] else f"{found['name']}{hidden}"


def pack_bundle(files: Mapping[str, str]) -> bytes:
    """The archive, without times and users, and in a fixed order."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for name, text in sorted(files.items()):
            data = text.encode("utf-8", "backslashreplace")
            entry = tarfile.TarInfo(f"{ROOT}/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def list_files(runs: Sequence[DayRun], results: Mapping[str, Result], redactor: DayRedactor) -> dict[str, str]:
    """The redacted results and raw outputs, by their names in the archive."""
    files = {}
    for run in runs:
        if (result := results.get(run.name)) is not None:
            for name, text in list(result.texts.items())[:_MOST_FILES]:
                if text:
                    files[f"{run.name}/{re.sub('[^A-Za-z0-9.-]', '-', name)[:80]}.txt"] = redactor.text(text)
    redacted = [redactor.result(results[run.name]) for run in runs if run.name in results]
    files["results.json"] = json.dumps(redacted, indent=1, ensure_ascii=True) + "\n"
    files["removed.json"] = json.dumps(dict(sorted(redactor.removed.items())), indent=1) + "\n"
    return files


def _visit(value: Any, change: Any) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {_visit(key, change): _visit(each, change) for key, each in value.items()}
    if isinstance(value, list):
        return [_visit(each, change) for each in value]
    return value
