"""The one `tf.data` pipeline that the graph of a TensorFlow 1 program trains on."""

from __future__ import annotations

import ast

from ..data.pipelines import routes, stages
from ..script import Script
from ..values import Value
from .program import Program
from .sources import _BEFORE, Place, Split, _for_ever, _steady

_ITERATORS = ("make_one_shot_iterator", "make_initializable_iterator")


def pipeline_of(program: Program) -> Place | tuple[ast.AST | None, str, str]:
    """Where it is split: at its source; or what stands against it, why, and what to do by hand."""
    found: list[tuple[Script, ast.Call, ast.expr]] = []
    for script, call in program.calls():
        name = script.called(call)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _ITERATORS:
            by_name = name.startswith("tensorflow.") and call.args
            found.append((script, call, call.args[0] if by_name else call.func.value))
        elif name.endswith(("Iterator.from_structure", "Iterator.from_string_handle")):
            return call, f"`{script.text(call.func)}` may give other data than that of training", ""
    if not found:
        return None, "what it trains on is not fed, and no pipeline of `tf.data` is seen", ""
    if len(found) > 1:
        return found[1][1], "several pipelines are read: which of them training sees is not known", ""
    script, call, source = found[0]
    values = script.values(source)
    if len(values) != 1 or values[0].kind != "dataset":
        return source, f"what `{script.text(source)}` is is not known", ""
    return _at_its_source(script, call, values[0])


def _at_its_source(script: Script, call: ast.Call, value: Value) -> Place | tuple[ast.AST | None, str, str]:
    chain = stages(value)
    first = chain[0]
    split = Split()
    if not any(s.name == "repeat" and _for_ever(s) for s in chain):
        reason = "the pipeline may end on one rank before the others"
        return call, reason, "let it `repeat()`, and count the steps"
    if any(s.name in _BEFORE or s.name in ("from_generator", "interleave", "flat_map", "filter") for s in chain):
        return call, "elements of the pipeline are counted, or made, before they could be split", ""
    if first.script is None or not isinstance(first.node, ast.Call) or first.script is not script:
        return call, "where the pipeline starts is not seen", ""
    if first.name.rpartition(".")[2] not in ("from_tensor_slices", "TFRecordDataset", "range", "TextLineDataset"):
        return call, f"`{first.name}` cannot be split at its source", ""
    if (problem := _steady(chain[:1], split)) is not None:
        return problem.node, problem.reason, problem.hint
    ends = {route.end.call for route in routes(first.script, first.node)}
    if len(ends) > 1:
        return first.node, "the training data is read by something else too", ""
    return Place(first.script, first.node, first, sized=False)
