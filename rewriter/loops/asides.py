"""What stands between the statements of a step and only looks at it: it may as well stand behind the step.

    asides(script, statements)    # of these, the ones that may be left out and run behind the others

`losses.append(float(loss))`, `total += loss`, `print(loss.numpy())`: they read what the step computes, keep or show it,
and nothing else in the step reads what they change.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from ..script import Script
from .changes import holds_variables
from .lifting import own

_FUNCTIONS = frozenset(
    f"builtins.{n}" for n in "print float int bool len round str format abs max min sum list tuple isinstance".split()
)
#: Methods that change what they are called on.
_KEEP = frozenset(
    "append extend appendleft write update set_postfix set_postfix_str set_description info debug".split()
)
_METHODS = _KEEP | frozenset("numpy item mean sum tolist format join".split())
_PURE = frozenset(
    f"{m}.{n}"
    for m in ("numpy", "tensorflow")
    for n in "mean sum sqrt array asarray squeeze reduce_mean reduce_sum size shape cast exp isnan".split()
)


def asides(script: Script, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Statements that may run behind all the others of these, in their order."""
    found = [s for s in statements if _only_looks(script, s)]
    while True:
        rest = [s for s in statements if s not in found]
        apart = [s for s in found if _is_apart(s, rest, [r for r in rest if r.lineno > s.lineno])]
        if apart == found:
            return found
        found = apart


def _only_looks(script: Script, statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(value=ast.Call()) | ast.AugAssign(target=ast.Name()):
            pass
        case ast.If():
            if not all(_only_looks(script, s) for s in (*statement.body, *statement.orelse)):
                return False
            return _is_plain(script, statement.test)
        case _:
            return False
    return _is_plain(script, statement.value)


def _is_plain(script: Script, expr: ast.expr) -> bool:
    """Does an expression only compute with names, numbers and text?"""
    for node in ast.walk(expr):
        if isinstance(node, ast.Call):
            name = script.called(node)
            method = isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and not name
            if not method and name not in _FUNCTIONS and name not in _PURE:
                return False
        elif isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom | ast.Lambda | ast.ListComp):
            return False
        elif isinstance(node, ast.Attribute) and not isinstance(script.parents.get(node), ast.Call):
            if not script.symbol(node) and node.attr not in ("shape", "dtype"):
                return False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if any(v.kind in ("model", "layer", "optimizer", "metric", "generator") for v in script.values(node)):
                return False
            if holds_variables(script, node):
                return False
    return True


def _is_apart(statement: ast.stmt, rest: Sequence[ast.stmt], later: Sequence[ast.stmt]) -> bool:
    reads = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
    writes = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    changed = {
        n.func.value.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and isinstance(n.func.value, ast.Name)
        if n.func.attr in _KEEP
    }
    used = {n.id for s in rest for n in ast.walk(s) if isinstance(n, ast.Name)}
    bound = {n.id for s in later for n in own(s) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    return not (writes | changed) & used and not reads & bound
