"""What is declared about a setting of `train` besides its name, type and default; `training_settings.py` has them all.

Nothing here imports pydantic, which takes 100 ms: the rules of consent are read at every start.
"""

from collections.abc import Mapping
from dataclasses import Field, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

# What a value in a file that was found makes possible (config/consent_rules.py). With "" it needs the user's consent,
# unless it is a number.
Consent = Literal["", "harmless", "label", "path", "output", "tracker", "model code"]
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class RefusedValue(NamedTuple):
    """Why a value is refused; the fix of the diagnosis `config`, and the line that it tells to write."""

    seen: str
    fix: str = "train-write"
    line: str = ""


class Setting(NamedTuple):
    """The declaration of a setting, of which the help text goes into the schema.

    `within` has pydantic's bounds (ge, gt, le, lt). `theirs` are names in other tools, separated by blanks, and `hints`
    such names with the line to write instead; `their_values` maps values of other tools to ours. `alternative` is
    another setting for the same thing: one on the command line overrides the other in a file. `at_resume` says why a
    resume must not change the setting; a change is only reported with "", and not even compared with None. `origin` is
    where `--print-config` says that the default comes from.
    """

    help: str = ""
    section: str = "train"
    within: Mapping[str, float] = _NOTHING
    theirs: str = ""
    hints: Mapping[str, str] = _NOTHING
    their_values: Mapping[Any, Any] = _NOTHING
    refused_values: Mapping[Any, RefusedValue] = _NOTHING
    alternative: str | None = None
    at_resume: str | None = ""
    consent: Consent = ""
    origin: str = "default"


def setting(help_text: str = "", *, default: Any, **declared: Any) -> Any:
    """A field of a dataclass with this default and declaration."""
    return field(default=default, metadata=declare_setting(help_text, **declared))


def declare_setting(help_text: str = "", **declared: Any) -> Mapping[str, Setting]:
    """The metadata of a field without a default."""
    number = {"consent": "harmless"} if "within" in declared else {}
    return {"setting": Setting(help=help_text, **{**number, **declared})}


def collect_settings(owner: type) -> Mapping[str, Setting]:
    """The declarations of a class by name, in order. Only right after the class statement: later it has defaults."""
    return {name: each.metadata["setting"] for name, each in vars(owner).items() if isinstance(each, Field)}
