"""Learning rates that grow with the number of ranks, as the batch of all ranks together does (Goyal et al. 2017).

Linear scaling: the rate times the number of ranks, reached from the script's own rate by a warm-up of five epochs.
LAMB's rate grows with the square root. What sets rates itself is scaled too, or no rate is: both or neither.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from rewriter.distribution.optimizers import DEFAULT_RATES, WITHOUT_MOMENTUM, Optimizer, Rate, rate_of
from rewriter.distribution.rates import Plan, plan_of, set_elsewhere
from rewriter.edits import SetKeyword, Wrap
from rewriter.script import Script
from rewriter.training import Run, Training, callbacks
from rewriter.values import Value

from . import keras3
from .conversion import Conversion, operand
from .data import is_of_part

#: Epochs of the warm-up (Goyal et al., section 2.2).
WARM_UP = 5

#: Schedules of Keras: parameters, and which of them are rates and numbers of steps.
_SCHEDULES: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "ExponentialDecay": (
        ("initial_learning_rate", "decay_steps", "decay_rate", "staircase", "name"),
        ("initial_learning_rate",),
        ("decay_steps",),
    ),
    "InverseTimeDecay": (
        ("initial_learning_rate", "decay_steps", "decay_rate", "staircase", "name"),
        ("initial_learning_rate",),
        ("decay_steps",),
    ),
    "PolynomialDecay": (
        ("initial_learning_rate", "decay_steps", "end_learning_rate", "power", "cycle", "name"),
        ("initial_learning_rate", "end_learning_rate"),
        ("decay_steps",),
    ),
    "CosineDecay": (
        ("initial_learning_rate", "decay_steps", "alpha", "name", "warmup_target", "warmup_steps"),
        ("initial_learning_rate", "warmup_target"),
        ("decay_steps", "warmup_steps"),
    ),
    "CosineDecayRestarts": (
        ("initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha", "name"),
        ("initial_learning_rate",),
        ("first_decay_steps",),
    ),
    "PiecewiseConstantDecay": (("boundaries", "values", "name"), ("values",), ("boundaries",)),
}


@dataclass(eq=False)
class Scaling:
    """What is done about the learning rates of a program.

    why: why no rate is scaled. warm_ups: the arguments of the warm-up callback for each `fit` that gets one.
    by_name: the rate of each optimizer that is given by its name.
    """

    why: str = ""
    warm_ups: dict[ast.Call, str] = field(default_factory=dict)
    by_name: dict[ast.expr, str] = field(default_factory=dict)


def scale(conversion: Conversion, trainings: list[tuple[Training, Optimizer]], unseen: str = "") -> Scaling:
    """Scale every learning rate of the program, or none; `unseen`: why the rate of another training is not seen."""
    if not conversion.scaling:
        return Scaling(why="--no-lr-scaling")
    rates = {training: rate_of(optimizer.base) for training, optimizer in trainings}
    plans, floors, why = _callbacks(trainings)
    why = unseen or why or next(filter(None, (_not_scaled(conversion, t, o, rates[t]) for t, o in trainings)), "")
    for script, node in set_elsewhere(conversion.program):
        why = why or f"`{script.text(node)}` is set elsewhere ({script.at(node)})"
    if plans and any(r.kind not in ("number", "default") for r in rates.values()):
        why = why or "a `LearningRateScheduler` sets the rate of an optimizer whose own rate is not seen"
    if why:
        return Scaling(why=why)
    scheduled = {run.site.call for t, rate in rates.items() if rate.kind == "schedule" for run in t.fits}
    result = Scaling()
    for training, optimizer in trainings:
        _scale(conversion, [t for t, _ in trainings], training, optimizer, rates[training], result, planned=bool(plans))
    for call in scheduled & set(result.warm_ups):  # another `compile` of this model has a schedule, which sets the rate
        del result.warm_ups[call]
    for plan in plans:
        if plan.kind == "absolute":
            _scale_plan(conversion, plan, trainings)
        else:
            conversion.note("no warm-up: it would overrule the `LearningRateScheduler`")
    square = " ** 0.5" if all(is_lamb(o.base) for _, o in trainings) else ""
    for script, floor in floors:
        conversion.add(Wrap(floor, f"{operand(floor)} * {conversion.hvd(script, floor)}.size(){square}"))
    return result


def _callbacks(trainings: list[tuple[Training, Optimizer]]) -> tuple[list[Plan], list[tuple[Script, ast.expr]], str]:
    """Callbacks that plan the rate, the lowest rates of `ReduceLROnPlateau`, and what stands against scaling."""
    plans: dict[ast.AST, Plan] = {}
    floors: dict[ast.expr, Script] = {}
    why = ""
    for training, _ in trainings:
        for run in training.fits:
            for value in callbacks(run.site)[0]:
                name = value.keras.removeprefix("callbacks.")
                if value.cls is not None:
                    if _sets_rates(value):
                        why = why or f"the callback `{value.cls.name}` sets the learning rate itself"
                elif name == "LearningRateScheduler":
                    plan = plan_of(value)
                    if plan is None or plan.kind == "unseen":
                        why = why or "what a `LearningRateScheduler` makes of the learning rate is not seen"
                    else:
                        plans[plan.call] = plan
                elif name == "ReduceLROnPlateau" and value.script and isinstance(value.node, ast.Call):
                    floor = value.script.argument(value.node, "min_lr")
                    if floor is not None and value.script.number(floor) != 0:
                        floors[floor] = value.script
                elif name == "LambdaCallback" and value.node is not None and _mentions_rate(value.node):
                    why = why or "a `LambdaCallback` may set the learning rate"
    return list(plans.values()), [(s, e) for e, s in floors.items()], why


def _sets_rates(value: Value) -> bool:
    cls = value.cls
    assert cls is not None
    if cls.script is None or not isinstance(cls.node, ast.ClassDef):
        return True
    if any(base.endswith("LearningRateScheduler") for base in cls.script.library_bases(cls.node)):
        return True
    for _, node in cls.script.ancestry(cls.node):
        for inner in ast.walk(node):
            if not isinstance(inner, ast.Attribute) or inner.attr not in ("lr", "learning_rate"):
                continue
            if not isinstance(inner.ctx, ast.Load) and "optimizer" in ast.unparse(inner.value):
                return True
        if "set_value" in ast.dump(node) or ("assign" in ast.dump(node) and _mentions_rate(node)):
            return True
    return False


def _mentions_rate(node: ast.AST) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in ("lr", "learning_rate", "set_value") for n in ast.walk(node))


def _not_scaled(conversion: Conversion, training: Training, optimizer: Optimizer, rate: Rate) -> str:
    """Why the rate of one optimizer cannot be scaled."""
    if rate.kind == "schedule":
        assert rate.schedule is not None
        return not_scaled_schedule(conversion, rate.schedule)
    if rate.kind == "own schedule":
        return "the learning rate is a schedule of a class of its own, which counts the steps of one rank"
    if rate.kind == "unseen" and (rate.expr is not None or not _warms_up_once(training)):
        return rate.why
    return ""


def _warms_up_once(training: Training) -> bool:
    """Whether a warm-up may start from whatever rate the optimizer has when the one `fit` begins."""
    return len(training.fits) == 1 and _same_loop(training, training.fits[0])


def _is_first(trainings: list[Training], run: Run) -> bool:
    """Whether a `fit` is the first one after a `compile` of its model, in the order of the lines."""
    script, call = run.site.script, run.site.call
    assert isinstance(call.func, ast.Attribute)
    model = ast.unparse(call.func.value)
    before = [
        r.site.call.lineno
        for t in trainings
        for r in t.fits
        if r.site.script is script and r.site.call.lineno < call.lineno and _receiver(r.site.call) == model
    ]
    if not before:
        return True
    made = [
        t.compile.call.lineno for t in trainings if t.compile.script is script and _receiver(t.compile.call) == model
    ]
    if isinstance(call.func.value, ast.Name):
        made += [getattr(b.node, "lineno", 0) for b in script.names.reaching(call.func.value)]
    return any(max(before) < line < call.lineno for line in made)


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def _same_loop(training: Training, run: Run) -> bool:
    """Every `fit` of a loop follows a `compile` in the same loop, or neither is in one."""
    a, b = training.compile, run.site
    loops = [next(s.script.enclosing(s.call, ast.For, ast.While, ast.AsyncFor, ast.FunctionDef), None) for s in (a, b)]
    if loops[0] is loops[1]:
        return True
    return not isinstance(loops[1], ast.For | ast.While | ast.AsyncFor)


def is_lamb(optimizer: Optimizer) -> bool:
    """Whether an optimizer is LAMB, whose rate grows with the square root of the batch (You et al. 2020)."""
    names = {optimizer.name} if optimizer.name else {v.name for v in optimizer.script.values(optimizer.expr)}
    return {name.rpartition(".")[2].upper() for name in names} == {"LAMB"}


def _default(conversion: Conversion, optimizer: Optimizer) -> str:
    """The rate that an optimizer takes where none is given."""
    return "0.001" if optimizer.name == "Lion" and keras3.is_target(conversion) else DEFAULT_RATES[optimizer.name]


def _scale(
    conversion: Conversion,
    trainings: list[Training],
    training: Training,
    optimizer: Optimizer,
    rate: Rate,
    result: Scaling,
    *,
    planned: bool,
) -> None:
    base = optimizer.base
    size = f"{conversion.hvd(rate.script, base.call or base.expr)}.size()"
    factor = f"{size} ** 0.5" if is_lamb(base) else size
    first = ""  # the scaled rate, where it can be written down
    if rate.kind == "schedule":
        assert rate.schedule is not None
        scale_schedule(conversion, rate.schedule, factor)
        return
    if rate.kind == "default" and base.made == "string":
        first = result.by_name[base.expr] = f"{_default(conversion, base)} * {factor}"
    elif rate.kind == "default":
        assert base.call is not None
        first = f"{_default(conversion, base)} * {factor}"
        conversion.add(SetKeyword(base.call, "learning_rate", first))
    elif rate.kind == "number":
        assert rate.expr is not None and base.call is not None
        conversion.add(Wrap(rate.expr, f"{operand(rate.expr)} * {factor}"))
        if isinstance(rate.expr, ast.Constant):
            first = f"{rate.script.text(rate.expr)} * {factor}"
        decay = rate.script.argument(base.call, "decay")
        if decay is not None and rate.script.number(decay) != 0:
            conversion.add(Wrap(decay, f"{operand(decay)} * {size}"))
    if planned:
        return  # a plan warms up itself, or would be overruled by a warm-up
    for run in training.fits:
        if not _same_loop(training, run):
            conversion.note("no warm-up: `fit` is called in a loop, and every call counts its epochs anew")
            continue
        if not _is_first(trainings, run):
            continue
        several = sum(run.site.call in (r.site.call for r in t.fits) for t in trainings) > 1
        text = _warm_up(conversion, run, base, "" if several else first, unseen=rate.kind == "unseen")
        if several and base.name in WITHOUT_MOMENTUM and run.site.call in result.warm_ups:
            continue  # what the other optimizer needs is there
        result.warm_ups[run.site.call] = text


def _warm_up(conversion: Conversion, run: Run, optimizer: Optimizer, first: str, *, unseen: bool) -> str:
    """The arguments of `LearningRateWarmupCallback`, or of what a script with Keras 3 gets in its place."""
    site = run.site
    if not first or conversion.hvd(site.script, site.call) not in first:
        assert isinstance(site.call.func, ast.Attribute)
        if not isinstance(site.call.func.value, ast.Name | ast.Attribute):
            conversion.refuse(site.script, site.call, "the model has no name here", "give it one before `fit`")
        model = ast.unparse(site.call.func.value)
        first = f"float({model}.optimizer.learning_rate.numpy())"
        if unseen:
            size = f"{conversion.hvd(site.script, site.call)}.size()"
            first += f" * {size} ** 0.5" if is_lamb(optimizer) else f" * {size}"
    if keras3.is_target(conversion):
        return f"{first}, epochs={_epochs(run)}"
    text = f"initial_lr={first}, warmup_epochs={_epochs(run)}"
    if optimizer.name not in WITHOUT_MOMENTUM and not conversion.target.before(2, 11):
        text += ", momentum_correction=False"
    return text


def _epochs(run: Run) -> str:
    """Five, or half of what there is where that is little."""
    epochs = run.site.arguments.get("epochs")
    if epochs is None:
        return "1"
    number = run.site.script.integer(epochs)
    if number is not None:
        return str(WARM_UP if number >= 2 * WARM_UP else max(number // 2, 1))
    if isinstance(epochs, ast.Name | ast.Attribute | ast.Subscript):
        return f"min({WARM_UP}, {ast.unparse(epochs)})"
    return str(WARM_UP)


def _scale_plan(conversion: Conversion, plan: Plan, trainings: list[tuple[Training, Optimizer]]) -> None:
    """`LearningRateScheduler(plan)`: the planned rate, times a factor that grows to the number of ranks."""
    assert plan.function is not None
    hvd = conversion.hvd(plan.script, plan.call)
    runs = [run for training, _ in trainings for run in training.fits]
    epochs = {_epochs(run) for run in runs}
    warm_up = epochs.pop() if len(epochs) == 1 else str(WARM_UP)
    square = all(is_lamb(o.base) for _, o in trainings)
    size = f"{hvd}.size() ** 0.5" if square else f"{hvd}.size()"
    if isinstance(plan.function, ast.Lambda):
        epoch = plan.function.args.args[0].arg
        factor = f"(1 + ({size} - 1) * {_progress(epoch, warm_up)})"
        conversion.add(Wrap(plan.function.body, f"{operand(plan.function.body)} * {factor}"))
        return
    two = any(
        isinstance(v.node, ast.FunctionDef) and len(v.node.args.args) - (v.kind == "method") == 2
        for v in plan.script.values(plan.function)
    )
    parameters = "epoch, lr" if two else "epoch"
    factor = f"(1 + ({size} - 1) * {_progress('epoch', warm_up)})"
    conversion.add(Wrap(plan.function, f"lambda {parameters}: {operand(plan.function)}({parameters}) * {factor}"))


def _progress(epoch: str, warm_up: str) -> str:
    return f"min({epoch}, 1)" if warm_up == "1" else f"min({epoch} / {warm_up}, 1)"


# -- schedules -------------------------------------------------------------------------------------------------


def not_scaled_schedule(conversion: Conversion, schedule: Value) -> str:
    name = schedule.name.rpartition(".")[2]
    script, call = schedule.script, schedule.node
    if name not in _SCHEDULES or script is None or not isinstance(call, ast.Call):
        return f"the numbers in `{name}` are not known"
    names, rates, steps = _SCHEDULES[name]
    arguments = script.bind(call, names)
    if arguments.open or len(call.args) > len(names):
        return f"not all arguments of `{name}` are seen"
    for parameter in (*rates, *steps):
        expr = arguments.get(parameter)
        if expr is not None and any(v.kind in ("schedule", "function") for v in script.values(expr)):
            return f"`{parameter}` of `{name}` is not a number"
    for parameter in steps:
        expr = arguments.get(parameter)
        if expr is not None and is_of_part(conversion, script, expr) is None:
            return f"whether `{script.text(expr)}` counts the steps of one rank is not seen"
    return ""


def scale_schedule(conversion: Conversion, schedule: Value, factor: str) -> None:
    """Rates times the number of ranks; numbers of steps divided by it, as every rank makes fewer."""
    script, call = schedule.script, schedule.node
    assert script is not None and isinstance(call, ast.Call)
    name = schedule.name.rpartition(".")[2]
    names, rates, steps = _SCHEDULES[name]
    arguments = script.bind(call, names)
    hvd = conversion.hvd(script, call)
    several = name == "PiecewiseConstantDecay"
    for parameter in rates:
        expr = arguments.get(parameter)
        if expr is None and parameter == "end_learning_rate":
            conversion.add(SetKeyword(call, parameter, f"0.0001 * {factor}"))
        elif expr is None or (isinstance(expr, ast.Constant) and expr.value in (0, None)):
            continue
        elif several:
            conversion.add(Wrap(expr, f"[rate * {factor} for rate in ...]"))
        else:
            conversion.add(Wrap(expr, f"{operand(expr)} * {factor}"))
    for parameter in steps:
        expr = arguments.get(parameter)
        if expr is None or (isinstance(expr, ast.Constant) and expr.value in (0, None)):
            continue
        if is_of_part(conversion, script, expr):
            continue
        if several:
            conversion.add(Wrap(expr, f"[step // {hvd}.size() for step in ...]"))
        else:
            conversion.add(Wrap(expr, f"{operand(expr)} // {hvd}.size()"))
