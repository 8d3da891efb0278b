"""`map-vectorization`: map whole batches instead of one element after the other."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from codemods.parallel_map import _only_arranges
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.chains import before, reorder
from rewriter.data.elements import element_of, is_even
from rewriter.data.elementwise import Found, elementwise
from rewriter.edits import Edit
from rewriter.script import Script
from rewriter.values import apart_from_loops

#: Stages that may stand between: they choose or order elements by their place.
_BY_PLACE = frozenset({"shuffle", "repeat", "take", "skip"})
#: What makes ragged tensors.
_RAGGED = ("ragged", "RaggedTensor", "RaggedTensorSpec", "RaggedFeature", "ragged_batch", "dense_to_ragged_batch")


@codemod(level=1, phase="input")
def map_vectorization(script: Script) -> Iterator[Finding]:
    """Batch before `map`, so that one call prepares a whole batch.

    Why: calling the mapped function costs more than a cast or a table look-up that it does. On a batch it is
    called once for all elements, with vector instructions. A `shuffle`, `repeat`, `take` or `skip` between the
    two stays before the batch.

    Not applied: the function is not proven to give bit for bit the same on a batch. It may hold casts, arithmetic
    with numbers, comparisons, `one_hot`, string operations, static look-up tables, lookup layers, `Rescaling`, and
    `TextVectorization` of single strings with a fixed length. `parse_single_example` becomes `parse_example`,
    where nothing else uses the function. Decoding and resizing images, shapes, sums, functions like `tf.exp`,
    random numbers and Python code are left as they are,
    and so is what may be ragged.

    Before:
        import tensorflow as tf
        def prepare(image, label):
            return tf.cast(image, tf.float32) / 255.0, tf.one_hot(label, 10)
        ds = tf.data.Dataset.from_tensor_slices((images, labels))
        ds = ds.shuffle(1000).map(prepare).batch(32)

    After:
        import tensorflow as tf
        def prepare(image, label):
            return tf.cast(image, tf.float32) / 255.0, tf.one_hot(label, 10)
        ds = tf.data.Dataset.from_tensor_slices((images, labels))
        ds = ds.shuffle(1000).batch(32).map(prepare)
    """
    for batch in script.dataset_calls("batch"):
        finding = _for(script, batch)
        if finding is not None:
            yield finding


def _for(script: Script, batch: ast.Call) -> Finding | None:
    chain: list[ast.Call] = []
    maps: list[ast.Call] = []
    edits: list[Edit] = []
    refused: Found | None = None
    work = False
    for call in before(script, batch):
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr == "map":
            found, function = _proof(script, call)
            if function is None or found.reason:
                refused = found
                break
            work = work or not _only_arranges(script, function)
            maps.append(call)
            edits += found.edits
        elif call.func.attr not in _BY_PLACE:
            break
        chain.append(call)
    while chain and chain[-1] not in maps:
        chain.pop()
    if not work:
        if maps or refused is None or refused.plain or not refused.reason:
            return None
        return Refusal(batch, f"the mapped function is not the same on a batch: {refused.reason}")
    calls = [*reversed(chain), batch]
    mapped = [i for i, c in enumerate(calls) if c in maps]
    order = [*(i for i in range(len(calls)) if i not in mapped), *mapped]
    moved = reorder(script, calls, order)
    if isinstance(moved, str):
        return Refusal(
            batch, f"`map` and `batch` cannot change places: {moved}", "put `.batch()` before `.map()` by hand"
        )
    return Fix(batch, "whole batches are mapped, not single elements", [*moved, *edits])


def _proof(script: Script, call: ast.Call) -> tuple[Found, ast.expr | None]:
    function = script.bind(call, "Dataset.map").get("map_func")
    base = apart_from_loops(script.values(call.func.value)) if isinstance(call.func, ast.Attribute) else ()
    if function is None or len(base) != 1 or base[0].kind != "dataset":
        return Found("how the dataset is made is not seen", call, True), None
    even = is_even(base[0])
    found = elementwise(script, function, element_of(base[0]), even)
    if not found.reason and not even and (at := _ragged(script)):
        found = Found(f"ragged tensors are used ({at}), of which `batch` makes another kind of tensor", call)
    return found, function


def _ragged(script: Script) -> str:
    """Where the program makes ragged tensors, "" if nowhere."""
    return next((s.at(m) for s in script.project.scripts.values() for n in _RAGGED for m in s.mentions(n)), "")
