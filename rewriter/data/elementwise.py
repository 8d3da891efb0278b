"""Whether a function does to a batch what it does to each of its elements, down to the last bit.

    found = elementwise(script, map_func, element)      # element: what `elements.element_of` says of the dataset
    found.reason, found.node                            # why not; `plain` where it is of no interest to say so
    found.edits                                         # what has to be changed in the function along with it

Only operations that give every number by itself, and rounded as IEEE 754 prescribes, are let through: `tf.exp` and the
like round otherwise where a vector register is full. Shapes are told apart by where they come from: two tensors may be
added where both have the shape of the same input, or one is a number.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..edits import Edit, Rename
from ..scopes import FUNCTIONS
from ..script import Script
from ..values import Value
from .elements import Element, Tensor, bytes_of


@dataclass(frozen=True)
class Piece:
    """A tensor that is made from the inputs. `shape` names where its shape comes from, `of` the inputs in it."""

    shape: str
    of: frozenset[str]
    scalar: bool = False
    open: bool = False  # an input that may be a dict of tensors as well


@dataclass(frozen=True)
class Constant:
    """A number, a string, a type, or None: the same for all elements."""

    value: object = None


Part: TypeAlias = "Piece | Constant | tuple[Part, ...] | dict[str, Part]"


@dataclass
class Found:
    reason: str = ""
    node: ast.AST | None = None
    plain: bool = False
    edits: list[Edit] = field(default_factory=list)


class _No(Exception):
    def __init__(self, reason: str, node: ast.AST, plain: bool = False) -> None:
        self.reason, self.node, self.plain = reason, node, plain


#: One tensor, and constants that say how.
_UNARY = re.compile(
    r"(cast|saturate_cast|identity|stop_gradient|abs|negative|square|floor|round|sign|logical_not|zeros_like|ones_like"
    r"|to_float|to_int32|to_int64|is_nan|image\.convert_image_dtype|nn\.(relu|relu6)"
    r"|math\.(abs|negative|square|sqrt|floor|ceil|round|sign|logical_not|is_nan|is_finite|is_inf)|sqrt"
    r"|(strings|compat\.v1\.strings)\.(lower|upper|strip|regex_replace|regex_full_match|length|substr|to_number|as_string"
    r"|to_hash_bucket|to_hash_bucket_fast|to_hash_bucket_strong)|as_string|string_to_number|substr)$"
)
#: Two tensors of one shape, or a tensor and a number.
_BINARY = re.compile(
    r"(math\.)?(add|subtract|multiply|divide|maximum|minimum|equal|not_equal|greater|greater_equal|less|less_equal"
    r"|logical_and|logical_or|floordiv|floormod|squared_difference)$"
)
#: What is done to single elements by its nature: nothing to say about it.
_SINGLE = re.compile(
    r"(io\.(decode|read|parse_tensor|serialize)\w*|image\.\w+|audio\.\w+|random\.\w+|py_function|numpy_function|py_func"
    r"|read_file|decode_\w+|cond|case|map_fn|signal\.\w+|summary\.\w+|print|numpy|random_\w+|sparse\.\w+)$"
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
_DTYPES = re.compile(r"tensorflow\.(u?int\d+|b?float\d+|bool|string)$")
_SIGNATURES = {
    "one_hot": ("indices", "depth", "on_value", "off_value", "axis", "dtype"),
    "expand_dims": ("input", "axis"),
    "clip_by_value": ("t", "clip_value_min", "clip_value_max"),
    "where": ("condition", "x", "y"),
}
_TEXT_VECTORIZATION = ("max_tokens", "standardize", "split", "ngrams", "output_mode", "output_sequence_length")


def elementwise(script: Script, function: ast.expr, element: Element, even: bool = False) -> Found:
    """Whether `ds.map(function).batch(n)` is `ds.batch(n).map(function)`, for elements of this kind.

    even: all elements have the same shapes, whatever these are.
    """
    walk = _Walk(even)
    try:
        value = script.value(function)
        if value is None:
            raise _No(f"`{script.text(function)}` is not one function", function)
        walk.results(script, value, element, function)
    except _No as no:
        return Found(no.reason, no.node, no.plain)
    return Found(edits=walk.edits)


class _Walk:
    def __init__(self, even: bool) -> None:
        self.even = even
        self.edits: list[Edit] = []
        self.depth = 0

    def results(self, script: Script, function: Value, element: Element, at: ast.expr) -> None:
        parts: list[Element] = list(element) if isinstance(element, tuple) else [element]
        given: list[Part] = []
        names: dict[str, Element] = {}
        node = function.node
        count = _parameters(script, function, len(parts))
        if parts == [Tensor()] and count > 1:
            parts = [Tensor()] * count
        for i, part in enumerate(parts):
            given.append(_piece(part, f"input {i + 1}", names))
        result = self.call(script, function, given, at)
        used: set[str] = set()
        for leaf in _leaves(result):
            if not isinstance(leaf, Piece):
                raise _No(f"it returns a constant, which would not be put into a batch ({script.at(node or at)})", at)
            used |= leaf.of
        for name, part in names.items():
            if name not in used and not self.even and part != Tensor((), "string") and bytes_of(part) is None:
                raise _No("it leaves out a part of its elements, which may not fit into a batch", at)

    # -- functions ------------------------------------------------------------------------------------------

    def call(self, script: Script, callee: Value, given: Sequence[Part], at: ast.AST) -> Part:
        node, owner = callee.node, callee.script
        if callee.kind == "layer":
            return self._layer(callee, script, given, at)
        if callee.kind == "symbol" and callee.name.startswith("tensorflow."):
            return self._operation(callee.name, script, given, {}, at)
        if (
            callee.kind == "method"
            and callee.name == "lookup"
            and callee.base
            and re.match(r"tensorflow\.lookup\.Static\w+$", callee.base.name)
            and len(given) == 1
            and isinstance(given[0], Piece)
        ):
            return replace(given[0], open=False)
        if callee.kind not in ("function", "method") or owner is None or not isinstance(node, FUNCTIONS):
            by_layers = callee.kind == "model"
            raise _No(f"what `{_text(script, at)}` does is not seen ({script.at(at)})", at, by_layers)
        if self.depth > 5 or isinstance(node, ast.AsyncFunctionDef) or owner.is_generator(node):
            raise _No(f"`{callee.name}` is not followed ({script.at(at)})", at)
        if _is_signed(node):
            raise _No(f"the signature of `{callee.name}` is that of one element ({owner.at(node)})", at)
        arguments = node.args
        names = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        if callee.kind == "method" and names:
            names = names[1:]
        if len(names) != len(given) or arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise _No(f"what `{callee.name}` is given is not seen ({script.at(at)})", at)
        self.depth += 1
        try:
            return _Body(self, owner, dict(zip(names, given, strict=True))).run(node)
        finally:
            self.depth -= 1

    # -- operations -----------------------------------------------------------------------------------------

    def _operation(self, name: str, script: Script, given: Sequence[Part], named: dict[str, Part], at: ast.AST) -> Part:
        short = name.removeprefix("tensorflow.")
        given = list(given)
        if short in _SIGNATURES:
            for parameter in _SIGNATURES[short][len(given) :]:
                if parameter in named:
                    named = dict(named)
                    while len(given) < _SIGNATURES[short].index(parameter):
                        given.append(Constant())
                    given.append(named.pop(parameter))
        pieces = [p for p in given if not isinstance(p, Constant)]
        rest = list(named.values())
        constant = all(isinstance(p, Constant) for p in rest)
        first = given[0] if given else None
        if short == "one_hot" and isinstance(first, Piece) and len(pieces) == 1 and constant:
            axis = given[4] if len(given) > 4 else Constant()
            if axis in (Constant(), Constant(-1)):
                return Piece(f"{first.shape}, {len(given)} one-hot {given[1]}", first.of)
        if short == "expand_dims" and isinstance(first, Piece) and given[1:] == [Constant(-1)]:
            return Piece(f"{first.shape}, 1", first.of)
        if short in ("constant", "convert_to_tensor") and isinstance(first, Constant) and _is_number(first):
            return first
        if (
            (_UNARY.match(short) or short == "clip_by_value")
            and isinstance(first, Piece)
            and all(isinstance(p, Constant) for p in given[1:])
            and constant
        ):
            return replace(first, open=False)
        if (_BINARY.match(short) or short == "where") and constant and len(given) in (2, 3):
            return self._together(script, given, at)
        if short == "strings.join" and isinstance(first, tuple) and constant and len(given) < 3:
            return self._together(script, list(first), at)
        plain = bool(_SINGLE.match(short))
        raise _No(
            f"`{_text(script, at)}` may not do to a batch what it does to one element ({script.at(at)})", at, plain
        )

    def _together(self, script: Script, parts: Sequence[Part], at: ast.AST) -> Part:
        pieces = [p for p in parts if isinstance(p, Piece)]
        others = [p for p in parts if not isinstance(p, Piece)]
        numbers = all(isinstance(p, Constant) and (_is_number(p) or isinstance(p.value, str)) for p in others)
        if not pieces and numbers:
            return Constant()
        if not pieces or not numbers or len({p.shape for p in pieces}) != 1:
            raise _No(f"`{_text(script, at)}` may join tensors of different shapes ({script.at(at)})", at)
        return replace(pieces[0], of=frozenset().union(*(p.of for p in pieces)), open=False)

    def parse(self, body: _Body, call: ast.Call) -> Part:
        """`tf.io.parse_single_example` becomes `tf.io.parse_example`, in a function that nothing else uses."""
        script = body.script
        given = script.bind(call, ("serialized", "features"))
        serialized, features = given.get("serialized"), script.value(given.get("features"))
        where = f"({script.at(call)})"
        if given.open or set(given.given) != {"serialized", "features"} or serialized is None:
            raise _No(f"what `{_text(script, call)}` is given is not seen {where}", call)
        record = body.of(serialized)
        function = script.function_of(call)
        if (
            not isinstance(record, Piece)
            or not record.scalar
            or not isinstance(call.func, ast.Attribute)
            or not isinstance(function, ast.FunctionDef)
            or len(script.mentions(function.name)) != 1
            or len(script.aliases(function.name)) != 1
        ):
            raise _No(f"`{script.text(call.func)}` parses one example at a time {where}", call)
        if features is None or not isinstance(features.node, ast.Dict) or features.script is None:
            raise _No(f"which features `{script.text(call.func)}` reads is not seen {where}", call)
        found: dict[str, Part] = {}
        for key, feature in zip(features.node.keys, features.node.values, strict=True):
            made, name = features.script.value(feature), features.script.constant(key)
            if made is None or not made.name.endswith("FixedLenFeature") or not isinstance(name, str):
                raise _No(f"a feature may have another length in every example {where}", call)
            if made.name.endswith("SparseFeature") or not isinstance(made.node, ast.Call) or made.script is None:
                raise _No(f"a feature may have another length in every example {where}", call)
            shape = made.script.value(made.script.bind(made.node, ("shape", "dtype")).get("shape"))
            empty = shape is not None and shape.kind == "sequence" and not shape.items
            found[name] = Piece(f"feature {name}", record.of, scalar=empty)
        self.edits.append(Rename(call.func, "parse_example"))
        return found

    # -- layers and tables ----------------------------------------------------------------------------------

    def _layer(self, layer: Value, script: Script, given: Sequence[Part], at: ast.AST) -> Part:
        where = f"({script.at(at)})"
        owner, made = layer.script, layer.node
        first = given[0] if len(given) == 1 else None
        name = layer.keras.rpartition(".")[2]
        if layer.cls or owner is None or not isinstance(made, ast.Call) or not isinstance(first, Piece):
            raise _No(f"what `{_text(script, at)}` does with a batch is not seen {where}", at, plain=not layer.cls)
        match name:
            case "TextVectorization":
                return self._text(layer, owner, made, first, script, at)
            case "StringLookup" | "IntegerLookup" | "Hashing" | "Discretization":
                mode = owner.argument(made, "output_mode")
                if any(k.arg is None for k in made.keywords) or (mode is not None and owner.constant(mode) != "int"):
                    raise _No(f"with its `output_mode`, `{name}` treats a batch in another way {where}", at)
                return replace(first, open=False)
            case "Rescaling":
                arguments = owner.bind(made, ("scale", "offset"))
                if all(owner.number(a) is not None for n, a in arguments.given.items() if n in ("scale", "offset")):
                    return replace(first, open=False)
        raise _No(f"what `{name}` does with a batch is not known {where}", at, plain=True)

    def _text(self, layer: Value, owner: Script, made: ast.Call, text: Piece, script: Script, at: ast.AST) -> Part:
        where = f"({script.at(at)})"
        arguments = owner.bind(made, _TEXT_VECTORIZATION)
        mode, length = arguments.get("output_mode"), arguments.get("output_sequence_length")
        if arguments.open or any(n in arguments for n in ("ragged", "sparse", "idf_weights")):
            raise _No(f"what `TextVectorization` returns is not seen {where}", at)
        kind = "int" if mode is None else owner.constant(mode)
        if kind == "int" and owner.integer(length) is None:
            raise _No(
                f"without `output_sequence_length`, `TextVectorization` gives a batch the length of its longest text "
                f"{where}",
                at,
            )
        if kind not in ("int", "multi_hot", "count"):
            raise _No(f"`TextVectorization` with its `output_mode` is not known to be the same for a batch {where}", at)
        split = arguments.get("split")
        if split is not None and owner.constant(split) not in ("whitespace", "character"):
            raise _No(f"how `TextVectorization` splits a batch is not seen {where}", at)
        if not text.scalar:
            raise _No(f"whether each element is one string, not a list of them, is not seen {where}", at)
        clean = arguments.get("standardize")
        if clean is not None:
            value = owner.value(clean)
            if value is not None and value.kind in ("function", "method"):
                if self.call(owner, value, [text], clean) != text:
                    raise _No(f"`{owner.text(clean)}` may do something else to a batch ({owner.at(clean)})", at)
            elif value is not None and not (value.kind == "constant" and isinstance(value.literal, str)):
                raise _No(f"what `{owner.text(clean)}` does to a batch is not seen ({owner.at(clean)})", at)
        return Piece(f"{text.shape}, words", text.of)


class _Body:
    """The lines of one function, with pieces in the place of values."""

    def __init__(self, walk: _Walk, script: Script, names: dict[str, Part]) -> None:
        self.walk, self.script, self.names = walk, script, names

    def run(self, function: ast.AST) -> Part:
        if isinstance(function, ast.Lambda):
            return self.of(function.body)
        assert isinstance(function, ast.FunctionDef)
        for statement in function.body:
            match statement:
                case ast.Return(value=ast.expr() as result):
                    return self.of(result)
                case ast.Assign(targets=[target]):
                    self._assign(target, self.of(statement.value))
                case ast.AugAssign(target=ast.Name(id=name), op=op) if isinstance(op, _OPERATORS):
                    if name not in self.names:
                        raise _No(f"`{name}` is changed ({self.script.at(statement)})", statement)
                    parts = [self.names[name], self.of(statement.value)]
                    self.names[name] = self.walk._together(self.script, parts, statement)
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case _:
                    raise _No(f"a statement like this is not followed ({self.script.at(statement)})", statement, True)
        raise _No(f"it returns nothing ({self.script.at(function)})", function)

    def _assign(self, target: ast.expr, value: Part) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = value
                return
            case ast.Tuple(elts=targets) | ast.List(elts=targets) if isinstance(value, tuple):
                if len(targets) == len(value):
                    for inner, part in zip(targets, value, strict=True):
                        self._assign(inner, part)
                    return
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key))):
                owner = self.names.get(name)
                if isinstance(owner, dict):
                    self.names[name] = {**owner, key: value}
                    return
        raise _No(f"what is assigned here is not followed ({self.script.at(target)})", target, True)

    def of(self, node: ast.expr) -> Part:
        script = self.script
        match node:
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.Tuple() | ast.List():
                return tuple(self.of(e) for e in node.elts)
            case ast.Dict() if all(isinstance(k, ast.Constant) and isinstance(k.value, str) for k in node.keys):
                return {str(k.value): self.of(v) for k, v in zip(node.keys, node.values, strict=True)}  # type: ignore
            case ast.Subscript(slice=ast.Constant(value=key)):
                return self._part(node, self.of(node.value), key)
            case ast.BinOp(op=op) if isinstance(op, _OPERATORS):
                if (number := self._constant(node)) is not None:
                    return Constant(number)
                return self.walk._together(script, [self.of(node.left), self.of(node.right)], node)
            case ast.Compare(ops=[_], comparators=[right]):
                return self.walk._together(script, [self.of(node.left), self.of(right)], node)
            case ast.UnaryOp(op=ast.USub() | ast.Invert()) if self._constant(node) is None:
                return self.walk._together(script, [self.of(node.operand)], node)
            case ast.Call():
                return self._call(node)
        if (constant := self._constant(node)) is not None or _is_none(node):
            return Constant(constant)
        if _DTYPES.match(script.symbol(node)):
            return Constant(script.symbol(node))
        plain = isinstance(node, ast.IfExp | ast.BoolOp | ast.Attribute | ast.Subscript)
        raise _No(f"whether `{script.text(node)}` is the same for a batch is not seen ({script.at(node)})", node, plain)

    def _setting(self, node: ast.expr) -> Part:
        """What has to be a single number or string: `"[%s]" % re.escape(string.punctuation)`, `len(labels)`."""
        if any(isinstance(n, ast.Name) and n.id in self.names for n in ast.walk(node)):
            return self.of(node)
        constant = self._constant(node)
        return Constant(ast.unparse(node) if constant is None and not _is_none(node) else constant)

    def _constant(self, node: ast.expr) -> object:
        value = self.script.constant(node)
        return value if isinstance(value, int | float | str | bool) else None

    def _part(self, node: ast.Subscript, owner: Part, key: object) -> Part:
        if isinstance(owner, dict) and key in owner:
            return owner[str(key)]
        if isinstance(owner, tuple) and isinstance(key, int) and -len(owner) <= key < len(owner):
            return owner[key]
        if isinstance(owner, Piece) and owner.open and isinstance(key, str):
            raise _No(f"which other parts its elements have is not seen ({self.script.at(node)})", node, True)
        raise _No(f"`{self.script.text(node)}` takes a part of a tensor ({self.script.at(node)})", node, True)

    def _call(self, call: ast.Call) -> Part:
        script = self.script
        callee = script.value(call.func)
        if callee is None or any(isinstance(a, ast.Starred) for a in call.args):
            raise _No(f"what `{script.text(call.func)}` does is not seen ({script.at(call)})", call)
        if callee.name in ("tensorflow.io.parse_single_example", "tensorflow.parse_single_example"):
            return self.walk.parse(self, call)
        if any(k.arg is None for k in call.keywords):
            raise _No(f"what `{script.text(call)}` is given is not seen ({script.at(call)})", call)
        if (
            callee.kind == "symbol"
            and _SINGLE.match(callee.name.removeprefix("tensorflow."))
            and not _UNARY.match(callee.name.removeprefix("tensorflow."))
        ):
            raise _No(f"`{script.text(call.func)}` works on single elements ({script.at(call)})", call, True)
        settings = callee.kind == "symbol" and re.match(r"tensorflow\.(one_hot|strings\.\w+)$", callee.name)
        given = [self._setting(a) if settings and i else self.of(a) for i, a in enumerate(call.args)]
        named = {
            str(k.arg): self._setting(k.value) if settings else self.of(k.value)
            for k in call.keywords
            if k.arg != "name"
        }
        if callee.kind == "symbol" and callee.name.startswith("tensorflow."):
            return self.walk._operation(callee.name, script, given, named, call)
        if callee.kind == "method" and callee.base and callee.base.kind == "parameter":
            raise _No(f"`{script.text(call)}` is not followed ({script.at(call)})", call, True)
        if named:
            raise _No(f"what `{script.text(call)}` is given is not seen ({script.at(call)})", call)
        return self.walk.call(script, callee, given, call)


def _is_signed(function: ast.AST) -> bool:
    """`@tf.function(input_signature=[...])`, or what may be one."""
    return any(
        isinstance(d, ast.Call) and (len(d.args) > 1 or any(k.arg in (None, "input_signature") for k in d.keywords))
        for d in getattr(function, "decorator_list", ())
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_number(part: Constant) -> bool:
    return isinstance(part.value, int | float)


def _text(script: Script, node: ast.AST) -> str:
    return script.text(node) if isinstance(node, ast.expr) else "this"


def _parameters(script: Script, function: Value, otherwise: int) -> int:
    node = function.node
    if not isinstance(node, ast.FunctionDef | ast.Lambda):
        return otherwise
    count = len([*node.args.posonlyargs, *node.args.args])
    return count - 1 if function.kind == "method" else count


def _piece(element: Element, name: str, names: dict[str, Element]) -> Part:
    if isinstance(element, Tensor):
        names[name] = element
        return Piece(name, frozenset({name}), scalar=element.shape == (), open=element.shape is None)
    if isinstance(element, dict):
        return {key: _piece(part, f"{name} {key}", names) for key, part in element.items()}
    return tuple(_piece(part, f"{name} {i}", names) for i, part in enumerate(element))


def _leaves(part: Part) -> Sequence[Piece | Constant]:
    if isinstance(part, dict):
        return [leaf for p in part.values() for leaf in _leaves(p)]
    if isinstance(part, tuple):
        return [leaf for p in part for leaf in _leaves(p)]
    return [part]
