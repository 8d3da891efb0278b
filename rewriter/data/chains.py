"""Dataset methods that follow each other, in one expression or over several statements, and how they change places.

calls = [*before(script, batch), batch]         # the calls of `ds.shuffle(9)`, `.map(f)`, `.batch(8)`
reorder(script, calls, [0, 2, 1])               # edits for `ds.shuffle(9)`, `.batch(8)`, `.map(f)`; or why not
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator, Sequence

from ..edits import CallAs, Delete, Edit, Insert
from ..scopes import FUNCTIONS
from ..script import Script
from ..values import apart_from_loops
from .pipelines import uses


def before(script: Script, call: ast.Call) -> Iterator[ast.Call]:
    """The method calls whose dataset goes to this call and nowhere else, nearest first."""
    while (found := _receiver(script, call)) is not None:
        yield found
        call = found


def _receiver(script: Script, call: ast.Call) -> ast.Call | None:
    if not isinstance(call.func, ast.Attribute):
        return None
    values = apart_from_loops(script.values(call.func.value))
    node = values[0].node if len(values) == 1 else None
    if (
        values[0].kind == "dataset"
        and values[0].script is script
        and values[0].base is not None
        and isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and _side_by_side(script, node, call)
        and [(u.kind, u.call) for u in uses(script, node)] == [("stage", call)]
    ):
        return node
    return None


def _side_by_side(script: Script, first: ast.AST, second: ast.AST) -> bool:
    """Whether they stand in one statement, or in two of one block, outside of functions of their own."""
    a, b = script.statement(first), script.statement(second)
    if script.function_of(first) is not script.function_of(second):
        return False
    return a is b if isinstance(a, ast.For | ast.While | ast.If | ast.With) else bool(_between(script, a, b))


def _between(script: Script, first: ast.stmt, second: ast.stmt) -> list[ast.stmt]:
    """The statements of a block from one to another, both included; [] if they are not in one block."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(script.parents[first], name, [])
        if isinstance(block, list) and first in block and second in block:
            return block[block.index(first) : block.index(second) + 1]
    return []


def reorder(script: Script, calls: Sequence[ast.Call], order: Sequence[int]) -> list[Edit] | str:
    """Edits after which the call in place `i` is the one that was in place `order[i]`; or why there are none."""
    moved = [(i, o) for i, o in enumerate(order) if i != o]
    for place, origin in moved:
        if reason := _tied(script, calls[origin], calls[place]):
            return reason
    first, last = (min(p for p, _ in moved), max(p for p, _ in moved)) if moved else (0, 0)
    if _has_comments(script, calls[first : last + 1]):
        return _whole_statements(script, calls, order)
    return [CallAs(calls[place], calls[origin]) for place, origin in moved]


def _tied(script: Script, call: ast.Call, place: ast.Call) -> str:
    """Why the arguments of a call may mean something else in another place."""
    a, b = sorted((script.statement(call), script.statement(place)), key=lambda s: s.lineno)
    if a is b:
        return ""
    arguments = [*call.args, *(k.value for k in call.keywords)]
    nodes = [n for argument in arguments for n in ast.walk(argument)]
    between = _between(script, a, b)[:-1]
    for statement in between:
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute) and node.attr in _SETS_UP:
                return f"`{script.text(node)}` ({script.at(node)}) stands between the two calls"
    bound = {name for statement in between for name in _bound(statement)}
    for node in [*nodes, *_bodies(script, arguments)]:
        if isinstance(node, ast.Name) and node.id in bound:
            return f"`{node.id}` is given a value between the two calls ({script.at(call)})"
    for node in nodes:
        inside = any(isinstance(f, ast.Lambda) and f in nodes for f in script.enclosing(node, *FUNCTIONS))
        if isinstance(node, ast.Call) and not inside and script.called(node) != "builtins.len":
            return f"`{script.text(node)}` is called there ({script.at(node)})"
    return ""


#: What decides how a layer is traced that a mapped function calls.
_SETS_UP = frozenset("adapt set_vocabulary load_weights set_weights run_functions_eagerly set_seed".split())


def _bodies(script: Script, arguments: list[ast.expr]) -> Iterator[ast.AST]:
    """What stands in the functions of this file that are given."""
    for argument in arguments:
        for value in script.values(argument) if isinstance(argument, ast.Name | ast.Attribute) else ():
            if value.script is script and isinstance(value.node, ast.FunctionDef):
                local = {n.arg for n in ast.walk(value.node.args) if isinstance(n, ast.arg)}
                local |= {
                    n.id for n in ast.walk(value.node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
                }
                yield from (n for n in ast.walk(value.node) if not isinstance(n, ast.Name) or n.id not in local)


def _bound(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del(), id=name):
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.alias():
                yield (node.asname or node.name).partition(".")[0]


def _has_comments(script: Script, calls: Sequence[ast.Call]) -> bool:
    """Whether a comment stands at one of the lines, which may be meant for one of the calls."""
    return any(_comment_at(script, line) for line in _lines(script, calls))


def _lines(script: Script, calls: Sequence[ast.Call]) -> Iterator[int]:
    statements = {script.statement(c): None for c in calls}
    for statement in statements:
        ends = [c for c in calls if script.statement(c) is statement]
        starts = [c.func.value.end_lineno or 0 for c in ends if isinstance(c.func, ast.Attribute)]
        first, last = min(starts), max(c.end_lineno or 0 for c in ends)
        if len(statements) > 1 and first == statement.lineno:
            yield from range(_top(script, statement), first)
        alone = first == last and len(statements) == 1  # one line with all of them: its comment is about all
        yield from range(first, last + (0 if alone else 1))


def _top(script: Script, statement: ast.stmt) -> int:
    """The first line of the comments directly above a statement, or its own."""
    line = statement.lineno
    while line > 1 and script.source.lines[line - 2].lstrip().startswith("#"):
        line -= 1
    return line


def _comment_at(script: Script, line: int) -> bool:
    text = script.source.lines[line - 1]
    return "#" in text and (text.lstrip().startswith("#") or line in _comments(script))


def _comments(script: Script) -> set[int]:
    found = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(script.source.text, newline="").readline):
            if token.type == tokenize.COMMENT:
                found.add(token.start[0])
    except (tokenize.TokenError, IndentationError):
        pass
    return found


def _whole_statements(script: Script, calls: Sequence[ast.Call], order: Sequence[int]) -> list[Edit] | str:
    """`ds = ds.batch(8)  # why` moves up with its comments, where each call is such a statement."""
    statements = [script.statement(c) for c in calls]
    steps = all(_is_step(statement, call) for statement, call in zip(statements, calls, strict=True))
    names = {s.targets[0].id for s in statements if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)}
    up = [origin for place, origin in enumerate(order) if origin > place]
    rest = [origin for origin in order if origin not in up]
    one_line = all(s.lineno == s.end_lineno for s in statements)
    if not (steps and len(names) == 1 and one_line and list(order) == [*up, *rest] and rest == sorted(rest)):
        return f"comments stand between the calls, which say what is done in this order ({script.at(calls[-1])})"
    texts = []
    for i in up:
        lines = script.source.lines[_top(script, statements[i]) - 1 : statements[i].lineno]
        texts += [line.strip() for line in lines]
    return [
        Insert(statements[rest[0]], "\n".join(texts), after=False),
        *(Delete(statements[i]) for i in up),
    ]


def _is_step(statement: ast.stmt, call: ast.Call) -> bool:
    """`ds = ds.map(f)`."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return target == name and statement.value is call
    return False
