"""`parallel-reads`: read several files at the same time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from codemods.parallel_map import in_parallel
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.pipelines import (
    READERS,
    Route,
    in_function_of,
    program_seen,
    role,
    routes,
    stages,
)
from rewriter.data.purity import order_matters, reseeds, seeds
from rewriter.edits import Edit, Rename, Replace, SetKeyword
from rewriter.script import Script
from rewriter.values import Value

#: Files that are read at a time where their number is not known.
FILES_AT_ONCE = 16
#: The same for a number of readers that has to be fixed, so that every machine gives the same order.
FIXED_READS = 8

_KEPT_IN_MEMORY = frozenset("from_tensors from_tensor_slices range random".split())
#: Stages that take or pair elements by their place.
_BY_PLACE = {
    "zip": "it is zipped with another dataset",
    "skip": "`skip` leaves out the first elements",
    "take": "`take` keeps the first elements",
    "window": "`window` joins neighbours",
    "scan": "`scan` goes through the elements in order",
    "shard": "`shard` takes every n-th element",
    "take_while": "`take_while` ends at an element",
    "snapshot": "`snapshot` keeps the order in a file",
}
_PLURAL = re.compile(r"(files|paths|names|shards|records|globs|fns)(_list)?$", re.IGNORECASE)
_LISTS = frozenset(
    "glob.glob glob.iglob os.listdir builtins.sorted builtins.list tensorflow.io.gfile.glob "
    "tensorflow.gfile.Glob tensorflow.io.match_filenames_once tensorflow.train.match_filenames_once "
    "tensorflow.io.matching_files tensorflow.matching_files tensorflow.placeholder "
    "tensorflow.io.gfile.listdir tensorflow.gfile.ListDirectory".split()
)
#: What `Dataset.apply` may be given without making the order of the records matter.
_APPLIED = frozenset(
    "shuffle_and_repeat map_and_batch unbatch ignore_errors prefetch_to_device copy_to_device "
    "dense_to_ragged_batch bucket_by_sequence_length".split()
)


@codemod(level=1, phase="input")
def parallel_reads(script: Script) -> Iterator[Finding]:
    """Read several files at the same time instead of one after the other.

    Why: one file is read at the speed of one connection or disk queue while the accelerator waits. Several at
    a time change the order of the records, which cannot matter to training when they are shuffled afterwards.

    An `interleave` with a `cycle_length` keeps its order and only gets `num_parallel_calls`. Files that are
    read one after the other are interleaved: from -O1 where the records are shuffled before they are batched
    and no seed is set, or where they are only evaluated, and from -O2 elsewhere.

    Not applied: something depends on the order of the records: `zip`, `skip`, `take`, `enumerate`, `window`,
    a cache in a file, predictions, a loop that does not train, or a use that cannot be followed.

    Before:
        import tensorflow as tf
        files = tf.data.Dataset.list_files("train-*.tfrecord")
        ds = files.flat_map(tf.data.TFRecordDataset).shuffle(10000).batch(32)
        model = tf.keras.models.load_model("model.keras")
        model.fit(ds)

    After:
        import tensorflow as tf
        files = tf.data.Dataset.list_files("train-*.tfrecord")
        ds = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE, \
deterministic=False).shuffle(10000).batch(32)
        model = tf.keras.models.load_model("model.keras")
        model.fit(ds)
    """
    for call in script.calls_to(*READERS):
        yield from _reader(script, call)
    for call in script.dataset_calls("flat_map"):
        if _reads_files(script, script.bind(call, "Dataset.flat_map").get("map_func")):
            yield from _one_after_the_other(script, call)
    for call in script.dataset_calls("interleave"):
        yield from _interleave(script, call)


def _reader(script: Script, call: ast.Call) -> Iterator[Finding]:
    """`TFRecordDataset(files)`."""
    arguments = script.bind(call, READERS[script.called(call)])
    files = arguments.get("filenames")
    if (
        files is None
        or arguments.may_have("num_parallel_reads")
        or in_function_of(script, call, "interleave", "flat_map", "map", "apply")
    ):
        return
    number = _number_of_files(script, files)
    if number == 1 or not _is_read(script, call):
        return
    level, reason = _order(script, call)
    if reason:
        yield Refusal(call, reason)
    elif level == 1:
        yield Fix(
            call, "several files are read at a time", [SetKeyword(call, "num_parallel_reads", f"{{{script.autotune}}}")]
        )
    else:
        at_once = min(number or FIXED_READS, FIXED_READS)
        what = "several files are read at a time, in another order of the records" + reseeds(script)
        yield Fix(call, what, [SetKeyword(call, "num_parallel_reads", str(at_once))], level)


def _interleave(script: Script, call: ast.Call) -> Iterator[Finding]:
    arguments = script.bind(call, "Dataset.interleave")
    function = arguments.get("map_func")
    if function is None or arguments.may_have("num_parallel_calls") or not _does_work(script, function):
        return
    cycle = arguments.get("cycle_length")
    if cycle is None or script.constant(cycle) == -1 or script.symbol(cycle) == "tensorflow.data.AUTOTUNE":
        yield from _one_after_the_other(script, call)
    elif script.constant(cycle) == 1:
        return
    else:
        message = "the files of a cycle are read at the same time, in the same order"
        yield in_parallel(script, call, function, message)


def _one_after_the_other(script: Script, call: ast.Call) -> Iterator[Finding]:
    """`files.flat_map(TFRecordDataset)`, and an interleave whose order depends on the machine."""
    assert isinstance(call.func, ast.Attribute)
    receivers = script.values(call.func.value)
    numbers = {_elements(v) for v in receivers}
    if numbers == {1} or not _is_read(script, call):
        return
    function = script.bind(call, "Dataset.flat_map").get("map_func")
    level, reason = _order(script, call)
    if not reason and function is not None:
        reason = order_matters(script, function, seen=program_seen(script, call))
    if reason:
        yield Refusal(call, reason)
        return
    number = numbers.pop() if len(numbers) == 1 else None
    edits: list[Edit] = []
    at_once = str(min(number or FILES_AT_ONCE, FILES_AT_ONCE))
    if call.func.attr != "interleave":
        edits.append(Rename(call.func, "interleave"))
    given = script.bind(call, "Dataset.interleave")
    cycle = given.get("cycle_length") if call.func.attr == "interleave" else None
    if cycle is not None and "cycle_length" not in given.keywords:
        edits.append(Replace(cycle, at_once))
    else:
        edits.append(SetKeyword(call, "cycle_length", at_once))
    edits.append(SetKeyword(call, "num_parallel_calls", f"{{{script.autotune}}}"))
    if level == 1 and script.target.since(2, 2) and not seeds(script):
        edits.append(SetKeyword(call, "deterministic", "False"))
    what = "several files are read at a time" + (", in another order of the records" if level > 1 else "")
    yield Fix(call, what + reseeds(script), edits, level)


# -- how many files -----------------------------------------------------------------------------------------


def _number_of_files(script: Script, node: ast.expr) -> int | None:
    """How many files an argument names: 1 where nothing says that there are more, None for an open number."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        return None if _number_of_files(script, node.value) != 1 else 1
    numbers: list[int | None] = []
    for value in script.values(node):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if value.kind == "sequence":
            numbers.append(value.length)
        elif value.kind == "dataset":
            numbers.append(_elements(value))
        elif value.name in _LISTS or isinstance(value.node, ast.ListComp) or value.name == "list":
            numbers.append(None)
        elif isinstance(value.node, ast.Subscript) and value.node is not node and value.script:
            numbers.append(_number_of_files(value.script, value.node))
        elif (
            _PLURAL.search(name)
            and value.name not in ("os.path.join", "str")
            and value.kind in ("unknown", "parameter", "array", "method", "symbol", "object")
        ):
            numbers.append(None)
        else:
            numbers.append(1)
    known = {n for n in numbers if n != 1}
    return known.pop() if len(known) == 1 else None if known else 1


def _elements(dataset: Value) -> int | None:
    """The number of elements of a dataset of file names, where it is written out."""
    source = stages(dataset)[0]
    if (
        source.name == "tensorflow.data.Dataset.from_tensor_slices"
        and source.script
        and isinstance(source.node, ast.Call)
        and source.node.args
    ):
        tensors = source.script.values(source.node.args[0])
        lengths = {v.length if v.kind == "sequence" else None for v in tensors}
        return lengths.pop() if len(lengths) == 1 else None
    return None


def _results(script: Script, function: ast.expr | None) -> list[Value]:
    """What a function given to `interleave` or `flat_map` may return, a reader's class among them."""
    found: list[Value] = []
    for value in script.values(function):
        if value.kind == "symbol":
            found.append(Value("dataset", value.node, script, value.name))
        elif value.kind in ("function", "method") and value.script and value.node is not None:
            node, owner = value.node, value.script
            bodies = [node.body] if isinstance(node, ast.Lambda) else owner.returns(node)
            found += [v for body in bodies for v in owner.values(body)]
        else:
            found.append(value)
    return found


def _reads_files(script: Script, function: ast.expr | None) -> bool:
    results = _results(script, function)
    return bool(results) and all(v.kind == "dataset" and stages(v)[0].name in READERS for v in results)


def _does_work(script: Script, function: ast.expr) -> bool:
    """Not only repeating or slicing what is in memory."""
    results = _results(script, function)
    return any(
        v.kind != "dataset"
        or stages(v)[0].name.rpartition(".")[2] not in _KEPT_IN_MEMORY
        or any(s.name == "map" for s in stages(v))
        for v in results
    )


# -- whether the order matters ------------------------------------------------------------------------------


def _is_read(script: Script, call: ast.Call) -> bool:
    """Something may read all of it; what is only looked at or predicted on gains nothing."""
    return any(role(route.end) not in (None, "prediction", "preprocessing") for route in routes(script, call))


def _order(script: Script, call: ast.Call) -> tuple[int, str]:
    """The -O level from which the order of the records may change, and why it may not."""
    level = 1
    seeded = bool(seeds(script))
    for route in routes(script, call):
        if route.end.kind in ("inspect", "attribute") and not route.stages:
            continue
        needed, reason = _order_on(route, seeded)
        if reason:
            return 0, f"the order of the records matters: {reason}"
        level = max(level, needed)
    return level, ""


def _order_on(route: Route, seeded: bool) -> tuple[int, str]:
    shuffled, batches = False, 0
    for stage in route.stages:
        script, call = stage.script, stage.call
        assert isinstance(call, ast.Call)
        where = f"({script.at(call)})"
        name = stage.name
        arguments = script.bind(call, f"Dataset.{name}")
        if name == "apply":
            applied = arguments.get("transformation_func")
            name = script.called(applied).rpartition(".")[2] if isinstance(applied, ast.Call) else ""
            if name not in _APPLIED:
                return 0, f"what `apply` does is not seen {where}"
        if name in _BY_PLACE:
            return 0, f"{_BY_PLACE[name]} {where}"
        if name == "enumerate" and not shuffled:
            return 0, f"`enumerate` numbers them {where}"
        if name == "cache" and (call.args or call.keywords):
            return 0, f"`cache` keeps it in a file {where}"
        if name in ("shuffle", "shuffle_and_repeat"):
            shuffled = shuffled or batches == 0
            inner = script.bind(call, "Dataset.shuffle") if name == "shuffle" else arguments
            seed = inner.get("seed")
            seeded = seeded or (seed is not None and not script.is_none(seed)) or name != "shuffle"
        elif name in ("map", "filter") and not shuffled:
            function = arguments.get("map_func") or arguments.get("predicate")
            if function is not None and (reason := order_matters(script, function)) and "draw" not in reason:
                return 0, f"the function of `{name}` {where} may depend on it, {reason}"
        elif "batch" in name and name not in ("unbatch", "rebatch"):
            batches += 1
            if batches == 2 and not shuffled:
                return 0, f"it is batched twice {where}, so neighbours belong together"
    end = route.end
    purpose = role(end)
    where = f"({end.script.at(end.call)})"
    random_order = shuffled and not seeded
    if end.kind in ("inspect", "attribute", "adapt"):
        return 1, ""
    if purpose == "unknown":
        return 0, f"it goes to {end.name}, which is not followed {where}"
    if purpose == "training":
        if end.kind == "iterator" and end.name != "iter" and not shuffled:
            return 0, f"what a session gets from it may be used in order {where}"
        return (1 if random_order else 2), ""
    if end.kind == "predict" or purpose == "prediction":
        return 0, f"`{end.name}` gives its results in this order {where}"
    if random_order:
        return 1, ""
    if end.kind in ("validate", "evaluate", "input_fn"):
        assert isinstance(end.call, ast.Call)
        steps = "validation_steps" if end.kind == "validate" else "steps"
        given = end.script.bind(end.call, f"Model.{end.name}").get(steps)
        spec = end.kind == "input_fn" and given is None and "EvalSpec" in ast.dump(end.call.func)
        if spec or (given is not None and not end.script.is_none(given)):
            return 0, f"`{steps}` ends it after the first batches {where}"
        return 1, ""
    return 0, f"the {'loop' if end.kind == 'loop' else 'code'} that reads it does so in order {where}"
