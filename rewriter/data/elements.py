"""What the elements of a dataset are: shapes and types, as far as its stages tell for certain.

    element_of(dataset)        # (Tensor((96, 96, 3), "float32"), Tensor((), "int64")); UNKNOWN where it is not told
    size_of(dataset)           # Size(bytes=141_557_760) for all of them; or why that is not known

Only what is written is used: `tf.image.resize(image, (96, 96))` has that shape whatever the image was. Types that are
not certain count as eight bytes, so that a size is never too small.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from .. import catalog
from ..script import Script
from ..training import ENDLESS, elements_of
from ..values import Value
from .pipelines import stages


@dataclass(frozen=True)
class Tensor:
    """A dimension or a shape that is not known is None, a type that is not known is empty."""

    shape: tuple[int | None, ...] | None = None
    dtype: str = ""


#: A tensor, or a tuple or dict of them, as a dataset hands them on.
Element: TypeAlias = "Tensor | tuple[Element, ...] | dict[str, Element]"
UNKNOWN = Tensor()

_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "uint32": 4, "int16": 2, "uint16": 2}
_BYTES |= dict.fromkeys(("uint8", "int8", "bool"), 1) | {"complex128": 16}
_DTYPE = re.compile(r"(?:^|\.)((?:u?int|b?float|complex)\d+|bool|string)$")

_DECODERS = re.compile(r"(io|image)\.(decode_(jpeg|png|image|bmp|gif|and_crop_jpeg|webp))$")
#: Functions whose result has the shape of their first argument: those that keep its type, and those that give floats.
_SAME = re.compile(
    r"(identity|stop_gradient|clip_by_value|abs|negative|square|sqrt|maximum|minimum|ensure_shape"
    r"|(math|nn)\.(abs|negative|square|sqrt|maximum|minimum|add|subtract|multiply|divide|relu|exp|log|sigmoid|tanh)"
    r"|image\.(flip_\w+|adjust_\w+|per_image_standardization|rot90|transpose)"
    r"|add|subtract|multiply|divide|exp|sigmoid|tanh|zeros_like|ones_like)$"
)


@dataclass(frozen=True)
class Size:
    """Bytes of all elements together, at most; where it is None, `why` says what of it is not known."""

    bytes: int | None = None
    why: str = ""

    def __str__(self) -> str:
        assert self.bytes is not None
        for unit, factor in (("GB", 10**9), ("MB", 10**6)):
            if self.bytes >= factor:
                return (
                    f"{self.bytes / factor:.0f} {unit}"
                    if self.bytes >= 10 * factor
                    else f"{self.bytes / factor:.1f} {unit}"
                )
        return f"{max(self.bytes // 1000, 1)} kB"


def size_of(dataset: Value) -> Size:
    """How much memory all elements of a dataset take; batches are counted by what is in them."""
    before = dataset
    batched = [s for s in stages(dataset) if s.name in ("batch", "padded_batch")]
    if batched and batched[0].base is not None:
        before = batched[0].base
    count = elements_of(before)
    if count.number is None or count.number == ENDLESS:
        return Size(None, count.why or "it has no end")
    if any(s.name not in _KEEPING for s in stages(dataset)[len(stages(before)) :]):
        return Size(None, "how large a batch is is not known")
    each = bytes_of(element_of(before))
    if each is None:
        return Size(None, "how large an element is is not known")
    return Size(int(count.number) * each)


#: Data sets of `tensorflow_datasets` whose elements are a text and a label.
_TEXTS = frozenset({"imdb_reviews", "imdb_reviews/plain_text", "ag_news_subset", "yelp_polarity_reviews"})

#: Stages that leave the elements as they are, or put them into batches.
_KEEPING = frozenset(
    "batch shuffle cache prefetch take skip repeat with_options filter shard unbatch rebatch take_while".split()
)


def bytes_of(element: Element) -> int | None:
    """Bytes of one element, at most."""
    if isinstance(element, Tensor):
        if element.shape is None or element.dtype == "string":
            return None
        size = _BYTES.get(element.dtype, 8)
        return None if None in element.shape else math.prod(d for d in element.shape if d is not None) * size
    sizes = [bytes_of(part) for part in (element.values() if isinstance(element, dict) else element)]
    return None if None in sizes or not sizes else sum(s for s in sizes if s is not None)


def element_of(dataset: Value) -> Element:
    """What one element of a dataset is."""
    script, call = dataset.script, dataset.node
    if script is None or not isinstance(call, ast.Call):
        return UNKNOWN
    name = dataset.name.removeprefix("tensorflow.data.")
    if dataset.base is None:
        if name == "Dataset.from_tensor_slices":
            given = script.bind(call, "Dataset.from_tensor_slices").get("tensors")
            return row_of(script, given) if given is not None else UNKNOWN
        if name == "Dataset.range":
            return Tensor((), "int64")
        if dataset.name == "tensorflow_datasets.load":
            asked = script.bind(call, ("name",))
            texts = script.constant(asked.get("name")) in _TEXTS and script.constant(asked.get("as_supervised")) is True
            return (Tensor((), "string"), Tensor((), "int64")) if texts else UNKNOWN
        if name in ("TFRecordDataset", "TextLineDataset", "FixedLengthRecordDataset", "Dataset.list_files"):
            return Tensor((), "string")
        return UNKNOWN
    if dataset.name == "map":
        function = script.bind(call, "Dataset.map").get("map_func")
        return mapped(script, function, element_of(dataset.base)) if function is not None else UNKNOWN
    return element_of(dataset.base) if dataset.name in _KEEPING - {"batch", "unbatch", "rebatch"} else UNKNOWN


def is_even(dataset: Value) -> bool:
    """Whether all elements have the same shapes for certain: rows of arrays."""
    source, *further = stages(dataset)
    script, call = source.script, source.node
    if script is None or not isinstance(call, ast.Call) or any(s.name not in _KEEPING for s in further):
        return False
    if source.name.endswith("Dataset.range"):
        return True
    if not source.name.endswith("Dataset.from_tensor_slices"):
        return False
    todo = list(script.values(script.bind(call, "Dataset.from_tensor_slices").get("tensors")))
    for value in todo:
        if value.kind == "sequence":
            todo += [v for item in value.items for v in item]
        elif value.kind == "mapping" and isinstance(value.node, ast.Dict) and value.script:
            todo += [v for part in value.node.values for v in value.script.values(part)]
        elif value.kind not in ("array", "constant", "splits"):
            return False
    return bool(todo)


def mapped(script: Script, function: ast.expr, element: Element) -> Element:
    """What a function makes of an element."""
    value = script.value(function)
    arguments = element if isinstance(element, tuple) else (element,)
    if value is None or value.script is None:
        return UNKNOWN
    if value.kind in ("function", "method"):
        return _Function(value.script, 0).call(value, arguments)
    return UNKNOWN


# -- what is sliced ------------------------------------------------------------------------------------------

#: Images of `keras.datasets`, all of bytes.
_IMAGES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32, 3), "cifar100": (32, 32, 3)}
_SHAPED = frozenset("zeros ones empty random.random random.rand random.randn random.random_sample".split())


def row_of(script: Script, node: ast.expr) -> Element:
    value = script.value(node)
    if value is None:
        return UNKNOWN
    if value.kind == "sequence" and isinstance(value.node, ast.Tuple) and value.script:
        return tuple(row_of(value.script, e) for e in value.node.elts)
    if value.kind == "mapping" and isinstance(value.node, ast.Dict) and value.script:
        keys = [k.value for k in value.node.keys if isinstance(k, ast.Constant)]
        if len(keys) == len(value.node.values):
            return {str(k): row_of(value.script, v) for k, v in zip(keys, value.node.values, strict=True)}
    if value.kind == "sequence" and value.items:
        first = [v for v in value.items[0]]
        if all(v.kind == "constant" for item in value.items for v in item):
            return Tensor((), _python_type(first[0].literal))
    if is_text_list(script, node):
        return Tensor((), "string")
    if isinstance(value.node, ast.ListComp) and value.script and _is_number(value.script, value.node.elt):
        return Tensor((), "")
    if value.kind == "array":
        return Tensor(_array_shape(value), "")
    return UNKNOWN


_NUMBERS = frozenset(
    "random.randrange random.randint random.random random.uniform random.gauss builtins.int builtins.float "
    "builtins.len builtins.bool builtins.ord".split()
)


def _is_number(script: Script, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression is a number of Python's by how it is made."""
    match node:
        case ast.Constant():
            return isinstance(node.value, int | float)
        case ast.Call():
            return script.called(node) in _NUMBERS
        case ast.BinOp() if depth < 6:
            return all(_is_number(script, side, depth + 1) for side in (node.left, node.right))
        case ast.IfExp() if depth < 6:
            return all(_is_number(script, side, depth + 1) for side in (node.body, node.orelse))
    return False


def _python_type(value: object) -> str:
    return {str: "string", bytes: "string", bool: "bool", int: "int32", float: "float32"}.get(type(value), "")


def _array_shape(value: Value) -> tuple[int | None, ...] | None:
    """The shape of one row of an array that is written out."""
    parts = value.name.split(".")
    script, call = value.script, value.node
    if script is None or not isinstance(call, ast.Call):
        return None
    name = value.name.removeprefix("numpy.")
    if name in ("random.rand", "random.randn"):
        dimensions: Sequence[ast.expr] = call.args
    elif name in _SHAPED | {"random.randint", "random.integers", "random.uniform", "random.normal"}:
        given = next((k.value for k in call.keywords if k.arg in ("shape", "size")), None)
        given = given or (call.args[0] if call.args and name in _SHAPED else None)
        if given is None:
            return None
        dimensions = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    elif parts[-1] == "load_data" and len(parts) > 1:
        return None  # whether they are images or labels is not seen
    else:
        return None
    numbers = [script.integer(d) for d in dimensions]
    return tuple(numbers[1:]) if numbers and None not in numbers else None


_TEXT_METHODS = frozenset(
    "join capitalize lower upper title strip lstrip rstrip replace format decode read strftime casefold".split()
)


def is_text_list(script: Script, node: ast.expr) -> bool:
    """Whether an expression is surely a list (or a column of a CSV file) of strings, each of them alone."""
    while isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        node = node.value
    values = script.values(node)
    return bool(values) and all(_holds_texts(v) for v in values)


def _is_column(script: Script, node: ast.AST) -> bool:
    """`pd.read_csv(...)["text"].values`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="tolist" | "to_list" | "to_numpy" | "astype" | "fillna", value=inner)):
            return _is_column(script, inner)
        case ast.Attribute(attr="values", value=inner):
            return _is_column(script, inner)
        case ast.Subscript(value=frame, slice=ast.Constant(value=str())):
            return all(v.name in ("pandas.read_csv", "pandas.read_table") for v in script.values(frame))
        case ast.Name():
            parts = [b.part for b in script.names.reaching(node)]
            return bool(parts) and all(p is not None and p is not node and _is_column(script, p) for p in parts)
    return False


def _holds_texts(value: Value) -> bool:
    script, node = value.script, value.node
    if script is None:
        return False
    match node:
        case ast.List():
            return bool(value.items) and all(
                v.kind == "constant" and isinstance(v.literal, str) for i in value.items for v in i
            )
        case ast.ListComp():
            return _is_text(script, node.elt, 0)
        case ast.expr():
            return _is_column(script, node)
    return False


def _is_text(script: Script, node: ast.expr, depth: int) -> bool:
    """Whether an expression is a `str` by how it is made."""
    if depth > 6:
        return False
    match node:
        case ast.Constant():
            return isinstance(node.value, str)
        case ast.JoinedStr():
            return True
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            sides = [node.left, node.right] if isinstance(node.op, ast.Add) else [node.left]
            return any(_is_text(script, side, depth + 1) for side in sides)
        case ast.IfExp():
            return _is_text(script, node.body, depth + 1) and _is_text(script, node.orelse, depth + 1)
        case ast.Call(func=ast.Attribute(attr=attr, value=receiver)) if attr in _TEXT_METHODS:
            if attr == "join":
                return isinstance(receiver, ast.Constant) and isinstance(receiver.value, str)
            return _is_text(script, receiver, depth + 1)
        case ast.Call(func=ast.Name(id="str")):
            return True
        case ast.Call():
            called = script.values(node.func)
            return bool(called) and all(
                v.kind == "function"
                and v.script is not None
                and isinstance(v.node, ast.FunctionDef)
                and (results := v.script.returns(v.node))
                and all(_is_text(v.script, r, depth + 1) for r in results)
                for v in called
            )
        case ast.Name():
            parts = [b.part for b in script.names.reaching(node)]
            return bool(parts) and all(
                p is not None and p is not node and _is_text(script, p, depth + 1) for p in parts
            )
    return False


# -- what a function makes -----------------------------------------------------------------------------------


class _Function:
    """Runs through the lines of a function with shapes and types in the place of values."""

    def __init__(self, script: Script, depth: int) -> None:
        self.script, self.depth = script, depth
        self.names: dict[str, Element] = {}

    def call(self, function: Value, arguments: Sequence[Element]) -> Element:
        node = function.node
        if self.depth > 5 or not isinstance(node, ast.FunctionDef | ast.Lambda):
            return UNKNOWN
        parameters = [a.arg for a in [*node.args.posonlyargs, *node.args.args]]
        if isinstance(node, ast.FunctionDef) and isinstance(self.script.parents.get(node), ast.ClassDef):
            static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in node.decorator_list)
            parameters = parameters if static else parameters[1:]
        self.names = dict(zip(parameters, arguments, strict=False))
        if isinstance(node, ast.Lambda):
            return self.of(node.body)
        for statement in node.body:
            match statement:
                case ast.Assign(targets=[target]):
                    self._assign(target, self.of(statement.value))
                case ast.AugAssign(target=ast.Name(id=name)):
                    self.names[name] = self._arithmetic(
                        statement.op, self.of(statement.target), UNKNOWN, statement.value
                    )
                case ast.Expr(value=ast.Call(func=ast.Attribute(attr="set_shape", value=ast.Name(id=name)), args=[s])):
                    self._shaped(name, s)
                case ast.Expr() | ast.Pass() | ast.Assert():
                    pass
                case ast.Return(value=ast.expr() as result):
                    return self.of(result)
                case _:
                    return UNKNOWN
        return UNKNOWN

    def _assign(self, target: ast.expr, value: Element) -> None:
        match target:
            case ast.Name():
                self.names[target.id] = value
            case ast.Tuple() | ast.List():
                parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else ()
                for i, inner in enumerate(target.elts):
                    self._assign(inner, parts[i] if parts else UNKNOWN)
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
                owner = self.names.get(name)
                self.names[name] = {**owner, key: value} if isinstance(owner, dict) else UNKNOWN

    def _shaped(self, name: str, shape: ast.expr) -> None:
        known = self.names.get(name)
        if isinstance(known, Tensor):
            self.names[name] = replace(known, shape=_merged(known.shape, self._dimensions(shape)))

    def of(self, node: ast.expr) -> Element:
        match node:
            case ast.Name():
                return self.names.get(node.id, UNKNOWN)
            case ast.Tuple() | ast.List():
                return tuple(self.of(e) for e in node.elts)
            case ast.Dict():
                keys = [k.value if isinstance(k, ast.Constant) else None for k in node.keys]
                if all(isinstance(k, str) for k in keys):
                    return {str(k): self.of(v) for k, v in zip(keys, node.values, strict=True)}
            case ast.Subscript():
                return self._part(self.of(node.value), node.slice)
            case ast.BinOp():
                return self._arithmetic(node.op, self.of(node.left), self.of(node.right), node.right, node.left)
            case ast.UnaryOp():
                return self.of(node.operand)
            case ast.Call():
                return self._call(node)
        return UNKNOWN

    def _part(self, owner: Element, index: ast.expr) -> Element:
        key = self.script.constant(index)
        if isinstance(owner, dict) and isinstance(key, str):
            return owner.get(key, UNKNOWN)
        if isinstance(owner, tuple) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        return UNKNOWN

    def _arithmetic(
        self, op: ast.operator, left: Element, right: Element, b: ast.expr, a: ast.expr | None = None
    ) -> Element:
        """With a number on one side; tensors of different shapes are left to others."""
        for tensor, number in ((left, b), (right, a)):
            if isinstance(tensor, Tensor) and number is not None and self.script.number(number) is not None:
                divided = isinstance(op, ast.Div) and not tensor.dtype.endswith(("float16", "float32"))
                return replace(tensor, dtype="float64") if divided else tensor
        if isinstance(left, Tensor) and left == right:
            return left
        return UNKNOWN

    def _call(self, call: ast.Call) -> Element:
        arguments: list[ast.expr] = [a for a in call.args if not isinstance(a, ast.Starred)]
        if len(arguments) < len(call.args):
            return UNKNOWN
        callee = self.script.value(call.func)
        if callee is None:
            return UNKNOWN
        if callee.kind == "function" and callee.script and not call.keywords:
            return _Function(callee.script, self.depth + 1).call(callee, [self.of(a) for a in arguments])
        first = self.of(arguments[0]) if arguments else UNKNOWN
        if callee.kind == "layer":
            return _layer(callee, first)
        if callee.kind == "symbol":
            path = catalog.keras_path(callee.name)
            if path.endswith("preprocess_input") and isinstance(first, Tensor):
                return replace(first, dtype="float32")
            if callee.name.startswith("tensorflow."):
                name = callee.name.removeprefix("tensorflow.").removeprefix("compat.v1.")
                return self._operation(name, call, first)
        return UNKNOWN

    def _operation(self, name: str, call: ast.Call, first: Element) -> Element:
        script = self.script
        if _DECODERS.match(name):
            given = script.bind(call, ("contents", "channels"))
            channels = script.integer(given.get("channels"))
            dtype = self._dtype(script.argument(call, "dtype"), "uint8")
            if name.endswith("gif") or (name.endswith("image") and not self._still(call)):
                return Tensor(None, dtype)  # it may have several frames
            return Tensor((None, None, channels or None), dtype)
        if name == "io.read_file":
            return Tensor((), "string")
        if name in ("io.parse_single_example", "parse_single_example", "io.parse_example"):
            return self._features(script.bind(call, ("serialized", "features")).get("features"))
        if not isinstance(first, Tensor):
            return UNKNOWN
        match name:
            case "image.resize" | "image.resize_images":
                size = self._dimensions(script.bind(call, ("images", "size")).get("size"))
                return Tensor(_with_channels(size, first), "float32") if size and len(size) == 2 else UNKNOWN
            case "image.resize_with_pad" | "image.resize_with_crop_or_pad" | "image.resize_image_with_crop_or_pad":
                given = script.bind(call, ("image", "target_height", "target_width"))
                size = (script.integer(given.get("target_height")), script.integer(given.get("target_width")))
                dtype = "float32" if name.endswith("with_pad") else first.dtype
                return Tensor(_with_channels(size, first), dtype)
            case "image.rgb_to_grayscale" | "image.grayscale_to_rgb":
                channels = 1 if name.endswith("grayscale") else 3
                return replace(first, shape=(*first.shape[:-1], channels)) if first.shape else UNKNOWN
            case "cast" | "saturate_cast" | "image.convert_image_dtype":
                return replace(first, dtype=self._dtype(script.bind(call, ("x", "dtype")).get("dtype"), ""))
            case "one_hot":
                depth = script.integer(script.bind(call, ("indices", "depth")).get("depth"))
                dtype = self._dtype(script.argument(call, "dtype"), "float32")
                return Tensor((*first.shape, depth), dtype) if first.shape is not None else UNKNOWN
            case "reshape":
                shape = self._dimensions(script.bind(call, ("tensor", "shape")).get("shape"))
                return replace(first, shape=shape)
            case "expand_dims":
                return replace(first, shape=(*first.shape, 1)) if first.shape is not None else UNKNOWN
            case "squeeze":
                return UNKNOWN
        if name.startswith("image.adjust_") or name == "image.per_image_standardization":
            return replace(first, dtype="float32")
        return first if _SAME.match(name) and self._keeps_shape(call) else UNKNOWN

    def _keeps_shape(self, call: ast.Call) -> bool:
        return all(self.script.number(a) is not None for a in [*call.args[1:], *(k.value for k in call.keywords)])

    def _still(self, call: ast.Call) -> bool:
        return self.script.constant(self.script.argument(call, "expand_animations")) is False

    def _features(self, node: ast.expr | None) -> Element:
        value = self.script.value(node)
        if value is None or value.script is None or not isinstance(value.node, ast.Dict):
            return UNKNOWN
        found: dict[str, Element] = {}
        for key, feature in zip(value.node.keys, value.node.values, strict=True):
            made = value.script.value(feature)
            name = value.script.constant(key)
            if not isinstance(name, str):
                return UNKNOWN
            found[name] = UNKNOWN
            if made and made.name.endswith("FixedLenFeature") and made.script and isinstance(made.node, ast.Call):
                inner = _Function(made.script, self.depth)
                given = made.script.bind(made.node, ("shape", "dtype"))
                shape = inner._dimensions(given.get("shape"))
                found[name] = Tensor(shape, inner._dtype(given.get("dtype"), ""))
        return found

    def _dimensions(self, node: ast.expr | None) -> tuple[int | None, ...] | None:
        """A shape that is written out; -1 and None are dimensions that are not known."""
        value = self.script.value(node)
        if value is None or value.kind != "sequence":
            return None
        found: list[int | None] = []
        for item in value.items:
            literal = item[0].literal if len(item) == 1 and item[0].kind == "constant" else None
            found.append(literal if isinstance(literal, int) and literal >= 0 else None)
        return tuple(found)

    def _dtype(self, node: ast.expr | None, otherwise: str) -> str:
        if node is None:
            return otherwise
        text = self.script.constant(node)
        found = _DTYPE.search(text if isinstance(text, str) else self.script.symbol(node))
        return found[1] if found else ""


def _merged(
    known: tuple[int | None, ...] | None, given: tuple[int | None, ...] | None
) -> tuple[int | None, ...] | None:
    if given is None or known is None or len(known) != len(given):
        return given or known
    return tuple(g if g is not None else k for k, g in zip(known, given, strict=True))


def _with_channels(size: tuple[int | None, ...], image: Tensor) -> tuple[int | None, ...]:
    if image.shape is None or len(image.shape) != 3:
        return (*size, None)
    return (*size, image.shape[-1])


def _layer(layer: Value, given: Element) -> Element:
    """What a preprocessing layer of Keras makes of one element."""
    script, made = layer.script, layer.node
    if script is None or not isinstance(made, ast.Call) or not isinstance(given, Tensor) or layer.cls:
        return UNKNOWN
    match layer.keras:
        case "layers.Rescaling":
            return replace(given, dtype="float32")
        case "layers.Resizing" | "layers.CenterCrop":
            arguments = script.bind(made, ("height", "width"))
            size = (script.integer(arguments.get("height")), script.integer(arguments.get("width")))
            return Tensor(_with_channels(size, given), "float32")
        case "layers.TextVectorization":
            mode = script.argument(made, "output_mode")
            length = script.integer(script.argument(made, "output_sequence_length"))
            if length and (mode is None or script.constant(mode) == "int"):
                return Tensor((length,), "int64")
        case "layers.StringLookup" | "layers.IntegerLookup":
            if script.argument(made, "output_mode") is None:
                return replace(given, dtype="int64")
    return UNKNOWN
