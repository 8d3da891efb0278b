"""Calls that run a TensorFlow 1 graph: which of them train, and which set the variables.

kind_of_run(script, call)    # "train", "init", "look" (it only computes), "unknown", or "" for any other call
"""

from __future__ import annotations

import ast
from typing import Literal

from ..script import Script
from ..values import Value
from .program import Program

Kind = Literal["train", "init", "look", "unknown", ""]

_INIT = frozenset(
    f"tensorflow.{name}"
    for name in (
        "global_variables_initializer",
        "initialize_all_variables",
        "local_variables_initializer",
        "initialize_local_variables",
        "tables_initializer",
        "initialize_all_tables",
    )
)
_GLOBAL = ("tensorflow.global_variables_initializer", "tensorflow.initialize_all_variables")
#: Calls of a graph that hold what they are given: whether that trains is not followed.
_HOLDING = frozenset({"tensorflow.group", "tensorflow.tuple", "tensorflow.no_op", "tensorflow.identity"})


def fetches(call: ast.Call) -> list[ast.expr] | None:
    """What a call of `run` fetches; None where that is not written out."""
    given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "fetches"), None)
    return None if given is None or isinstance(given, ast.Starred) else [given]


def kind_of_run(script: Script, call: ast.Call) -> Kind:
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("run", "eval"):
        return ""
    receiver = script.values(func.value)
    if any(v.kind == "symbol" for v in receiver):
        return ""  # `tf.app.run`, `subprocess.run`
    kinds = {_kind_of(script, v) for v in receiver}
    if func.attr == "eval" or kinds & {"train", "init"}:
        return _one(kinds)
    given = fetches(call)
    if given is None:
        return "" if not call.args and not call.keywords else "unknown"
    return _one({_fetched(script, e) for e in given})


def initialises(script: Script, call: ast.Call) -> bool:
    """Whether it gives all variables of the graph their first values."""
    nodes: list[ast.AST] = [*(fetches(call) or [])]
    if isinstance(call.func, ast.Attribute):
        nodes.append(call.func.value)
    return any(
        v.name in _GLOBAL
        for node in nodes
        for inner in ast.walk(node)
        if isinstance(inner, ast.expr)
        for v in script.values(inner)
    ) or any(
        v.name in _GLOBAL
        for node in nodes
        if isinstance(node, ast.expr)
        for held in script.values(node)
        if held.script is not None and isinstance(held.node, ast.Call) and held.name in _HOLDING
        for a in held.node.args
        for v in held.script.values(a)
    )


def _fetched(script: Script, node: ast.expr) -> Kind:
    if isinstance(node, ast.Attribute) and node.attr == "initializer":
        return "look" if script.values(node.value) and _reads_data(script, node.value) else "unknown"
    if isinstance(node, ast.List | ast.Tuple):
        return _one({_fetched(script, e) for e in node.elts})
    if isinstance(node, ast.Dict):
        return _one({_fetched(script, e) for e in node.values})
    return _one({_kind_of(script, v) for v in script.values(node)} or {"unknown"})


def _reads_data(script: Script, node: ast.expr) -> bool:
    return all(v.kind == "iterator" for v in script.values(node))


def _one(kinds: set[Kind]) -> Kind:
    order: tuple[Kind, ...] = ("train", "unknown", "init")
    for kind in order:
        if kind in kinds:
            return kind
    return "look" if kinds else "unknown"


def _kind_of(script: Script, value: Value, depth: int = 0) -> Kind:
    node, owner = value.node, value.script or script
    if value.kind == "sequence":
        return _one({_kind_of(script, v, depth) for item in value.items for v in item})
    if value.kind == "constant":
        return "look"
    if isinstance(node, ast.Call):
        name = owner.called(node)
        attr = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if attr in ("minimize", "apply_gradients"):
            return "train"
        if name in _INIT:
            return "init"
        if name in _HOLDING:
            if depth > 4:
                return "unknown"
            parts = [a.value if isinstance(a, ast.Starred) else a for a in node.args]
            found = {_kind_of(owner, v, depth + 1) for a in parts for v in owner.values(a)}
            if name in ("tensorflow.no_op", "tensorflow.identity") and _under_control(owner, node):
                return "unknown"
            return _one(found) if parts else "look"
        if attr in ("assign", "assign_add", "assign_sub", "apply") or ".assign" in name or "create_train_op" in name:
            return "unknown"
        if value.kind == "tensor" or (name.startswith("tensorflow.") and ".contrib." not in name):
            return "unknown" if _under_control(owner, node) else "look"
        return "look" if attr == "get_next" else "unknown"
    if value.kind == "tensor" and not isinstance(node, ast.Call):
        return "look"
    return "unknown"


def updates(program: Program) -> set[ast.AST] | None:
    """Every expression that may be a training step; None where one goes where it is not followed."""
    seen: set[ast.AST] = set()
    todo: list[tuple[Script, ast.Call]] = [
        (script, call)
        for script, call in program.calls()
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("minimize", "apply_gradients")
    ]
    while todo:
        script, call = todo.pop()
        if call in seen:
            continue
        seen.add(call)
        for owner, expr in script.flow(call):
            seen.add(expr)
            end = _end(owner, expr)
            if end is None:
                return None
            if isinstance(end, ast.Call) and owner.called(end) in _HOLDING:
                todo.append((owner, end))
    return seen


def _end(script: Script, expr: ast.AST) -> ast.AST | None:
    """What is done with a training step at one place, where that is known."""
    parent = script.parents.get(expr)
    inside = False
    while isinstance(parent, ast.List | ast.Tuple | ast.keyword | ast.Starred):
        inside = inside or isinstance(parent, ast.List | ast.Tuple)
        parent = script.parents.get(parent)
    followed = not inside or next(iter(script.successors(expr, ())), None) is not None
    if isinstance(parent, ast.Assign | ast.AnnAssign | ast.Return | ast.Expr):
        return parent if followed else None
    if isinstance(parent, ast.Attribute):
        return parent if parent.attr == "run" else None
    if isinstance(parent, ast.Call):
        runs = isinstance(parent.func, ast.Attribute) and parent.func.attr == "run"
        return parent if runs or script.called(parent) in _HOLDING else None
    return None


def only_looks(script: Script, call: ast.Call, seen: set[ast.AST] | None) -> bool:
    """Whether a run whose fetches are not known has no training step among them: all of those are seen elsewhere."""
    given = fetches(call)
    if seen is None or given is None or not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "eval":
        given = [call.func.value]
    nodes = [n for g in given for n in ast.walk(g)]
    sets = [v for n in nodes if isinstance(n, ast.expr) for v in script.values(n) if "assign" in v.name]
    held = [v.node for n in nodes if isinstance(n, ast.expr) for v in script.values(n)]
    return not sets and not any(n in seen for n in [*nodes, *held])


def _under_control(script: Script, node: ast.AST) -> bool:
    """In a `with tf.control_dependencies(...)`: running it runs those, too."""
    return any(
        isinstance(item.context_expr, ast.Call) and script.called(item.context_expr).endswith("control_dependencies")
        for block in script.enclosing(node, ast.With)
        if isinstance(block, ast.With)
        for item in block.items
    )
