"""Gradients averaged over the ranks by the optimizer that `compile` is given."""

from __future__ import annotations

import ast

from rewriter.distribution.optimizers import Optimizer, other_uses
from rewriter.edits import DropKeyword, Insert, Replace, Wrap
from rewriter.script import Script
from rewriter.training import Training

from .conversion import Conversion


def distribute(conversion: Conversion, training: Training, optimizer: Optimizer, rate: str) -> None:
    """Wrap the optimizer in `hvd.DistributedOptimizer`; `rate` is that of one which is given by name."""
    site = training.compile
    for name in LEFT_OUT:
        leave_out(conversion, training, name)
    base = optimizer.base
    hvd = conversion.hvd(base.script, base.expr)
    if base.made == "string":
        given = f"learning_rate={rate}" if rate else ""
        text = f"{hvd}.DistributedOptimizer({{tensorflow.keras.optimizers.{base.name}}}({given}))"
        conversion.add(Replace(base.expr, text))
        return
    if base.own is not None and not _can_be_rebuilt(base):
        conversion.refuse(
            base.script,
            base.expr,
            f"`{base.own.name}` has no `get_config`, from which Horovod would make it anew",
            "give the class a `get_config` with all arguments of its `__init__`",
        )
        return
    wrapped = f"{hvd}.DistributedOptimizer(...)"
    if base.made == "expression":
        if _is_text(base):
            wrapped = f"{hvd}.DistributedOptimizer({{tensorflow.keras.optimizers.get}}(...))"
        conversion.add(Wrap(base.expr, wrapped))
        return
    assert base.owner is not None and base.call is not None
    if (
        other_uses(base) and base.call is not base.expr
    ):  # `opt.iterations`, `Checkpoint(optimizer=opt)`: the same object
        conversion.add(Wrap(base.call, f"{conversion.hvd(base.owner, base.call)}.DistributedOptimizer(...)"))
    else:
        conversion.add(Wrap(base.expr, wrapped))
    if optimizer.inner and other_uses(optimizer):
        script, use = other_uses(optimizer)[0]
        if not isinstance(script.parents.get(use), ast.Attribute):
            conversion.refuse(site.script, site.call, f"the optimizer is used elsewhere too ({script.at(use)})")


def _is_text(optimizer: Optimizer) -> bool:
    """One of several names, or a name or an optimizer: `get` takes both."""
    return any(v.kind == "constant" and isinstance(v.literal, str) for v in optimizer.script.values(optimizer.expr))


def _can_be_rebuilt(optimizer: Optimizer) -> bool:
    cls = optimizer.own
    assert cls is not None
    return (
        cls.script is not None
        and isinstance(cls.node, ast.ClassDef)
        and cls.script.method(cls.node, "get_config") is not None
    )


#: Arguments of `compile` that do not go together with Horovod: values that are harmless, and why the others are not.
LEFT_OUT: dict[str, tuple[tuple[object, ...], str]] = {
    "jit_compile": ((False, None), "XLA cannot compile Horovod's operations everywhere"),
    "steps_per_execution": ((1, None), "the first weights have to be shared after the first step"),
}


def leave_out(conversion: Conversion, training: Training, name: str) -> None:
    """Take an argument out of `compile`."""
    site = training.compile
    harmless, why = LEFT_OUT[name]
    expr = site.arguments.get(name)
    if expr is None or _is(site.script, expr, harmless):
        return
    keyword = next((k for k in site.call.keywords if k.arg == name), None)
    if keyword is not None:
        conversion.add(DropKeyword(site.call, name))
    elif name in site.arguments.keywords:
        old = site.arguments.keywords[name].arg
        conversion.add(DropKeyword(site.call, old or name))
    else:
        conversion.refuse(
            site.script, expr, f"`{name}` does not go together with Horovod, and is not given by its name here"
        )
        return
    conversion.note(f"`{name}` is left out: {why}")


def keep_the_class(conversion: Conversion, training: Training) -> None:
    """A `.keras` file names the class of its optimizer, which has to be found without Horovod when it is loaded."""
    site = training.compile
    statement, func = site.script.statement(site.call), site.call.func
    model = func.value if isinstance(func, ast.Attribute) else None
    if not (isinstance(statement, ast.Expr) and statement.value is site.call) or not isinstance(
        model, ast.Name | ast.Attribute
    ):
        conversion.refuse(
            site.script, site.call, "a `.keras` file of this model could not be loaded", "save it as `.h5`"
        )
        return
    name, optimizer = conversion.free_name(site.script, "wrapped"), f"{ast.unparse(model)}.optimizer"
    text = (
        f'{name} = getattr({optimizer}, "inner_optimizer", {optimizer})\n'
        f"type({name}).__module__ = type({name}).__mro__[1].__module__  # what a .keras file says"
    )
    conversion.add(Insert(statement, text))


def _is(script: Script, expr: ast.expr, wanted: tuple[object, ...]) -> bool:
    values = script.values(expr)
    return bool(values) and all(v.kind == "constant" and v.literal in wanted for v in values)
