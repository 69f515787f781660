"""The value types of aboard.yaml, with their validators and JSON schemas."""

from collections.abc import Callable
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from aboard.core.cluster.hostfile import MAX_SLOTS
from aboard.core.text.byte_sizes import parse_size
from aboard.core.text.durations import DAY, parse_duration
from aboard.core.text.input_text import MAX_PORT, find_env_name_error, find_host_error, find_user_error
from aboard.diagnoses import InputError
from aboard.diagnoses.untrusted import escape_text
from aboard.diagnoses.usage import configuration


def refuse_value(seen: str, variant: str, **values: str) -> NoReturn:
    """Fails a pydantic validation with our own message and a fix of the configuration."""
    raise PydanticCustomError("aboard", "{seen}", {"seen": seen, "fix": configuration.CONFIG.fix(variant, **values)})


def _make_check(find_problem: Callable[[str], str | None], variant: str) -> AfterValidator:
    def check(text: str) -> str:
        if problem := find_problem(text):
            refuse_value(problem, variant)
        return text

    return AfterValidator(check)


def _check_text(text: str) -> str:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        # The value is not shown: it may be a secret.
        refuse_value("it contains a NUL byte or half a character, which can't be passed to a program", "character")
    return text


def _check_line(text: str) -> str:
    if not text.strip() or any(not char.isprintable() and char != "\t" for char in _check_text(text)):
        refuse_value(f"'{escape_text(text)}' is not a single line of text", "one-line")
    return text


def _check_word(text: str) -> str:
    if _check_line(text).startswith("-"):
        refuse_value(f"'{escape_text(text)}' starts with '-', and would be parsed as an option", "option")
    return text


def _check_path(text: str) -> str:
    if not _check_line(text).startswith("/"):
        refuse_value(f"'{escape_text(text)}' is not an absolute path", "path", path=text.removeprefix("~/"))
    return text


def _check_program(text: str) -> str:
    return _check_path(text) if "/" in _check_word(text) else text


def _check_pattern(text: str) -> str:
    if "{" in text.replace("{name}", "") or "}" in text.replace("{name}", ""):
        refuse_value(f"'{escape_text(text)}' has braces other than {{name}}", "pattern")
    return text


def _parse_size(value: object) -> object:
    """Bytes, from a text such as `200GB`; other types are left for pydantic to refuse."""
    if isinstance(value, str):
        size = parse_size(value)
        if size is None:
            refuse_value(f"'{escape_text(value)}' is not a size", "size")
        return size
    return value


def _parse_seconds(value: object) -> object:
    """Seconds, from a text such as `10m`; other types but numbers are left for pydantic to refuse."""
    try:
        return parse_duration(str(value), where="") if isinstance(value, str | int | float) else value
    except InputError as error:
        refuse_value(error.problems[0].seen, "duration")


def _wrap_in_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


class OrText:
    """Allows a single string instead of a list in the JSON schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(core)]}


OR_TEXT = (BeforeValidator(_wrap_in_list), OrText())

Host = Annotated[str, _make_check(find_host_error, "host")]
User = Annotated[str, _make_check(find_user_error, "user")]
PortNumber = Annotated[int, Field(ge=1, le=MAX_PORT)]
Slots = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
SequenceLength = Annotated[int, Field(ge=2, le=2**31)]
Weight = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
ByteSize = Annotated[
    int,
    BeforeValidator(_parse_size),
    Field(ge=1, le=10**18),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "examples": ["200GB", "1.5TiB"]}),
]
Duration = Annotated[
    float,
    BeforeValidator(_parse_seconds),
    Field(ge=0, le=30 * DAY, allow_inf_nan=False),
    WithJsonSchema({"type": "string", "examples": ["10m", "1h30m"]}),
]
Line = Annotated[str, AfterValidator(_check_line)]
Word = Annotated[str, AfterValidator(_check_word)]
AbsolutePath = Annotated[str, AfterValidator(_check_path)]
ProgramName = Annotated[str, AfterValidator(_check_program)]
AddressPattern = Annotated[
    str, AfterValidator(_check_pattern), _make_check(lambda text: find_host_error(text.replace("{name}", "n")), "host")
]
# Numbers and booleans arrive as the text in the file (see yaml_tree.convert_to_builtins).
EnvValue = Annotated[str, AfterValidator(_check_text), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Env = dict[Annotated[str, _make_check(find_env_name_error, "env")], EnvValue]
Lines = Annotated[list[Line], *OR_TEXT]
