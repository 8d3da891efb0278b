"""Batches that are smaller than the others, of which a replica may get nothing, and losses that depend on that.

A mean over nothing is not a number. Keras's own losses know that, and weight what a replica lacks; a mean that the
script takes itself does not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.data.pipelines import role, routes, stages
from rewriter.distribution.portions import EACH, Portion, Reading, other
from rewriter.edits import SetKeyword
from rewriter.models import structure
from rewriter.script import Script
from rewriter.training import ENDLESS, Run, Training, elements_of
from rewriter.values import Value

from .strategies import ByStrategy
from .strategy_models import classes

_BATCHES = ("batch", "padded_batch")
_NORMALIZES = ("BatchNormalization", "SyncBatchNormalization")


def check(conversion: ByStrategy, training: Training) -> None:
    """Losses are means over the whole batch, as before, and every replica has a part of every batch that needs one."""
    alone = list(_own_means(conversion, training))
    for script, node, shown in alone:
        if conversion.target.keras != 2:
            reason = f"`{shown}` is one number for a batch: Keras 3 adds up those of the replicas"
            conversion.refuse(script, node, reason, "let it return the loss of every sample")
    why = f"`{alone[0][2]}` takes a mean itself" if alone else _means_in_models(conversion, training)
    _normalization(conversion, training)
    hidden = _hidden_normalization(conversion, training)
    for run in {r.site.call: r for r in training.fits}.values():
        for name in ("sample_weight", "class_weight") if alone else ():
            weights = run.site.arguments.get(name)
            if weights is not None and not run.site.script.is_none(weights):
                reason = f"`{alone[0][2]}` takes a mean itself, which `{name}` weights on every GPU by itself"
                conversion.refuse(run.site.script, weights, reason, "let it return the loss of every sample")
        if not even(run):
            if why or hidden:
                _drop_rest(conversion, run, why or hidden)
            else:
                conversion.note(
                    "a last batch that is smaller than the others counts less, where a GPU gets no part of it"
                )
        if conversion.target.keras != 2 and run.data == "generator":
            _generator(conversion, run)
    for test in training.tests if why else ():
        if test.purpose in ("evaluate", "validation") and not even(test):
            reason = f"{why}, of nothing where a GPU has no part of the last batch of the {test.purpose}"
            conversion.refuse(test.site.script, test.site.call, reason, "let it return the loss of every sample")
    if alone:
        conversion.note(f"`{alone[0][2]}` is computed on the part of every GPU, and then averaged")


def fixed_sizes(conversion: ByStrategy) -> None:
    """Layers that know the size of the batch, or keep something for its samples, cannot be given parts of it."""
    for script, call in conversion.program.calls():
        if not any(v.node is call and (v.kind in ("layer", "model", "tensor")) for v in script.values(call)):
            continue
        for keyword in call.keywords:
            value = keyword.value
            shape = value.elts[0] if isinstance(value, ast.Tuple | ast.List) and value.elts else value
            sized = keyword.arg in ("batch_input_shape", "batch_shape") and not script.is_none(shape)
            sized |= (
                keyword.arg == "batch_size" and script.called(call).endswith(".Input") and not script.is_none(value)
            )
            if sized or (keyword.arg == "stateful" and script.constant(value) is not False):
                reason = f"`{keyword.arg}` fixes the size of a batch, of which every GPU has a part"
                conversion.refuse(script, value, reason, "leave the size open: None")


# -- losses --------------------------------------------------------------------------------------------------


def _own_means(conversion: ByStrategy, training: Training) -> Iterator[tuple[Script, ast.AST, str]]:
    """Losses that give, or may give, one number for all samples that they see."""
    site = training.compile
    loss = site.arguments.get("loss")
    for script, expr in _single(site.script, loss) if loss is not None else ():
        for value in script.values(expr):
            if value.kind == "constant":
                continue
            if value.kind == "loss" and value.cls is None:
                yield from _reduction(conversion, script, value)
            elif value.keras.startswith("losses.") and (
                value.kind in ("symbol", "class") or value.keras == "losses.get"
            ):
                continue
            elif (found := _of_samples(value)).kind not in ("each", "either"):
                shown = script.text(expr)
                if found.kind != "mean":
                    why = found.why or "it is a sum over the batch"
                    reason = f"`{shown}` is averaged over the GPUs, each with a part of the batch: {why}"
                    conversion.refuse(script, expr, reason, "let it return the loss of every sample")
                yield script, expr, shown


def _single(script: Script, expr: ast.expr, depth: int = 0) -> Iterator[tuple[Script, ast.expr]]:
    """The losses in a list or dict of some."""
    if isinstance(expr, ast.List | ast.Tuple) and depth < 4:
        for element in expr.elts:
            yield from _single(script, element, depth + 1)
    elif isinstance(expr, ast.Dict) and depth < 4:
        for element in expr.values:
            yield from _single(script, element, depth + 1)
    elif isinstance(expr, ast.Name) and depth < 4:
        parts = [b.part for b in script.names.reaching(expr)]
        if any(isinstance(p, ast.List | ast.Tuple | ast.Dict) for p in parts):
            for part in parts:
                if part is not None:
                    yield from _single(script, part, depth + 1)
        else:
            yield script, expr
    else:
        yield script, expr


def _reduction(conversion: ByStrategy, script: Script, loss: Value) -> Iterator[tuple[Script, ast.AST, str]]:
    if loss.script is None or not isinstance(loss.node, ast.Call):
        return
    given = loss.script.argument(loss.node, "reduction")
    if given is not None and not ast.unparse(given).lower().strip("'\"").endswith(
        ("sum_over_batch_size", "auto", "sum")
    ):
        conversion.refuse(loss.script, given, "this reduction of a loss is not one mean or sum over the batch")
    yield from ()


def _of_samples(loss: Value) -> Portion:
    """What a loss of the project gives for samples: a number for each, `K.mean(..., axis=-1)`, or their mean."""
    unknown = other("what it computes is not known")
    script, node = loss.script, loss.node
    if loss.cls is not None and loss.cls.script is not None and isinstance(loss.cls.node, ast.ClassDef):
        found = loss.cls.script.method(loss.cls.node, "call")
        if found is None:
            return unknown
        script, node = found
    if script is None or not isinstance(node, ast.FunctionDef | ast.Lambda):
        return unknown
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    names = names[1:] if loss.kind == "method" or loss.cls is not None else names
    if len(names) < 2:
        return unknown
    reading = Reading()
    result = reading.function(script, node, dict.fromkeys(names[:2], EACH))
    # "either": a mean over the last axis, which is not that of the samples in what Keras gives to a loss
    if reading.losses:
        at = reading.losses[0][0].at(reading.losses[0][1])
        return other(f"the mean of a loss of Keras ({at}) is another one under a strategy")
    return other(reading.problems[0][2]) if reading.problems else unknown if result.items else result


def _means_in_models(conversion: ByStrategy, training: Training) -> str:
    """Why a part of no samples would spoil the loss, besides the loss itself."""
    for _, cls in classes(conversion, "layer", "model"):
        for node in ast.walk(cls):
            if isinstance(node, ast.Attribute) and node.attr == "add_loss":
                return f"`{cls.name}` adds a loss of its own"
    for script, call in conversion.program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_loss":
            return f"`{script.text(call.func)}` adds a mean"
    return ""


# -- batch normalization -------------------------------------------------------------------------------------


def _normalization(conversion: ByStrategy, training: Training) -> None:
    """Batch normalization takes its statistics over the whole batch, as before, where Keras can."""
    target = conversion.target
    for script, call in conversion.program.calls():
        if not script.called(call).endswith(".BatchNormalization"):
            continue
        if not (target.keras == 3 or target.since(2, 12)):
            conversion.note("batch normalization takes its statistics over the part of the batch that a GPU has")
        elif script.argument(call, "synchronized") is None and not any(k.arg is None for k in call.keywords):
            conversion.add(SetKeyword(call, "synchronized", "True"))
            conversion.note(
                "`synchronized=True`: batch normalization takes its statistics over the whole batch, as before"
            )


def _hidden_normalization(conversion: ByStrategy, training: Training) -> str:
    """Layers of a library's model that normalize over the part of a replica: in Keras 3 also over none."""
    for model in training.models:
        for inner in [model, *structure(model).models]:
            if "applications." in inner.name:
                shown = f"`{inner.name.rpartition('.')[2]}`"
                conversion.note(
                    f"{shown} may hold batch normalization, which looks at the part of the batch on each GPU"
                )
                if conversion.target.keras != 2:
                    return f"{shown} may normalize over a part without samples"
    return ""


# -- smaller batches -----------------------------------------------------------------------------------------


def even(run: Run) -> bool:
    """Whether all batches of a run surely have the same size."""
    if run.data == "arrays":
        return run.steps.number is not None and not run.steps.rest
    if run.data != "dataset" or run.source is None:
        return False
    values = [v for v in run.site.script.values(run.source) if not (v.kind == "constant" and v.literal is None)]
    return bool(values) and all(_is_even(v) for v in values)


def _is_even(dataset: Value) -> bool:
    chain = stages(dataset)
    last = next((s for s in reversed(chain) if s.name in (*_BATCHES, "unbatch", "concatenate", "flat_map")), None)
    if last is None or last.name not in _BATCHES or last.script is None or not isinstance(last.node, ast.Call):
        return False
    arguments = last.script.bind(last.node, f"Dataset.{last.name}")
    if last.script.constant(arguments.get("drop_remainder")) is True:
        return True
    size = last.script.integer(arguments.get("batch_size"))
    number = elements_of(last.base).number if last.base is not None else None
    return number == ENDLESS or (number is not None and size is not None and number % size == 0)


def _drop_rest(conversion: ByStrategy, run: Run, why: str) -> None:
    """Leave out a last batch that is smaller."""
    script = run.site.script
    reason = f"{why}, where a GPU has no part of a last batch that is smaller"
    hint = "train on a dataset without one: `.batch(n, drop_remainder=True)`"
    if run.data != "dataset" or run.source is None:
        conversion.refuse(script, run.site.call, reason, hint)
        return
    for value in script.values(run.source):
        if value.kind == "constant" or _is_even(value):
            continue
        stage = (
            next((s for s in reversed(stages(value)) if s.name in _BATCHES), None) if value.kind == "dataset" else None
        )
        if stage is None or stage.script is None or not isinstance(stage.node, ast.Call):
            conversion.refuse(script, run.site.call, reason, hint)
            return
        owner, call = stage.script, stage.node
        given = owner.bind(call, f"Dataset.{stage.name}").may_have("drop_remainder")
        if given or any(role(r.end) not in (None, "training") for r in routes(owner, call)):
            conversion.refuse(owner, call, reason, hint)
            return
        conversion.add(SetKeyword(call, "drop_remainder", "True"))
        conversion.note(f"a last batch that is smaller is left out: {why}")


def _generator(conversion: ByStrategy, run: Run) -> None:
    """Keras 3 takes a batch or two from a generator before it trains, which one that ends would lack."""
    script = run.site.script
    if run.source is None or not all(_is_endless(v) for v in script.values(run.source)):
        conversion.refuse(
            script,
            run.site.call,
            "Keras 3 takes batches of a generator before it trains, which are lost",
            "make a dataset of it: `tf.data.Dataset.from_generator`",
        )


def _is_endless(generator: Value) -> bool:
    """Whether it yields for ever."""
    function = generator.base.node if generator.base is not None else None
    return function is not None and any(
        isinstance(n, ast.While) and isinstance(n.test, ast.Constant) and n.test.value for n in ast.walk(function)
    )
