"""`prefetch`: prepare the next batch while the accelerator works on this one."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.pipelines import PASSING, Use, consumers, prefetched, stages, uses
from rewriter.data.purity import reseeds
from rewriter.edits import Chain
from rewriter.script import Script
from rewriter.spelling import spell_out
from rewriter.values import Value, apart_from_loops

#: Methods that only a `tf.data.Dataset` has among what can be given to `fit`.
_TELLING = frozenset({"batch", "padded_batch", "unbatch", "prefetch"})


@codemod(level=1, phase="input")
def prefetch(script: Script) -> Iterator[Finding]:
    """End training and validation datasets in `prefetch(AUTOTUNE)`.

    Why: without it the accelerator waits while the next batch is read and decoded. TensorFlow 2.11 and later
    add a prefetch of their own to every pipeline that ends without one; there the line only makes it visible,
    and is left out where it would need another import.

    The stage is put where the pipeline ends, after the last batch or repeat. Where the dataset is used for
    something else as well (`ds.class_names`, a further stage), it is put where the dataset is trained on.

    Not applied: the dataset cannot be followed to where it is made, or it already ends in a prefetch. The queues of
    TensorFlow 1 (`slice_input_producer`, `shuffle_batch`, ...) have no such stage: they are reported.

    Before:
        import tensorflow as tf
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)

    After:
        import tensorflow as tf
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(32).prefetch(tf.data.AUTOTUNE)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)
    """
    yield from _queues(script)
    branching: list[tuple[Use, list[Value], bool]] = []
    placed: set[ast.AST] = set()
    for use in consumers(script):
        values = apart_from_loops(script.values(use.node))
        datasets = [v for v in values if v.kind == "dataset" and v.node is not None]
        if not datasets:
            if any(_looks_like_dataset(v) for v in values):
                name = script.autotune.replace("tensorflow", "tf")
                why = next((f": {v.name}" for v in values if v.kind == "unknown"), "")
                yield Refusal(
                    use.node,
                    f"the dataset `{script.text(use.node)}` cannot be followed to where it is made{why}",
                    f"let it end in .prefetch({name}) by hand",
                )
            continue
        ready = [v for v in datasets if prefetched(v)]
        behind = {stage.node for v in ready for stage in stages(v)}  # the owner decides when it is prefetched
        rest = [v for v in datasets if v not in ready and v.node not in behind and not _is_counter(v)]
        alone = len(rest) == len(values)
        if len({v.node for v in rest}) > 1 and alone:
            branching.append((use, rest, alone))
            continue
        for place in _places(script, use, rest, alone):
            placed.add(place)
            yield from _fix(script, place)
    for use, rest, alone in branching:
        if any(v.node in placed for v in rest):  # a branch that ends in a prefetch for its other uses
            rest = [v for v in rest if v.node not in placed]
            places = [p for v in rest for p in _places(script, use, [v], False)]
        else:
            places = _places(script, use, rest, alone)
        for place in places:
            yield from _fix(script, place)


#: What makes input queues, and the dataset that does the same.
_QUEUES = {
    "string_input_producer": "Dataset.from_tensor_slices(files).shuffle(n).repeat()",
    "slice_input_producer": "Dataset.from_tensor_slices((inputs, labels)).shuffle(n).repeat()",
    "range_input_producer": "Dataset.range(n).shuffle(n).repeat()",
    "input_producer": "Dataset.from_tensor_slices(inputs).shuffle(n).repeat()",
    "limit_epochs": "Dataset.repeat(epochs)",
    "batch": "Dataset.map(read).batch(size)",
    "batch_join": "Dataset.interleave(read).batch(size)",
    "maybe_batch": "Dataset.map(read).batch(size)",
    "shuffle_batch": "Dataset.map(read).shuffle(n).batch(size)",
    "shuffle_batch_join": "Dataset.interleave(read).shuffle(n).batch(size)",
    "maybe_shuffle_batch": "Dataset.map(read).shuffle(n).batch(size)",
    "QueueRunner": "Dataset.from_generator(read, types)",
}


def _queues(script: Script) -> Iterator[Refusal]:
    """Input by TensorFlow 1's queues, which threads of Python keep filled: said once, where it begins."""
    for call in script.calls_to(*(f"tensorflow.train.{name}" for name in _QUEUES)):
        instead = _QUEUES[script.called(call).rpartition(".")[2]]
        yield Refusal(
            call,
            f"`{script.text(call.func)}` fills a queue from threads of Python, which is slower than tf.data",
            f"write the input as a dataset: tf.data.{instead}, then .prefetch",
        )
        return


def _fix(script: Script, place: ast.expr) -> Iterator[Fix]:
    owner = script.project.owner(place)
    edit = Chain(place, f"prefetch({{{owner.autotune}}})")
    unasked = owner.target.since(2, 11)
    if unasked and spell_out(owner, edit)[1]:
        return  # an import more for nothing
    told = " (TensorFlow 2.11 and later also do so unasked)" if unasked else reseeds(owner)
    yield Fix(place, "the next batch is prepared while this one is in use" + told, [edit])


def _places(script: Script, use: Use, datasets: list[Value], alone: bool) -> list[ast.expr]:
    """The expressions to call `prefetch` on. `alone`: what is used is one of these datasets for certain."""
    at_use = use.kind in ("fit", "validate", "evaluate") and alone
    if alone and len({v.node for v in datasets}) > 1:
        meeting = _meeting(script, use, datasets)
        if meeting is not None and _is_end(*meeting, at_use):
            return [meeting[1]]
        if at_use:
            return [use.node]
    found: list[ast.expr] = []
    for dataset in datasets:
        dataset = _without_header(use, dataset)
        owner, node = dataset.script, dataset.node
        assert owner is not None
        if isinstance(node, ast.Call) and owner.is_dataset(node) and _is_end(owner, node, at_use):
            found.append(node)
        elif alone and not (isinstance(node, ast.Call) and _goes_on_to_prefetch(owner, node)):
            found.append(use.node)
    return found


def _without_header(use: Use, dataset: Value) -> Value:
    """`for batch in ds.take(10)`: the dataset whose elements are counted off in the header of the loop."""
    header = set(ast.walk(use.call.iter)) if isinstance(use.call, ast.For) else set()
    while (
        dataset.name in PASSING
        and dataset.node in header
        and dataset.base is not None
        and dataset.base.kind == "dataset"
        and isinstance(dataset.base.node, ast.expr)
    ):
        dataset = dataset.base
    return dataset


def _meeting(script: Script, use: Use, datasets: list[Value]) -> tuple[Script, ast.expr] | None:
    """Where the branches of a function come together: the expression that it returns."""
    nodes = {v.node for v in datasets}
    for value in datasets[:1]:
        assert value.script is not None and value.node is not None
        for owner, expr in value.script.flow(value.node):
            if (
                isinstance(owner.parents.get(expr), ast.Return)
                and {v.node for v in apart_from_loops(owner.values(expr))} == nodes
                and any(u.call is use.call and u.node is use.node for u in uses(owner, expr))
            ):
                return owner, expr
    return None


def _goes_on_to_prefetch(script: Script, node: ast.expr) -> bool:
    return any(u.kind == "stage" and u.name == "prefetch" for u in uses(script, node))


def _is_end(script: Script, node: ast.expr, at_use: bool) -> bool:
    """Whether a prefetch may follow this expression: the pipeline ends there, no attribute is needed.

    `at_use`: it can be put where the dataset is used instead, which is better if further stages follow.
    """
    if _goes_on_to_prefetch(script, node):
        return False
    later = uses(script, node)
    if any(u.kind == "attribute" and u.name in catalog.DATASET_EXTRAS for u in later):
        return False
    ends = [u for u in later if u.kind in ("fit", "validate", "evaluate", "loop", "iterator", "input_fn")]
    return not (at_use and len(ends) == 1 and any(u.kind == "stage" for u in later))


def _looks_like_dataset(value: Value, depth: int = 0) -> bool:
    """`make().shuffle(9).batch(8).cache()`, where what `make` is is not seen."""
    call, script = value.node, value.script
    outside = value.kind in ("unknown", "parameter") or (value.kind == "object" and value.cls is None)
    if not (outside and script and isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    if call.func.attr in _TELLING:
        return True
    on = call.func.attr in catalog.DATASET_METHODS and depth < 20
    return on and any(_looks_like_dataset(v, depth + 1) for v in script.values(call.func.value))


def _is_counter(dataset: Value) -> bool:
    """`Dataset.range(100)` by itself: nothing to prepare."""
    return dataset.name == "tensorflow.data.Dataset.range"
