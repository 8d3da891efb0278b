"""The optimizers of Estimators: those of a `model_fn`, those that canned Estimators are given, and Keras's."""

from __future__ import annotations

import ast

from rewriter.distribution.estimators import Estimators, Made, unlike
from rewriter.distribution.optimizers import optimizer_of
from rewriter.edits import Replace, SetKeyword, Wrap
from rewriter.graphs import graph_mode
from rewriter.graphs.graph_mode import v1
from rewriter.script import Script
from rewriter.values import Value

from . import optimizers, session
from .conversion import Conversion, operand

#: The optimizers that canned Estimators have.
_OPTIMIZERS = {
    "DNNClassifier": ("optimizer",),
    "DNNRegressor": ("optimizer",),
    "DNNEstimator": ("optimizer",),
    "LinearClassifier": ("optimizer",),
    "LinearRegressor": ("optimizer",),
    "LinearEstimator": ("optimizer",),
    "DNNLinearCombinedClassifier": ("linear_optimizer", "dnn_optimizer"),
    "DNNLinearCombinedRegressor": ("linear_optimizer", "dnn_optimizer"),
}
#: The rates that those of two parts give optimizers which are given by name.
_RATES = {"linear_optimizer": "0.005", "dnn_optimizer": "0.001"}
_BY_NAME = {
    "Adagrad": "AdagradOptimizer",
    "Adam": "AdamOptimizer",
    "Ftrl": "FtrlOptimizer",
    "RMSProp": "RMSPropOptimizer",
    "SGD": "GradientDescentOptimizer",
}
#: The same as classes of Keras, with the rates that they have where none is given.
_KERAS_BY_NAME = {
    "Adagrad": ("Adagrad", "0.001"),
    "Adam": ("Adam", "0.001"),
    "Ftrl": ("Ftrl", "0.001"),
    "RMSProp": ("RMSprop", "0.001"),
    "SGD": ("SGD", "0.01"),
}


def average(conversion: Conversion, found: Estimators) -> None:
    """Every optimizer averages its gradients: those of the program, and those that canned Estimators are given."""
    canned: set[ast.AST] = set()
    for made in found.made:
        for name in _OPTIMIZERS.get(made.name, ()) if made.kind == "canned" else ():
            canned |= _canned(conversion, made, name)
        if made.kind == "keras":
            _keras(conversion, made)
    own = [o for s in conversion.program.scripts for o in graph_mode.optimizers(s) if o.uses or o.unseen]
    rest = [o for o in own if o.call not in canned]
    if rest or any(m.kind == "own" for m in found.made):
        session._optimizers(conversion, rest)
    for one in own:
        for given in [*one.call.args, *(k.value for k in one.call.keywords)]:
            if (why := unlike(one.script, given)) is not None and isinstance(why, ast.expr):
                reason = f"`{one.script.text(why)}`, which the optimizer is made with, may differ from rank to rank"
                conversion.refuse(one.script, given, reason)
    if conversion.refusals:
        return
    session._decays(conversion, [])
    _steps_counted(conversion)
    session._rates(conversion, own)


def _canned(conversion: Conversion, made: Made, name: str) -> set[ast.AST]:
    """Give a canned Estimator a function that makes its optimizer, in its own graph; the calls that make those."""
    script, call = made.script, made.call
    expr = made.arguments.get(name)
    hvd = conversion.hvd(script, call)
    of_v1 = _of_v1(script, call)
    if expr is None or (isinstance(expr, ast.Constant) and isinstance(expr.value, str)):
        text = _by_name(conversion, made, name, str(script.constant(expr)) if expr is not None else "", of_v1)
        if text and expr is None:
            conversion.add(SetKeyword(call, name, text))
        elif text and expr is not None:
            conversion.add(Replace(expr, text))
        return set()
    values = script.values(expr)
    calls = {v.node for v in values if isinstance(v.node, ast.Call)}
    if isinstance(expr, ast.Lambda) or all(v.kind == "function" for v in values):
        results = [
            (v.script, r)
            for v in values
            if v.script is not None
            for r in ([v.node.body] if isinstance(v.node, ast.Lambda) else v.script.returns(v.node))  # type: ignore[arg-type]
        ]
        found: set[ast.AST] = set()
        for owner, result in results:
            inside = owner.values(result)
            if not all(_is_optimizer(v) for v in inside):
                conversion.refuse(owner, result, f"what the optimizer `{owner.text(result)}` is is not seen")
                return set()
            for value in inside if conversion.scaling else ():
                if value.kind == "optimizer":
                    _scale_keras(conversion, value)
            conversion.add(Wrap(result, f"{conversion.hvd(owner, result)}.DistributedOptimizer(...)"))
            found |= {v.node for v in inside if v.node is not None}
        return found
    if not values or not all(_is_optimizer(v) for v in values):
        conversion.refuse(script, expr, f"what the optimizer `{script.text(expr)}` is is not seen")
        return set()
    if any(v.kind == "optimizer" for v in values) and conversion.scaling:
        for value in values:
            _scale_keras(conversion, value)
    conversion.add(Wrap(expr, f"lambda: {hvd}.DistributedOptimizer(...)"))
    return {c for c in calls if c is not None}


def _is_optimizer(value: Value) -> bool:
    return isinstance(value.node, ast.Call) and (
        (value.kind == "optimizer" and value.keras.startswith("optimizers."))
        or bool(graph_mode._OPTIMIZER.match(value.name))
    )


def _of_v1(script: Script, call: ast.Call) -> bool:
    """Whether a canned Estimator is that of TensorFlow 1, which takes its optimizers."""
    if script.target.before(2, 0):
        return True
    root: ast.expr = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    symbols = [b.symbol for b in script.names.reaching(root)] if isinstance(root, ast.Name) else []
    return any("compat.v1" in text for text in (*symbols, ast.unparse(call.func)))


def _by_name(conversion: Conversion, made: Made, name: str, given: str, of_v1: bool) -> str:
    """A function that makes the optimizer which the Estimator would make itself."""
    script, call = made.script, made.call
    linear = name == "linear_optimizer" or made.name.startswith("Linear")
    given = given or ("Ftrl" if linear else "Adagrad")
    if given not in _BY_NAME:
        conversion.refuse(script, call, f"no optimizer is known as {given!r}")
        return ""
    keras, rate = _KERAS_BY_NAME[given]
    rate = _RATES.get(name) or ("0.2" if linear else "0.05" if of_v1 else rate)
    legacy = "" if conversion.target.before(2, 11) else "legacy."
    cls = f"{v1(script)}.train.{_BY_NAME[given]}" if of_v1 else f"{{tensorflow.keras.optimizers.{legacy}{keras}}}"
    hvd = conversion.hvd(script, call)
    size = f" * {hvd}.size()" if conversion.scaling else ""
    return f"lambda: {hvd}.DistributedOptimizer({cls}(learning_rate={rate}{size}))"


def _scale_keras(conversion: Conversion, value: Value) -> None:
    script, call = value.script, value.node
    assert script is not None and isinstance(call, ast.Call)
    rate = call.args[0] if call.args else script.argument(call, "learning_rate") or script.argument(call, "lr")
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        conversion.refuse(script, call, "the learning rate may be given through `*` or `**`")
    elif rate is not None and any(v.kind in ("schedule", "function") for v in script.values(rate)):
        conversion.refuse(script, rate, "the learning rate is a schedule, whose steps are not converted")
    elif rate is not None:
        conversion.add(Wrap(rate, f"{operand(rate)} * {conversion.hvd(script, rate)}.size()"))
    else:
        last = value.name.rpartition(".")[2]
        default = {k.lower(): r for k, r in _KERAS_BY_NAME.values()}.get(last.lower(), "")
        if not default:
            conversion.refuse(script, call, "which learning rate the optimizer has is not seen")
            return
        conversion.add(SetKeyword(call, "learning_rate", f"{default} * {conversion.hvd(script, call)}.size()"))


def _keras(conversion: Conversion, made: Made) -> None:
    """The optimizer that the Keras model of an Estimator is compiled with."""
    script, call = made.script, made.call
    model = made.arguments.get("keras_model")
    known = {v.node for v in script.values(model)} if model is not None else set()
    trainings = [t for t in conversion.program.trainings if any(m.node in known for m in t.compile.models)]
    if len(trainings) != 1:
        conversion.refuse(script, call, "what compiles the model of this Estimator is not seen")
        return
    training = trainings[0]
    for use in training.unseen:
        if use.node not in set(ast.walk(call)):
            conversion.refuse(use.script, use.node, use.reason)
    optimizer = optimizer_of(training)
    if isinstance(optimizer, str):
        conversion.refuse(training.script, training.compile.call, optimizer)
        return
    values = [v for v in optimizer.script.values(optimizer.expr) if v.kind == "optimizer"]
    if optimizer.made != "call" or optimizer.inner or len(values) != 1 or values[0].cls is not None:
        reason = f"which class of optimizer `{optimizer.script.text(optimizer.expr)}` is is not seen"
        conversion.refuse(optimizer.script, optimizer.expr, reason, f"make it here: `{_legacy(conversion)}Adam(...)`")
        return
    if not conversion.target.before(2, 11) and ".legacy." not in values[0].name:
        reason = f"Horovod does not average the gradients of `{values[0].name.rpartition('.')[2]}` in an Estimator"
        conversion.refuse(optimizer.script, optimizer.expr, reason, f"take that of `{_legacy(conversion)[:-1]}`")
        return
    if conversion.scaling:
        _scale_keras(conversion, values[0])
    optimizers.distribute(conversion, training, optimizer, "")
    conversion.pins = not conversion.target.before(2, 0)  # the model has variables of its own, outside of any session


def _legacy(conversion: Conversion) -> str:
    return "tf.keras.optimizers." if conversion.target.before(2, 11) else "tf.keras.optimizers.legacy."


def _steps_counted(conversion: Conversion) -> None:
    """The global step counts the steps of one rank: what is computed of it would be another thing."""
    for script, call in conversion.program.calls():
        if script.called(call).rpartition(".")[2] not in _STEPS or not script.called(call).startswith("tensorflow."):
            continue
        for owner, use in script.flow(call):
            parent = owner.parents.get(use)
            if isinstance(parent, ast.keyword):
                parent = owner.parents.get(parent)
            if not isinstance(parent, ast.Call) or use is parent.func:
                continue
            name = owner.called(parent)
            last = name.rpartition(".")[2] or (parent.func.attr if isinstance(parent.func, ast.Attribute) else "")
            followed = next(iter(owner.successors(use, ())), None) is not None
            if last not in _TAKE_STEPS and last not in session._DECAYS and not followed:
                conversion.refuse(owner, parent, f"`{owner.text(parent)}` is given the number of steps of one rank")


_STEPS = frozenset({"get_global_step", "get_or_create_global_step", "create_global_step"})
_TAKE_STEPS = frozenset(
    "minimize apply_gradients scalar LoggingTensorHook identity create_train_op print EstimatorSpec run "
    "colocate_with control_dependencies".split()
)
