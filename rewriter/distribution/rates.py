"""What sets the learning rate of a program besides the optimizer: callbacks and assignments with own rates."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..script import Script, own_nodes
from ..values import Value
from .program import Program

_NAMES = frozenset({"lr", "learning_rate", "_lr"})


def set_elsewhere(program: Program) -> Iterator[tuple[Script, ast.expr]]:
    """Where the rate of an optimizer is set: `K.set_value(model.optimizer.lr, ...)`, `opt.learning_rate = ...`."""
    for script in program.scripts:
        for node in script.all(ast.Attribute):
            if node.attr not in _NAMES or not program.reach.contains(script, node):
                continue
            owner = node.value
            of_optimizer = (isinstance(owner, ast.Attribute) and owner.attr == "optimizer") or any(
                v.kind == "optimizer" for v in script.values(owner)
            )
            if not of_optimizer:
                continue
            parent = script.parents.get(node)
            if (
                not isinstance(node.ctx, ast.Load)
                or (isinstance(parent, ast.Call) and script.called(parent).endswith("set_value"))
                or (isinstance(parent, ast.Attribute) and parent.attr in ("assign", "assign_sub", "assign_add"))
            ):
                yield script, node


@dataclass(frozen=True, eq=False)
class Plan:
    """The function of a `LearningRateScheduler`.

    kind: "absolute" (rates by the number of the epoch), "relative" (a multiple of the rate that it is given), or
    "unseen".
    """

    kind: Literal["absolute", "relative", "unseen"]
    script: Script
    call: ast.Call  # LearningRateScheduler(...)
    function: ast.expr | None


def plan_of(scheduler: Value) -> Plan | None:
    """What a `LearningRateScheduler` does to the rate."""
    script, call = scheduler.script, scheduler.node
    if script is None or not isinstance(call, ast.Call):
        return None
    function = script.bind(call, ("schedule", "verbose")).get("schedule")
    if function is None:
        return Plan("unseen", script, call, None)
    kinds = {_kind(v) for v in script.values(function)}
    return Plan(kinds.pop() if len(kinds) == 1 else "unseen", script, call, function)


def _kind(function: Value) -> Literal["absolute", "relative", "unseen"]:
    node, script = function.node, function.script
    if (
        script is None
        or not isinstance(node, ast.FunctionDef | ast.Lambda)
        or function.kind not in ("function", "method")
    ):
        return "unseen"
    arguments = [*node.args.posonlyargs, *node.args.args]
    if function.kind == "method":
        arguments = arguments[1:]
    if node.args.vararg or node.args.kwarg or not arguments:
        return "unseen"
    required = len(arguments) - len(node.args.defaults)
    if len(arguments) == 1 or required == 1:
        return "absolute" if len(arguments) == 1 else "unseen"
    if len(arguments) > 2:
        return "unseen"
    rate = arguments[1].arg
    returned = [node.body] if isinstance(node, ast.Lambda) else script.returns(node)
    names = {rate}
    if not isinstance(node, ast.Lambda):
        for n in own_nodes(node):  # lr = lr * 0.5
            if isinstance(n, ast.Assign | ast.AugAssign):
                target = n.targets[0] if isinstance(n, ast.Assign) else n.target
                value = n.value
                if isinstance(target, ast.Name) and target.id in names:
                    if isinstance(n, ast.AugAssign) and isinstance(n.op, ast.Mult | ast.Div):
                        continue
                    if isinstance(n, ast.Assign) and _multiple(value, names):
                        continue
                    return "unseen"
                if isinstance(target, ast.Name) and isinstance(n, ast.Assign) and _multiple(value, names):
                    names.add(target.id)
    mentions = [_mentions(r, names) for r in returned]
    if returned and all(_multiple(r, names) for r in returned):
        return "relative"
    if returned and not any(mentions):
        return "absolute"
    return "unseen"


def _mentions(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(n, ast.Name) and n.id in names for n in ast.walk(node))


def _multiple(node: ast.expr, names: set[str]) -> bool:
    """`lr`, `lr * factor`, `lr / 2`: it grows as the rate does."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return (_multiple(left, names) and not _mentions(right, names)) or (
                _multiple(right, names) and not _mentions(left, names)
            )
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _multiple(left, names) and not _mentions(right, names)
        case ast.IfExp(body=body, orelse=orelse):
            return _multiple(body, names) and _multiple(orelse, names)
        case ast.Call(func=ast.Name(id="float"), args=[inner]):
            return _multiple(inner, names)
    return False
