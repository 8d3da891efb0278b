"""Models whose `train_step` is of the project, trained with `fit`: Keras's own step would average the gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter.distribution.program import Way
from rewriter.edits import Insert
from rewriter.loops.steps import is_tape, is_update, tapes_in
from rewriter.script import Script, own_nodes
from rewriter.spelling import import_anchor

from . import keras3
from .conversion import Conversion
from .tape import average, not_by_xla

_TAPE = "DistributedGradientTape"


def convert(conversion: Conversion, ways: list[Way]) -> None:
    """Average the gradients of every tape in a `train_step`; all else is done for `fit`."""
    for script, step in those_of_fit(conversion, ways):
        _step(conversion, script, step)


def those_of_fit(conversion: Conversion, ways: list[Way]) -> Iterator[tuple[Script, ast.FunctionDef]]:
    """Every `train_step`, where a `fit` of the program runs them."""
    if not any(w.kind == "fit" for w in conversion.program.ways):
        conversion.refuse(ways[0].script, ways[0].node, "no `fit` runs this `train_step`")
        return
    for way in ways:
        assert isinstance(way.node, ast.FunctionDef)
        yield way.script, way.node


def _step(conversion: Conversion, script: Script, step: ast.FunctionDef) -> None:
    not_by_xla(conversion, script, step)
    calls = [n for n in own_nodes(step) if isinstance(n, ast.Call)]
    tapes = tapes_in(script, iter(own_nodes(step)))
    minimized = {k.value.id for c in calls for k in c.keywords if k.arg == "tape" and isinstance(k.value, ast.Name)}
    updates = [c for c in calls if is_update(script, c)]
    myself = step.args.args[0].arg if step.args.args else "self"
    of_keras3 = keras3.is_target(conversion)
    for update in updates:
        assert isinstance(update.func, ast.Attribute)
        if of_keras3 and update.func.attr != "minimize":
            continue  # whatever the optimizer is, what the tape gives is averaged
        if ast.unparse(update.func.value) != f"{myself}.optimizer":
            reason = f"`{script.text(update.func)}` is not of the optimizer that `compile` is given"
            conversion.refuse(script, update, reason)
        elif update.func.attr == "minimize" and script.argument(update, "tape") is None:
            conversion.refuse(script, update, f"`{script.text(update.func)}` takes the gradients itself")
    if not updates and not any(keras3.is_step_of_keras(c) or (of_keras3 and keras3.applies(c)) for c in calls):
        conversion.refuse(script, step, "where this `train_step` applies its gradients is not seen")
    if len(tapes) != sum(is_tape(script, c) for c in calls):
        conversion.refuse(script, step, "a tape is not opened by a `with`")
    for tape in tapes:
        if tape.name in minimized and not tape.gradients:
            continue  # the distributed optimizer takes them
        if tape.name in minimized:
            conversion.refuse(script, tape.node, f"`{tape.name}` is given to `minimize`, and gradients are taken of it")
        average(conversion, script, tape, _TAPE)
    if any(isinstance(e, Insert) and f"= {_TAPE}(" in e.text and e.node in own_nodes(step) for e in conversion.edits):
        _import(conversion, script, step)


def _import(conversion: Conversion, script: Script, step: ast.FunctionDef) -> None:
    if any(_TAPE in s.bindings for s in script.names.scopes.values()):
        conversion.refuse(script, step, f"the name `{_TAPE}` is something else here")
    conversion.add(Insert(import_anchor(script, step), f"from horovod.tensorflow import {_TAPE}"))
