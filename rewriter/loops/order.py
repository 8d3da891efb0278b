"""Which code runs before which: for what must not change once a function is traced.

    runs_before(script, node, first)    # does the code at `node` run only before that at `first` does?

Followed along the calls that are seen: a statement above another in the same function, a function that is only
called above. What may run again in a loop around both is not before; what unseen callers run may run at any time.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TypeAlias

from ..scopes import FUNCTIONS
from ..script import Script

#: Places from the module level inwards: a call in one function, then one in the function that it calls.
Chain: TypeAlias = list[tuple[Script | None, ast.AST | None]]
#: A caller that is not seen.
_UNSEEN: tuple[None, None] = (None, None)
_MOST = 40


def runs_before(script: Script, node: ast.AST, first: tuple[Script, ast.AST], fresh: Sequence[ast.AST] = ()) -> bool:
    """Does `node` run only before `first`? What loops and functions in `fresh` repeat is made anew."""
    return all(_before(a, b, fresh) for a in _chains(script, node) for b in _chains(*first))


def _chains(script: Script, node: ast.AST, depth: int = 0) -> list[Chain]:
    function = next((f for f in script.enclosing(node, *FUNCTIONS) if not isinstance(f, ast.Lambda)), None)
    while function is not None and not _in_body(script, node, function):  # a decorator or default of it
        node, function = function, next(script.enclosing(function, ast.FunctionDef, ast.AsyncFunctionDef), None)
    if function is None:
        return [[(script, node)]]
    calls = _calls(script, function) if depth < 6 else []
    if not calls:
        return [[_UNSEEN, (script, node)]]
    found = [[*chain, (script, node)] for s, c in calls for chain in _chains(s, c, depth + 1)]
    return found if len(found) <= _MOST else [[_UNSEEN, (script, node)]]


def _in_body(script: Script, node: ast.AST, function: ast.AST) -> bool:
    inner = node
    for around in script.enclosing(node, ast.AST):
        if around is function:
            return any(inner is s for s in function.body)  # type: ignore[attr-defined]
        inner = around
    return False


def _calls(script: Script, function: ast.AST) -> list[tuple[Script, ast.Call]]:
    from .steps import call_sites

    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return []
    owner = script.parents.get(function)
    if isinstance(owner, ast.ClassDef) and function.name == "__init__":
        made = script.project.calls_of(function, script) if isinstance(function, ast.FunctionDef) else []
        return [(s, c) for s, c, _ in made]
    sites, uses = call_sites(script, function)
    if any(not isinstance(s.parents.get(u), ast.ImportFrom | ast.alias) for s, u in uses):
        return []
    return [(s.script, s.call) for s in sites if function not in s.script.enclosing(s.call, ast.AST)]


def _before(a: Chain, b: Chain, fresh: Sequence[ast.AST]) -> bool:
    within = [i for i, (s, n) in enumerate(a) if s is not None and n is not None and _function(s, n) in fresh]
    for index, ((script, here), (other, there)) in enumerate(zip(a, b, strict=False)):
        if (script, here) == _UNSEEN or (other, there) == _UNSEEN:
            if (script, here) == (other, there):
                continue
            return (other, there) == _UNSEEN and len(a) == 1  # a module's own code runs when it is imported
        assert script and other and here is not None and there is not None
        if here is there:
            is_anew = bool(within) and index < within[0]  # a call of the function that makes it anew
            if not is_anew and set(_loops(script, here)) - set(fresh):
                return False
            continue
        if script is not other:
            return len(a) == 1
        if here in other.enclosing(there, ast.AST) or there in script.enclosing(here, ast.AST):
            return False
        loops = set(_loops(script, here)) - set(fresh)
        if _function(script, here) is not _function(script, there):
            return False
        if loops & set(_loops(script, there)):
            return False
        return getattr(here, "lineno", 0) < getattr(there, "lineno", 0)
    return False


def _function(script: Script, node: ast.AST) -> ast.AST | None:
    return next((f for f in script.enclosing(node, *FUNCTIONS) if not isinstance(f, ast.Lambda)), None)


def _loops(script: Script, node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for around in script.enclosing(node, ast.AST):
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            break
        if isinstance(around, ast.For | ast.AsyncFor | ast.While):
            found.append(around)
    return found
