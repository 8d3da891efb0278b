"""`gather-batches`: cut batches out of arrays, instead of putting them together from single rows."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from rewriter import catalog, folding
from rewriter.codemod import Finding, Fix, Refusal, codemod
from rewriter.data.elements import Tensor, row_of
from rewriter.data.pipelines import in_function_of, roles, stages, uses
from rewriter.data.purity import seeds
from rewriter.edits import Chain, Insert, Replace
from rewriter.scopes import FUNCTIONS
from rewriter.script import Script
from rewriter.training import graph_mode
from rewriter.values import Value, apart_from_loops, is_drawing

#: Stages that choose or order elements by their place, whatever the elements are.
_BY_PLACE = frozenset("shuffle repeat take skip shard prefetch with_options".split())
#: Fewer rows in a batch are put together as fast as they are gathered.
FEWEST_ROWS = 16
#: Rows of up to so many numbers are gathered unasked: measured, that pays. Those of more than MOST gain nothing.
SHORT, MOST = 128, 2048

TRY = "`tfboost tune` measures it; `--select gather-batches` applies it"


@codemod(level=1, phase="input")
def gather_batches(script: Script) -> Iterator[Finding]:
    """Shuffle and batch the numbers of the rows, and gather each batch from the arrays at once.

    Why: `from_tensor_slices` cuts arrays into single rows, which are shuffled one by one and copied into batches
    again. For short rows that takes longer than a training step of a small model. Shuffling the rows' numbers
    instead, and gathering the rows of a batch in one operation, gives the same batches in the same order.

    It is applied to batches of at least 16 rows with at most 128 numbers each. `--select gather-batches` applies it
    also to rows of up to 2,048, and where their size is not known; `tune` does so too, and measures.

    Not applied: a stage before the batch looks at the elements (`map`, `filter`; `map-vectorization` may move it
    behind); the dataset is used before it is batched; its parts are not known to be arrays (a dict of something,
    Python lists, sparse or ragged tensors); in a TensorFlow 1 graph with a seed, which would shuffle in another order.

    Before:
        import numpy as np
        import tensorflow as tf
        x, y = np.random.rand(10000, 16), np.random.rand(10000, 1)
        ds = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000)
        ds = ds.batch(32)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)

    After:
        import numpy as np
        import tensorflow as tf
        x, y = np.random.rand(10000, 16), np.random.rand(10000, 1)
        ds_arrays = tf.nest.map_structure(tf.convert_to_tensor, (x, y))
        ds = tf.data.Dataset.range(len(x)).shuffle(1000)
        ds = ds.batch(32).map(lambda i: tf.nest.map_structure(lambda a: tf.gather(a, i), ds_arrays))
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        model.fit(ds)
    """
    if not script.target.since(1, 13):
        return
    taken: set[str] = set()
    for call in script.calls_to("tensorflow.data.Dataset.from_tensor_slices"):
        if (finding := _for(script, call, taken)) is not None:
            yield finding


def _for(script: Script, source: ast.Call, taken: set[str]) -> Finding | None:
    batches = _batches(script, source)
    if not batches or not _is_worth_it(script, batches):
        return None
    match source.args:
        case [given] if not source.keywords and not isinstance(given, ast.Starred):
            pass
        case _:
            return None
    if not isinstance(source.func, ast.Attribute) or not _is_statement_of_its_own(script, source):
        return None
    if "#" in (text := script.source.snippet(source)) and "\n" in text:
        return Refusal(source, "comments stand between the arrays, which are to move", "move them above the statement")
    leaves = list(_leaves(given))
    reason = _not_at_once(script) or next((r for leaf in leaves if (r := _is_no_array(script, leaf))), "")
    if reason:
        return Refusal(source, reason)
    named = script.options.names("gather-batches")
    values = [_values(script, leaf) for leaf in leaves]
    if any(v is not None and v > (MOST if named else SHORT) for v in values):
        return None
    if not named and None in values:
        text = script.text(leaves[values.index(None)])
        return Refusal(source, f"how many numbers a row of `{text}` has is not known: it pays for short rows", TRY)
    return _fix(script, source, given, leaves, batches, taken)


def _fix(
    script: Script, source: ast.Call, given: ast.expr, leaves: list[ast.expr], batches: list[ast.Call], taken: set[str]
) -> Fix:
    statement = script.statement(source)
    arrays = _name(script, statement, taken)
    taken.add(arrays)
    convert, gather, structure = (
        "{tensorflow.convert_to_tensor}",
        "{tensorflow.gather}",
        "{tensorflow.nest.map_structure}",
    )
    i, a = _parameter(script, "i", "index"), _parameter(script, "a", "array")
    text = _in_one_line(script, given)
    if leaves == [given] and not _is_columns(script, given):
        made, part, first = f"{convert}({text})", f"{gather}({arrays}, {i})", arrays
    else:
        made = f"{structure}({convert}, {text})"
        part = f"{structure}(lambda {a}: {gather}({a}, {i}), {arrays})"
        first = f"{{tensorflow.nest.flatten}}({arrays})[0]"
    plain = next((e for kind in (ast.Name, ast.Subscript) for e in leaves if _is_plain(script, e, kind)), None)
    count = f"len({script.source.snippet(plain)})" if plain else f"{first}.shape[0]"
    assert isinstance(source.func, ast.Attribute)
    return Fix(
        source,
        "whole batches are gathered from the arrays, not put together from single rows",
        [
            Insert(statement, _laid_out(statement, f"{arrays} = ", made), after=False),
            Replace(source, f"{script.source.snippet(source.func.value)}.range({count})"),
            *(Chain(batch, f"map(lambda {i}: {part})") for batch in batches),
        ],
    )


def _name(script: Script, statement: ast.stmt, taken: set[str]) -> str:
    """A name for the arrays that no other dataset's have: `train_ds_arrays`."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    first = f"{target.id}_arrays" if isinstance(target, ast.Name) else "arrays"
    return next(n for n in (first, *(f"{first}_{i}" for i in range(2, 99))) if n not in taken and script.is_free(n))


def _is_plain(script: Script, leaf: ast.expr, kind: type[ast.expr]) -> bool:
    """`x` or `x[:100]`, whose length can be asked for without computing something again."""
    inner = {type(n) for n in ast.walk(leaf) if isinstance(n, ast.expr)}
    cheap = inner <= {ast.Name, ast.Subscript, ast.Slice, ast.Constant, ast.UnaryOp}
    return isinstance(leaf, kind) and cheap and (kind is ast.Name or not _is_pandas(script, leaf))


def _parameter(script: Script, *names: str) -> str:
    """The first name that does not hide one of TensorFlow's in a lambda."""
    for name in names:
        imported = any(b.kind == "import" for b in script.names.module.bindings.get(name, ()))
        if not imported and all(not script.symbol(m) for m in script.mentions(name) if isinstance(m, ast.Name)):
            return name
    return script.free_name(*names)


def _laid_out(statement: ast.stmt, target: str, call: str) -> str:
    line = target + re.sub(r"\{tensorflow(\.[\w.]+)\}", r"tf\1", call)
    name, _, rest = call.partition("(")
    first, _, arrays = rest.removesuffix(")").partition(", ")
    if not name.endswith("map_structure}") or statement.col_offset + len(line) <= folding.WIDTH:
        return target + call
    return f"{target}{name}(\n    {first},\n    {arrays},\n)"


def _in_one_line(script: Script, node: ast.expr) -> str:
    text = script.source.snippet(node)
    if "\n" not in text:
        return text
    return ast.unparse(node)


# -- where ---------------------------------------------------------------------------------------------------


def _batches(script: Script, source: ast.Call) -> list[ast.Call]:
    """The calls of `batch` that all elements of a dataset come to, through stages that do not look at them."""
    found: list[ast.Call] = []
    todo: list[ast.Call] = [source]
    seen: set[ast.AST] = set()
    while todo:
        call = todo.pop()
        if call in seen:
            continue
        seen.add(call)
        for use in uses(script, call):
            following = use.call
            if use.kind == "inspect" and use.name in ("len", "cardinality", "__len__"):
                continue
            if (
                use.kind != "stage"
                or use.script is not script
                or not isinstance(following, ast.Call)
                or not isinstance(following.func, ast.Attribute)
                or script.function_of(following) is not script.function_of(source)
            ):
                return []
            if use.name == "batch":
                found.append(following)
            elif use.name in _BY_PLACE:
                todo.append(following)
            else:
                return []
    found = list(dict.fromkeys(found))
    return found if all(_is_of(script, batch, source) for batch in found) else []


def _is_of(script: Script, batch: ast.Call, source: ast.Call) -> bool:
    """Whether nothing but this source comes to a `batch`."""
    assert isinstance(batch.func, ast.Attribute)
    found = apart_from_loops(script.values(batch.func.value))
    return all(v.kind == "dataset" and stages(v)[0].node is source for v in found)


def _is_worth_it(script: Script, batches: list[ast.Call]) -> bool:
    for batch in batches:
        sizes = script.values(script.bind(batch, "Dataset.batch").get("batch_size"))
        if any(isinstance(v.literal, int) and v.literal < FEWEST_ROWS for v in sizes):
            return False
    return any(roles(script, batch) & {"training", "validation"} for batch in batches)


def _is_statement_of_its_own(script: Script, source: ast.Call) -> bool:
    """Whether a line above the statement runs as often as the call, and names in it are seen by a lambda."""
    inner: ast.AST = source
    while not isinstance(inner, ast.stmt):
        if isinstance(inner, ast.Lambda | ast.comprehension | ast.IfExp | ast.BoolOp | ast.ListComp | ast.GeneratorExp):
            return False
        inner = script.parents[inner]
    simple = isinstance(inner, ast.Assign | ast.AnnAssign | ast.Expr | ast.Return | ast.For)
    around = next(script.enclosing(inner, ast.ClassDef, *FUNCTIONS), None)
    inside = in_function_of(script, source, "interleave", "flat_map", "map", "apply", "window")
    return simple and not isinstance(around, ast.ClassDef) and not inside


def _not_at_once(script: Script) -> str:
    if mentions := script.mentions("enable_debug_mode"):
        return f"`{script.text(mentions[0])}` ({script.at(mentions[0])}) runs mapped functions late"
    if (script.target.before(2, 0) or graph_mode(script)) and (found := seeds(script)):
        member, call, _ = found[0]
        return f"the graph's seed ({member.at(call)}) would shuffle in another order: the graph has other operations"
    return ""


# -- what ----------------------------------------------------------------------------------------------------


def _leaves(given: ast.expr) -> Iterator[ast.expr]:
    """The arrays in a tuple or dict that is written out."""
    match given:
        case ast.Tuple():
            for part in given.elts:
                yield from _leaves(part)
        case ast.Dict() if None not in given.keys:
            for part in given.values:
                yield from _leaves(part)
        case _:
            yield given


#: Functions of TensorFlow that give one dense tensor.
_DENSE = re.compile(
    r"tensorflow\.(cast|constant|convert_to_tensor|one_hot|reshape|expand_dims|squeeze|concat|stack|transpose|zeros|ones"
    r"|fill|range|gather|float32|identity|where|random\.\w+|math\.\w+|image\.\w+)$|operator$|slice$"
)
#: Methods and attributes of frames and columns of Pandas that give others, or arrays.
_KEEPING = frozenset(
    "values to_numpy astype pop copy drop dropna fillna sample head tail reset_index iloc loc replace map apply".split()
)
_FRAMES = re.compile(r"pandas\.(read_\w+|DataFrame|Series|concat|get_dummies|to_numeric)$")


def _is_no_array(script: Script, leaf: ast.expr) -> str:
    """Why something may be no dense array with rows; "" where it is one."""
    text, where = script.text(leaf), f"({script.at(leaf)})"
    if isinstance(leaf, ast.List | ast.ListComp) or any(
        isinstance(v.node, ast.List | ast.ListComp) for v in script.values(leaf)
    ):
        return f"`{text}` {where} is a list: make an array of it"
    if _is_pandas(script, leaf) or _is_columns(script, leaf):
        return ""
    for value in script.values(leaf):
        dense = value.kind == "tensor" and isinstance(value.node, ast.expr) and _DENSE.match(value.name)
        if value.kind == "array" and not is_drawing(value):
            continue
        if dense and not script.target.before(2, 0) and not graph_mode(script):
            continue
        why = f": {value.name}" if value.kind == "unknown" and value.name else ""
        return f"whether `{text}` {where} is an array is not seen{why}"
    for name in ("ragged", "RaggedTensor", "SparseTensor", "sparse"):
        if mentions := script.mentions(name):
            return f"`{script.text(mentions[0])}` ({script.at(mentions[0])}) makes tensors that `gather` differs on"
    return ""


def _is_pandas(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """`frame["price"].values` and `frame` itself, where Pandas made the frame."""
    if script.values(node) and all(_is_of_pandas(v) for v in script.values(node)):
        return True
    match node:
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute() as inner):
            return _is_pandas(script, inner, depth)
        case ast.Attribute(attr=attr, value=inner):
            return attr in _KEEPING and _is_pandas(script, inner, depth)
        case ast.Name() if depth < 6:
            parts = [b.part if b.kind == "assign" else None for b in script.names.reaching(node)]
            return bool(parts) and all(p is not None and _is_pandas(script, p, depth + 1) for p in parts)
    return False


def _is_of_pandas(value: Value) -> bool:
    if _FRAMES.match(value.name):
        return value.kind != "symbol"
    if value.base is not None and value.kind in ("object", "method", "array"):
        return value.name in _KEEPING and _is_of_pandas(value.base)
    if value.kind == "array" and value.name.endswith(".train_test_split") and isinstance(value.node, ast.Call):
        script, call = value.script, value.node
        return script is not None and bool(call.args) and all(_is_pandas(script, a, 3) for a in call.args)
    return False


def _is_columns(script: Script, leaf: ast.expr) -> bool:
    """`dict(frame)`: a dict of columns."""
    match leaf:
        case ast.Call(args=[frame], keywords=[]) if script.called(leaf) == "builtins.dict":
            return _is_pandas(script, frame)
    return False


def _values(script: Script, leaf: ast.expr) -> int | None:
    """At most how many numbers a row has; None where that is not known."""
    if _is_pandas(script, leaf) or _is_columns(script, leaf):
        return 32  # tables have few columns
    return _most(_of_row(v, leaf) for v in script.values(leaf))


#: Functions whose rows have as many numbers as those of their arguments together, at most.
_SAME = frozenset(
    "cast constant convert_to_tensor expand_dims squeeze reshape identity gather asarray array concatenate concat "
    "stack vstack hstack clip abs train_test_split round where log sqrt exp sin cos tanh sign floor ceil square power "
    "maximum minimum mod".split()
)


def _of_row(value: Value, leaf: ast.expr, depth: int = 0) -> int | None:
    name, script, node = value.name.rpartition(".")[2], value.script, value.node
    if value.kind in ("constant", "symbol"):
        return 1
    if depth > 8 or script is None:
        return None
    parts: list[ast.expr] = []
    match node:
        case ast.Call() if name == "load_data":
            return catalog.IMAGE_VALUES.get(value.name.split(".")[-2])
        case ast.Call(func=ast.Attribute(value=receiver)) if not (
            script.called(node) or any(is_drawing(v) for v in script.values(receiver))
        ):
            parts = [receiver]  # a method of an array
        case ast.Call() if name == "pad_sequences":
            return script.integer(script.bind(node, ("sequences", "maxlen")).get("maxlen"))
        case ast.Call() if name in ("to_categorical", "one_hot"):
            return script.integer(script.bind(node, ("x", "depth")).get("depth")) or 100
        case ast.Call() if name in _SAME:
            parts = [part for e in node.args for part in (e.elts if isinstance(e, ast.Tuple | ast.List) else [e])]
        case ast.UnaryOp():
            parts = [node.operand]
        case ast.BinOp():
            parts = [node.left, node.right]
        case ast.Compare():
            parts = [node.left, *node.comparators]
        case ast.Subscript():
            parts = [node.value]
    if parts:
        numbers = [_most(_of_row(v, part, depth + 1) for v in script.values(part)) for part in parts]
        return None if None in numbers else sum(n for n in numbers if n is not None)
    row = row_of(script, leaf)
    shape = row.shape if isinstance(row, Tensor) else None
    return None if shape is None or None in shape else math.prod(d for d in shape if d is not None)


def _most(numbers: Iterable[int | None]) -> int | None:
    found = list(numbers)
    return None if None in found or not found else max(n for n in found if n is not None)
