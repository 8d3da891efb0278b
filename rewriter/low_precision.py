"""What Keras's layers do in 16 bits, and which numbers an array may hold: the facts behind `mixed-precision`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .data.rows import gathered
from .script import Script
from .values import Value

#: The largest finite float16, and half of the smallest one above zero (what is smaller is rounded to zero).
HUGE, TINY = 65504.0, 2.0**-25

# -- layers --------------------------------------------------------------------------------------------------

#: Layers that make text or numbers into numbers, whose precision is their own business.
LOOKUPS = frozenset(
    "StringLookup IntegerLookup TextVectorization Hashing HashedCrossing CategoryEncoding Discretization".split()
)
#: Layers whose precision is decided in what they wrap, or in code that is not seen.
NOT_KNOWN = frozenset(
    "DenseFeatures RandomFourierFeatures TFSMLayer JaxLayer FlaxLayer TorchModuleWrapper "
    "AbstractRNNCell Wrapper SpectralNormalization".split()
)
#: Activations whose result cannot leave the range of float16, whatever they are given.
SQUASHING = frozenset("softmax sigmoid hard_sigmoid tanh log_softmax softsign".split())
ACTIVATIONS = frozenset(
    "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear "
    "log_sigmoid log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign "
    "sparse_plus sparse_sigmoid sparsemax squareplus swish tanh tanh_shrink threshold".split()
)

#: Those whose result stays small, so that a recurrent layer with them cannot grow from step to step.
_BOUNDED = frozenset("softmax sigmoid hard_sigmoid tanh hard_tanh softsign relu6 sparsemax sparse_sigmoid".split())
RECURRENT = frozenset("SimpleRNN LSTM GRU ConvLSTM1D ConvLSTM2D ConvLSTM3D".split())

_FAILS_IN_KERAS3 = frozenset(
    "RandomGaussianBlur RandomErasing RandomElasticTransform CutMix MixUp STFTSpectrogram".split()
)
_NO_BFLOAT16_IN_KERAS2 = frozenset("RandomRotation RandomZoom RandomTranslation".split())
_POSITIONS = {
    "GroupNormalization": ("groups", "axis", "epsilon"),
    "Dot": ("axes", "normalize"),
    "dot": ("inputs", "axes", "normalize"),
    **dict.fromkeys(("SimpleRNN", "LSTM", "GRU"), ("units", "activation")),
    **dict.fromkeys(
        ("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
        ("filters", "kernel_size", "strides", "padding", "data_format", "dilation_rate", "activation"),
    ),
}


def needs_float32(script: Script, call: ast.Call, name: str, *, float16: bool, keras2: bool, keras3: bool) -> bool:
    """Does this layer of Keras fail in low precision, or divide by zero, where it does not in float32?

    keras2, keras3: it may run on this Keras. (In float32 a layer casts what it is given, as every layer does.)
    """
    given = script.bind(call, _POSITIONS.get(name, ()))
    if name == "Normalization":  # statistics and raw features do not fit 16 bits
        return True
    if name == "ActivityRegularization" or _is_given(script, given.get("activity_regularizer")):
        return True  # a penalty in 16 bits may overflow, and Keras 3 and own steps cannot add it to the loss
    if keras3 and name in _FAILS_IN_KERAS3:
        return True
    if keras2 and not float16 and name in _NO_BFLOAT16_IN_KERAS2:
        return True
    if not float16:
        return False
    if name == "GroupNormalization" and keras2 and (epsilon := given.get("epsilon")) is not None:
        number = script.number(epsilon)  # (the other normalizations compute in float32 by themselves)
        return number is None or number <= TINY
    if name in RECURRENT and grows(script, call, name):
        return True
    normalize = given.get("normalize") if name in ("Dot", "dot") else None
    return name == "UnitNormalization" or (normalize is not None and script.constant(normalize) is not False)


def grows(script: Script, call: ast.Call, name: str) -> bool:
    """May a recurrent layer, or cell, exceed float16 after many steps: is its activation not bounded?"""
    given = script.bind(call, _POSITIONS[name.removesuffix("Cell")])
    activation = given.get("activation")
    if activation is None:
        return given.open  # (otherwise tanh)
    return not all(
        v.kind in ("constant", "symbol")
        and (str(v.literal) if v.kind == "constant" else v.name.rpartition(".")[2]) in _BOUNDED
        for v in script.values(activation)
    )


def _is_given(script: Script, argument: ast.expr | None) -> bool:
    return argument is not None and not all(v.kind == "constant" and v.literal is None for v in script.values(argument))


def regularizes_activity(layer: Value) -> bool:
    """Has a layer of the script's own a penalty on what it returns?"""
    if layer.script and isinstance(layer.node, ast.Call) and layer.script.argument(layer.node, "activity_regularizer"):
        return True
    assert layer.cls is not None
    if layer.cls.script is None or not isinstance(layer.cls.node, ast.ClassDef):
        return False
    return any(
        (isinstance(node, ast.Attribute) and node.attr == "activity_regularizer" and isinstance(node.ctx, ast.Store))
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "__init__"
            and any(k.arg == "activity_regularizer" for k in node.keywords)
        )
        for script, cls in layer.cls.script.ancestry(layer.cls.node)
        for node in ast.walk(cls)
    )


def prepares(layer: Value) -> bool:
    """Layers that work on the data before training, whose precision is no matter there."""
    name = layer.keras.removeprefix("layers.")
    return name in LOOKUPS or name.startswith("Random") or name in ("Rescaling", "Resizing", "CenterCrop")


# -- arrays --------------------------------------------------------------------------------------------------

#: Functions of NumPy whose numbers are bounded by their first arguments, and the keywords for these.
_FLOAT_RANGES = frozenset("uniform normal linspace full".split())
_INTEGER_RANGES = frozenset("arange randint random_integers integers".split())
_BOUNDS = frozenset("low high loc scale start stop fill_value minval maxval mean stddev".split())
_SMALL = frozenset("sin cos tanh sign log log10 log1p log2 mod remainder clip".split())
#: Functions of NumPy that make floats if no dtype is given.
_FLOATS = frozenset(
    "linspace logspace geomspace zeros ones empty rand randn random random_sample sample uniform normal".split()
)
_SAME_NUMBERS = frozenset("astype reshape copy ravel flatten squeeze".split())


def parts(script: Script, data: ast.expr) -> Iterator[tuple[Script, ast.expr]]:
    """The features in what `fit` is given: the array itself, or that of a dataset which is not mapped."""
    yield script, data
    for value in script.values(data):
        stage: Value | None = value
        while stage is not None and stage.kind == "dataset" and stage.base is not None and stage.name != "map":
            stage = stage.base
        if stage is not None and (arrays := gathered(stage)) is not None:
            owner, given = arrays
            yield owner, given.elts[0] if isinstance(given, ast.Tuple) and given.elts else given
        elif (
            stage is not None
            and stage.name.endswith(("Dataset.from_tensor_slices", "Dataset.from_tensors"))
            and isinstance(stage.node, ast.Call)
            and stage.node.args
            and stage.script
        ):
            given = stage.node.args[0]
            yield stage.script, given.elts[0] if isinstance(given, ast.Tuple) and given.elts else given


def large_numbers(script: Script, start: ast.expr, *, integers: bool = True) -> Iterator[tuple[ast.expr, float]]:
    """Numbers above float16's range that an array is made with, as far as names lead back to them.

    integers: those that an array of integers is made with as well.
    """
    ranges = _FLOAT_RANGES | _INTEGER_RANGES if integers else _FLOAT_RANGES
    todo: list[tuple[ast.expr, int]] = [(start, 0)]
    seen: set[ast.AST] = set()
    while todo:
        expr, depth = todo.pop()
        if expr in seen or depth > 6:
            continue
        seen.add(expr)
        match expr:
            case ast.Name():
                todo.extend((e, depth + 1) for e in _assigned(script, expr))
            case ast.BinOp(op=ast.Div()):
                continue  # scaled down
            case ast.BinOp(op=ast.Mult()) if any(_is_fraction(script, e) for e in (expr.left, expr.right)):
                continue
            case ast.BinOp(op=ast.Sub() | ast.Add() | ast.Mult()):
                for side in (expr.left, expr.right):
                    number = script.number(side)
                    if number is not None and abs(number) > HUGE:
                        yield side, number
                    todo.append((side, depth + 1))
            case ast.Call(func=ast.Attribute() as func):
                name = script.called(expr)
                if func.attr in ranges and (name.startswith(("numpy.", "tensorflow.random.")) or not name):
                    first = int(name.startswith("tensorflow.") or func.attr == "full")  # behind the shape
                    bounds = expr.args[first : 2 if func.attr == "full" else first + 2]
                    for argument in [*bounds, *(k.value for k in expr.keywords if k.arg in _BOUNDS)]:
                        number = script.number(argument)
                        if number is not None and abs(number) > HUGE:
                            yield argument, number
                elif func.attr in _SAME_NUMBERS:
                    todo.append((func.value, depth + 1))
                elif name.startswith("numpy.") and func.attr not in _INTEGER_RANGES | _SMALL:
                    todo.extend((argument, depth + 1) for argument in expr.args[:1])
            case ast.Tuple() | ast.List():
                todo.extend((e, depth + 1) for e in expr.elts)
            case ast.Subscript():
                todo.append((expr.value, depth + 1))


def is_float(script: Script, start: ast.expr) -> bool:
    """Is an array made of floats where that can be seen?"""
    todo, seen = [start], set[ast.AST]()
    while todo:
        expr = todo.pop()
        if expr in seen:
            continue
        seen.add(expr)
        match expr:
            case ast.Constant(value=float()) | ast.BinOp(op=ast.Div()):
                return True
            case ast.Name():
                todo.extend(_assigned(script, expr))
            case ast.Subscript():
                todo.append(expr.value)
            case ast.BinOp():
                todo += [expr.left, expr.right]
            case ast.Tuple() | ast.List():
                todo.extend(expr.elts)
            case ast.Call(func=ast.Attribute() as func):
                name = script.called(expr)
                dtype = script.argument(expr, "dtype")
                if dtype is None and (func.attr == "astype" or name == "tensorflow.cast") and expr.args:
                    dtype = expr.args[-1]
                if dtype is not None:
                    if "float" in ast.unparse(dtype):
                        return True
                elif func.attr in _SAME_NUMBERS:
                    todo.append(func.value)
                elif name.startswith("numpy."):
                    if func.attr in _FLOATS:
                        return True
                    if func.attr == "arange":
                        todo.extend(expr.args)
                    elif func.attr not in _INTEGER_RANGES:
                        todo.extend(expr.args[:1])
    return False


def _is_fraction(script: Script, expr: ast.expr) -> bool:
    number = script.number(expr)
    return number is not None and abs(number) < 1


def _assigned(script: Script, name: ast.Name) -> Iterator[ast.expr]:
    """What a name is assigned; an element of a tuple that is written out."""
    for binding in script.names.reaching(name):
        if binding.kind != "assign" or binding.value is None:
            continue
        value: ast.expr = binding.value
        for index in binding.path:
            if isinstance(value, ast.Tuple) and isinstance(index, int) and index < len(value.elts):
                value = value.elts[index]
        if not (binding.path and isinstance(value, ast.Call)):
            yield value
