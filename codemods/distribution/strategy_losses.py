"""What a step computes for the whole batch, on a part of it: losses, metrics, random rows, and what it returns."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from rewriter.distribution.portions import MetricUpdate, Portion, Reading
from rewriter.edits import Insert, SetKeyword
from rewriter.models import structure
from rewriter.script import Script
from rewriter.values import Value

from .conversion import operand
from .names import Unseen, variables_of
from .strategies import ByStrategy

#: Gives the name of the share of the batch at a node, where it is computed when it is first asked for.
Share: TypeAlias = Callable[[Script, ast.AST], str]

_PRECISIONS = re.compile(r"float64|float16|bfloat16|double|\bhalf\b|set_floatx|mixed_precision|Policy\(")
_TIMES = "{tensorflow.math.multiply_no_nan}"


def edited(reading: Reading) -> Iterator[ast.AST]:
    """The nodes of a step that are written otherwise for replicas."""
    yield from (block for _, block, _ in reading.scaled)
    yield from (u.call for u in reading.updates)
    yield from (size for _, size in reading.drawn)


def weight(conversion: ByStrategy, script: Script, function: ast.FunctionDef, reading: Reading, *, used: bool) -> None:
    """Weight the means of a step with the share of the batch that a replica has."""
    for target in reading.targets:
        if target.portion.kind not in ("sum", "each"):
            why = target.portion.why or _WHY.get(target.portion.kind, "it is no mean over the batch, and no sum")
            shown = target.script.text(target.expr)
            conversion.refuse(target.script, target.gradient, f"gradients of `{shown}` cannot be added up: {why}")
    shares: dict[ast.AST, str] = {}

    def share(owner: Script, node: ast.AST) -> str:
        around = owner.function_of(node)
        if around not in shares:
            shares[around or owner.tree] = _share(conversion, owner, around, reading)
        return shares[around or owner.tree]

    _losses(conversion, reading)
    for owner, block, name in reading.scaled:
        weighted = f"{_TIMES}({name}, {_typed(owner, share(owner, block), name)})"
        conversion.add(Insert(block.body[-1], f"{name} = {weighted}"))
    for update in reading.updates:
        _metric(conversion, update, share)
    for _, size in reading.drawn:
        conversion.wrap(size, f"{operand(size)} // {conversion.strategy}.num_replicas_in_sync")
        conversion.note("random rows: every replica draws its part of the number that the script gives")
    if used:
        _returned(conversion, script, function, reading, share)
    _optimizers(conversion, reading)
    _assigned(conversion, reading)
    _statistics(conversion, reading)


_WHY = {
    "either": "whether it is one number, or one for every sample, is not known",
    "drawn": "it has a number for random rows",
    "free": "no part of the batch is seen in it",
}


def _typed(script: Script, share: str, value: str) -> str:
    """The share in the type of what it is multiplied with, where that may be another one than float32."""
    mixed = any(_PRECISIONS.search(s.source.text) for s in script.project.scripts.values())
    return f"{{tensorflow.cast}}({share}, {value}.dtype)" if mixed else share


def _share(conversion: ByStrategy, script: Script, function: ast.AST | None, reading: Reading) -> str:
    """The name of the share of the batch in a function, computed in its first line."""
    if not isinstance(function, ast.FunctionDef):
        conversion.refuse(script, function or script.tree, "a loss is computed in no function")
        return ""
    given = reading.frames.get(function, {})
    batch = next((n for n, p in given.items() if p.kind == "each" and not p.items), "")
    if not batch:
        conversion.refuse(script, function, f"`{function.name}` is given nothing that tells the size of the batch")
        return ""
    name = conversion.free_name(script, "share", "share_of_replica")
    helper = _helper(conversion, script, function)
    body = function.body
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and len(body) > 1
    conversion.add(Insert(body[int(documented)], f"{name} = {helper}({batch})", after=False))
    return name


def _helper(conversion: ByStrategy, script: Script, function: ast.AST) -> str:
    """The function that computes the share, above what needs it first."""
    name = conversion.free_name(script, "share_of_batch")
    text = (
        f"def {name}(batch):\n"
        '    """The share of the global batch that this replica has: it weights means, which are summed."""\n'
        "    rows = {tensorflow.nest.flatten}(batch)[0]\n"
        "    size = {tensorflow.cast}({tensorflow.shape}(rows)[0], {tensorflow.float32})\n"
        "    replica = {tensorflow.distribute.get_replica_context}()\n"
        "    return size / replica.all_reduce({tensorflow.distribute.ReduceOp.SUM}, size)"
    )
    conversion.define(script, function, text)
    return name


# -- metrics ---------------------------------------------------------------------------------------------------


def _metric(conversion: ByStrategy, update: MetricUpdate, share: Share) -> None:
    """A metric adds up what the replicas give it: a mean is weighted, and counted once for every replica."""
    script, call = update.script, update.call
    names = {v.keras.rpartition(".")[2] for v in update.metric}
    shown = script.text(call.func)
    if any(v.cls is not None for v in update.metric):
        conversion.refuse(script, call, f"`{shown}` is a metric of its own: what it adds up is not known")
        return
    scalars = [(e, p) for e, p in update.arguments if p.kind in ("mean", "sum")]
    wrong = [p for _, p in update.arguments if p.kind not in ("each", "mean", "sum")]
    if wrong and not (len(update.arguments) == 1 and wrong[0].kind == "either" and names == {"Mean"}):
        why = wrong[0].why or _WHY.get(wrong[0].kind, "it is not of the batch")
        conversion.refuse(script, call, f"what `{shown}` gets is not known for a part of the batch: {why}")
        return
    if not scalars:
        return
    if len(update.arguments) != 1 or not names <= {"Mean", "Sum"} or len(names) != 1:
        conversion.refuse(script, call, f"`{shown}` gets a number of the whole batch, and other things")
        return
    (expr, portion), counted = scalars[0], names == {"Mean"}
    replicas = f"{conversion.strategy}.num_replicas_in_sync"
    if portion.kind == "sum":
        if counted:
            conversion.wrap(expr, f"{operand(expr)} * {replicas}")
        return
    part = _part(script, expr, share(script, call))
    conversion.wrap(expr, f"{part} * {replicas}" if counted else part)


def _part(script: Script, expr: ast.expr, share: str) -> str:
    typed = _typed(script, share, ast.unparse(expr)) if isinstance(expr, ast.Name | ast.Attribute) else share
    return f"{_TIMES}(..., {typed})"


def made_together(conversion: ByStrategy, metrics: Iterable[ast.AST], readings: Sequence[Reading]) -> bool:
    """Whether metrics are made in a function that also makes what is trained: both come under the scope."""
    project = conversion.script.project
    functions = set()
    for reading in readings:
        for script, expr in reading.used:
            for v in script.values(expr):
                if v.node is not None and v.script is not None and isinstance(v.node, ast.Call):
                    functions.add(v.script.function_of(v.node))
    functions.discard(None)
    return any(project.owner(m).function_of(m) in functions for m in metrics)


def apart(conversion: ByStrategy, readings: Sequence[Reading]) -> None:
    """Metrics that no replica updates are not made under the scope: there they could not be updated outside of it."""
    used = {v.node for r in readings for u in r.updates for v in u.metric}
    for script, call in conversion.program.calls():
        if any(v.kind == "metric" and v.node is call for v in script.values(call)) and call not in used:
            conversion.scope.apart.add(script.statement(call))


def elsewhere(conversion: ByStrategy, readings: Sequence[Reading]) -> None:
    """A metric that replicas update can be read and reset outside of the step, but not updated."""
    used = {v.node for r in readings for u in r.updates for v in u.metric}
    inside = {n for r in readings for f in r.visited for n in ast.walk(f)}
    for script, call in conversion.program.calls():
        func = call.func
        method = isinstance(func, ast.Attribute) and func.attr == "update_state"
        values = script.values(func.value if method and isinstance(func, ast.Attribute) else func)
        if call not in inside and any(v.kind == "metric" and v.node in used for v in values):
            reason = f"`{script.text(func)}` is updated here too, outside of the steps that replicas run"
            conversion.refuse(script, call, reason, "give the evaluation a metric of its own, or a step function")


def whole_sizes(conversion: ByStrategy, reading: Reading, sizes: Iterable[str]) -> None:
    """A step that names the size of the batch means the whole one: `[start] * BATCH_SIZE`."""
    wanted = set(sizes)
    drawn = {n for _, size in reading.drawn for n in ast.walk(size)}
    for function in reading.visited:
        owner = conversion.script.project.owner(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load) or node in drawn:
                continue
            parent = owner.parents.get(node)
            divides = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div) and parent.right is node
            if ast.unparse(node) in wanted and not divides:
                reason = f"`{owner.text(node)}` is the size of the whole batch, of which a replica has a part"
                conversion.refuse(owner, node, reason, "ask a tensor for its size: `tf.shape(x)[0]`")


# -- what is returned ------------------------------------------------------------------------------------------


def _returned(
    conversion: ByStrategy, script: Script, function: ast.FunctionDef, reading: Reading, share: Share
) -> None:
    from rewriter.distribution.portions import Frame

    found = script.returns(function)
    shapes = {type(r) if isinstance(r, ast.Tuple | ast.List | ast.Dict) else ast.expr for r in found}
    if len(shapes) > 1:
        conversion.refuse(script, function, "it returns several kinds of things")
        return
    frame = Frame(Reading(), script, function, dict(reading.frames[function]))
    frame.block(function.body)
    for expr, portion in frame.returned:
        if isinstance(expr, ast.Tuple | ast.List):
            parts = list(zip(expr.elts, portion.items, strict=True))
        elif isinstance(expr, ast.Dict):
            parts = [(v, frame(v)) for v in expr.values]
        else:
            parts = [(expr, portion)]
        for part, of in parts:
            _one(conversion, script, part, of, share)


def _one(conversion: ByStrategy, script: Script, expr: ast.expr, portion: Portion, share: Share) -> None:
    if portion.items and portion.kind != "other":
        conversion.refuse(script, expr, f"`{script.text(expr)}`, which the step returns, is several things")
    elif portion.kind == "mean" or (portion.kind == "free" and _is_tensor(script, expr)):
        conversion.wrap(expr, _part(script, expr, share(script, expr)))
    elif portion.kind not in ("sum", "size"):
        why = portion.why or _RETURNED.get(portion.kind, "it is not of the batch")
        conversion.refuse(script, expr, f"`{script.text(expr)}`, which the step returns, cannot be added up: {why}")


def _is_tensor(script: Script, expr: ast.expr) -> bool:
    """Something computed from weights alone, such as their regularization: a part of it is as good as one of a mean."""
    return all(v.kind == "tensor" and not v.name.endswith("Variable") for v in script.values(expr))


_RETURNED = {
    "each": "it has something for every sample",
    "drawn": "it has something for every random row",
    "either": _WHY["either"],
    "gradients": "gradients are of one replica",
    "free": "it is the same on every replica",
}


# -- objects that the step uses --------------------------------------------------------------------------------


def _losses(conversion: ByStrategy, reading: Reading) -> None:
    """Losses of Keras make no mean under a strategy (Keras 2), or divide it by the replicas (Keras 3)."""
    for value in dict.fromkeys(v for _, _, v in reading.losses):
        owner, made = value.script, value.node
        assert owner is not None and isinstance(made, ast.Call)
        conversion.add(SetKeyword(made, "reduction", '"none"'))
        if len(made.args) > 1 and "reduction" not in {k.arg for k in made.keywords}:
            conversion.refuse(owner, made, "arguments of a loss are given by position, maybe its reduction")
        for script, use in owner.flow(made):
            parent = script.parents.get(use)
            if isinstance(parent, ast.Call) and parent.func is use:
                conversion.wrap(parent, "{tensorflow.reduce_mean}(...)")
            elif isinstance(parent, ast.Call | ast.keyword | ast.Attribute) and not any(script.successors(use, ())):
                shown = script.text(use)
                conversion.refuse(
                    script, use, f"`{shown}` is passed on: it no longer takes the mean ({owner.at(made)})"
                )


def _optimizers(conversion: ByStrategy, reading: Reading) -> None:
    for script, update in reading.applied:
        assert isinstance(update.func, ast.Attribute)
        for value in script.values(update.func.value):
            if value.kind != "optimizer" or value.cls is not None or not isinstance(value.node, ast.Call):
                reason = f"whether `{script.text(update.func)}` is of an optimizer of Keras is not known"
                conversion.refuse(script, update, reason)
                continue
            if value.name.startswith(("tensorflow.train.", "tensorflow.compat.v1.")):
                conversion.refuse(script, update, f"`{value.name}` is an optimizer of TensorFlow 1")
            if value.name.endswith("LossScaleOptimizer"):
                conversion.refuse(script, update, "losses are scaled: whether that fits several replicas is not proven")
            owner = value.script
            assert owner is not None
            for keyword in value.node.keywords:
                if keyword.arg is None or (
                    keyword.arg in ("clipnorm", "clipvalue", "global_clipnorm") and not owner.is_none(keyword.value)
                ):
                    reason = f"`{keyword.arg or '**'}` clips the gradients of one replica before they are summed"
                    conversion.refuse(owner, keyword.value, reason, "clip by hand, what the replicas' sum is")
        extra = [k.arg for k in update.keywords if k.arg not in ("name", "grads_and_vars", "tape", "var_list", "loss")]
        if extra:
            conversion.refuse(script, update, f"what `{extra[0]}` means for several replicas is not known")


def _assigned(conversion: ByStrategy, reading: Reading) -> None:
    """Variables that the script changes itself add up what all replicas subtract."""
    for script, call in reading.assigned:
        assert isinstance(call.func, ast.Attribute)
        found = list(script.values(call.func.value))
        if any(v.name != "tensorflow.Variable" for v in found):  # `for w, g in zip(variables, gradients):`
            found = [v for t in reading.targets for v in _single(t.script, t.gradient)]
        if not found or any(v.name != "tensorflow.Variable" or not isinstance(v.node, ast.Call) for v in found):
            reason = f"which variable `{script.text(call.func)}` changes, on every replica for itself, is not seen"
            conversion.refuse(script, call, reason, "apply the gradients with an optimizer")
            continue
        for made in [v.node for v in found if isinstance(v.node, ast.Call)]:
            owner = conversion.script.project.owner(made)
            conversion.scope.hold(owner, made)
            if owner.argument(made, "aggregation") is None and not any(k.arg is None for k in made.keywords):
                conversion.add(SetKeyword(made, "aggregation", "{tensorflow.VariableAggregation.SUM}"))
            else:
                conversion.refuse(owner, made, "how this variable adds up what replicas assign is given already")


def _single(script: Script, gradient: ast.Call) -> list[Value]:
    """The variables that a gradient is taken of, if they are listed."""
    sources = script.bind(gradient, ("target", "sources")).get("sources")
    found = variables_of(script, sources) if sources is not None else Unseen()
    if isinstance(found, Unseen) or found.models or found.mappings:
        return []
    return [v for owner, expr in found.single for v in owner.values(expr)]


def _statistics(conversion: ByStrategy, reading: Reading) -> None:
    """Batch normalization takes its statistics over the whole batch, as before."""
    target = conversion.target
    normalizes = [m for m in reading.models if "BatchNormalization" in structure(m).layer_names()]
    hidden = [m for m in reading.models if any("applications" in v.name for v in [m, *structure(m).models])]
    for model in hidden:
        conversion.refuse(
            model.script or conversion.script,
            model.node or conversion.script.tree,
            "layers of this model may take statistics of the batch, which would be of one replica's part",
        )
    if not normalizes:
        return
    for script, call in conversion.program.calls():
        if not script.called(call).endswith("layers.BatchNormalization"):
            continue
        if not (target.keras == 3 or target.since(2, 12)):
            reason = f"it takes statistics of one replica's part of the batch, in {target}"
            conversion.refuse(script, call, reason, "--target tf2.12 or later has `synchronized=True`")
        elif script.argument(call, "synchronized") is None:
            conversion.add(SetKeyword(call, "synchronized", "True"))
            conversion.note("`synchronized=True`: batch normalization takes its statistics over all replicas' parts")
