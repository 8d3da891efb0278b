"""`lamb` for graphs: `tf.train.AdamOptimizer` → the LAMB class of `codemods/snippets/lamb_tf1.py`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from rewriter.codemod import Finding, Fix, Refusal
from rewriter.data.pipelines import consumers, related, role
from rewriter.edits import Edit, Replace
from rewriter.graphs.graph_mode import Optimizer, builds_graphs, optimizers, restores, starts, v1
from rewriter.script import Script
from rewriter.values import Value

ADAM = "tensorflow.train.AdamOptimizer"
_MESSAGE = (
    "LAMB takes larger batches than Adam; tune its learning rate and warm-up anew before you rely on it; checkpoints "
    "of earlier runs hold Adam's state and cannot be continued"
)

#: Puts the class into a file: which file, the calls that need it, how TensorFlow is spelled → its name and the edits.
Define = Callable[[Script, list[ast.Call], str], tuple[str, list[Edit]]]


def graph_lamb(
    script: Script, smallest: int, size_of: Callable[[Value], int | None], define: Define
) -> Iterator[Finding]:
    """LAMB instead of the Adam of TensorFlow 1, where every training batch is known to be large."""
    made = [o for o in optimizers(script) if o.name == ADAM and (o.uses or o.unseen)]
    if not made or not builds_graphs(script) or not any(starts(member) for member in related(script)):
        return
    reason, hint = _refused(script, smallest, size_of)
    calls = [o.call for o in made]
    for one in made:
        if reason or (reason := _unsuited(one)):
            yield Refusal(one.call, reason, hint)
            return
    for one in made:
        name, definition = define(script, calls, v1(script, one.call))
        yield Fix(one.call, _MESSAGE, [*definition, Replace(one.call.func, name)])


def _unsuited(one: Optimizer) -> str:
    if one.unseen:
        return f"not all that is done with the optimizer is seen: {one.unseen}"
    if one.script.bind(one.call).open:
        return "not all of its arguments can be seen"
    return ""


def _refused(script: Script, smallest: int, size_of: Callable[[Value], int | None]) -> tuple[str, str]:
    sizes = list(_sizes(script, size_of))
    known = [size for size, _ in sizes if size is not None]
    if not sizes or len(known) < len(sizes):
        where = next((f" ({at})" for size, at in sizes if size is None), "")
        return f"the batch size{where} is not known: LAMB is for batches of {smallest} and more", ""
    if min(known) < smallest:
        return (
            f"the batch size is {min(known)}: LAMB is for batches of {smallest} and more",
            "raise the batch size first, then tune the learning rate with warm-up",
        )
    if found := restores(script):
        return (
            f"{found} restores a checkpoint: what was saved may be Adam's state",
            "train with LAMB from the start, and restore only what it has saved",
        )
    return "", ""


def _sizes(script: Script, size_of: Callable[[Value], int | None]) -> Iterator[tuple[int | None, str]]:
    """The size of every batch that the program may train on, None where it is not known, and the place."""
    for member in related(script):
        for use in consumers(member):
            if role(use) == "training":
                for value in member.values(use.node):
                    if value.kind == "dataset":
                        yield size_of(value), member.at(use.call)
        for call in member.calls:
            last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if last == "next_batch":
                yield member.integer(member.bind(call, ("batch_size",)).get("batch_size")), member.at(call)
            elif last in ("numpy_input_fn", "pandas_input_fn"):
                size = member.argument(call, "batch_size")
                yield (128 if size is None else member.integer(size)), member.at(call)
