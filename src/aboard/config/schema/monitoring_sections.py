"""The sections `notify` and `metrics`: who hears of a run, and where its figures go."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import OR_TEXT, AbsolutePath, Line, refuse_value
from aboard.core.text.input_text import find_env_name_error


def _refuse_address(value: object) -> object:
    if isinstance(value, str):
        # Never shown: it is a secret.
        refuse_value("the address is a secret, and everybody who gets this file could post", "webhook")
    return value


def _check_name(text: str) -> str:
    if find_env_name_error(text):
        refuse_value("this is not the name of a variable", "webhook")
    return text


def _check_file(text: str) -> str:
    if "://" in text:
        refuse_value("this is an address, not the path of a file that has it", "webhook")
    return text


class WebhookSection(Section):
    """Where the address is: in a variable of the environment, or in a file that only you can read."""

    env: Annotated[str, AfterValidator(_check_name)] | None = None
    """The variable that has the address, on the machine where the conductor runs."""
    file: Annotated[Line, AfterValidator(_check_file)] | None = None
    """The file that has the address, mode 0600. A relative path starts at this file."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.env is None) == (self.file is None):
            refuse_value("it needs one of env and file", "webhook")
        return self


class NotifySection(Section):
    """Who hears of a run when nobody looks at it."""

    webhook: Annotated[WebhookSection, BeforeValidator(_refuse_address)] | None = None
    """Where the address is that messages are posted to."""
    format: Literal["json", "slack", "discord"] | None = None
    """What the web hook takes. Default: json."""
    command: Annotated[list[Line], *OR_TEXT, Field(min_length=1)] | None = None
    """A program and its arguments; it gets each message as JSON on its stdin."""
    on: Annotated[list[Literal["failure", "recovery", "stall", "end"]], *OR_TEXT, Field(min_length=1)] | None = None
    """The events to tell of. Default: all."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.webhook is None and (self.command is None or self.format is not None):
            seen = "it names no receiver" if self.command is None else "format is that of a web hook, and there is none"
            refuse_value(seen, "webhook")
        return self


class MetricsSection(Section):
    """Where the figures of a run go, for monitoring."""

    textfile: AbsolutePath
    """The directory of node_exporter's textfile collector, on the machine where the conductor runs."""
