"""Learning rates of loops that a program writes itself, scaled as those of `fit` are.

Linear scaling with a gradual warm-up (Goyal et al. 2017, arXiv 1706.02677, section 2.2): in the loop over the epochs,
the rate is set to its own value times a factor that grows from 1 to the number of ranks over five epochs. LAMB's rate
grows with the square root of the batch (You et al. 2020, arXiv 1904.00962, the table "Untuned LAMB"). A schedule is
scaled where it is made, and counts the steps of one rank. All rates of a program are scaled, or none is.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from rewriter.distribution.optimizers import DEFAULT_RATES, Optimizer, Rate, given, rate_of
from rewriter.distribution.rates import set_elsewhere
from rewriter.edits import Insert, Wrap
from rewriter.loops.steps import Step, call_sites, is_update, loops_around
from rewriter.script import Script

from . import keras3
from .conversion import Conversion, operand
from .loops import data_loop
from .names import Place, Unseen, at_place
from .rates import WARM_UP, is_lamb, not_scaled_schedule, scale_schedule


@dataclass(frozen=True, eq=False)
class _Epochs:
    """A loop over the epochs: `done` is the number of those that are behind, `warm_up` over how many a rate grows."""

    script: Script
    loop: ast.For
    done: str
    warm_up: int


@dataclass(frozen=True, eq=False)
class _Plan:
    """What sets the rate of one optimizer: a schedule, or a line in the loop over the epochs."""

    optimizer: Optimizer
    rate: Rate
    epochs: _Epochs | None = None
    name: str = ""  # the optimizer in that loop
    text: str = ""  # its own rate there


def scale(conversion: Conversion, places: list[tuple[Place, Step]]) -> None:
    """Scale the rate of every optimizer of these steps, or none, and say what was done."""
    if not conversion.scaling:
        conversion.note("learning rates are as they were (--no-lr-scaling)")
        return
    plans = _plans(conversion, places)
    if isinstance(plans, str):
        conversion.note(
            f"learning rates are as they were, and schedules count the steps of one rank: {plans}; with more ranks, "
            "scale the rate and warm it up by hand, and divide numbers of steps by `hvd.size()`"
        )
        return
    for plan in plans:
        base = plan.optimizer.base
        size = f"{conversion.hvd(plan.rate.script, base.call or base.expr)}.size()"
        if plan.rate.kind == "schedule":
            assert plan.rate.schedule is not None
            scale_schedule(conversion, plan.rate.schedule, f"{size} ** 0.5" if is_lamb(base) else size)
        decay = plan.rate.script.argument(base.call, "decay") if base.call is not None else None
        if decay is not None and plan.rate.script.number(decay) != 0:
            conversion.add(Wrap(decay, f"{operand(decay)} * {size}"))
    _warm_up(conversion, [p for p in plans if p.epochs is not None])
    warmed = any(p.epochs is not None for p in plans)
    over = ", in a warm-up over the first epochs" if warmed else ""
    how = (
        "the square root of the number of ranks"
        if all(is_lamb(p.optimizer.base) for p in plans)
        else "the number of ranks"
    )
    conversion.note(f"learning rates grow to {how} times their value{over} (--no-lr-scaling leaves them)")


# -- what can be scaled ----------------------------------------------------------------------------------------


def _plans(conversion: Conversion, places: list[tuple[Place, Step]]) -> list[_Plan] | str:
    """For every optimizer what is done to its rate, or why nothing is."""
    for script, node in set_elsewhere(conversion.program):
        return f"`{script.text(node)}` is set elsewhere ({script.at(node)})"
    found: dict[ast.AST, _Plan] = {}
    for place, step in places:
        for script, call in step.calls:
            if not is_update(script, call) or not isinstance(call.func, ast.Attribute):
                continue
            optimizer = given(script, call.func.value)
            if isinstance(optimizer, str):
                return optimizer
            plan = _plan(conversion, place, script, call.func.value, optimizer)
            if isinstance(plan, str):
                return plan
            before = found.setdefault(optimizer.base.call or optimizer.base.expr, plan)
            if before.epochs is not None and plan.epochs is not None and before.epochs.loop is not plan.epochs.loop:
                return f"`{script.text(call.func.value)}` trains in several loops over epochs"
    return list(found.values()) or "no optimizer is seen"


def _plan(conversion: Conversion, place: Place, script: Script, expr: ast.expr, optimizer: Optimizer) -> _Plan | str:
    rate = rate_of(optimizer.base)
    if rate.kind == "schedule":
        assert rate.schedule is not None
        return not_scaled_schedule(conversion, rate.schedule) or _Plan(optimizer, rate)
    if rate.kind not in ("number", "default"):
        return rate.why or "the learning rate is a schedule of a class of its own"
    epochs = _epochs(conversion, place)
    if isinstance(epochs, str):
        return epochs
    here = Place(epochs.script, epochs.loop.body[0])
    names = at_place(here, script, expr)
    if isinstance(names, Unseen) or len(names) != 1:
        return f"`{script.text(expr)}` ({script.at(expr)}) has no name in the loop over the epochs"
    text = _written(conversion, here, optimizer.base, rate)
    if not text:
        assert rate.expr is not None
        return f"the rate `{rate.script.text(rate.expr)}` ({rate.script.at(rate.expr)}) has no name in that loop"
    return _Plan(optimizer, rate, epochs, names[0], text)


def _written(conversion: Conversion, here: Place, optimizer: Optimizer, rate: Rate) -> str:
    """The rate of an optimizer as it is written at a place; "" where it has no name there."""
    if rate.expr is None:
        lion = optimizer.name == "Lion" and keras3.is_target(conversion)
        return "0.001" if lion else DEFAULT_RATES[optimizer.name]
    if not any(isinstance(n, ast.Name | ast.Attribute | ast.Call | ast.Subscript) for n in ast.walk(rate.expr)):
        return rate.script.text(rate.expr) if isinstance(rate.expr, ast.Constant) else f"({ast.unparse(rate.expr)})"
    names = at_place(here, rate.script, rate.expr)
    if isinstance(names, Unseen) or len(names) != 1:
        return ""
    root, _, attributes = names[0].partition(".")
    found = here.script.names.scope_of(here.statement).lookup(root)
    set_again = attributes and len(_stores(here.script, attributes.rpartition(".")[2])) > 1
    return "" if found is None or len(found[1]) != 1 or set_again else names[0]  # it has no other value there


def _stores(script: Script, attribute: str) -> list[ast.Attribute]:
    return [
        node
        for other in list(script.project.scripts.values())
        for node in other.all(ast.Attribute)
        if node.attr == attribute and not isinstance(node.ctx, ast.Load)
    ]


def _epochs(conversion: Conversion, place: Place) -> _Epochs | str:
    """The loop over the epochs: it holds the one over the data, also in a function that calls the one with the step."""
    data, script = data_loop(conversion, place)
    if data is None:
        return "which loop goes through the data is not seen"
    loops, node = loops_around(script, data), script.statement(data)
    seen: set[ast.AST] = set()
    while not loops:
        function = script.function_of(node)
        sites = call_sites(script, function)[0] if isinstance(function, ast.FunctionDef) else []
        if function is None or len(sites) != 1 or function in seen:
            return "no loop over the epochs is seen, in which they could grow"
        seen.add(function)
        script, loops, node = sites[0].script, sites[0].loops, sites[0].script.statement(sites[0].call)
    function = script.function_of(node)
    sites = call_sites(script, function)[0] if isinstance(function, ast.FunctionDef) else []
    if len(loops) > 1 or len(sites) > 1 or any(site.loops for site in sites):
        return "the loop over the epochs runs several times"
    loop = loops[0]
    if not isinstance(loop, ast.For) or not _counts(script, loop):
        return "no loop that counts the epochs is seen, in which they could grow"
    return _of_loop(script, loop)


def _counts(script: Script, loop: ast.For) -> bool:
    """`for epoch in range(...)`."""
    call = loop.iter
    if isinstance(call, ast.Call) and script.called(call).startswith("tqdm.") and call.args:
        call = call.args[0] if not script.called(call).endswith("trange") else call
    name = script.called(call) if isinstance(call, ast.Call) else ""
    counts = name == "builtins.range" or (name.startswith("tqdm.") and name.endswith("trange"))
    return counts and isinstance(loop.target, ast.Name) and isinstance(call, ast.Call) and len(call.args) < 3


def _of_loop(script: Script, loop: ast.For) -> _Epochs:
    assert isinstance(loop.target, ast.Name) and isinstance(loop.iter, ast.Call)
    call = loop.iter
    if call.args and isinstance(call.args[0], ast.Call):
        call = call.args[0]  # tqdm(range(...))
    first = script.integer(call.args[0]) if len(call.args) == 2 else 0
    last = script.integer(call.args[-1]) if call.args else None
    number = last - (first or 0) if last is not None else None
    warm_up = WARM_UP if number is None or number >= 2 * WARM_UP else max(number // 2, 1)
    done = f"({loop.target.id} - 1)" if first == 1 else loop.target.id
    return _Epochs(script, loop, done, warm_up)


# -- the warm-up -----------------------------------------------------------------------------------------------


def _warm_up(conversion: Conversion, plans: list[_Plan]) -> None:
    """`optimizer.learning_rate = 0.1 * factor`, first of all in the loop over the epochs."""
    for loop in dict.fromkeys(p.epochs.loop for p in plans if p.epochs is not None):
        mine = [p for p in plans if p.epochs is not None and p.epochs.loop is loop]
        epochs = mine[0].epochs
        assert epochs is not None
        first = loop.body[0]
        size = f"{conversion.hvd(epochs.script, loop)}.size()"
        progress = f"min({epochs.done}, 1)" if epochs.warm_up == 1 else f"min({epochs.done} / {epochs.warm_up}, 1)"
        lines = []
        for plan in mine:
            most = f"{size} ** 0.5" if is_lamb(plan.optimizer.base) else size
            lines.append(f"{plan.name}.learning_rate = {plan.text} * (1 + ({most} - 1) * {progress})")
        conversion.add(Insert(first, "\n".join(dict.fromkeys(lines)), after=False))
