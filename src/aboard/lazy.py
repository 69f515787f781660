"""Dataclasses whose methods are generated at their first use.

Generating them takes almost a millisecond for each class. A command imports some 250 and uses a third of them, so this
halves the time that it takes to load.
"""

import dataclasses
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any

_PENDING = "__aboard_pending__"
_METHODS = ("__init__", "__eq__", "__hash__", "__repr__")
_lock = RLock()


class _Fields:
    """Stands for the fields until somebody asks for them."""

    def __get__(self, instance: object, owner: type) -> Any:
        _complete(owner)
        return owner.__dataclass_fields__  # type: ignore[attr-defined]


def _postpone(cls: type | None = None, /, **options: Any) -> Any:
    """As `dataclasses.dataclass`; with `slots`, which makes another class, at once."""
    if cls is None:
        return lambda cls: _postpone(cls, **options)
    if options.get("slots"):
        return dataclasses.dataclass(**options)(cls)
    stubs = {name: _stub(cls, name) for name in _METHODS if name not in vars(cls)}
    for name, stub in stubs.items():
        setattr(cls, name, stub)
    cls.__dataclass_fields__ = _Fields()  # type: ignore[attr-defined]
    setattr(cls, _PENDING, (options, stubs))
    return cls


def _stub(cls: type, name: str) -> Callable[..., Any]:
    def generate_and_call(self: Any, /, *args: Any, **named: Any) -> Any:
        _complete(cls)
        return getattr(cls, name)(self, *args, **named)

    return generate_and_call


def _complete(cls: type) -> None:
    with _lock:
        for base in reversed(cls.__mro__):
            if _PENDING in vars(base):
                _generate(base)


def _generate(cls: type) -> None:
    """Generates the methods on a copy: at no moment may another thread find the class without one of them."""
    options, stubs = vars(cls)[_PENDING]
    left_out = {*stubs, _PENDING, "__dataclass_fields__", "__dict__", "__weakref__"}
    copy = type(cls.__name__, cls.__bases__, {name: each for name, each in vars(cls).items() if name not in left_out})
    generated = vars(dataclasses.dataclass(**options)(copy))
    # Those that refuse assignment know the class that they are for, and are made for this one.
    dataclasses.dataclass(**{**options, "init": False, "repr": False, "eq": False})(cls)
    for name in stubs:
        if name in generated:
            setattr(cls, name, generated[name])
        else:
            delattr(cls, name)
    delattr(cls, _PENDING)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - what a type checker and a reader take it for
else:
    dataclass = _postpone
