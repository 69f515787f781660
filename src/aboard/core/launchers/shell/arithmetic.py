"""Evaluates shell arithmetic: `$(( … ))`, `(( … ))` and the parts of `for (( ; ; ))`."""

import ast
import operator
import re
from collections.abc import Callable

from aboard.core.launchers.shell.syntax import UnknownNumberError, UnreadableScriptError
from aboard.core.launchers.shell.variables import find_unknown

_ASSIGNMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*]?)=(?!=)(.*)", re.DOTALL)
_STEP = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(\+\+|--)|(\+\+|--)\s*([A-Za-z_]\w*))\s*")
_NUMBER = re.compile(r"[-+]?\d{1,18}")
_LONGEST = 1000
# All that an expression may contain.
_TOKEN = re.compile(r"\s+|(?<!\d)\d+\b|[A-Za-z_]\w*|[-+*/%()<>=!]")
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
Getter = Callable[[str], str]
Setter = Callable[[str, str], None]


def evaluate_arithmetic(text: str, get: Getter, set_value: Setter, line: int) -> int:
    """The value of an expression, whose `$name` are already expanded; an assignment also sets its variable."""
    if match := _STEP.fullmatch(text):
        name, by = match[1] or match[4], 1 if "+" in (match[2] or match[3]) else -1
        before = _read_number(get(name), name, line)
        set_value(name, str(before + by))
        return before if match[1] else before + by
    if match := _ASSIGNMENT.fullmatch(text):
        value = evaluate_arithmetic(match[3], get, set_value, line)
        if match[2]:
            value = evaluate_arithmetic(
                f"{_read_number(get(match[1]), match[1], line)}{match[2]}({value})", get, set_value, line
            )
        set_value(match[1], str(value))
        return value
    source = text.strip().replace("&&", " and ").replace("||", " or ")
    if len(source) > _LONGEST or _TOKEN.sub("", source):
        raise UnreadableScriptError(line, f"the arithmetic expression '{text.strip()[:80]}'")
    # In Python, `~` binds as tightly as `!` in a shell; `not` doesn't.
    source = re.sub(r"!(?!=)", "~", source)
    try:
        tree = ast.parse(source or "0", mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UnreadableScriptError(line, f"the arithmetic expression '{text.strip()[:80]}'") from None
    return _evaluate(tree.body, get, line)


def _evaluate(node: ast.expr, get: Getter, line: int) -> int:  # noqa: PLR0911 - one return for each kind of node
    match node:
        case ast.Constant(value=int(value)):
            return int(value)
        case ast.Name(id=name):
            return _read_number(get(name), name, line)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand, get, line)
        case ast.UnaryOp(op=ast.Invert(), operand=operand):
            return int(not _evaluate(operand, get, line))
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv() | ast.Mod() as sign, right=right):
            return _divide(_evaluate(left, get, line), _evaluate(right, get, line), sign, line)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            return _BINARY[type(sign)](_evaluate(left, get, line), _evaluate(right, get, line))
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _COMPARISONS:
            return int(_COMPARISONS[type(sign)](_evaluate(left, get, line), _evaluate(right, get, line)))
        case ast.BoolOp(op=sign, values=values):
            results = (_evaluate(value, get, line) != 0 for value in values)
            return int(all(results) if isinstance(sign, ast.And) else any(results))
    raise UnreadableScriptError(line, "an operator in an arithmetic expression")


def _divide(left: int, right: int, sign: ast.operator, line: int) -> int:
    """Divides as C does: toward zero."""
    if right == 0:
        raise UnreadableScriptError(line, "a division by zero")
    quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
    return left - quotient * right if isinstance(sign, ast.Mod) else quotient


def _read_number(text: str, name: str, line: int) -> int:
    if not text.strip():
        return 0
    if find_unknown(text) is not None:
        raise UnknownNumberError(line, f"arithmetic with {name}, which is known only at run time")
    if not _NUMBER.fullmatch(text.strip()):
        raise UnreadableScriptError(line, f"arithmetic with {name}, whose value is not a number here")
    return int(text)
