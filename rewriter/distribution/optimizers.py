"""The optimizer that a `compile` is given: what it is, where it is made, and where its learning rate stands."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from .. import catalog
from ..script import Script
from ..training import Training
from ..values import Value

#: Learning rates that Keras 2 takes where none is given.
DEFAULT_RATES = {
    "Adam": "0.001", "AdamW": "0.001", "Adamax": "0.001", "Nadam": "0.001", "SGD": "0.01", "RMSprop": "0.001",
    "Adagrad": "0.001", "Adadelta": "0.001", "Ftrl": "0.001", "Lion": "0.0001", "Adafactor": "0.001",
}  # fmt: skip
CLASSES = {name.lower(): name for name in DEFAULT_RATES}
#: Those that have a momentum, which Horovod's warm-up cannot correct where it is a plain number (TensorFlow 2.11 on).
WITHOUT_MOMENTUM = frozenset("Adam AdamW Adamax Nadam Adagrad Adadelta Ftrl LAMB Lamb Lion".split())

Made = Literal["string", "call", "expression"]


@dataclass(frozen=True, eq=False)
class Optimizer:
    """What one `compile` is given.

    expr: the expression there, in `script`. made: "string" (a name written out), "call" (one constructor of Keras or of
    the project, `call` in `owner`), or "expression": something else that gives an optimizer.
    inner: where it is the `LossScaleOptimizer` of an optimizer, what that is given.
    """

    script: Script
    expr: ast.expr
    made: Made
    name: str = ""  # "Adam", where it is known
    owner: Script | None = None
    call: ast.Call | None = None
    own: Value | None = None  # the project's class that it is an instance of
    inner: Optimizer | None = None

    @property
    def base(self) -> Optimizer:
        """The optimizer itself, inside of the scaling of the loss."""
        return self.inner.base if self.inner else self


def optimizer_of(training: Training) -> Optimizer | str:
    """The optimizer of a `compile`, or why it is not seen."""
    site = training.compile
    if own := training.method("compile"):
        return f"the model has a `compile` of its own ({own[0].at(own[1])})"
    expr = site.arguments.get("optimizer")
    if expr is None:
        if site.arguments.open:
            return "the arguments that `compile` is given through `*` or `**` may hold the optimizer"
        return "`compile` is given no optimizer"
    return given(site.script, expr)


def given(script: Script, expr: ast.expr) -> Optimizer | str:
    values = [v for v in script.values(expr) if not (v.kind == "constant" and v.literal is None)]
    if not values:
        return f"what the optimizer `{script.text(expr)}` is is not known"
    if isinstance(expr, ast.Constant) and isinstance(expr.value, str):
        name = CLASSES.get(expr.value.lower(), "")
        return Optimizer(script, expr, "string", name) if name else f"no optimizer is known as {expr.value!r}"
    if any(v.kind == "class" or (v.kind == "symbol" and catalog.kind_of_call(v.name)) for v in values):
        return f"`{script.text(expr)}` is a class, not an optimizer"
    if any(v.name.endswith(("DistributedOptimizer", "SyncReplicasOptimizer")) for v in values):
        return f"`{script.text(expr)}` is distributed already"
    if len(values) == 1 and values[0].kind == "optimizer" and isinstance(values[0].node, ast.Call):
        return _made(script, expr, values[0])
    if all(v.kind == "optimizer" for v in values) and any(v.name.endswith("LossScaleOptimizer") for v in values):
        return f"`{script.text(expr)}` scales the loss on some ways only"
    for value in values:
        if value.kind == "constant":
            if not isinstance(value.literal, str) or value.literal.lower() not in CLASSES:
                return f"no optimizer is known as {value.literal!r}"
        elif value.kind != "optimizer" and not _is_of_keras(value):
            why = f": {value.name}" if value.kind == "unknown" and value.name else ""
            return f"whether `{script.text(expr)}` is an optimizer of Keras is not known{why}"
    return Optimizer(script, expr, "expression")


def _is_of_keras(value: Value) -> bool:
    """What is made by a class that is picked from Keras's, or comes from a library of optimizers for Keras."""
    if value.name.startswith(("tensorflow_addons.optimizers.", "keras_nlp.", "official.nlp.optimization")):
        return True
    call, script = value.node, value.script
    if not isinstance(call, ast.Call) or script is None:
        return False
    match call.func:
        case ast.Subscript(value=table):
            classes = script.values(table)
            return bool(classes) and all(
                isinstance(v.node, ast.Dict) and v.script is not None and _classes_only(v.script, v.node)
                for v in classes
            )
        case ast.Call(func=ast.Name(id="getattr"), args=[module, *_]):
            return catalog.keras_path(script.symbol(module) + ".x") == "optimizers.x"
    return catalog.keras_path(value.name).startswith("optimizers.")


def _classes_only(script: Script, table: ast.Dict) -> bool:
    return bool(table.values) and all(
        v.kind == "symbol" and catalog.kind_of_call(v.name) == "optimizer"
        for e in table.values
        for v in script.values(e)
    )


def _made(script: Script, expr: ast.expr, value: Value) -> Optimizer | str:
    assert value.script is not None and isinstance(value.node, ast.Call)
    name = value.name.rpartition(".")[2]
    if name == "get":
        return Optimizer(script, expr, "expression")
    if name == "LossScaleOptimizer":
        arguments = value.script.bind(value.node, ("inner_optimizer", "dynamic"))
        inside = arguments.get("inner_optimizer") or arguments.get("opt") or arguments.get("optimizer")
        if inside is None:
            return "what `LossScaleOptimizer` is given is not seen"
        inner = given(value.script, inside)
        return (
            inner
            if isinstance(inner, str)
            else Optimizer(script, expr, "call", name, value.script, value.node, inner=inner)
        )
    return Optimizer(script, expr, "call", name, value.script, value.node, value.cls)


def signature(optimizer: Optimizer) -> tuple[str, ...]:
    return catalog.SIGNATURES.get(f"optimizers.{optimizer.name}", ("learning_rate",))


def other_uses(optimizer: Optimizer) -> list[tuple[Script, ast.expr]]:
    """Uses of an optimizer that is made by one call other than giving it to `compile`: its attributes, functions."""
    owner, call = optimizer.owner, optimizer.call
    assert owner is not None and call is not None
    found = []
    for script, use in owner.flow(call):
        parent = script.parents.get(use)
        if isinstance(parent, ast.keyword):
            parent = script.parents.get(parent)
        if isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and use is not parent.func):
            func = parent.func if isinstance(parent, ast.Call) else None
            if isinstance(func, ast.Attribute) and func.attr == "compile":
                continue
            found.append((script, use))
    return found


# -- the learning rate -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Rate:
    """The learning rate of an optimizer that is made by one call.

    kind: "number" (`expr` in `script`), "default" (none is given), "schedule" (`schedule` makes it), "own schedule"
    (of a class of the project), or "unseen", with the reason.
    """

    kind: Literal["number", "default", "schedule", "own schedule", "unseen"]
    script: Script
    expr: ast.expr | None = None
    schedule: Value | None = None
    why: str = ""


def rate_of(optimizer: Optimizer) -> Rate:
    owner, call = optimizer.owner, optimizer.call
    if optimizer.made == "string":
        return Rate("default", optimizer.script)
    if owner is None or call is None:
        text = optimizer.script.text(optimizer.expr)
        return Rate("unseen", optimizer.script, why=f"which learning rate `{text}` has is not seen")
    arguments = owner.bind(call, signature(optimizer))
    expr = arguments.get("learning_rate")
    if expr is None:
        if arguments.open:
            return Rate("unseen", owner, why="the learning rate may be given through `*` or `**`")
        if optimizer.name in DEFAULT_RATES:
            return Rate("default", owner)
        return Rate("unseen", owner, why=f"which learning rate `{optimizer.name}` takes is not known")
    values = owner.values(expr)
    schedules = [v for v in values if v.kind == "schedule"]
    if schedules:
        if len(values) > 1:
            return Rate("unseen", owner, expr, why="the learning rate is one of several")
        kind: Literal["schedule", "own schedule"] = "own schedule" if schedules[0].cls else "schedule"
        return Rate(kind, owner, expr, schedules[0])
    if all(_is_number(owner, expr, v) for v in values):
        return Rate("number", owner, expr)
    return Rate("unseen", owner, expr, why=f"what the learning rate `{owner.text(expr)}` is is not known")


def _is_number(script: Script, expr: ast.expr, value: Value) -> bool:
    """A number, as far as it can be told: also a setting that is read from somewhere (`args.lr`, `config["lr"]`)."""
    if value.kind == "constant":
        return isinstance(value.literal, int | float)
    node = value.node
    if value.kind == "object" and value.name in ("constant", "operator", "builtins.float"):
        return True
    return value.kind in ("method", "object", "unknown") and isinstance(node, ast.Attribute | ast.Subscript)
