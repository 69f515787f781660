"""The section `train` of aboard.yaml, built from the declarations of its settings in `training_settings.py`."""

from collections.abc import Iterator, Mapping
from functools import partial, reduce
from operator import or_
from types import GenericAlias, NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, Field, create_model

from aboard.config.schema.base_section import Section
from aboard.config.schema.field_types import Line, Lines, OrText, refuse_value
from aboard.core.plan.declared_setting import Setting
from aboard.core.plan.training_settings import ADAPTER_SETTINGS, TRAIN_SETTINGS, Adapter, Training


def _read_value(setting: Setting, value: object) -> object:
    """Accepts the values of other tools for the same thing; refuses those that the declaration refuses."""
    if not isinstance(value, str | int):
        return value
    if value in setting.refused_values:
        seen, fix, line = setting.refused_values[value]
        refuse_value(seen, fix, **({"line": line} if line else {}))
    return setting.their_values.get(value, value)


def _read_names(setting: Setting, value: object) -> object:
    """A single name is a list of one, and Hugging Face's `none` an empty list."""
    names = value if isinstance(value, list) else [value]
    names = [_read_value(setting, name) for name in names]
    return [] if names == ["none"] else list(dict.fromkeys(map(str, names)))


def _check_adapter_type(value: object) -> object:
    """Names of variants that other tools have as kinds of adapters."""
    keys = {"rslora": "use_rslora", "dora": "use_dora", "qlora": "load_in_4bit"}
    if isinstance(value, str) and value.lower() in keys:
        line = f"{keys[value.lower()]}: true"
        refuse_value(f"{value.lower()} is an option of lora", "train-write", line=line)
    return value


def _build_type(annotation: Any, setting: Setting) -> Any:
    """What a file may have for a field of this type: text is a line, a tuple is a list, a class is its section."""
    if annotation in (str, Adapter):
        return Line if annotation is str else AdapterSection
    if get_origin(annotation) in (Union, UnionType):
        return reduce(or_, (_build_type(each, setting) for each in get_args(annotation) if each is not NoneType))
    if annotation in (int, float) and setting.within:
        bounds: dict[str, Any] = {**setting.within, **({} if annotation is int else {"allow_inf_nan": False})}
        return Annotated[annotation, Field(**bounds)]
    if annotation == tuple[str, ...]:
        return Lines
    if get_origin(annotation) is tuple:
        items: Any = GenericAlias(list, get_args(annotation)[0])
        return Annotated[items, BeforeValidator(partial(_read_names, setting)), OrText()]
    return annotation


def _build_fields(owner: type, settings: Mapping[str, Setting]) -> Iterator[tuple[str, Any]]:
    for name, setting in settings.items():
        annotation = owner.__annotations__[name]
        kind = _build_type(annotation, setting)
        if setting.within:
            # A number is checked first: false is not 0.
            kind = Annotated[kind, AfterValidator(partial(_read_value, setting))]
        elif setting.their_values:
            kind = Annotated[kind, BeforeValidator(partial(_read_value, setting))]
        yield name, (kind | None, Field(default=None, description=setting.help))


if TYPE_CHECKING:
    # Their fields are declared in training_settings.py.
    AdapterSection: TypeAlias = Any
    TrainSection: TypeAlias = Any
else:
    _TYPE = Annotated[Literal["lora"] | None, BeforeValidator(_check_adapter_type)]
    _TYPE_HELP = "The kind of adapter; rsLoRA and DoRA are options of lora."
    AdapterSection = create_model(
        "AdapterSection",
        __base__=Section,
        __doc__="LoRA: trains small matrices beside the model's frozen weights.",
        type=(_TYPE, Field(default=None, description=_TYPE_HELP)),
        **dict(_build_fields(Adapter, ADAPTER_SETTINGS)),
    )
    TrainSection = create_model(
        "TrainSection",
        __base__=Section,
        __doc__="Training settings. `aboard train --print-config` shows the defaults.",
        **dict(_build_fields(Training, TRAIN_SETTINGS)),
    )
