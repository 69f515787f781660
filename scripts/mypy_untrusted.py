"""A mypy plugin that rejects untrusted text where it would become a plain string: f-strings, `str.format`, `str()`."""

from collections.abc import Callable

from mypy.plugin import FunctionContext, MethodContext, Plugin
from mypy.types import Instance, Type, UnionType, get_proper_type

_UNTRUSTED = "aboard.diagnoses.untrusted.Untrusted"


class _Untrusted(Plugin):
    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        return _refuse if fullname == "builtins.str.format" else None

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        return _refuse if fullname == "builtins.str" else None


def _refuse(context: MethodContext | FunctionContext) -> Type:
    for types in context.arg_types:
        for each in types:
            if _holds_untrusted(each):
                context.api.fail("use visible() to show untrusted text, and quote() in a command", context.context)
    return context.default_return_type


def _holds_untrusted(given: Type) -> bool:
    proper = get_proper_type(given)
    if isinstance(proper, UnionType):
        return any(map(_holds_untrusted, proper.items))
    if not isinstance(proper, Instance):
        return False
    return proper.type.has_base(_UNTRUSTED) or any(map(_holds_untrusted, proper.args))


def plugin(_version: str) -> type[Plugin]:
    return _Untrusted
