"""What an expression may be: datasets with their stages, models, layers, optimizers, constants, or unknown.

A lazy abstract evaluation over the syntax tree. An expression has one or more alternatives (branches, several
callers); whatever cannot be followed is an explicit "unknown" with the reason, never left out.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from . import catalog
from .scopes import FUNCTIONS, Binding

if TYPE_CHECKING:
    from .script import Script

#: More alternatives than this are called unknown.
MAX_ALTERNATIVES = 24


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One thing that an expression may be.

    kind: "constant", "symbol" (an object of a library), "function", "class", "sequence", "mapping", "method",
    "parameter", "unknown", or what a call made: "dataset", "model", "layer", "optimizer", "schedule", "callback",
    "loader", "generator", "image-generator", "array", "tensor", "loss", "metric", "object".
    """

    kind: str
    node: ast.AST | None = None  # the call or literal that made it, the def of a function or class
    script: Script | None = None  # where `node` stands
    name: str = ""  # dotted name of the symbol, or of what was called; the method's name; why it is unknown
    base: Value | None = None  # receiver: the dataset before this stage, the object of a method, the layer of a tensor
    cls: Value | None = None  # the script's own class of an object
    items: tuple[tuple[Value, ...], ...] = ()  # alternatives per element of a sequence
    literal: object = None
    length: int | None = None  # samples in an array, where they are known

    @property
    def keras(self) -> str:
        """`layers.Dense` for a `tf.keras` or `keras` object, else empty."""
        return catalog.keras_path(self.name)


Values = tuple[Value, ...]


def unknown(why: str, node: ast.AST | None = None, script: Script | None = None) -> Value:
    return Value("unknown", node, script, why)


def _because(part: Value, otherwise: str) -> str:
    """Why what is made of something is unknown: because that is."""
    if part.kind == "parameter" and part.name:
        return f"callers that are not seen give `{part.name}`"
    return part.name if part.kind == "unknown" and part.name != IN_LOOP else otherwise


#: Why an expression is unknown that was asked for while it was followed: `ds = ds.map(f)` in a loop.
IN_LOOP = "it depends on itself in a loop"


def apart_from_loops(values: Values) -> Values:
    """The alternatives without those of a value that a loop makes from itself, where there are others."""
    return tuple(v for v in values if not (v.kind == "unknown" and v.name == IN_LOOP)) or values


def constant(value: object, node: ast.AST | None = None) -> Value:
    return Value("constant", node, literal=value)


_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_KEEP_LENGTH = frozenset("astype copy clip round".split())
_NUMPY_SHAPED = frozenset(
    "zeros ones empty full random.rand random.randn random.random random.uniform random.normal "
    "random.randint random.integers random.random_sample random.standard_normal".split()
)
#: What draws arrays: `rng = np.random.default_rng(0)`.
_NUMPY_DRAWS = frozenset({"numpy.random.RandomState", "numpy.random.default_rng", "numpy.random.Generator"})


#: Methods that change the length of a list.
_CHANGES = frozenset("append extend insert pop remove clear".split())


def is_drawing(value: Value) -> bool:
    """A generator of random numbers of NumPy's."""
    return value.kind == "array" and value.name in _NUMPY_DRAWS


class Evaluator:
    """Evaluates the expressions of one script; other scripts of the project are asked for what is imported."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._memo: dict[ast.AST, Values] = {}
        self._busy: set[object] = set()

    def __call__(self, node: ast.AST | None) -> Values:
        if node is None:
            return ()
        if node in self._memo:
            return self._memo[node]
        if node in self._busy:
            return (unknown(IN_LOOP, node, self.script),)
        if len(self._busy) > 120:
            return (unknown("it is nested too deeply", node, self.script),)
        self._busy.add(node)
        try:
            found = self._alternatives(self._evaluate(node), node)
        finally:
            self._busy.discard(node)
        if not self._busy:
            self._memo[node] = found
        elif not any(v.kind == "unknown" or (v.base is not None and v.base.kind == "unknown") for v in found):
            self._memo[node] = found  # what was unknown may only have been so on the way that it was asked for
        return found

    def _alternatives(self, values: Iterable[Value], node: ast.AST) -> Values:
        unique: dict[object, Value] = {}
        for v in values:
            key = (
                v.kind,
                v.node if v.kind not in ("constant", "symbol") else None,
                v.name,
                repr(v.literal),
                id(v.base) if v.base else 0,
                len(v.items),
                v.length,
            )
            unique.setdefault(key, v)
        if len(unique) > MAX_ALTERNATIVES:
            return (unknown("it has too many alternatives", node, self.script),)
        return tuple(unique.values()) or (unknown("nothing that was read says what it is", node, self.script),)

    # -- expressions ---------------------------------------------------------------------------------------------

    def _evaluate(self, node: ast.AST) -> Iterable[Value]:
        match node:
            case ast.Constant():
                return (constant(node.value, node),)
            case ast.Name():
                return self._name(node)
            case ast.Attribute():
                return [v for base in self(node.value) for v in self.attribute(base, node.attr, node)]
            case ast.Call():
                return self._call(node)
            case ast.Tuple() | ast.List() | ast.Set():
                if any(isinstance(e, ast.Starred) for e in node.elts):
                    return (Value("object", node, self.script, name="list"),)
                items = tuple(self(e) for e in node.elts)
                return (Value("sequence", node, self.script, type(node).__name__, items=items, length=len(items)),)
            case ast.Dict():
                return (Value("mapping", node, self.script),)
            case ast.Lambda():
                return (Value("function", node, self.script, "lambda"),)
            case ast.IfExp():
                return self(node.body) + self(node.orelse)
            case ast.BoolOp():
                return [v for part in node.values for v in self(part)]
            case ast.NamedExpr():
                return self(node.value)
            case ast.Subscript():
                return [v for base in self(node.value) for v in self._item(base, node)]
            case ast.BinOp():
                return self._binary(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.JoinedStr():
                return (Value("object", node, self.script, name="str"),)
            case ast.ListComp():
                return (Value("object", node, self.script, name="list", length=self._turns(node)),)
            case ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return (Value("object", node, self.script, name="list"),)
            case ast.Compare():
                return (Value("object", node, self.script, name="bool"),)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return (Value("function", node, self.script, node.name),)
            case ast.ClassDef():
                return (Value("class", node, self.script, node.name),)
        return (unknown("expressions like it are not followed", node, self.script),)

    def _name(self, node: ast.Name) -> Iterable[Value]:
        bindings = self.script.names.reaching(node)
        if not bindings:
            star = self.script.from_star(node.id)
            if star:
                return self.symbol(star, node)
            return (
                (Value("symbol", node, self.script, f"builtins.{node.id}"),)
                if not self.script.opaque_star
                else (unknown(f"`{node.id}` may come from a star import", node, self.script),)
            )
        return [v for b in bindings for v in self.binding(b)]

    def binding(self, b: Binding) -> Values:
        """What a name is after this binding."""
        if b.kind == "import":
            return tuple(self.symbol(b.symbol, b.node))
        if b.kind in ("def", "class"):
            decorated = getattr(b.node, "decorator_list", [])
            if b.kind == "def" and decorated and not all(self.is_harmless_decorator(d) for d in decorated):
                return (unknown(f"`{b.name}` is changed by its decorator", b.node, self.script),)
            return self(b.node)
        if b.kind == "parameter":
            return self._parameter(b)
        if b.kind == "with" and b.value is not None and not b.path:
            return self(b.value)
        if b.kind == "loop" and b.value is not None:
            return (Value("parameter", b.node, self.script, b.name),) if b.path else self._element(b)
        if b.kind == "assign" and b.value is not None:
            values = self(b.value)
            for index in b.path:
                values = tuple(v for value in values for v in self.element(value, index))
            return values
        return (unknown(f"what `{b.name}` is given there is not followed", b.node, self.script),)

    def _element(self, b: Binding) -> Values:
        found: list[Value] = []
        for v in self(b.value):
            if v.kind == "sequence" and v.items:
                found.extend(x for item in v.items for x in item)
            elif v.kind == "method" and v.name == "layers":
                found.append(Value("layer", b.node, self.script, "get_layer", base=v.base))
            else:
                found.append(Value("parameter", b.node, self.script, b.name))
        return tuple(found)

    def is_harmless_decorator(self, node: ast.expr) -> bool:
        target = node.func if isinstance(node, ast.Call) else node
        return all(
            v.kind == "symbol"
            and catalog.canonical(v.name)
            in (
                "tensorflow.function",
                "builtins.staticmethod",
                "builtins.classmethod",
                "builtins.property",
                "functools.wraps",
                "tensorflow.autograph.experimental.do_not_convert",
                "functools.lru_cache",
                "tensorflow.keras.utils.register_keras_serializable",
                "keras.saving.register_keras_serializable",
                "keras.utils.register_keras_serializable",
                "abc.abstractmethod",
                "typing.override",
            )
            for v in self(target)
        )

    def _parameter(self, b: Binding) -> Values:
        """A parameter is what its callers give, where every caller is seen; plus its default."""
        assert isinstance(b.node, ast.arg)
        function = self.script.names.parents[self.script.names.parents[b.node]]
        here = Value("parameter", b.node, self.script, b.name)
        if not isinstance(function, ast.FunctionDef):
            return (here,)
        owner = self.script.names.parents.get(function)
        arguments = function.args
        positional = [a.arg for a in [*arguments.posonlyargs, *arguments.args]]
        if (
            isinstance(owner, ast.ClassDef)
            and positional
            and positional[0] == b.name
            and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
        ):
            return (
                Value(
                    self.script.kind_of_class(owner),
                    None,
                    self.script,
                    "self",
                    cls=Value("class", owner, self.script, owner.name),
                ),
            )
        if b.node in (arguments.vararg, arguments.kwarg):
            return (here,)
        key = ("parameter", b.node)
        if key in self._busy:
            return (here,)
        self._busy.add(key)
        try:
            calls = self.script.project.calls_of(function, self.script)
            if not calls:
                return (here,)
            found: list[Value] = []
            for script, call, offset in calls:
                names = tuple(positional[offset:])
                bound = script.bind(call, names)
                given = bound.get(b.name)
                if given is not None:
                    found.extend(script.values(given))
                elif bound.open:
                    found.append(here)
                elif (unsaid := default_of(function, b.name)) is not None:
                    found.extend(self(unsaid))
                else:
                    found.append(here)
            return tuple(found)
        finally:
            self._busy.discard(key)

    # -- symbols, attributes, items ------------------------------------------------------------------------------

    def symbol(self, name: str, node: ast.AST) -> Iterable[Value]:
        """What an imported dotted name is: something of a file beside the script, else a library's object."""
        found = self.script.project.resolve(self.script, name)
        if found is None:
            return (Value("symbol", node, self.script, catalog.canonical(name.lstrip("."))),)
        other, attribute = found
        if not attribute:
            return (Value("module", node, other, name),)
        return other.exported(attribute) or (unknown(f"`{attribute}` is not found in {other.path.name}", node, other),)

    def attribute(self, base: Value, attr: str, node: ast.AST) -> Iterable[Value]:
        if base.kind == "symbol":
            return (Value("symbol", node, self.script, catalog.canonical(f"{base.name}.{attr}")),)
        if base.kind == "module" and base.script:
            if found := base.script.exported(attr):
                return found
            folder = base.script.path.parent
            if base.script.path.name == "__init__.py" and (
                inner := self.script.project.module([folder], attr, base.script.path)
            ):
                return (Value("module", node, inner, attr),)
            return (unknown(f"`{attr}` is not found in {base.script.path.name}", node, self.script),)
        if base.kind == "constant" and base.literal is None:
            return ()  # would raise: cannot be what the script means
        if base.kind == "class" and base.script and isinstance(base.node, ast.ClassDef):
            method = base.script.method(base.node, attr)
            if method:
                return (Value("function", method[1], method[0], attr),)
            if in_body := base.script.assigned_attributes(base.node).get(attr):
                return self._assigned(in_body, attr, node)
        if base.cls is not None and base.cls.script and isinstance(base.cls.node, ast.ClassDef):
            owner = base.cls.script
            method = owner.method(base.cls.node, attr)
            if method and is_property(method[1]):
                return [v for r in method[0].returns(method[1]) for v in method[0].values(r)]
            if method:
                return (Value("method", method[1], method[0], attr, base=base),)
            assigned = owner.assigned_attributes(base.cls.node).get(attr)
            if assigned:
                return self._assigned(assigned, attr, node)
        if base.kind == "array" and attr == "T":
            return (replace(base, node=node, script=self.script, length=None),)
        return (Value("method", node, self.script, attr, base=base),)

    def _assigned(self, places: list[tuple[Script, ast.expr]], attr: str, node: ast.AST) -> list[Value]:
        """What an attribute is that is assigned at these places; a number may be another where more set it."""
        found = [v for s, expr in places for v in s.values(expr)]
        if any(v.kind == "constant" or v.length is not None for v in found) and any(
            s.sets_attribute(attr) for s in self.script.project.scripts.values()
        ):
            found.append(unknown(f"`{attr}` is set in more places", node, self.script))
        return found

    def element(self, value: Value, index: int) -> Values:
        """`value[index]`, for unpacking and constant subscripts."""
        if value.kind == "sequence":
            return value.items[index] if -len(value.items) <= index < len(value.items) else ()
        if value.kind in ("dataset", "tfds", "loaded"):
            return (self._part(value, index),)
        if value.kind == "call-load-data":
            return (self._part(value, index),)
        if value.kind == "splits":
            return (replace(value, kind="array", length=None),)
        if value.kind == "constant" and value.literal is None:
            return ()
        if value.kind in ("tensor", "parameter"):  # one of several outputs of the same call, or of what a caller gives
            return (value,)
        if value.kind == "method" and value.name == "shape" and value.base and value.base.kind == "array":
            if index == 0 and value.base.length is not None:
                return (constant(value.base.length, value.node),)
            return (Value("object", value.node, value.script, "shape"),)
        return (unknown("it is a part of something whose parts are not known", value.node, value.script),)

    def length(self, values: Iterable[Value]) -> int | None:
        """The one length that all alternatives have; a list that grows later has none."""
        lengths = {None if not has_length(v) or self._is_changed(v) else v.length for v in values}
        return lengths.pop() if len(lengths) == 1 else None

    def _is_changed(self, value: Value) -> bool:
        """Whether elements may be added to a list, or taken from it."""
        if not isinstance(value.node, ast.List | ast.ListComp) or value.script is None:
            return False
        for script, use in value.script.flow(value.node):
            parent = script.parents.get(use)
            if isinstance(value.node, ast.ListComp) and isinstance(parent, ast.Call) and use is not parent.func:
                callees = script.values(parent.func)
                if any(v.kind not in ("symbol", "function", "method", "class", "layer", "model") for v in callees):
                    return True
            if isinstance(parent, ast.Attribute) and parent.attr in _CHANGES:
                return True
            if isinstance(parent, ast.AugAssign) or (
                isinstance(parent, ast.Subscript) and parent.value is use and not isinstance(parent.ctx, ast.Load)
            ):
                return True
        return False

    def _turns(self, comprehension: ast.ListComp) -> int | None:
        """How many elements `[f(i) for i in range(9)]` has."""
        match comprehension.generators:
            case [ast.comprehension(iter=source, ifs=[], is_async=0)]:
                pass
            case _:
                return None
        if isinstance(source, ast.Call) and source.args and not source.keywords:
            name = self.script.called(source)
            if name == "builtins.range":
                return length_of_range([self.script.integer(a) for a in source.args])
            if name == "builtins.enumerate":
                source = source.args[0]
        return self.length(self(source))

    def _part(self, value: Value, index: int) -> Value:
        if value.kind == "call-load-data":
            if value.literal is None:
                return replace(value, literal=index)
            sizes = None if _is_filtered(value.node) else catalog.DATASET_SIZES.get(value.name.split(".")[-2])
            return Value(
                "array", value.node, value.script, value.name, length=sizes[int(value.literal == 1)] if sizes else None
            )
        if value.kind == "tfds" or value.name == "tensorflow_datasets.load":  # (train, val), test
            return replace(value, kind="dataset")
        return unknown("it is a part of an element of a dataset", value.node, value.script)

    def _item(self, base: Value, node: ast.Subscript) -> Iterable[Value]:
        index = self.script.integer(node.slice)
        if base.kind in ("sequence", "call-load-data", "splits") and index is not None:
            return self.element(base, index)
        if base.kind == "tfds":
            return (replace(base, kind="dataset"),)
        if base.kind == "sequence" and isinstance(node.slice, ast.Slice):
            return (Value("object", node, self.script, "list"),)
        if base.kind == "array":
            return (replace(base, node=node, script=self.script, length=self._sliced_length(base.length, node.slice)),)
        if base.kind == "method" and base.name == "shape" and index == 0:
            return self.element(base, index)
        if base.kind == "tensor":
            return (Value("tensor", node, self.script, "slice"),)
        if base.kind == "method" and base.name == "layers" and not isinstance(node.slice, ast.Slice):
            return (Value("layer", node, self.script, "get_layer", base=base.base),)
        if base.kind == "mapping" and isinstance(base.node, ast.Dict):
            keys = self(node.slice)
            if len(keys) == 1 and keys[0].kind == "constant" and base.script:
                for key, value in zip(base.node.keys, base.node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == keys[0].literal:
                        return base.script.values(value)
        return (unknown(_because(base, "what its elements are is not known"), node, self.script),)

    def _sliced_length(self, length: int | None, index: ast.expr) -> int | None:
        if isinstance(index, ast.Tuple) and index.elts:
            index = index.elts[0]
            if isinstance(index, ast.Constant) and index.value is Ellipsis:
                return length
        if not isinstance(index, ast.Slice):
            return None
        parts = [None if p is None else self.script.integer(p) for p in (index.lower, index.upper, index.step)]
        if any(p is not None and v is None for p, v in zip((index.lower, index.upper, index.step), parts, strict=True)):
            return None
        if length is None or parts[2] == 0:  # which Python refuses
            return None
        return len(range(length)[slice(*parts)])

    # -- calls ---------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Iterable[Value]:
        found: list[Value] = []
        for callee in self(node.func):
            found.extend(self._result(callee, node))
        return found

    def _result(self, callee: Value, node: ast.Call) -> Iterable[Value]:
        here = (node, self.script)
        match callee.kind:
            case "symbol":
                return self._symbol_call(callee, node)
            case "class":
                kind = callee.script.kind_of_class(callee.node) if callee.script else "object"  # type: ignore[arg-type]
                return (Value(kind, *here, callee.name, cls=callee),)
            case "function":
                return self._returned(callee, node)
            case "method":
                return self._method_call(callee, node)
            case "layer" | "model":
                return (Value("tensor", *here, callee.name, base=callee),)
            case "constant" if callee.literal is None:
                return ()
            case "object" if callee.cls is not None:
                return (Value("object", *here, callee.name),)
        if (
            callee.kind == "unknown"
            and callee.name == IN_LOOP
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in catalog.DATASET_METHODS
        ):
            return (unknown(IN_LOOP, *here),)
        return (unknown(_because(callee, f"what `{self.script.text(node.func)}` returns is not known"), *here),)

    def _returned(self, callee: Value, node: ast.Call) -> Iterable[Value]:
        owner, function = callee.script, callee.node
        assert owner is not None
        if isinstance(function, ast.Lambda):
            return owner.values(function.body)
        if not isinstance(function, ast.FunctionDef):
            return (unknown("it is a coroutine", node, self.script),)
        if owner.is_generator(function):
            return (Value("generator", node, self.script, function.name, base=callee),)
        returns = owner.returns(function)
        if not returns:
            return (constant(None, node),)
        return [v for r in returns for v in owner.values(r)]

    def _symbol_call(self, callee: Value, node: ast.Call) -> Iterable[Value]:
        name, here = callee.name, (node, self.script)
        first = self.script.bind(node, ("0", "1", "2", "3"))
        if name in (
            "tensorflow.data.Dataset.zip",
            "tensorflow.data.Dataset.sample_from_datasets",
            "tensorflow.data.Dataset.choose_from_datasets",
        ):
            return (Value("dataset", *here, name),)
        if name == "tensorflow_datasets.load":
            with_info = self.script.argument(node, "with_info")
            info = with_info is not None and self.script.constant(with_info) is not False
            split = self.script.argument(node, "split")
            several = split is None or any(
                v.kind == "sequence" or v.name in ("list", "builtins.list") for v in self(split)
            )
            data = Value("tfds" if several else "dataset", *here, name)
            return (
                (Value("sequence", *here, "Tuple", items=((data,), (Value("object", *here, "info"),))),)
                if info
                else (data,)
            )
        kind = catalog.kind_of_call(name)
        if kind == "load-data":
            return (Value("call-load-data", *here, name),)
        if kind == "array":
            return (self._numpy(name.removeprefix("numpy."), node),)
        if kind == "layer" and name.endswith(("TimeDistributed", "Bidirectional")):
            return (Value("layer", *here, name),)
        if kind:
            return (Value(kind, *here, name),)
        if name == "functools.partial" and first.get("0") is not None:
            return self(first.get("0"))
        if name in ("builtins.len",) and first.get("0") is not None:
            length = self.length(self(first.get("0")))
            return (constant(length, node),) if length is not None else (Value("object", *here, name),)
        if name in ("builtins.int", "builtins.max", "builtins.min", "math.ceil", "math.floor", "builtins.round"):
            numbers = [self.script.number(a) for a in node.args]
            if numbers and all(n is not None for n in numbers) and not node.keywords:
                function = {"int": int, "max": max, "min": min, "ceil": math.ceil, "floor": math.floor, "round": round}[
                    name.split(".")[-1]
                ]
                try:
                    return (constant(function(*numbers), node),)  # type: ignore[operator]
                except (TypeError, ValueError, OverflowError):
                    pass
            return (Value("object", *here, name),)
        if name == "builtins.dict":
            return (Value("mapping", *here, name),)
        if name == "builtins.super":
            return (Value("object", *here, "super"),)
        path = catalog.keras_path(name)
        if path.startswith("layers.") and path[7:] in catalog.MERGE_FUNCTIONS:
            return (Value("tensor", *here, name),)
        if (
            (name.startswith("tensorflow.") and not path)
            or path in catalog.TENSOR_FUNCTIONS
            or path.startswith(("ops.", "activations."))
        ):
            return (Value("tensor", *here, name),)
        if not name.startswith("builtins.") and any(v.kind == "tensor" for a in node.args[:1] for v in self(a)):
            return (Value("tensor", *here, name),)
        if name.endswith("model_selection.train_test_split"):
            return (Value("splits", *here, name),)
        if path.endswith("sequence.pad_sequences") or path == "utils.pad_sequences":
            return (Value("array", *here, name),)
        if path.startswith("utils.to_categorical") and first.get("0") is not None:
            return tuple(Value("array", *here, name, length=v.length) for v in self(first.get("0")))
        return (Value("object", *here, name),)

    def _numpy(self, name: str, node: ast.Call) -> Value:
        length = None
        argument = node.args[0] if node.args else None
        shape = next((k.value for k in node.keywords if k.arg in ("shape", "size")), None)
        if name in _NUMPY_SHAPED:
            if name in ("random.rand", "random.randn", "zeros", "ones", "empty", "full"):
                shape = shape or argument
            elif shape is None and name.startswith("random.") and node.args:
                shape = (
                    node.args[-1]
                    if len(node.args) > 2 or name in ("random.random", "random.random_sample", "random.standard_normal")
                    else None
                )
            if isinstance(shape, ast.Tuple | ast.List):
                shape = shape.elts[0] if shape.elts else None
            length = self.script.integer(shape) if shape is not None else None
        elif (
            name
            in (
                "array",
                "asarray",
                "expand_dims",
                "float32",
                "squeeze",
                "copy",
                "abs",
                "sin",
                "cos",
                "exp",
                "sqrt",
                "clip",
                "round",
                "log",
                "tanh",
            )
            and argument is not None
        ):
            if (
                name == "expand_dims"
                and self.script.integer(node.args[1] if len(node.args) > 1 else self.script.argument(node, "axis")) == 0
            ):
                return Value("array", node, self.script, name)
            length = self.length(self(argument))
        elif name in ("arange",) and len(node.args) == 1:
            length = self.script.integer(argument)
        elif name == "linspace":
            length = self.script.integer(node.args[2] if len(node.args) > 2 else self.script.argument(node, "num"))
        return Value("array", node, self.script, f"numpy.{name}", length=length)

    def _method_call(self, callee: Value, node: ast.Call) -> Iterable[Value]:
        base, attr, here = callee.base, callee.name, (node, self.script)
        if isinstance(callee.node, FUNCTIONS) and callee.script:  # a method of one of the script's classes
            return self._returned(Value("function", callee.node, callee.script, attr), node)
        assert base is not None
        match base.kind:
            case "dataset" | "tfds":
                if attr in catalog.DATASET_METHODS:
                    return (Value("dataset", *here, attr, base=base),)
                return (Value("iterator" if "iterator" in attr else "object", *here, attr, base=base),)
            case "image-generator":
                if attr.startswith("flow"):
                    return (Value("loader", *here, f"{base.name}.{attr}", base=base),)
            case "array":
                if base.name in _NUMPY_DRAWS:
                    return (self._numpy(f"random.{attr}", node),)
                if attr in _KEEP_LENGTH:
                    return (replace(base, node=node, script=self.script),)
                if attr == "reshape" and node.args:
                    shape = node.args[0].elts if isinstance(node.args[0], ast.Tuple | ast.List) else node.args
                    first = self.script.integer(shape[0]) if shape else None
                    length = first if first is not None and first > 0 else None
                    if length is None and _is_length_of(shape[0] if shape else None):
                        length = base.length
                    if first == -1 and math.prod(
                        self.script.integer(e) or 0 for e in shape[1:]
                    ) == catalog.IMAGE_VALUES.get(base.name.split(".")[-2] if "." in base.name else ""):
                        length = base.length  # the images of `keras.datasets`, with an axis more or one less
                    return (Value("array", *here, base.name, length=length),)
                return (Value("array", *here, base.name),)
            case "model":
                if attr == "get_layer":
                    return (Value("layer", *here, "get_layer", base=base),)
                if attr in ("fit", "fit_generator"):
                    return (Value("history", *here, attr, base=base),)
            case "parameter" | "unknown":
                if attr == "prefetch":
                    return (Value("dataset", *here, attr, base=base),)
                if base.kind == "unknown" and base.name == IN_LOOP and attr in catalog.DATASET_METHODS:
                    return (unknown(IN_LOOP, *here),)
                return (unknown(_because(base, f"what `.{attr}()` is called on is not known"), *here),)
        return (Value("object", *here, attr, base=base),)

    def _binary(self, node: ast.BinOp) -> Iterable[Value]:
        left, right = self(node.left), self(node.right)
        found: list[Value] = []
        for a in left:
            for b in right:
                found.append(self._binary_one(node, a, b))
        return found

    def _binary_one(self, node: ast.BinOp, a: Value, b: Value) -> Value:
        here = (node, self.script)
        if a.kind == b.kind == "constant":
            function = _OPERATORS.get(type(node.op))
            small = isinstance(a.literal, int | float) and isinstance(b.literal, int | float)
            if function and small and not (isinstance(node.op, ast.Pow) and abs(b.literal) > 64):  # type: ignore[arg-type]
                try:
                    return constant(function(a.literal, b.literal), node)
                except (ArithmeticError, TypeError, ValueError):
                    pass
            return Value("object", *here, "constant")
        if "tensor" in (a.kind, b.kind):
            return Value("tensor", *here, "operator")
        if "array" in (a.kind, b.kind):
            if isinstance(node.op, ast.MatMult):
                return Value("array", *here, "operator", length=a.length if a.kind == "array" else None)
            lengths = {v.length for v in (a, b) if v.kind != "constant"}
            name = a.name if b.kind == "constant" else "operator"
            return Value("array", *here, name, length=lengths.pop() if len(lengths) == 1 else None)
        if a.kind == b.kind == "sequence" and isinstance(node.op, ast.Add):
            return Value("sequence", *here, "List", items=a.items + b.items, length=len(a.items) + len(b.items))
        if "unknown" in (a.kind, b.kind) or "parameter" in (a.kind, b.kind):
            return unknown(_because(a, _because(b, "it is computed from something that is not known")), *here)
        return Value("object", *here, "operator")

    def _unary(self, node: ast.UnaryOp) -> Iterable[Value]:
        found = []
        for v in self(node.operand):
            if v.kind == "constant" and isinstance(node.op, ast.USub) and isinstance(v.literal, int | float):
                found.append(constant(-v.literal, node))
            elif v.kind == "array":
                found.append(v)
            elif v.kind == "tensor":
                found.append(Value("tensor", node, self.script, "operator"))
            else:
                found.append(Value("object", node, self.script, "operator"))
        return found


def _is_filtered(call: ast.AST | None) -> bool:
    """A `load_data(...)` that leaves samples out or splits them in its own way: `imdb.load_data(maxlen=80)`."""
    return isinstance(call, ast.Call) and (
        len(call.args) > 3 or any(k.arg in ("maxlen", "test_split", None) for k in call.keywords)
    )


def length_of_range(numbers: Sequence[int | None]) -> int | None:
    """How many numbers `range` gives; None where an argument is not known, or Python refuses it."""
    known = [n for n in numbers if n is not None]
    if len(known) < len(numbers) or not 1 <= len(known) <= 3:
        return None
    try:
        return len(range(*known))
    except (ValueError, OverflowError):  # a step of zero; more numbers than a list can hold
        return None


def has_length(value: Value) -> bool:
    """Whether `length` is that of an array or a list."""
    return value.kind in ("array", "sequence") or isinstance(value.node, ast.ListComp)


def is_property(function: ast.FunctionDef) -> bool:
    return any(
        (d.attr if isinstance(d, ast.Attribute) else getattr(d, "id", "")) in ("property", "cached_property")
        for d in function.decorator_list
    )


def default_of(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> ast.expr | None:
    """The default of a parameter."""
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    for arg, default in zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True):
        if arg.arg == name:
            return default
    for arg, kw_default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        if arg.arg == name:
            return kw_default
    return None


def _is_length_of(node: ast.expr | None) -> bool:
    """`len(x)` or `x.shape[0]`, or -1: reshape that keeps the number of samples in practice."""
    match node:
        case ast.Call(func=ast.Name(id="len")) | ast.Subscript(value=ast.Attribute(attr="shape")):
            return True
    return False
