"""Layers, models and metrics of the project that would compute otherwise with a part of the batch.

A layer that takes statistics of the batch would take those of one replica's part; one that draws random rows of a
fixed number fails there; a loss that it adds has to be a mean; and what it keeps has to say how it is put together.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.distribution.portions import EACH, FREE, Frame, Portion, Reading
from rewriter.script import Script
from rewriter.values import default_of

from .strategies import ByStrategy

#: Methods of a model that give its loss, divided by the number of replicas, or run its steps.
_OWN_LOSS = "the loss of this model is its own: Keras does not divide it by the replicas, whose gradients it sums"
_OF_KERAS = {
    "compute_loss": _OWN_LOSS,
    "compiled_loss": _OWN_LOSS,
    "make_train_function": "this model makes the function that trains it: whether every replica runs it is not known",
}
_HINT = "let every sample be computed for itself"


def samples_apart(conversion: ByStrategy) -> None:
    """Refuse where a layer computes with several samples together."""
    for script, cls in classes(conversion, "layer", "model"):
        if (method := script.method(cls, "call")) is not None and method[1] in cls.body:
            _read(conversion, *method, offset=1)
    for script, call in conversion.program.calls():
        if isinstance(call.func, ast.Attribute) and call.func.attr == "add_loss":
            _added(conversion, script, call)
        if (regularizer := script.argument(call, "activity_regularizer")) is not None:
            _regularizes(conversion, script, regularizer)
        if not script.called(call).endswith("layers.Lambda"):
            continue
        function = script.bind(call, ("function",)).get("function")
        for value in script.values(function) if function is not None else ():
            if value.script is not None and isinstance(value.node, ast.FunctionDef | ast.Lambda):
                _read(conversion, value.script, value.node, offset=0)


def _added(conversion: ByStrategy, script: Script, call: ast.Call) -> None:
    """`model.add_loss(...)`, of what layers give; those of layers themselves are read with their `call`."""
    function = script.function_of(call)
    if isinstance(script.parents.get(function) if function is not None else None, ast.ClassDef):
        return
    reading = Reading(watched={call: []})
    frame = Frame(reading, script, function, {})
    frame.lenient = True
    frame.block(function.body if isinstance(function, ast.FunctionDef) else script.tree.body)
    for found in reading.watched[call]:
        if found.kind not in ("mean", "free"):
            reason = f"`{script.text(call)}` adds a loss that is no mean over the batch"
            conversion.refuse(script, call, f"{reason}: {found.why}" if found.why else reason)


def _regularizes(conversion: ByStrategy, script: Script, regularizer: ast.expr) -> None:
    """What Keras divides by the size of the batch has to be a sum over it."""
    for value in script.values(regularizer):
        owner, node, offset = value.script, value.node, 0
        if value.cls is not None and value.cls.script is not None and isinstance(value.cls.node, ast.ClassDef):
            owner, node = value.cls.script.method(value.cls.node, "__call__") or (None, None)
            offset = 1
        if owner is None or not isinstance(node, ast.FunctionDef | ast.Lambda):
            continue
        names = [a.arg for a in node.args.args]
        result = Reading().function(owner, node, {n: EACH if i == offset else FREE for i, n in enumerate(names)})
        if result.kind not in ("sum", "free"):
            why = f": {result.why}" if result.why else ""
            reason = f"`{script.text(regularizer)}` is divided by the size of a part of the batch, and is no sum{why}"
            conversion.refuse(script, regularizer, reason, _HINT)


def of_keras(conversion: ByStrategy) -> None:
    """Models leave to Keras what it does otherwise under a strategy; metrics add up what the replicas give them."""
    for script, cls in classes(conversion, "model"):
        for name, reason in _OF_KERAS.items():
            if (method := script.method(cls, name)) is not None and method[1] in cls.body:
                conversion.refuse(script, method[1], reason, "give `compile` the loss" if "loss" in name else "")
    for script, cls in classes(conversion, "optimizer"):
        for name in ("apply_gradients", "minimize", "apply", "_compute_gradients", "compute_gradients"):
            if (method := script.method(cls, name)) is not None and method[1] in cls.body:
                reason = f"`{cls.name}` gets the gradients of one replica here, before they are added up"
                conversion.refuse(script, method[1], reason, "change them in `update_step`")
    for cls, script, update in _metrics(conversion):
        for call in [n for n in ast.walk(update) if isinstance(n, ast.Call)]:
            func = call.func
            if isinstance(func, ast.Attribute) and func.attr == "assign" and not _adds(func.value, call):
                reason = f"`{cls.name}` keeps what is no sum, and what the GPUs have of it is added up"
                conversion.refuse(script, call, reason, "use `assign_add`")


def embeddings(conversion: ByStrategy) -> None:
    """Keras 3 adds up the rows of an embedding's gradient that replicas share only after it has squared them."""
    if conversion.target.keras == 2 or all(_is_linear(name) for name in _optimizers(conversion)):
        return
    for script, call in conversion.program.calls():
        if script.called(call).endswith("layers.Embedding"):
            reason = "an optimizer of Keras 3 squares what each GPU has of the gradients of an embedding, not their sum"
            conversion.refuse(script, call, reason, "train with SGD, or with Keras 2: --target tf2.15")


def _is_linear(name: str) -> bool:
    return name.rpartition(".")[2].lower() == "sgd"


def _optimizers(conversion: ByStrategy) -> Iterator[str]:
    """What optimizers are called that the program makes, or names in `compile`."""
    for script, call in conversion.program.calls():
        if any(v.kind == "optimizer" and v.node is call for v in script.values(call)):
            yield script.called(call)
    for training in conversion.program.trainings:
        site = training.compile
        given = site.arguments.get("optimizer")
        if given is None:
            yield "rmsprop"
        for value in site.script.values(given) if given is not None else ():
            if value.kind != "optimizer":
                yield value.literal if isinstance(value.literal, str) else "unknown"


def classes(conversion: ByStrategy, *kinds: str) -> Iterator[tuple[Script, ast.ClassDef]]:
    """The classes of the program that are layers, models or optimizers."""
    for script in conversion.program.scripts:
        for cls in script.all(ast.ClassDef):
            if cls in conversion.program.reach.defined and script.kind_of_class(cls) in kinds:
                yield script, cls


def _metrics(conversion: ByStrategy) -> Iterator[tuple[ast.ClassDef, Script, ast.FunctionDef]]:
    """Metrics of the program, with what updates them."""
    for script in conversion.program.scripts:
        for cls in script.all(ast.ClassDef):
            update = script.method(cls, "update_state") if cls in conversion.program.reach.defined else None
            if update is not None and any(".metrics." in base for base in script.library_bases(cls)):
                yield cls, *update


def _adds(variable: ast.expr, call: ast.Call) -> bool:
    """`total.assign(total + x)`."""
    given = call.args[0] if call.args else None
    if not isinstance(given, ast.BinOp) or not isinstance(given.op, ast.Add):
        return False
    return ast.dump(variable) in (ast.dump(given.left), ast.dump(given.right))


def _read(conversion: ByStrategy, script: Script, function: ast.FunctionDef | ast.Lambda, *, offset: int) -> None:
    reading = Reading()
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    given = {n: FREE if i < offset else _given(function, n) for i, n in enumerate(names)}
    result = reading.function(script, function, given, lenient=True)
    for owner, node, why in reading.problems:
        conversion.refuse(owner, node, why)
    if result.kind in ("other", "mean", "sum") and not reading.problems:
        why = result.why or "it gives one number for all samples of a batch"
        conversion.refuse(script, function, f"a layer gets a part of the batch: {why}", _HINT)


def _given(function: ast.FunctionDef | ast.Lambda, name: str) -> Portion:
    """Inputs and masks have a row for every sample; settings have not."""
    default = default_of(function, name) if isinstance(function, ast.FunctionDef) else None
    setting = isinstance(default, ast.Constant) and default.value is not None
    return FREE if name in ("training", "is_training", "train") or setting else EACH
