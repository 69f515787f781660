"""The kinds of value that aboard.yaml holds, each with its check and its words for the JSON schema."""

import re
from typing import Annotated, Any, NoReturn

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, PydanticCustomError

from aboard.core.hostfile import MAX_SLOTS
from aboard.core.words import MAX_PORT, env_name_trouble, host_trouble, user_trouble, visible
from aboard.diagnoses import Fix, configuration


def refuse(seen: str, fix: Fix) -> NoReturn:
    """Ends a pydantic validation with our own words: what was seen, and what to write."""
    raise PydanticCustomError("aboard", "{seen}", {"seen": seen, "fix": fix})


def _host(text: str) -> str:
    if trouble := host_trouble(text):
        refuse(trouble, configuration.CONFIG.fix("host"))
    return text


def _user(text: str) -> str:
    if trouble := user_trouble(text):
        refuse(trouble, configuration.CONFIG.fix("user"))
    return text


def _text(text: str) -> str:
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        # Not shown: it may be the value of a secret.
        refuse(
            "it holds a NUL or half a character, which no program can be given", configuration.CONFIG.fix("character")
        )
    return text


def _line(text: str) -> str:
    if not text.strip() or any(not char.isprintable() and char != "\t" for char in _text(text)):
        refuse(f"'{visible(text)}' is no line of text", configuration.CONFIG.fix("one-line"))
    return text


def _word(text: str) -> str:
    if _line(text).startswith("-"):
        refuse(
            f"'{visible(text)}' starts with '-', which would be taken for an option", configuration.CONFIG.fix("option")
        )
    return text


def _path(text: str) -> str:
    if not _line(text).startswith("/"):
        refuse(f"'{visible(text)}' is no absolute path", configuration.CONFIG.fix("path", path=text.removeprefix("~/")))
    return text


def _program(text: str) -> str:
    return _path(text) if "/" in _word(text) else text


def _pattern(text: str) -> str:
    if "{" in text.replace("{name}", "") or "}" in text.replace("{name}", ""):
        refuse(f"'{visible(text)}' has braces other than {{name}}", configuration.CONFIG.fix("pattern"))
    _host(text.replace("{name}", "n"))
    return text


def _env_name(text: str) -> str:
    if trouble := env_name_trouble(text):
        refuse(trouble, configuration.CONFIG.fix("env"))
    return text


def _size(value: object) -> object:
    """Bytes, from `200GB` and the like; what is neither text nor a number is left for pydantic to refuse."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        if found is None:
            refuse(f"'{visible(value)}' is no size", configuration.CONFIG.fix("size"))
        return round(float(found[1]) * (1024 if found[3] else 1000) ** (" KMGTP".index(found[2].upper())))
    return value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class _OrText:
    """Tells the JSON schema of a list that a single string stands for a list of one."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(core)]}


# Without the B it would be 1000 to some and 1024 to others: 7 % of a terabyte.
_SIZE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?([KMGTP])(i)?B", re.IGNORECASE)

OR_TEXT = (BeforeValidator(_listed), _OrText())

Host = Annotated[str, AfterValidator(_host)]
User = Annotated[str, AfterValidator(_user)]
Port = Annotated[int, Field(ge=1, le=MAX_PORT)]
Slots = Annotated[int, Field(ge=0, le=MAX_SLOTS)]
Length = Annotated[int, Field(ge=2, le=2**31)]
Weight = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Size = Annotated[
    int,
    BeforeValidator(_size),
    Field(ge=1, le=10**18),
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "examples": ["200GB", "1.5TiB"]}),
]
Line = Annotated[str, AfterValidator(_line)]
Word = Annotated[str, AfterValidator(_word)]
Path = Annotated[str, AfterValidator(_path)]
Program = Annotated[str, AfterValidator(_program)]
Pattern = Annotated[str, AfterValidator(_pattern)]
# Numbers and booleans reach us as the text they were written as (see tree.plain).
EnvValue = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": ["string", "number", "boolean"]})]
Env = dict[Annotated[str, AfterValidator(_env_name)], EnvValue]
Lines = Annotated[list[Line], *OR_TEXT]
