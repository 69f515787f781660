"""The evidence that rules of the data check judge, and formatting that they share."""

from collections.abc import Iterable
from shlex import split

from aboard.diagnoses import Diagnosis, Fix, Shell, format_shell
from aboard.lazy_dataclass import dataclass
from aboard.trainer.data.quality.encoding_settings import EncodingSettings
from aboard.trainer.data.quality.flagged_rows import FlaggedRows
from aboard.trainer.data.quality.row_statistics import DataStatistics

# A problem in 1 % of the rows is no longer an accident.
SIGNIFICANT_SHARE = 0.01
# Options of `aboard data` that are settings of a training run, too; others only change what is shown.
_SETTINGS = frozenset({"allow", "loss-on", "max-length", "template"})


@dataclass(frozen=True, kw_only=True)
class DataEvidence:
    """All statistics and the settings they were counted with; `command` is what the user typed, to build fixes from.

    Of `aboard train`, `training` is what the user typed: only its own `--set` changes what it does.
    """

    statistics: DataStatistics
    settings: EncodingSettings
    files: tuple[str, ...]
    command: str
    format: str
    given: bool
    training: Shell | None = None
    allowed: tuple[str, ...] = ()
    validation: DataStatistics | None = None
    validation_files: tuple[str, ...] = ()

    def again(self, option: str, value: object = None) -> Shell:
        """The command with one more option, or with a new value for an option it already has."""
        if self.training is not None and option in _SETTINGS:
            setting = f"data.{option.replace('-', '_')}={value}"
            return format_shell("{command:shell} --set {setting}", command=self.training, setting=setting)
        words = [word for word in split(self.command) if word.partition("=")[0] != f"--{option}" or option == "allow"]
        return _format_command([*words, f"--{option}" if value is None else f"--{option}={value}"])

    def allow(self, diagnosis: Diagnosis) -> Fix:
        codes = diagnosis.code
        if self.training is not None and self.allowed:
            codes = f"[{', '.join((*self.allowed, diagnosis.code))}]"
        return diagnosis.fix("allow", again=self.again("allow", codes))


def _format_command(words: Iterable[str]) -> Shell:
    """Quotes the words as a shell command; `--name=value` keeps its form, and only the value is quoted."""
    command = format_shell("")
    for word in words:
        name, has_value, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            each = format_shell("{word}", word=word)
        elif has_value:
            each = format_shell("--{name}={value}", name=name, value=value)
        else:
            each = format_shell("--{name}", name=name)
        command = format_shell("{made:shell} {each:shell}", made=command, each=each) if command else each
    return command


def format_sed_script(command: str, lines: Iterable[int]) -> Shell:
    """A quoted sed script that applies the command to these lines."""
    return format_shell(f"'{';'.join(f'{int(line)}{command}' for line in lines)}'")


def format_share(count: int, total: int, noun: str = "rows") -> str:
    """`312 of 10,000 rows (3.1 %)`."""
    if count == total:
        return f"all {total:,} {noun}" if total > 1 else f"the only {noun.removesuffix('s')}"
    part = 100 * count / total
    return f"{count:,} of {total:,} {noun} ({part:.1f} %)" if part >= 0.1 else f"{count:,} of {total:,} {noun}"  # noqa: PLR2004 - a tenth of a percent


def format_locations(flagged: FlaggedRows, limit: int = 100) -> str:
    """The first few, each with its note: `a.jsonl:17 (invalid JSON), a.jsonl:20`."""
    examples = [
        f"{each.location} ({each.note.visible(limit)})" if each.note else str(each.location)
        for each in flagged.examples
    ]
    return f"{', '.join(examples)}{' …' if flagged.count > len(examples) else ''}"
