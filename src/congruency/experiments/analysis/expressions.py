"""A formula in x and y that a user typed, as a function, without running anything else that they might type.

The text is parsed by Python and walked over: numbers, x, y, pi and e, the five operators, and calls of a few named
functions are understood; every other kind of syntax is refused by name.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["FUNCTIONS", "Function", "parse"]

Function = Callable[[Tensor, Tensor], Tensor]
"""x, y of any one shape -> z of that shape."""

FUNCTIONS: dict[str, tuple[Callable[..., Tensor], int]] = {
    "sin": (torch.sin, 1),
    "cos": (torch.cos, 1),
    "tanh": (torch.tanh, 1),
    "exp": (torch.exp, 1),
    "log": (torch.log, 1),
    "sqrt": (torch.sqrt, 1),
    "abs": (torch.abs, 1),
    "pow": (torch.pow, 2),
}
"""What may be called, and with how many arguments."""

_OPERATORS: dict[type[ast.operator], Callable[..., Tensor]] = {
    ast.Add: torch.add,
    ast.Sub: torch.sub,
    ast.Mult: torch.mul,
    ast.Div: torch.div,
    ast.Pow: torch.pow,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_LONGEST = 500
_DEEPEST = 100  # levels of operators and calls within each other; Python's stack is finite


def parse(text: str) -> Function:
    """The function that a formula such as ``"(x - 1)**2 + 10*(y - x**2)**2"`` stands for.

    Raises:
        ValueError: it holds anything but numbers, x, y, pi, e, ``+ - * / **`` and the functions of :data:`FUNCTIONS`.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"the formula has {len(text)} characters; at most {_LONGEST} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as reason:
        told = reason.msg if isinstance(reason, SyntaxError) else "it is nested too deeply"
        raise ValueError(f"{text!r} is not a formula ({told}); write one like 'sin(x)*y**2'") from None
    if _depth(tree.body) > _DEEPEST:
        raise ValueError(f"the formula is nested too deeply: at most {_DEEPEST} operators within each other")
    return _function(tree.body)


def _depth(node: ast.AST) -> int:
    """Levels of a syntax tree, counted level by level."""
    level, depth = [node], 0
    while level:
        level = [child for each in level for child in ast.iter_child_nodes(each)]
        depth += 1
    return depth


def _function(node: ast.expr) -> Function:
    """One node of the syntax tree; what is not listed here is refused."""
    match node:
        case ast.Constant(value=value) if isinstance(value, int | float) and not isinstance(value, bool):
            return _constant(_finite(value))
        case ast.Name(id="x"):
            return lambda x, y: x
        case ast.Name(id="y"):
            return lambda x, y: y
        case ast.Name(id=name) if name in _CONSTANTS:
            return _constant(_CONSTANTS[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _function(operand)
            return lambda x, y: -inner(x, y)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _function(operand)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _applied(_OPERATORS[type(operator)], [left, right])
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            called, count = FUNCTIONS[name]
            if len(arguments) != count:
                raise ValueError(f"{name} takes {count} argument(s), the formula gives {len(arguments)}")
            return _applied(called, arguments)
    raise _refused(node)


def _constant(value: float) -> Function:
    return lambda x, y: torch.full_like(x, value)


def _finite(value: float) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError("a number in the formula is too large")
    return number


def _applied(called: Callable[..., Tensor], arguments: list[ast.expr]) -> Function:
    parts = [_function(argument) for argument in arguments]
    return lambda x, y: called(*(part(x, y) for part in parts))


def _refused(node: ast.expr) -> ValueError:
    allowed = f"numbers, x, y, pi, e, + - * / ** and {', '.join(FUNCTIONS)}"
    shown = ast.unparse(node)
    shown = shown if len(shown) <= 40 else f"{shown[:39]}…"
    hint = "; write ** for a power" if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitXor) else ""
    return ValueError(f"a formula may hold {allowed}, not {shown!r}{hint}")
