"""`cache`: keep what every pass over the data prepares anew."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from codemods.parallel_map import _only_arranges
from rewriter import catalog
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.chains import before, reorder
from rewriter.data.elements import Size, size_of
from rewriter.data.pipelines import (
    READERS,
    Use,
    consumers,
    in_function_of,
    inputs,
    nondeterministic,
    roles,
    routes,
    stages,
    upstream,
    uses,
)
from rewriter.data.purity import effects, reseeds, seeds
from rewriter.data.rows import gathered
from rewriter.edits import Chain, Edit, Insert, SetKeyword, Wrap
from rewriter.models import structure
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import distribution, elements_of
from rewriter.values import Value, apart_from_loops

#: Bytes up to which a dataset is kept in memory unasked, and where the codemod is named.
SMALL, LARGE = 512 * 10**6, 8 * 10**9

TRY = "`tfboost tune` measures time and memory; `--select cache` applies it"


@codemod(level=1, phase="input")
def cache(script: Script) -> Iterator[Finding]:
    """Keep decoded and parsed data in memory after the first pass over it.

    Why: every epoch reads, decodes and maps the same elements again. `cache()` behind the last stage that does
    such work, and before what is to differ from epoch to epoch (shuffling, random augmentation), does it once.
    A `shuffle` or `repeat` that stands before that work goes behind the cache: it gives the same elements in the
    same order. From -O2 on, `image_dataset_from_directory`, which shuffles by itself, hands on single images, which
    are shuffled and put into batches behind the cache: in another order. The first epoch gains nothing.

    The memory is the number of elements times their size. It is applied where both are known and the product
    is at most 512 MB. `--select cache` applies it also where the size is not known, up to 8 GB where it is;
    `tune` does so too, and measures.

    Not applied: the data is read once (one epoch); what is done before depends on chance, on Python code, a
    variable or a model that is trained, or on something that is not seen; elements come from a generator or in
    an order that varies; a pass is cut short (`steps_per_epoch`, `take`, `break`); there is a cache already;
    distributed training; TensorFlow 1, where a cache ends with its iterator.

    Before:
        import numpy as np
        import tensorflow as tf
        def enlarge(image, label):
            return tf.image.resize(image, (64, 64)), label
        images, labels = np.zeros((1000, 28, 28, 1), "float32"), np.zeros(1000)
        ds = tf.data.Dataset.from_tensor_slices((images, labels))
        ds = ds.map(enlarge).shuffle(1000).batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds, epochs=10)

    After:
        import numpy as np
        import tensorflow as tf
        def enlarge(image, label):
            return tf.image.resize(image, (64, 64)), label
        images, labels = np.zeros((1000, 28, 28, 1), "float32"), np.zeros(1000)
        ds = tf.data.Dataset.from_tensor_slices((images, labels))
        ds = ds.map(enlarge).cache().shuffle(1000).batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Flatten(), tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds, epochs=10)
    """
    if script.target.before(2, 0):
        return
    placed: set[ast.AST] = set()
    found: dict[ast.AST, tuple[Finding, Value]] = {}
    for use in consumers(script):
        for dataset in apart_from_loops(script.values(use.node)):
            if dataset.kind != "dataset" or any(_is_cache(v) or v.node in placed for v in upstream(dataset)):
                continue
            finding = _for(use, dataset)
            if isinstance(finding, Fix):
                placed.update((finding.node, *(e.node for e in finding.edits)))
            elif finding is None or finding.node in found:
                continue
            found[finding.node] = finding, dataset
    fixed = {node for node, (finding, _) in found.items() if isinstance(finding, Fix)}
    for node, (finding, dataset) in found.items():
        made = next((v for v in upstream(dataset) if v.node is node), None)
        if node not in fixed or made is None or not any(v.node in fixed for v in [*upstream(made)][1:]):
            yield finding  # (not where it is made from what another finding caches)


def _for(use: Use, dataset: Value) -> Finding | None:
    """What there is to do for one dataset that is used up in one place."""
    work = [i for i, s in enumerate(stages(dataset)) if _is_work(s)]
    times = _times(use, dataset)
    if not work or times == "once":
        return None
    chain = stages(dataset)
    place = _place(chain, work)
    if place is None:
        return None
    node = chain[place.at].node
    script = chain[place.at].script
    if script is None or not isinstance(node, ast.expr) or not script.is_dataset(node) or _inside(script, node):
        return None
    last = place.calls[-1] if place.calls else node
    named = script.options.names("cache")
    reason = (
        place.reason
        or _cut_short(use, chain, place)
        or _other_ways(script, place.calls[0].func if place.calls else node)
        or _elsewhere(script, node)
        or ("" if times == "often" or named else times)
    )
    if reason:
        return (_of_directory(use, chain) if place.reason == reason else None) or Refusal(last, reason, place.hint)
    size = size_of(chain[place.work])
    if size.bytes is None and not named:
        return Refusal(last, f"how much memory it takes is not known: {size.why}", TRY)
    if size.bytes is not None and size.bytes > (LARGE if named else SMALL):
        return Refusal(last, f"it would take {size} of memory", TRY if size.bytes <= LARGE else "")
    edits = _edits(script, node, place)
    if isinstance(edits, str):
        return Refusal(last, edits, "put `.cache()` behind the map and before the shuffle by hand")
    return Fix(node, _message(size) + reseeds(script), edits)


def _message(size: Size) -> str:
    kept = (
        f"caching {size} in memory" if size.bytes is not None else f"caching an unknown amount in memory ({size.why})"
    )
    return f"what the first epoch prepares is kept for the others: {kept}"


# -- where ---------------------------------------------------------------------------------------------------


@dataclass
class _Place:
    """`at`: index of the stage to put it behind; `calls`: the stages that change places there, first the old first.

    work: the last of the stages whose work is saved.
    """

    at: int
    work: int
    calls: Sequence[ast.Call] = ()
    order: Sequence[int] = ()
    reason: str = ""
    hint: str = ""


#: Stages that end a pass before all elements are read.
_CUTS = frozenset({"take", "take_while"})
#: Stages that may change places with a map of one element to one.
_PASSING = frozenset({"shuffle", "repeat"})


def _place(chain: list[Value], work: list[int]) -> _Place | None:
    """Where a cache belongs in a chain of stages with work in it; or, in `reason`, why there is no such place."""
    reason, stop = "", len(chain)
    for i, stage in enumerate(chain):
        if reason := _varies(stage):
            stop = i
            break
    done = [i for i in work if i < stop]
    later = [i for i in work if i >= stop]
    if stop < len(chain) and chain[stop].name in _PASSING and (moved := _behind(chain, stop)):
        return moved
    if done and (heavy := [i for i in done if not _is_reader(chain[i])] or ([] if later else done)):
        at = max([heavy[-1], *(i for i in range(heavy[-1], stop) if chain[i].name in _CUTS)])
        return _Place(at, at)
    if not later:
        return None
    node = chain[later[-1]].node
    call = [node] if isinstance(node, ast.Call) else []
    hint = ""
    if chain[stop].name == "map":
        hint = "split the function in two maps, and put `.cache()` between what is always the same and what is not"
    elif chain[stop].name == "shuffle":
        hint = "put `.cache()` behind that work and shuffle afterwards by hand"
    return _Place(later[-1], later[-1], call, reason=reason, hint=hint)


def _behind(chain: list[Value], stop: int) -> _Place | None:
    """`shuffle` and `repeat`, followed by maps that do always the same: these go first, and the cache between."""
    end = stop
    while end < len(chain) and chain[end].name in _PASSING:
        end += 1
    first = end
    while end < len(chain) and chain[end].name == "map" and not _varies(chain[end]):
        end += 1
    while end > first and not _is_work(chain[end - 1]):
        end -= 1
    nodes = [s.node for s in chain[stop:end]]
    script = chain[stop].script
    calls = [n for n in nodes if isinstance(n, ast.Call)]
    if end == first or script is None or len(calls) < len(nodes):
        return None
    passing, maps = range(first - stop), range(first - stop, end - stop)
    count = len(maps)
    found = list(zip(before(script, calls[-1]), range(len(calls) - 1), strict=False))
    if [c for c, _ in found] != calls[-2::-1]:
        why = f"`{chain[stop].name}` ({script.at(calls[0])}) comes before that work, and cannot be moved behind it"
        return _Place(end - 1, end - 1, calls, reason=why, hint="put `.cache()` between them by hand")
    if reason := _draws_otherwise(script, chain[stop:first], calls):
        return _Place(end - 1, end - 1, calls, reason=reason)
    return _Place(stop + count - 1, end - 1, calls, [*maps, *passing])


def _draws_otherwise(script: Script, moved: list[Value], calls: list[ast.Call]) -> str:
    """Why shuffles that are made later in the program than before may draw other numbers."""
    for stage in moved:
        if stage.name != "shuffle" or not isinstance(stage.node, ast.Call):
            continue
        if script.bind(stage.node, "Dataset.shuffle").get("seed") is None and seeds(script):
            a, b = script.statement(calls[0]), script.statement(calls[-1])
            if any(a.lineno < c.lineno and (a.end_lineno or 0) < c.lineno < b.lineno for c in script.calls):
                return (
                    f"`shuffle` ({script.at(stage.node)}) has no seed of its own, and would be made after other seeds"
                )
    return ""


def _edits(script: Script, node: ast.expr, place: _Place) -> list[Edit] | str:
    edits: list[Edit] = []
    if place.calls:
        moved = reorder(script, place.calls, place.order)
        if isinstance(moved, str):
            return moved
        if isinstance(moved[0], Insert):  # whole statements move, and one more is put behind them
            name = script.text(place.calls[0].func.value) if isinstance(place.calls[0].func, ast.Attribute) else ""
            return [replace(moved[0], text=f"{moved[0].text}\n{name} = {name}.cache()"), *moved[1:]]
        edits += moved
    return [*edits, Chain(node, "cache()")]


def _of_directory(use: Use, chain: list[Value]) -> Finding | None:
    """For `image_dataset_from_directory`, which decodes, shuffles and puts into batches in one."""
    script, call = chain[0].script, chain[0].node
    if chain[0].keras != "utils.image_dataset_from_directory" or script is None or not isinstance(call, ast.Call):
        return None
    arguments = script.bind(call, "image_dataset_from_directory")
    known = all(_is(script, arguments.get(n), *v) for n, v in _DIRECTORY.items())
    if (
        not script.options.names("cache")
        or not known
        or arguments.open
        or not script.target.since(2, 10)
        or any(s.name not in ("map", "prefetch", "repeat", "with_options") for s in chain[1:])
        or _cut_short(use, chain, _Place(0, 0))
        or _inside(script, call)
        or _elsewhere(script, call)
    ):
        return None
    unknown = "caching an unknown amount in memory (the number of files is not known)"
    if roles(script, call) == {"validation"}:
        return Fix(call, f"images are decoded in the first epoch, and kept: {unknown}", [Chain(call, "cache()")])
    batch, seed = arguments.get("batch_size"), arguments.get("seed")
    size = "32" if batch is None else script.source.snippet(batch)
    with_seed = "" if seed is None else f", seed={script.source.snippet(seed)}"
    if "\n" in size + with_seed or (batch is not None and "batch_size" not in arguments.keywords):
        return None
    edits = [
        SetKeyword(call, "batch_size", "None"),
        Wrap(call, f"....cache().shuffle({SHUFFLED}{with_seed}).batch({size})"),
    ]
    return Fix(
        call, f"images are decoded in the first epoch, and kept; they come in another order: {unknown}", edits, 2
    )


#: Images among which `image_dataset_from_directory` shuffles where it is given no batch size.
SHUFFLED = 1024
#: Its arguments that decide, with the values that are understood.
_DIRECTORY: dict[str, tuple[object, ...]] = {"shuffle": (None, True), "subset": (None, "training", "validation")}


def _is(script: Script, node: ast.expr | None, *literals: object) -> bool:
    values = script.values(node)
    return all(v.kind == "constant" and any(v.literal is x or v.literal == x for x in literals) for v in values)


def _other_ways(script: Script, node: ast.expr) -> str:
    """Why the dataset there may be another one that varies: where a function is given several, or in a branch."""
    for value in apart_from_loops(script.values(node.value if isinstance(node, ast.Attribute) else node)):
        if value.kind not in ("dataset", "tfds"):
            return f"what `{script.text(node)}` is made of is not always seen ({script.at(node)})"
        for stage in stages(value):
            if reason := _varies(stage):
                return f"the same line makes another dataset, for which it may not be: {reason}"
            if _is_cache(stage):
                return f"the same line makes another dataset, which has a cache already ({script.at(node)})"
    return ""


# -- what a stage does ---------------------------------------------------------------------------------------


def _is_cache(stage: Value) -> bool:
    return stage.name in ("cache", "snapshot")


def _is_reader(stage: Value) -> bool:
    return stage.name in READERS or stage.name in ("interleave", "flat_map")


def _is_work(stage: Value) -> bool:
    """Whether a stage takes time with every pass: reading, decoding, parsing; not a cast or one-hot labels."""
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        return False
    if _is_reader(stage) or stage.keras in catalog.KERAS_DATASETS:
        return True
    if stage.name.rpartition(".")[2] in ("zip", "concatenate"):
        return any(_is_work(inner) for other in inputs(stage) if other is not stage.base for inner in stages(other))
    if stage.name != "map" or gathered(stage) is not None:
        return False
    function = script.bind(call, "Dataset.map").get("map_func")
    return function is not None and not _only_arranges(script, function) and not _is_cheap(script, function)


_CHEAP = re.compile(
    r"tensorflow\.(cast|one_hot|reshape|expand_dims|squeeze|constant|convert_to_tensor|identity|ensure_shape|float32"
    r"|stack|concat|transpose|shape|saturate_cast|clip_by_value|to_float|divide|multiply|subtract|add|equal|argmax"
    r"|stop_gradient|zeros_like|ones_like|zeros|ones|fill|where"
    r"|image\.(convert_image_dtype|flip_\w+)|math\.(divide|multiply|subtract|add|argmax|equal))$"
    r"|builtins\.(" + "|".join(n for n in dir(builtins) if n.islower()) + r")$"
)


def _is_cheap(script: Script, function: ast.expr) -> bool:
    """Whether all that it calls takes hardly more time than reading what a cache holds."""
    for owner, node in _code(script, function):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call):
                for value in owner.values(inner.func):
                    cheap = (
                        (value.kind == "symbol" and _CHEAP.match(value.name))
                        or value.kind in ("function", "mapping")
                        or (value.kind == "method" and value.name in ("set_shape", "get_shape", "items", "pop"))
                        or (value.kind == "layer" and value.keras == "layers.Rescaling")
                    )
                    if not cheap:
                        return False
    return all(v.kind in ("function", "method") or _CHEAP.match(v.name) for v in script.values(function))


def _code(script: Script, function: ast.expr) -> list[tuple[Script, ast.AST]]:
    """The functions of the project that may run where this one does, itself first."""
    found: list[tuple[Script, ast.AST]] = []
    todo: list[tuple[Script, ast.expr]] = [(script, function)]
    while todo and len(found) < 100:
        owner, expr = todo.pop()
        for value in owner.values(expr):
            node, where = value.node, value.script
            if value.cls and value.cls.script and isinstance(value.cls.node, ast.ClassDef):
                for name in ("__call__", "call"):
                    if method := value.cls.script.method(value.cls.node, name):
                        where, node = method
            if where is None or not isinstance(node, FUNCTIONS) or any(node is n for _, n in found):
                continue
            found.append((where, node))
            for inner in ast.walk(node):
                if isinstance(inner, ast.Call):
                    todo += [(where, e) for e in [inner.func, *inner.args] if isinstance(e, ast.Name | ast.Attribute)]
    return found


#: Sources that give the same elements in the same order in every pass.
_STEADY = frozenset("from_tensor_slices from_tensors range".split())
_CHAINED = frozenset(
    "batch padded_batch ragged_batch unbatch prefetch take skip shard enumerate with_options window rebatch".split()
)


def _varies(stage: Value) -> str:
    """Why what comes out of a stage may differ from one pass to the next, or has no end; "" where it does not."""
    script, call = stage.script, stage.node
    if script is None or not isinstance(call, ast.Call):
        return "how the dataset is made is not seen"
    where = f"({script.at(call)})"
    others = [v for v in inputs(stage) if v is not stage.base]
    for other in others:
        for inner in stages(other):
            if reason := _varies(inner):
                return reason
    if stage.base is None:
        return _source_varies(stage, script, call, where)
    if stage.base.kind != "dataset":
        return f"what `{script.text(call)}` is made of is not seen {where}"
    name = stage.name
    arguments = script.bind(call, f"Dataset.{name}")
    if name == "shuffle":
        again = arguments.get("reshuffle_each_iteration")
        if again is not None and script.constant(again) is False:
            return ""
        return f"`shuffle` {where} comes first: a cache behind it would keep the order of the first epoch"
    if name == "repeat":
        return f"`repeat` {where} comes first: a cache behind it holds every element many times, or never ends"
    if name in _CHAINED or name == "concatenate" or name == "zip":
        return ""
    if name in ("map", "filter", "interleave", "flat_map", "take_while"):
        ordered = arguments.get("deterministic")
        if ordered is not None and script.constant(ordered) is not True:
            return f"`{name}` {where} gives up the order of the elements, which a cache would keep"
        function = arguments.get("map_func") or arguments.get("predicate")
        if function is None:
            return f"which function `{name}` runs is not seen {where}"
        if name in ("interleave", "flat_map"):
            if all(v.node is not None and _is_window(v.node) for v in script.values(function)):
                return ""
            if reason := _results_vary(script, function, where):
                return reason
        return _differs(script, function, call)
    return f"whether `{name}` {where} gives the same in every epoch is not known"


def _source_varies(stage: Value, script: Script, call: ast.Call, where: str) -> str:
    name = stage.name.removeprefix("tensorflow.data.").removeprefix("Dataset.")
    if name in _STEADY or stage.name in READERS or name in ("zip", "experimental.CsvDataset"):
        return ""
    if name == "list_files":
        shuffled = script.bind(call, "Dataset.list_files").get("shuffle")
        if shuffled is not None and script.constant(shuffled) is False:
            return ""
        return f"`list_files` {where} gives the files in another order in every epoch, which a cache would end"
    if name == "from_generator":
        return f"the elements come from Python code {where}, which may give others in every epoch"
    if stage.keras in catalog.KERAS_DATASETS:
        shuffled = script.argument(call, "shuffle")
        steady = script.constant(shuffled) is False if shuffled is not None else "timeseries" in stage.keras
        if steady:
            return ""
        return f"`{stage.keras[6:]}` {where} shuffles in every epoch: a cache behind it would keep one order"
    if stage.name == "tensorflow_datasets.load":
        shuffled = script.argument(call, "shuffle_files")
        if (shuffled is None or script.constant(shuffled) is False) and script.argument(call, "read_config") is None:
            return ""
        return f"the files are read in another order in every epoch {where}"
    return f"whether `{name}` {where} gives the same in every epoch is not known"


def _results_vary(script: Script, function: ast.expr, where: str) -> str:
    """For a function that returns a dataset for each element."""
    found: list[Value] = []
    for value in script.values(function):
        if value.kind == "symbol" and value.name in READERS:
            continue
        if value.kind not in ("function", "method") or value.script is None or value.node is None:
            return f"which datasets are read is not seen {where}"
        bodies = [value.node.body] if isinstance(value.node, ast.Lambda) else value.script.returns(value.node)
        found += [v for body in bodies for v in value.script.values(body)]
    for dataset in found:
        if dataset.kind != "dataset":
            return f"which datasets are read is not seen {where}"
        for stage in stages(dataset):
            if stage.name != "repeat" and (reason := _varies(stage)):
                return reason
            if stage.name == "repeat" or _is_cache(stage):
                return f"the inner dataset repeats, or has a cache {where}"
    return ""


def _is_window(function: ast.AST) -> bool:
    """`lambda window: window.batch(8)`: its elements are part of the dataset before."""
    if not isinstance(function, ast.Lambda) or len(function.args.args) != 1:
        return False
    result = function.body
    while isinstance(result, ast.Call) and isinstance(result.func, ast.Attribute) and result.func.attr in _CHAINED:
        result = result.func.value
    return isinstance(result, ast.Name) and result.id == function.args.args[0].arg


#: Layers of Keras that hold no weights that training changes.
_FIXED = frozenset(
    "Rescaling Resizing CenterCrop TextVectorization StringLookup IntegerLookup Normalization Discretization Hashing "
    "HashedCrossing CategoryEncoding Reshape Flatten Permute ZeroPadding2D Cropping2D ZeroPadding1D Cropping1D Lambda "
    "ReLU Softmax MelSpectrogram InputLayer Input".split()
)
_STATE = re.compile(r"tensorflow\.((compat\.v1\.)?(Variable|get_variable)|timestamp|lookup\..*(Mutable|Dense)\w*)$")


def _differs(script: Script, function: ast.expr, call: ast.Call) -> str:
    """Why a function may give something else for the same element in the next epoch."""
    for effect in effects(script, function):
        what, where = f"`{effect.what}`", f"({effect.script.at(effect.node)})"
        match effect.kind:
            case "random" | "seeded":
                return f"{what} draws random numbers {where}: a cache would keep those of the first epoch"
            case "python":
                return f"{what} runs Python code {where}, which may do something else in every epoch"
            case "write":
                return f"it changes a state that lasts in every epoch: {what} {where}"
            case "print":
                return f"it prints {where}, which it would do in the first epoch only"
            case _:
                return f"what {what} does is not seen {where}"
    for value in script.values(function):
        if reason := _holds_state(value, script, function, call):
            return reason
    for owner, node in _code(script, function):
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Load):
                for value in owner.values(inner):
                    if reason := _holds_state(value, owner, inner, call):
                        return reason
    return ""


def _holds_state(value: Value, script: Script, node: ast.expr, call: ast.Call) -> str:
    where = f"({script.at(node)})"
    if _STATE.match(value.name) and value.kind in ("tensor", "object", "symbol"):
        return f"`{script.text(node)}` {where} may be another value in the next epoch"
    if value.kind == "model" or (value.kind == "layer" and value.cls is not None):
        if value.kind == "model" and not value.cls and _has_only_fixed(value):
            return _adapted_later(value, call)
        return f"`{script.text(node)}` {where} may have weights, which training may change"
    if value.kind == "layer":
        name = value.keras.rpartition(".")[2]
        if name not in _FIXED:
            return f"`{script.text(node)}` {where} may have weights, which training may change"
        return _adapted_later(value, call)
    return ""


def _has_only_fixed(model: Value) -> bool:
    built = structure(model)
    inner = [m for m in built.models if m.node is not model.node]
    return (
        not (built.unseen or built.code or inner)
        and bool(built.layers)
        and all(v.keras.rpartition(".")[2] in _FIXED and not v.cls for v in built.layers)
    )


_LEARNS = frozenset("adapt set_vocabulary load_weights set_weights reset_state".split())


def _adapted_later(layer: Value, call: ast.Call) -> str:
    """Where a preprocessing layer learns its vocabulary behind the place where the dataset is made."""
    if layer.script is None or layer.node is None:
        return ""
    project = layer.script.project
    owner = project.owner(call)
    for other in list(project.scripts.values()):
        for name in _LEARNS:
            for mention in other.mentions(name):
                if not isinstance(mention, ast.Attribute):
                    continue
                if all(v.node is not layer.node for v in other.values(mention.value)):
                    continue
                looped = next(other.enclosing(mention, ast.For, ast.While), None) is not None
                together = other is owner and other.function_of(mention) is owner.function_of(call)
                if looped or (together and mention.lineno > call.lineno):
                    return f"`{other.text(mention)}` ({other.at(mention)}) may change what it does afterwards"
    return ""


# -- how often it is read ------------------------------------------------------------------------------------


def _times(use: Use, dataset: Value) -> str:
    """ "often", "once", or why that is not known."""
    script, call = use.script, use.call
    repeats = [s for s in stages(dataset) if s.name == "repeat" and not _is_once(s)]
    if repeats and use.kind in ("fit", "loop"):
        return "once" if _ends_in_first_pass(use, dataset, repeats[0]) else "often"
    if use.kind in ("fit", "validate") and isinstance(call, ast.Call):
        if _is_in_loop(script, call, dataset):
            return "often"
        arguments = script.bind(call, f"Model.{use.name}")
        epochs = arguments.get("epochs")
        if epochs is None:
            return "how many epochs there are is not known" if arguments.open else "once"
        number = script.integer(epochs)
        if number is None:
            return f"how many epochs there are is not known: `{script.text(epochs)}`"
        return "often" if number > 1 else "once"
    if use.kind in ("loop", "evaluate"):
        return "often" if _is_in_loop(script, call, dataset) else "once"
    return "once"


def _ends_in_first_pass(use: Use, dataset: Value, repeat: Value) -> bool:
    """Whether `steps_per_epoch` and the epochs together surely read less than two passes."""
    script, call = use.script, use.call
    if use.kind != "fit" or not isinstance(call, ast.Call) or repeat.base is None:
        return False
    arguments = script.bind(call, f"Model.{use.name}")
    epochs = 1 if "epochs" not in arguments else script.integer(arguments.get("epochs"))
    steps, count = script.integer(arguments.get("steps_per_epoch")), elements_of(repeat.base).number
    chain = stages(dataset)
    for stage in chain[chain.index(repeat) :]:
        if stage.name == "batch" and stage.script and isinstance(stage.node, ast.Call) and steps is not None:
            size = stage.script.integer(stage.script.bind(stage.node, "Dataset.batch").get("batch_size"))
            steps = None if size is None else steps * size
    return None not in (epochs, steps, count) and epochs * steps < 2 * count  # type: ignore[operator]


def _is_once(repeat: Value) -> bool:
    script, call = repeat.script, repeat.node
    return (
        script is not None
        and isinstance(call, ast.Call)
        and script.integer(script.bind(call, "Dataset.repeat").get("count")) == 1
    )


def _is_in_loop(script: Script, node: ast.AST, dataset: Value, depth: int = 0) -> bool:
    """Whether a place is reached many times with the same dataset: a loop around it that does not make it anew."""
    made = dataset.node
    for loop in script.enclosing(node, ast.For, ast.While, *FUNCTIONS):
        if isinstance(loop, ast.For | ast.While):
            if dataset.script is script and made is not None and loop in script.enclosing(made, ast.For, ast.While):
                return False
            return not _makes(script, loop, dataset)
        if not isinstance(loop, ast.FunctionDef) or depth > 3:
            return False
        if dataset.script is script and made is not None and loop in script.enclosing(made, ast.FunctionDef):
            return False  # every call of the function makes a new one
        callers = script.project.calls_of(loop, script)
        return bool(callers) and all(_is_in_loop(s, c, dataset, depth + 1) for s, c, _ in callers)
    return False


def _makes(script: Script, loop: ast.AST, dataset: Value) -> bool:
    """Whether a loop calls what makes the dataset: `for x in make():`, `ds = make()`."""
    for node in ast.walk(loop):
        if isinstance(node, ast.Call) and any(v.node is dataset.node for v in script.values(node)):
            return True
    return False


def _cut_short(use: Use, chain: list[Value], place: _Place) -> str:
    """Why a pass may end before the last element, so that the cache would never be complete."""
    script, call = use.script, use.call
    rest = [chain[i] for i in range(place.work + 1, len(chain))] if not place.calls else chain[place.at + 1 :]
    for stage in rest:
        if stage.name in _CUTS and stage.script and stage.node:
            return f"`{stage.name}` ({stage.script.at(stage.node)}) ends every pass before the data does"
    if any(s.name == "repeat" for s in rest) or any(s.name == "repeat" for s in chain):
        return ""
    if use.kind in ("fit", "validate") and isinstance(call, ast.Call):
        name = "steps_per_epoch" if use.kind == "fit" else "validation_steps"
        arguments = script.bind(call, f"Model.{use.name}")
        steps = arguments.get(name)
        if arguments.open and steps is None:
            return f"arguments of `{use.name}` are given through `*` or `**`: `{name}` may cut a pass short"
        if steps is not None and not all(v.kind == "constant" and v.literal is None for v in script.values(steps)):
            count = elements_of(chain[-1]).number
            if count is None or script.integer(steps) != count:
                return f"`{name}` may end a pass before the data does ({script.at(steps)})"
    if isinstance(call, ast.For) and (stop := _leaves(call)):
        return f"the loop may end before the data does ({script.at(stop)})"
    return ""


def _leaves(loop: ast.For) -> ast.AST | None:
    """A `break` or `return` with which a loop ends early."""
    todo: list[ast.AST] = list(loop.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Break | ast.Return | ast.Raise) and not isinstance(node, ast.Raise):
            return node
        if isinstance(node, ast.For | ast.While):
            todo += [n for n in ast.walk(node) if isinstance(n, ast.Return)]
        elif not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            todo += ast.iter_child_nodes(node)
    return None


# -- where it cannot be --------------------------------------------------------------------------------------


def _inside(script: Script, node: ast.AST) -> bool:
    """Whether the dataset is made in a graph or in another dataset's function."""
    if in_function_of(script, node, "interleave", "flat_map", "map", "apply", "window"):
        return True
    return any(
        script.symbol(d.func if isinstance(d, ast.Call) else d) == "tensorflow.function"
        for f in script.enclosing(node, ast.FunctionDef)
        if isinstance(f, ast.FunctionDef)
        for d in f.decorator_list
    )


def _elsewhere(script: Script, node: ast.expr) -> str:
    """Why the whole program does not allow for it."""
    strategy, shown = distribution(script)
    if (strategy and not strategy.endswith(("MirroredStrategy", "OneDeviceStrategy"))) or "MultiWorker" in strategy:
        return f"training is distributed ({shown}): every worker would keep a copy"
    if line := nondeterministic(script):
        return f"`deterministic` is False (line {line}): the cache would keep one order of the elements"
    if any(u.kind == "attribute" and u.name in catalog.DATASET_EXTRAS for u in uses(script, node)):
        return "an attribute of the dataset is read, which a cache does not have"
    if any(route.first("cache", "snapshot") for route in routes(script, node)):
        return "there is a cache already on another way from here"
    return ""
