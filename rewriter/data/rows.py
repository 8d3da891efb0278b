"""Batches that are gathered from arrays by the numbers of their rows, as `codemods/gather_batches.py` writes them.

arrays = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
ds = tf.data.Dataset.range(len(x)).shuffle(1000).batch(32)
ds = ds.map(lambda i: tf.nest.map_structure(lambda a: tf.gather(a, i), arrays))

gathered(stage)            # the script and the expression `(x, y)`, for the stage `map`; None for any other stage
"""

from __future__ import annotations

import ast

from ..script import Script
from ..values import Value

_MAP, _GATHER, _CONVERT = "tensorflow.nest.map_structure", "tensorflow.gather", "tensorflow.convert_to_tensor"


def gathered(stage: Value) -> tuple[Script, ast.expr] | None:
    """The arrays, as they were before they became tensors, whose rows a `map` puts together to batches."""
    script, call = stage.script, stage.node
    if script is None or stage.name != "map" or not isinstance(call, ast.Call):
        return None
    match script.bind(call, "Dataset.map").get("map_func"):
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=rows)]), body=ast.Call(args=[*_, arrays]) as body):
            pass
        case _:
            return None
    name = script.called(body)
    match body.args:
        case [ast.Name() as arrays, ast.Name(id=by)] if name == _GATHER and by == rows:
            return _converted(script, arrays)
        case [ast.Lambda(body=ast.Call(args=[_, ast.Name(id=by)]) as inner), ast.Name() as arrays] if (
            name == _MAP and by == rows and script.called(inner) == _GATHER
        ):
            return _converted(script, arrays)
    return None


def _converted(script: Script, arrays: ast.Name) -> tuple[Script, ast.expr] | None:
    bindings = script.names.reaching(arrays)
    made = bindings[0].value if len(bindings) == 1 and not bindings[0].path else None
    if not isinstance(made, ast.Call):
        return None
    name = script.called(made)
    match made.args:
        case [given] if name == _CONVERT:
            return script, given
        case [function, given] if name == _MAP and script.symbol(function) == _CONVERT:
            return script, given
    return None
